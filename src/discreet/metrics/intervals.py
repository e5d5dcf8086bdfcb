"""Confidence intervals of means and rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from discreet.core.errors import invalid, open_probability, whole
from discreet.core.randomness import Rng
from discreet.core.rates import lower_rates, upper_rates
from discreet.core.types import Leakage

Floats = npt.NDArray[np.float64]

_FEW = 10  # a bootstrap is unreliable for fewer scores
_AT_ONCE = 2**22  # numbers sampled at a time, to limit memory


def bootstrap(
    values: Sequence[float] | Floats,
    *,
    rng: Rng,
    confidence: float = 0.95,
    draws: int = 2000,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a mean.

    It is approximate and too narrow for few values; a constant sample gives an interval of width 0. For a success rate
    use `clopper_pearson`, which holds for every sample size.

    >>> low, high = bootstrap([0.0, 1.0] * 50, rng=Rng(0))
    >>> 0.38 < low < 0.43 < 0.57 < high < 0.62
    True
    """
    open_probability("confidence", confidence)
    whole("draws", draws, 100, "Fewer draws do not resolve the tails.")
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim != 1 or not sample.size or not np.isfinite(sample).all():
        raise invalid("values", sample.shape, "a one-dimensional array of at least one finite number")
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
    return min(float(low), mean), max(float(high), mean)  # rounding must not exclude the mean


def score_interval(
    values: Sequence[float] | Floats, *, rng: Rng, confidence: float = 0.95, least: float = 0.0
) -> tuple[float, float]:
    """Return an interval of the mean of scores between `least` and 1: the bootstrap, or Hoeffding's where that fails.

    The bootstrap fails for fewer than ten scores and for equal scores. The Chernoff-Hoeffding bound holds for every
    sample size and any spread.

    Paper: Hoeffding 1963, Probability inequalities for sums of bounded random variables, theorem 1.

    >>> [round(limit, 3) for limit in score_interval([0.0], rng=Rng(0))]
    [0.0, 0.975]
    >>> [round(limit, 3) for limit in score_interval([1.0] * 40, rng=Rng(0))]
    [0.912, 1.0]
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.ndim == 1 and sample.size >= _FEW and np.ptp(sample) > 0:
        return bootstrap(sample, rng=rng, confidence=confidence)
    low, high = bootstrap(sample, rng=rng, confidence=confidence)  # rejects invalid values
    mean = (float(sample.mean()) - least) / (1 - least)
    if not -1e-9 <= mean <= 1 + 1e-9:
        raise invalid("values", float(sample.mean()), f"between {least} and 1")
    limits = _hoeffding(min(max(mean, 0.0), 1.0), len(sample), 1 - confidence)
    bounds = [least + (1 - least) * limit for limit in limits]
    return min(low, bounds[0]), max(high, bounds[1])


def _hoeffding(mean: float, count: int, miss: float) -> tuple[float, float]:
    """Return the smallest and largest rate that `count` scores with this mean do not exclude at level `miss`."""
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
    """Return the exact interval of a rate: its coverage is at least the confidence.

    >>> [round(limit, 4) for limit in clopper_pearson(100, 100)]
    [0.9638, 1.0]
    """
    whole("trials", trials)
    whole("successes", successes, 0)
    if successes > trials:
        raise invalid("successes", successes, f"at most trials={trials}")
    tail = (1 - open_probability("confidence", confidence)) / 2
    return float(lower_rates(successes, trials, tail)), float(upper_rates(successes, trials, tail))


def rate_of(metric: str, successes: int, trials: int, chance: float | None) -> Leakage:
    """Return a rate as a leakage with its exact interval."""
    low, high = clopper_pearson(successes, trials)
    return Leakage(metric, successes / trials, low, high, trials, chance)


def share_interval(hits: npt.NDArray[np.bool_], units: npt.NDArray[np.int64]) -> tuple[float, float]:
    """Return the exact interval of a share of rows, as if all rows of a unit had the same outcome.

    >>> rows = np.array([True, True, False, False])
    >>> [round(end, 3) for end in share_interval(rows, np.arange(4))]
    [0.068, 0.932]
    >>> [round(end, 3) for end in share_interval(rows, np.array([0, 0, 1, 1]))]
    [0.013, 0.987]
    """
    count, share = len(np.unique(units)), float(hits.mean())
    low, high = clopper_pearson(round(share * count), count)
    return min(low, share), max(high, share)


Rate = tuple[float, float, float]
