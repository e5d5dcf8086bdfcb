"""Intervals: how far a measured mean or rate may lie from the true one, as pure functions.

Trade-off (ROC) curves of a membership test: how many members it finds at each share of false alarms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from discreet.core.errors import invalid, open_probability, whole
from discreet.core.randomness import Rng

_FEW = 10  # scores of which a bootstrap says too little
_AT_ONCE = 2**22  # numbers drawn in one go, so that a large sample does not fill the memory


def bootstrap(
    values: Sequence[float] | npt.NDArray[np.float64],
    *,
    rng: Rng,
    confidence: float = 0.95,
    draws: int = 2000,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a mean.

    It is approximate, and too narrow for few values; a sample without any spread gives an interval of no width. For a
    rate of successes use `clopper_pearson`, which holds for every sample size.

    >>> low, high = bootstrap([0.0, 1.0] * 50, rng=Rng(0))
    >>> 0.38 < low < 0.43 < 0.57 < high < 0.62
    True
    """
    open_probability("confidence", confidence)
    whole("draws", draws, 100, "Fewer draws do not show the tails.")
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or not np.isfinite(sample).all():
        raise invalid(
            "values",
            sample.shape,
            "a one-dimensional array of finite numbers, at least one",
            "There is no mean of none.",
        )
    size = len(sample)
    means = np.empty(draws)
    step = max(1, _AT_ONCE // size)
    for start in range(0, draws, step):
        count = min(step, draws - start)
        chosen = np.minimum((rng.uniform(count * size) * size).astype(np.int64), size - 1)
        means[start : start + count] = sample[chosen].reshape(count, size).mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    mean = float(sample.mean())
    return min(float(low), mean), max(float(high), mean)  # rounding must not put the mean outside


def score_interval(
    values: Sequence[float] | npt.NDArray[np.float64], *, rng: Rng, confidence: float = 0.95, least: float = 0.0
) -> tuple[float, float]:
    """Return an interval of the mean of scores between `least` and 1: bootstrap, and where that is blind, Hoeffding's.

    Fewer than ten scores, or scores that are all alike, show no spread that a bootstrap could draw from. Chernoff's and
    Hoeffding's bound needs none and holds for every sample size.

    Paper: Hoeffding 1963, Probability inequalities for sums of bounded random variables, theorem 1.

    >>> [round(limit, 3) for limit in score_interval([0.0], rng=Rng(0))]
    [0.0, 0.975]
    >>> [round(limit, 3) for limit in score_interval([1.0] * 40, rng=Rng(0))]
    [0.912, 1.0]
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim == 1 and sample.size >= _FEW and np.ptp(sample) > 0:
        return bootstrap(sample, rng=rng, confidence=confidence)
    low, high = bootstrap(sample, rng=rng, confidence=confidence)  # rejects what has no mean
    mean = (float(sample.mean()) - least) / (1 - least)
    if not -1e-9 <= mean <= 1 + 1e-9:
        raise invalid("values", float(sample.mean()), f"between {least} and 1", "These limits are for such scores.")
    limits = _hoeffding(min(max(mean, 0.0), 1.0), len(sample), 1 - confidence)
    wide = [least + (1 - least) * limit for limit in limits]
    return min(low, wide[0]), max(high, wide[1])


def _hoeffding(mean: float, count: int, miss: float) -> tuple[float, float]:
    """Return the rates whose relative entropy to the mean is what `count` scores may show with probability `miss`."""
    from scipy.special import rel_entr

    allowed = math.log(2 / miss) / count

    def beyond(rate: float) -> bool:
        return float(rel_entr(mean, rate) + rel_entr(1 - mean, 1 - rate)) > allowed

    ends = []
    for outside in (0.0, 1.0):
        inner, outer = mean, outside
        for _ in range(60):
            middle = (inner + outer) / 2
            inner, outer = (inner, middle) if beyond(middle) else (middle, outer)
        ends.append(outer)
    return ends[0], ends[1]


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a rate: it holds the true rate at least as often as it says.

    >>> [round(limit, 4) for limit in clopper_pearson(100, 100)]
    [0.9638, 1.0]
    """
    _check(successes, trials, confidence)
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = float(beta.ppf(tail, successes, trials - successes + 1)) if successes else 0.0
    high = float(beta.ppf(1 - tail, successes + 1, trials - successes)) if successes < trials else 1.0
    return low, high


def wilson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of a rate: close to what it says on average, shorter than the exact one.

    >>> [round(limit, 4) for limit in wilson(100, 100)]
    [0.963, 1.0]
    """
    _check(successes, trials, confidence)
    from scipy.stats import norm

    z = float(norm.ppf((1 + confidence) / 2))
    rate = successes / trials
    centre = (rate + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials)) / (1 + z * z / trials)
    return min(max(0.0, centre - half), rate), max(min(1.0, centre + half), rate)


def _check(successes: int, trials: int, confidence: float) -> None:
    whole("trials", trials, 1, "There is no rate of none.")
    whole("successes", successes, 0)
    if successes > trials:
        raise invalid("successes", successes, f"at most trials={trials}", "")
    open_probability("confidence", confidence)


Floats = npt.NDArray[np.float64]
Rate = tuple[float, float, float]


def true_positive_rates(
    members: Sequence[float] | Floats, others: Sequence[float] | Floats, false_positive_rates: Sequence[float]
) -> list[Rate | None]:
    """Return the share of members found at each share of false alarms, with its exact 95% interval.

    Scores are higher for what looks like a member. The threshold is the lowest at which false alarms are within the
    rate with 95% confidence, so that a few others are not taken to show a rate they cannot show: where even none above
    the threshold would not, there is no figure.

    >>> found = true_positive_rates([3, 4], [1, 2, 0, 1] * 25, [0.05, 0.001])
    >>> found[0][0], found[1]
    (1.0, None)
    """
    inside, outside = np.asarray(members, dtype=np.float64), np.sort(np.asarray(others, dtype=np.float64))[::-1]
    if not inside.size or not outside.size:
        raise invalid("members", inside.size, "at least 1, with at least 1 other", "There is no rate of none.")
    found: list[Rate | None] = []
    for rate in false_positive_rates:
        allowed = _allowed(len(outside), rate)
        if allowed is None:
            found.append(None)
            continue
        hits = len(inside) if allowed == len(outside) else int((inside > outside[allowed]).sum())
        found.append((hits / len(inside), *clopper_pearson(hits, len(inside))))
    return found


def _allowed(others: int, rate: float) -> int | None:
    """Return how many others may stand above the threshold for the rate to hold with 95% confidence."""
    if rate >= 1:
        return others
    low, high = -1, others  # the largest count that shows the rate lies from `low` to below `high`
    while high - low > 1:
        middle = (low + high) // 2
        if clopper_pearson(middle, others, 0.90)[1] <= rate:
            low = middle
        else:
            high = middle
    return None if low < 0 else low
