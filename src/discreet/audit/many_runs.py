"""Many-run audit of one mechanism or one step: draw the releases of two neighbours many times and tell them apart.

A draw is a number (a score: larger means that the record is more likely present), several scores, or a category (an
integer). The first half of the draws chooses the score and the set of outcomes that tell the neighbours apart best; the
second half, which the choice has not seen, gives exact intervals of the two probabilities of that set, and with them a
lower bound on epsilon at delta.

Paper: Jagielski, Ullman and Oprea 2020, Auditing Differentially Private Machine Learning; Nasr et al. 2023, Tight
Auditing of Differentially Private Machine Learning, for the bound within mu-GDP.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from discreet.core.errors import DataError, open_probability, probability, whole
from discreet.core.randomness import Rng
from discreet.core.rates import lower_rates, upper_rates

CONFIDENCE = 0.95
DRAWS = 200_000  # of each neighbour
_FEWEST = 1000
_THRESHOLDS = 512
_AT_ONCE = 1 << 17

# The release of the record (True) or of its neighbour (False), drawn so many times: one number or one row of numbers
# for each draw if they are scores, integers if they are categories.
Draw = Callable[[bool, int, Rng], npt.NDArray[np.generic]]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Test:
    """A set of outcomes: scores above a threshold, or not above it, and which neighbour is more likely to give them."""

    threshold: float
    above: bool = True
    present: bool = True

    def inside(self, present: Scores, absent: Scores) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which draws of the more likely and of the less likely neighbour are in the set."""
        first, second = ((one > self.threshold) if self.above else (one <= self.threshold) for one in (present, absent))
        return (first, second) if self.present else (second, first)


@dataclass(frozen=True)
class ManyRuns:
    """The result: a lower bound on epsilon at delta, the counts it follows from, and the number of draws behind each.

    `mu` is the lower bound within mu-GDP, from the same two intervals.
    """

    epsilon: float
    delta: float
    confidence: float
    draws: int
    likely: int
    unlikely: int
    mu: float


def audit_many_runs(
    draw: Draw, *, delta: float, rng: Rng, draws: int = DRAWS, confidence: float = CONFIDENCE
) -> ManyRuns:
    """Return a lower bound on the epsilon of a mechanism at delta, from independent draws for two neighbours.

    The bound holds with probability `confidence` for any mechanism whose draws are independent.

    Args:
        draw: Takes the neighbour (True or False), a number of draws and an `Rng`, and returns so many outcomes.
        delta: The delta of the claim.
        rng: The source of the random numbers.
        draws: The number of draws of each neighbour; half of them choose the test.
        confidence: The probability that the bound holds.

    >>> def noisy(present: bool, count: int, rng: Rng) -> Scores:
    ...     return present + rng.numpy().standard_normal(count)
    >>> audit_many_runs(noisy, delta=1e-5, rng=Rng(0)).epsilon < 4.378  # the truth
    True
    """
    probability("delta", delta)
    miss = 1 - open_probability("confidence", confidence)
    half = whole("draws", draws, _FEWEST, "Fewer draws show hardly any epsilon.") // 2
    learning = [_drawn(draw, present, half, rng.fork("choose", int(present))) for present in (True, False)]
    score = scoring(learning[0], learning[1], delta, miss)
    test, _ = best_test(score(learning[0]), score(learning[1]), delta, miss)
    present, absent = (score(_drawn(draw, side, half, rng.fork("test", int(side)))) for side in (True, False))
    likely, unlikely = (int(one.sum()) for one in test.inside(present, absent))
    low, high = float(lower_rates(likely, half, miss / 2)), float(upper_rates(unlikely, half, miss / 2))
    return ManyRuns(_epsilon(low, high, delta), delta, confidence, half, likely, unlikely, _mu(low, high))


