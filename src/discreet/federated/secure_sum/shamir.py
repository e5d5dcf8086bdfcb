"""Shamir's secret sharing of 32-byte secrets: any `threshold` shares restore the secret, fewer say nothing about it.

A secret is the value at 0 of a polynomial of degree threshold - 1 with uniform coefficients over the integers modulo
the prime 2^256 + 297, and a share is the value at another point. Every secret and every share has a fixed size, so the
size of a message says nothing about them.

Paper: Shamir 1979, How to share a secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from discreet.core.errors import DataError, invalid, whole
from discreet.core.randomness import Rng

PRIME = 2**256 + 297  # the smallest prime above every 32-byte secret
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(secret: bytes, points: Sequence[int], threshold: int, rng: Rng) -> dict[int, bytes]:
    """Return one share of a 32-byte secret for each point; any `threshold` of them restore it.

    Guarantee: fewer than `threshold` shares are independent of the secret if `rng` is secret and uniform.

    >>> shares = split(bytes(range(32)), points=[1, 2, 3], threshold=2, rng=Rng(1))
    >>> combine({point: shares[point] for point in (1, 3)}) == bytes(range(32))
    True
    """
    if len(secret) != SECRET_BYTES:
        raise invalid("secret", f"{len(secret)} bytes", f"{SECRET_BYTES} bytes")
    whole("threshold", threshold)
    if len(set(points)) != len(points) or len(points) < threshold or not all(0 < point < PRIME for point in points):
        raise invalid("points", list(points), f"{threshold} or more different integers >= 1", "One for each share.")
    coefficients = [int.from_bytes(secret, "big"), *(uniform(rng) for _ in range(threshold - 1))]
    return {point: _value(coefficients, point).to_bytes(SHARE_BYTES, "big") for point in points}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret of exactly as many shares as its threshold, by point.

    Wrong shares give a wrong secret or DataError. Compare the result with a public key or a commitment.
    """
    values = {point: int.from_bytes(share, "big") for point, share in shares.items()}
    if not values or any(len(share) != SHARE_BYTES for share in shares.values()) or max(values.values()) >= PRIME:
        raise DataError(f"Expected shares of {SHARE_BYTES} bytes below the prime, got others. A share is damaged.")
    total = 0
    for point, value in values.items():
        above = below = 1
        for other in values:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        total += value * above * pow(below, -1, PRIME)
    secret = total % PRIME
    if secret >= 1 << (8 * SECRET_BYTES):
        raise DataError("Expected the shares of one secret, got shares that do not belong together.")
    return secret.to_bytes(SECRET_BYTES, "big")


def uniform(rng: Rng) -> int:
    """Return an integer that is uniform below the prime, by rejection."""
    while True:
        value = int.from_bytes(rng.bytes(SHARE_BYTES), "big") >> 7  # 257 bits
        if value < PRIME:
            return value


def _value(coefficients: Sequence[int], point: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * point + coefficient) % PRIME
    return value
