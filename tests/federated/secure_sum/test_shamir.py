"""Shares restore a secret, and fewer than the threshold say nothing about it."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import Rng
from discreet.core.errors import DataError, SettingError
from discreet.federated.secure_sum.shamir import PRIME, SHARE_BYTES, combine, split, uniform


@settings(max_examples=40, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 7), st.integers(0, 5), st.integers(0, 10**6))
def test_any_threshold_shares_restore_the_secret(secret: bytes, threshold: int, more: int, seed: int) -> None:
    points = list(range(1, threshold + more + 1))
    shares = split(secret, points, threshold, Rng(seed))
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    for subset in itertools.islice(itertools.combinations(points, threshold), 10):
        assert combine({point: shares[point] for point in subset}) == secret


def test_one_share_less_fits_every_secret() -> None:
    """For t - 1 shares and any other secret there is exactly one polynomial: the shares are independent of it."""
    shares = split(b"\x07" * 32, [1, 2, 3], 3, Rng(5))
    for other in (bytes(32), b"\xff" * 32, b"\x07" * 32):
        # the polynomial through (0, other), (1, s1), (2, s2) is unique; its value at 3 is a valid share
        through = {0: int.from_bytes(other, "big"), **{p: int.from_bytes(shares[p], "big") for p in (1, 2)}}
        value = 0
        for x, y in through.items():
            term = y
            for z in through:
                if z != x:
                    term = term * (3 - z) * pow(x - z, -1, PRIME) % PRIME
            value = (value + term) % PRIME
        third = value.to_bytes(SHARE_BYTES, "big")
        assert combine({1: shares[1], 2: shares[2], 3: third}) == other


def test_shares_below_the_threshold_look_the_same_for_two_secrets() -> None:
    """Two shares of a threshold of 3: their leading bits are uniform for both secrets (chi-square on 16 cells)."""
    rng = Rng(11)
    for secret in (bytes(32), b"\xff" * 32):
        cells = np.zeros(16)
        for _ in range(1600):
            shares = split(secret, [1, 2, 3], 3, rng)
            first, second = (int.from_bytes(shares[point], "big") * 4 // PRIME for point in (1, 2))
            cells[4 * first + second] += 1
        assert ((cells - 100) ** 2 / 100).sum() < 45  # exceeded with probability 8e-5 by 15 degrees of freedom


def test_wrong_shares_are_rejected_or_give_another_secret() -> None:
    shares = split(b"\x01" * 32, [1, 2], 2, Rng(1))
    with pytest.raises(DataError):
        combine({1: shares[1][:-1], 2: shares[2]})
    with pytest.raises(DataError):
        combine({1: b"\xff" * SHARE_BYTES, 2: shares[2]})
    with pytest.raises(DataError):
        combine({})
    with pytest.raises(SettingError):
        split(b"short", [1, 2], 2, Rng(1))
    with pytest.raises(SettingError):
        split(bytes(32), [1, 1], 2, Rng(1))
    with pytest.raises(SettingError):
        split(bytes(32), [0, 1], 2, Rng(1))


def test_the_modulus_is_prime_and_coefficients_are_below_it() -> None:
    rest, twos = PRIME - 1, 0
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    for base in range(2, 42):  # Miller-Rabin
        value = pow(base, rest, PRIME)
        assert value in (1, PRIME - 1) or any(pow(value, 2**k, PRIME) == PRIME - 1 for k in range(twos))
    rng = Rng(3)
    values = [uniform(rng) for _ in range(200)]
    assert max(values) < PRIME and 60 < sum(value > PRIME // 2 for value in values) < 140