def _drawn(draw: Draw, present: bool, count: int, rng: Rng) -> npt.NDArray[np.generic]:
    """Return draws in parts, so that the vectors behind them need not all be in memory."""
    parts = [
        np.asarray(draw(present, min(_AT_ONCE, count - start), rng.fork(start))) for start in range(0, count, _AT_ONCE)
    ]
    drawn = np.concatenate(parts)
    if len(drawn) != count or (drawn.dtype.kind == "f" and np.isnan(drawn).any()):
        raise DataError(f"Expected {count} scores or categories without NaN, got an array of shape {drawn.shape}.")
    return drawn


def scoring(
    present: npt.NDArray[np.generic], absent: npt.NDArray[np.generic], delta: float, miss: float
) -> Callable[..., Scores]:
    """Return the score of an outcome, learned from these draws: itself, or the best of its several scores.

    The score of a category is its log-ratio among these draws.
    """
    if present.dtype.kind == "f" and present.ndim == 1:
        return lambda outcomes: np.asarray(outcomes, dtype=np.float64)
    if present.dtype.kind == "f":
        columns = range(present.shape[1])
        shown = [best_test(_column(present, i), _column(absent, i), delta, miss)[1] for i in columns]
        best = int(np.argmax(shown))
        return lambda outcomes: _column(outcomes, best)
    size = int(max(present.max(), absent.max())) + 1
    counts = [np.bincount(one.astype(np.int64), minlength=size) + 0.5 for one in (present, absent)]
    table = np.log(counts[0]) - np.log(counts[1])

    def score(outcomes: npt.NDArray[np.generic]) -> Scores:
        places = outcomes.astype(np.int64)
        return np.where(places < size, table[np.minimum(places, size - 1)], 0.0)  # a category never seen says nothing

    return score


def _column(outcomes: npt.NDArray[np.generic], place: int) -> Scores:
    return np.asarray(outcomes[:, place], dtype=np.float64)


def best_test(
    present: Scores, absent: Scores, delta: float, miss: float, likely: Sequence[bool] = (True, False)
) -> tuple[Test, float]:
    """Return the test with the largest bound on these draws, which must not be those counted afterwards; and the bound.

    `likely` are the neighbours to consider as the one that is more likely to be in the set: present (True) or absent.
    """
    both = np.sort(np.concatenate((present, absent)))
    places = np.unique(np.linspace(0, len(both) - 1, _THRESHOLDS).astype(int))
    # the tails matter most: quantiles that are equally far apart in the logarithm, at both ends
    tail = np.unique(np.geomspace(1, len(both) / 2, _THRESHOLDS // 2).astype(int))
    values = np.unique(both[np.concatenate((places, tail, len(both) - 1 - tail))])
    # between values: at a value itself, the rounding of the next draws would decide
    thresholds = (values[:-1] + values[1:]) / 2 if len(values) > 1 else values
    n = len(present)
    above = [n - np.searchsorted(np.sort(one), thresholds, side="right") for one in (present, absent)]
    level = miss / (2 * len(thresholds))  # of so many tests: a small set that was only lucky here is not chosen
    best, most = Test(float(thresholds[0]), present=likely[0]), -math.inf
    for is_above, is_present in itertools.product((True, False), likely):
        counts = above if is_above else [n - one for one in above]
        more, less = counts if is_present else counts[::-1]
        bounds = _epsilons(lower_rates(more, n, level), upper_rates(less, n, level), delta)
        place = int(np.argmax(bounds))
        if bounds[place] > most:
            best, most = Test(float(thresholds[place]), is_above, is_present), float(bounds[place])
    return best, most


def _epsilons(likely: Scores, unlikely: Scores, delta: float) -> Scores:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(likely > delta, np.log(np.maximum(likely - delta, 1e-300)) - np.log(unlikely), -np.inf)


def _epsilon(likely: float, unlikely: float, delta: float) -> float:
    return max(0.0, math.log((likely - delta) / unlikely)) if likely > delta else 0.0


def _mu(likely: float, unlikely: float) -> float:
    """Return the smallest mu for which a test can have these rates: Phi^-1(1 - FPR) - Phi^-1(FNR)."""
    if not 0 < likely < 1 or not 0 < unlikely < 1:
        return 0.0
    return max(0.0, float(ndtri(1 - unlikely) - ndtri(1 - likely)))
