"""Exact samples of Poisson and Skellam numbers, from a seeded or a secure source.

A uniform real number, known by its first 64 bits, is looked up in a table of the cumulative distribution, computed in
integers. If it is too close to an entry to decide, or in the tail beyond the table, further random bits and a table of
twice the precision decide. So the distributions are exact, not approximate, and no floating-point number is involved.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np

from discreet.core.errors import invalid
from discreet.core.randomness import Rng
from discreet.mechanisms.integers import Integers

_LARGEST = 2.0**32  # a table of its mean has 2^21 entries
_GUARD = 64  # extra bits of a table: all its rounding errors together stay below 2^44 of 2^64
_UNSURE = 2  # entries are exact to this many units


def skellam(variance: float, count: int, rng: Rng) -> Integers:
    """Return integers of this variance, each the difference of two Poisson numbers, exactly.

    The sum of independent ones is again of this kind, and the variances add up.

    >>> from discreet import Rng
    >>> skellam(0.001, 3, Rng(1)).tolist()
    [0, 0, 0]
    """
    return poisson(variance / 2, count, rng) - poisson(variance / 2, count, rng)


def poisson(mean: float, count: int, rng: Rng) -> Integers:
    """Return integers k >= 0 with probability e^-mean mean^k / k!, exactly."""
    if not 2.0**-20 <= mean <= _LARGEST:
        raise invalid("mean", mean, "in [2^-20, 2^32]", "Choose a grid closer to the noise scale.")
    first, thresholds = _table(mean, 64)
    words = rng.words(count)
    places = np.searchsorted(thresholds, words, side="right")
    result = (places + first).astype(np.int64)
    # An index is sure if the entries around the word are far enough from it; the subtraction cannot wrap around.
    above = thresholds[np.minimum(places, len(thresholds) - 1)] - words
    below = words - thresholds[np.maximum(places, 1) - 1]
    sure = (places < len(thresholds)) & (above > _UNSURE) & ((places == 0) | (below > _UNSURE))
    for i in np.flatnonzero(~sure):
        result[i] = _slowly(mean, int(words[i]), 64, rng)
    return result


def _slowly(mean: float, word: int, bits: int, rng: Rng) -> int:
    """Return the number of a uniform real number whose first bits are a word, with more bits until it is sure."""
    import bisect

    while True:
        for byte in rng.bytes(bits // 8):
            word = (word << 8) | byte
        bits *= 2
        first, entries = _entries(mean, bits)
        place = bisect.bisect_right(entries, word)
        near = entries[max(place - 1, 0) : place + 1]
        if place < len(entries) and all(abs(entry - word) > _UNSURE for entry in near):
            return first + place


@lru_cache(maxsize=4)
def _table(mean: float, bits: int) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.uint64]]]:
    first, entries = _entries(mean, bits)
    # Entries of 2^64 do not fit; the last word counts as unsure anyway.
    return first, np.array([min(entry, 2**64 - 1) for entry in entries], dtype=np.uint64)


def _entries(mean: float, bits: int) -> tuple[int, list[int]]:
    """Return a first number and 2^bits times the probabilities of at most that number, of one more, and so on.

    Probabilities are multiples of the largest one, in fixed point, from it outwards until they vanish; their sum is
    used as the total. A rounded probability is too small by at most one unit for each step from the largest, and what
    lies outside is less than that times the width of the distribution: below 2^44 units of 2^(bits + 64) together. An
    entry is then wrong by less than `_UNSURE`.
    """
    exact = Fraction(mean)
    top, bottom = exact.numerator, exact.denominator  # a float's denominator is a power of two
    mode = int(mean)
    start = 1 << (bits + _GUARD)
    up, weight, k = [], start, mode
    while weight:
        up.append(weight)
        k += 1
        weight = weight * top // (bottom * k)
    down, weight, k = [], start, mode
    while k and weight:
        weight = weight * bottom * k // top
        k -= 1
        down.append(weight)
    weights = down[::-1] + up
    total, entries, running = sum(weights), [], 0
    for weight in weights:
        running += weight
        entries.append((running << bits) // total)
    return mode - len(down), entries
