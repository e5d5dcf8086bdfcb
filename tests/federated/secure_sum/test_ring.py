"""Fixed-point numbers in a ring: sums are exact, and masks cancel and are uniform."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from discreet.core.errors import DataError, SettingError
from discreet.federated.secure_sum.ring import FixedPoint, Ring

BITS = st.integers(2, 64)


@settings(max_examples=60, deadline=None)
@given(BITS, arrays(np.int64, st.integers(1, 20)), arrays(np.int64, 20))
def test_the_ring_adds_like_integers_modulo_its_size(bits: int, left: np.ndarray, right: np.ndarray) -> None:
    ring = Ring(bits)
    right = right[: len(left)]
    total = ring.reduced(ring.words(left) + ring.words(right))
    for word, a, b in zip(ring.signed(total).tolist(), left.tolist(), right.tolist(), strict=True):
        assert (word - a - b) % 2**bits == 0
        assert -(2 ** (bits - 1)) <= word < 2 ** (bits - 1)


@settings(max_examples=40, deadline=None)
@given(st.integers(20, 64), st.integers(0, 10), arrays(np.float64, (5, 3), elements=st.floats(-100, 100)))
def test_a_sum_of_encoded_vectors_is_exact_to_the_step(bits: int, fraction: int, vectors: np.ndarray) -> None:
    fixed = FixedPoint(Ring(bits), fraction, terms=5)
    vectors = np.clip(vectors, -fixed.largest, fixed.largest)
    total = np.zeros(3, dtype=fixed.ring.dtype)
    for vector in vectors:
        total = fixed.ring.reduced(total + fixed.encode(vector))
    rounded = np.rint(vectors * 2**fraction).sum(0) * fixed.step
    np.testing.assert_array_equal(fixed.decode(total), rounded)
    assert np.abs(rounded - vectors.sum(0)).max() <= 5 * fixed.step / 2 + 1e-12


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e9])
def test_numbers_that_could_wrap_around_are_rejected(value: float) -> None:
    with pytest.raises(DataError):
        FixedPoint(Ring(32), 16, terms=8).encode(np.array([0.0, value]))


def test_settings_that_leave_no_room_are_rejected() -> None:
    for bits in (1, 65, 2.5):
        with pytest.raises(SettingError):
            Ring(bits)  # type: ignore[arg-type]
    with pytest.raises(SettingError):
        FixedPoint(Ring(16), 13, terms=8)


@pytest.mark.parametrize("bits", [16, 20, 32, 40, 64])
@pytest.mark.parametrize("count", [1, 1000, (1 << 18) + 7])
def test_a_mask_can_be_added_and_subtracted(bits: int, count: int) -> None:
    ring = Ring(bits)
    words = ring.words(np.arange(count, dtype=np.int64))
    hidden = words.copy()
    ring.add_mask(hidden, b"k" * 32)
    assert (hidden != words).mean() > 0.99 or count == 1
    assert int(hidden.max()) < 2**bits
    ring.add_mask(hidden, b"k" * 32, subtract=True)
    np.testing.assert_array_equal(hidden, words)


def test_the_stream_is_that_of_aes_256_in_counter_mode() -> None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    count = (1 << 18) + 7
    stream = Cipher(algorithms.AES(b"k" * 32), modes.CTR(bytes(16))).encryptor().update(bytes(4 * count))
    words = np.zeros(count, dtype=np.uint32)
    Ring(32).add_mask(words, b"k" * 32)
    np.testing.assert_array_equal(words, np.frombuffer(stream, dtype="<u4"))
