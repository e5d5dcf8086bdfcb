"""Encrypted vectors: products and sums are right, a wrong key sees nothing, damaged bytes are rejected."""

import numpy as np
import pytest

from discreet.core.ckks import LARGEST, SLOTS, Evaluator, SecretKey, _load
from discreet.core.errors import DataError

KEY, SERVER = SecretKey(), Evaluator()
RNG = np.random.default_rng(0)


def test_a_product_and_a_sum_of_encrypted_numbers() -> None:
    x, y, factor, offset = RNG.normal(size=(4, SLOTS))
    result = SERVER.affine(KEY.encrypt(x), [(factor, offset), (np.zeros(SLOTS), offset)])
    np.testing.assert_allclose(KEY.decrypt(result[0]), factor * x + offset, atol=1e-6)
    # zeros are multiplied as numbers of at most 2^-20
    np.testing.assert_allclose(KEY.decrypt(result[1]), offset, atol=1e-6 + 2.0**-20 * np.abs(x).max())
    np.testing.assert_allclose(KEY.decrypt(SERVER.total([KEY.encrypt(x), KEY.encrypt(y)])), x + y, atol=1e-6)


def test_fewer_numbers_are_filled_up() -> None:
    short, full = KEY.encrypt([1.5]), KEY.encrypt(RNG.normal(size=SLOTS))
    shapes = [_load(KEY._keys, one) for one in (short, full)]
    assert {(one.size(), one.ciphertext()[0].size(), one.ciphertext()[0].poly_modulus_degree()) for one in shapes} == {
        (SLOTS, 2, 2 * SLOTS)
    }
    # The bytes are compressed, so that their number varies with the random numbers: over 700 ciphertexts of 235,070
    # bytes the standard deviation was 96 and the largest deviation 610.
    assert len(short) == pytest.approx(len(full), rel=0.01)
    np.testing.assert_allclose(KEY.decrypt(short), [1.5, *[0.0] * (SLOTS - 1)], atol=1e-6)


def test_equal_numbers_give_different_ciphertexts_and_another_key_sees_noise() -> None:
    first, second = KEY.encrypt([1.0, 2.0]), KEY.encrypt([1.0, 2.0])
    assert first != second
    other = SecretKey().decrypt(first)
    assert np.abs(other).min() > 10 or np.abs(other - KEY.decrypt(first)).max() > 10


def test_a_key_comes_back_from_its_bytes() -> None:
    again = SecretKey.from_bytes(KEY.to_bytes())
    np.testing.assert_allclose(again.decrypt(KEY.encrypt([3.0]))[:1], [3.0], atol=1e-6)
    np.testing.assert_allclose(KEY.decrypt(again.encrypt([4.0]))[:1], [4.0], atol=1e-6)
    assert "object" not in repr(KEY)
    for wrong in (b"", b"key", KEY.to_bytes()[:1000]):
        with pytest.raises(DataError):
            SecretKey.from_bytes(wrong)


@pytest.mark.parametrize("numbers", [[], [np.nan], [np.inf], [2 * LARGEST], np.zeros(SLOTS + 1)])
def test_numbers_that_cannot_be_encrypted(numbers: object) -> None:
    with pytest.raises(DataError):
        KEY.encrypt(numbers)  # type: ignore[arg-type]


def test_damaged_ciphertexts_are_rejected() -> None:
    right = KEY.encrypt([1.0])
    flipped = bytearray(right)
    flipped[60] ^= 255
    for wrong in (b"", b"text", right[:-100], bytes(flipped), right + right, bytes(400_000), "text", None):
        with pytest.raises(DataError):
            SERVER.affine(wrong, [])  # type: ignore[arg-type]
        with pytest.raises(DataError):
            SERVER.total([wrong, right])  # type: ignore[list-item]
    with pytest.raises(DataError):
        SERVER.total([])
    import tenseal

    # a valid vector of these parameters, but with fewer slots
    short = tenseal.ckks_vector(KEY._keys, [1.0, 2.0]).serialize()
    with pytest.raises(DataError):
        SERVER.affine(short, [])
