"""Exact sampling of integers from uniform 64-bit words, from a seeded or a secure source.

Each sample compares a uniform real number, known by its first 64 bits, with a bound. Floating point decides if the
difference exceeds a conservative rounding margin. Otherwise (fewer than one in 10^8 cases for moderate scales) decimal
arithmetic of increasing precision and further random bits decide. So the distributions are exact, not approximate.

`draw_by_cost` samples among many options with weights exp(-cost); every option can be sampled, however small its
weight.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from discreet.core.errors import invalid, whole

if TYPE_CHECKING:
    import torch

    from discreet.core.randomness import Rng


Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# Bounds on the floating-point error: thousands of units in the last place, while library functions guarantee four.
_RELATIVE = 2.0**-44
_ABSOLUTE = 2.0**-40
_WIDEST = 2.0**40


def uniform_below(bound: int, count: int, rng: Rng) -> Integers:
    """Return integers uniform in {0, ..., bound - 1}, exactly.

    >>> from discreet import Rng
    >>> set(uniform_below(3, 100, Rng(1)).tolist())
    {0, 1, 2}
    """
    whole("bound", bound)
    surplus = 2**64 % bound
    words = rng.words(count)
    if surplus:
        # The last few words would favour some of the numbers: sample them again.
        limit = np.uint64(2**64 - surplus)
        rejected = np.flatnonzero(words >= limit)
        while len(rejected):
            words[rejected] = rng.words(len(rejected))
            rejected = rejected[words[rejected] >= limit]
    return (words % np.uint64(bound)).astype(np.int64)


def geometric(scale: float, count: int, rng: Rng) -> Integers:
    """Return integers k >= 0 with P[at least k] = exp(-k / scale), exactly: floor(-scale ln U) for a uniform U."""
    _check(scale)
    words = rng.words(count)
    position = words.astype(np.float64)
    size = -np.log((position + 0.5) * 2.0**-64)
    middle = scale * size
    margin = scale * (2.0 / (position + 0.5) + _RELATIVE * (1 + np.abs(size)))
    low, high = np.floor(np.maximum(middle - margin, 0.0)), np.floor(middle + margin)
    result = low.astype(np.int64)
    exact = Fraction(scale)
    for i in np.flatnonzero(low != high):
        result[i] = _geometric_slowly(int(words[i]), exact, rng)
    return result


def _geometric_slowly(word: int, scale: Fraction, rng: Rng) -> int:
    bits = 64
    while True:
        with decimal.localcontext() as context:
            context.prec = bits // 2 + 40
            factor = decimal.Decimal(scale.numerator) / decimal.Decimal(scale.denominator)
            unit = decimal.Decimal(2) ** bits
            if word > 0:
                upper = -factor * (decimal.Decimal(word) / unit).ln()
                lower = -factor * (decimal.Decimal(word + 1) / unit).ln()
                margin = (1 + upper) * decimal.Decimal(10) ** (20 - context.prec)
                low, high = math.floor(max(lower - margin, decimal.Decimal(0))), math.floor(upper + margin)
                if low == high:
                    return low
        word = (word << 64) | int(rng.words(1)[0])
        bits += 64


def discrete_laplace(scale: float, count: int, rng: Rng) -> Integers:
    """Return integers with probability proportional to exp(-|k| / scale), exactly: a difference of two geometric ones.

    >>> from discreet import Rng
    >>> discrete_laplace(0.01, 3, Rng(1)).tolist()
    [0, 0, 0]
    """
    return geometric(scale, count, rng) - geometric(scale, count, rng)


def discrete_gaussian(sigma: float, count: int, rng: Rng) -> Integers:
    """Return integers with probability proportional to exp(-k^2 / (2 sigma^2)), exactly.

    Paper: Canonne, Kamath and Steinke 2020, The discrete Gaussian for differential privacy (Algorithm 3).
    Differs: coins are decided as described above, vectorized; the paper uses rational arithmetic for one at a time.
    """
    _check(sigma)
    width = math.floor(sigma) + 1
    square = Fraction(sigma) ** 2
    centre = sigma * sigma / width
    result = np.empty(count, dtype=np.int64)
    pending = np.arange(count)
    while len(pending):
        trial = discrete_laplace(float(width), len(pending), rng)
        gap = np.abs(trial) - centre

        def cost(i: int, trial: Integers = trial) -> Fraction:
            return (abs(int(trial[i])) - square / width) ** 2 / (2 * square)

        keep = heads(gap * gap / (2 * sigma * sigma), cost, rng)
        result[pending[keep]] = trial[keep]
        pending = pending[~keep]
    return result


def heads(cost: Floats, exact_cost: Callable[[int], Fraction], rng: Rng) -> npt.NDArray[np.bool_]:
    """Return coins that are true with probability exp(-cost), exactly; `exact_cost(i)` is the cost without rounding."""
    words = rng.words(len(cost))
    uniform = words.astype(np.float64) * 2.0**-64
    probability = np.exp(-cost)
    result = np.asarray(uniform < probability)
    for i in np.flatnonzero(np.abs(uniform - probability) <= _ABSOLUTE):
        result[i] = _heads_slowly(int(words[i]), exact_cost(int(i)), rng)
    return result


def _heads_slowly(word: int, cost: Fraction, rng: Rng) -> bool:
    if cost == 0:
        return True
    bits = 64
    while True:
        with decimal.localcontext() as context:
            context.prec = bits // 2 + 40
            probability = (-decimal.Decimal(cost.numerator) / decimal.Decimal(cost.denominator)).exp()
            margin = decimal.Decimal(10) ** (20 - context.prec)
            low, high = decimal.Decimal(word), decimal.Decimal(word + 1)
            unit = decimal.Decimal(2) ** bits
            if high / unit + margin <= probability:
                return True
            if low / unit - margin >= probability:
                return False
        word = (word << 64) | int(rng.words(1)[0])
        bits += 64


def _check(scale: float) -> None:
    if not 2.0**-10 <= scale <= _WIDEST:
        raise invalid("noise / grid", scale, "in [2^-10, 2^40]", "Choose a grid closer to the noise scale.")


Rows = npt.NDArray[np.int64]


# An option is proposed with a multiple of 2^-40 as its weight; acceptance or rejection accounts for the remainder.
_BITS = 40
_LAST = np.uint64(2**64 - 1)


def draw_by_cost(costs: torch.Tensor, which: Rows, rng: Rng) -> Rows:
    """Return for each entry of `which`, a row of `costs`, an option with probability proportional to exp(-cost).

    `costs` are float64, rows by options, with 0 as the minimum of each row. An option is proposed with probability
    proportional to the integer floor(2^40 e^-cost) + 1, and accepted with probability 2^40 e^-cost over that integer,
    by an unbounded exponential number. So the probabilities are as stated, up to the rounding of a cost, and every
    option is possible. At most one proposal in a million is rejected.

    >>> import torch
    >>> from discreet import Rng
    >>> draw_by_cost(torch.tensor([[0.0, 50.0], [900.0, 0.0]], dtype=torch.float64), np.array([0, 1, 1]), Rng(0))
    array([0, 1, 1])
    """
    import torch

    steps = torch.exp(-costs).mul_(2.0**_BITS).floor_().to(torch.int64).add_(1).cumsum(1).cpu().numpy()
    costs_by_row = costs.cpu().numpy()
    options = np.empty(len(which), dtype=np.int64)
    pending = np.arange(len(which))
    while len(pending):
        rows = which[pending]
        total = steps[rows, -1].astype(np.uint64)
        words = rng.words(len(pending))
        uniform = words <= _LAST - (_LAST % total + np.uint64(1)) % total  # the last few would favour the first options
        proposed = _search(steps, rows, (words % total).astype(np.int64))
        weight = steps[rows, proposed] - np.where(proposed > 0, steps[rows, np.maximum(proposed, 1) - 1], 0)
        least = costs_by_row[rows, proposed] - _BITS * math.log(2) + np.log(weight)
        keep = uniform & (exponentials(len(pending), rng) >= least)
        options[pending[keep]] = proposed[keep]
        pending = pending[~keep]
    return options


def _search(steps: Rows, rows: Rows, values: Rows) -> Rows:
    """Return for each value the first option of its row whose step is larger; each row is searched once."""
    order = np.argsort(rows, kind="stable")
    used, starts = np.unique(rows[order], return_index=True)
    if len(used) == len(rows) == len(steps):  # one sample per row: search all rows at once
        import torch

        sorted_values = torch.from_numpy(values[order])[:, None]
        by_row = torch.searchsorted(torch.from_numpy(steps), sorted_values, right=True)[:, 0].numpy()
        return np.asarray(by_row[rows], dtype=np.int64)
    options = np.empty(len(rows), dtype=np.int64)
    for row, entries in zip(used.tolist(), np.split(order, starts[1:]), strict=True):
        options[entries] = np.searchsorted(steps[row], values[entries], side="right")
    return options


def exponentials(count: int, rng: Rng) -> Floats:
    """Return unbounded exponential numbers of mean 1 with 64 significant bits before rounding.

    >>> from discreet import Rng
    >>> bool(0.9 < exponentials(10_000, Rng(1)).mean() < 1.1)
    True
    """
    first, zeros = rng.words(count), np.zeros(count)
    while (empty := np.flatnonzero(first == 0)).size:  # 64 zero bits: add their size and sample the next word
        zeros[empty] += 64
        first[empty] = rng.words(empty.size)
    second = rng.words(count)
    uniform = first.astype(np.float64) * 2.0**-64 + (second.astype(np.float64) + 0.5) * 2.0**-128
    return np.asarray(zeros * math.log(2) - np.log(uniform))
