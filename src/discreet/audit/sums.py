"""White-box estimate of epsilon from canary sums: fit two normal distributions and read epsilon off them.

Each canary has a direction of its own, and its score is the sum over steps of the released sums along it. The scores of
included and of excluded canaries are sums of many small terms, so both are nearly normal. Epsilon at delta then follows
from two means and two variances, which a few hundred canaries determine well.

Guarantee: none. At delta 1e-5 the figure relies on the normal shape far out in the tails, where no score was seen: it
    is an estimate, never a bound.
Paper: arXiv 2606.12733 (formulas derived here).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr
from scipy.stats import chi2
from scipy.stats import t as student

from discreet.accounting.gdp import bisect_up
from discreet.audit.one_run import CONFIDENCE, checked
from discreet.core.errors import DataError, open_probability, positive

LABEL = "estimate"
_LARGEST = 1e4


@dataclass(frozen=True)
class Normal:
    """A mean and a standard deviation."""

    mean: float
    deviation: float


def normal_delta(first: Normal, second: Normal, epsilon: float) -> float:
    """Return the hockey-stick divergence of one normal distribution from another, in closed form.

    The set where the log-ratio exceeds epsilon is bounded by the roots of a quadratic.

    >>> round(normal_delta(Normal(1.0, 1.0), Normal(0.0, 1.0), 1.0), 6)
    0.126937
    """
    a = (1 / second.deviation**2 - 1 / first.deviation**2) / 2
    b = first.mean / first.deviation**2 - second.mean / second.deviation**2
    c = (second.mean**2 / second.deviation**2 - first.mean**2 / first.deviation**2) / 2
    c += math.log(second.deviation / first.deviation) - epsilon
    # the ratio exceeds e^epsilon where a x^2 + b x + c > 0
    if abs(a) < 1e-12 * max(1.0, b * b):
        if b == 0:
            pieces = [(-math.inf, math.inf)] if c > 0 else []
        else:
            pieces = [(-c / b, math.inf)] if b > 0 else [(-math.inf, -c / b)]
    else:
        root = b * b - 4 * a * c
        if root <= 0:
            pieces = [(-math.inf, math.inf)] if a > 0 else []
        else:
            # the stable pair of roots
            q = -(b + math.copysign(math.sqrt(root), b)) / 2
            low, high = sorted((q / a, c / q if q else 0.0))
            pieces = [(-math.inf, low), (high, math.inf)] if a > 0 else [(low, high)]
    factor = math.exp(min(epsilon, 700.0))
    return max(0.0, sum(_mass(first, *piece) - factor * _mass(second, *piece) for piece in pieces))


def _mass(one: Normal, low: float, high: float) -> float:
    below, above = (low - one.mean) / one.deviation, (high - one.mean) / one.deviation
    if below > 0:  # the upper tail without cancellation
        below, above = -above, -below
    return float(ndtr(above) - ndtr(below))


def normal_epsilon(first: Normal, second: Normal, delta: float) -> float:
    """Return epsilon at delta of two normal distributions, in the direction that needs more."""

    def holds(epsilon: float) -> bool:
        return max(normal_delta(first, second, epsilon), normal_delta(second, first, epsilon)) <= delta

    return bisect_up(holds, 0.0, _LARGEST, 1e-6)


def sums_epsilon(scores: npt.ArrayLike, included: npt.ArrayLike, delta: float, confidence: float = CONFIDENCE) -> float:
    """Return an estimate of epsilon at delta: the least over the confidence region of both means and deviations.

    The region is the product of four intervals, each at a quarter of the error.
    """
    open_probability("delta", delta)
    values, bits = checked(scores, included)
    if min(int(bits.sum()), int((~bits).sum())) < 3:
        raise DataError("Expected at least 3 included and 3 excluded canaries. Plant more canaries.")
    miss = (1 - open_probability("confidence", confidence)) / 4
    (in_means, in_deviations), (out_means, out_deviations) = (
        _intervals(values[bits], miss),
        _intervals(values[~bits], miss),
    )
    # the gap of the means that is closest to 0: a smaller gap is never easier to see
    gap = max(in_means[0] - out_means[1], out_means[0] - in_means[1], 0.0)
    return min(
        normal_epsilon(Normal(gap, one), Normal(0.0, other), delta)
        for one in np.linspace(*in_deviations, 9).tolist()
        for other in np.linspace(*out_deviations, 9).tolist()
    )


def _intervals(sample: npt.NDArray[np.float64], miss: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return intervals of the mean and of the standard deviation of a normal sample."""
    n, mean = len(sample), float(sample.mean())
    deviation = positive("deviation", float(sample.std(ddof=1)), "All scores are equal; the canaries were not read.")
    half = float(student.ppf(1 - miss / 2, n - 1)) * deviation / math.sqrt(n)
    low, high = (math.sqrt((n - 1) / float(chi2.ppf(p, n - 1))) * deviation for p in (1 - miss / 2, miss / 2))
    return (mean - half, mean + half), (low, high)
