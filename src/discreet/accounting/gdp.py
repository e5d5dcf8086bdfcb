"""Gaussian differential privacy: the exact curve of Gaussian noise, and the central-limit estimate for sampled noise.

A mechanism is mu-GDP if distinguishing two neighbours is no easier than distinguishing N(0, 1) from N(mu, 1). Gaussian
noise of standard deviation sigma on a value of L2 sensitivity s is exactly mu-GDP with mu = s / sigma, and k uses
compose to exactly sqrt(k) mu. The central-limit theorem for *sampled* noise is an approximation below the true cost and
is always labelled an estimate.

Paper: Dong, Roth and Su 2022, Gaussian Differential Privacy; Balle and Wang 2018, Improving the Gaussian Mechanism;
Bu, Dong, Long and Su 2020, Deep Learning with Gaussian Differential Privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr, ndtri

from discreet.core.errors import non_negative, open_probability, positive, probability, whole

# Increasing the noise by this relative amount keeps its epsilon within the target: both are rounded up, by 1e-12.
ROUNDING = 1e-11
_NO_DELTA = "Gaussian noise needs a delta above 0, because its loss is unbounded."


def gaussian_deltas(mu: float, epsilons: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the exact delta at each epsilon (of either sign) for N(mu, 1) against N(0, 1)."""
    eps = np.asarray(epsilons, dtype=np.float64)
    if mu == 0:
        return np.maximum(0.0, -np.expm1(eps))
    log_p = log_ndtr(mu / 2 - eps / mu)
    log_q = log_ndtr(-mu / 2 - eps / mu)
    gap = np.minimum(eps + log_q - log_p, 0.0)
    return np.asarray(np.exp(log_p) * -np.expm1(gap), dtype=np.float64)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return the exact delta of a mu-GDP mechanism at epsilon.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    mu = non_negative("mu", mu, "It is sensitivity / standard deviation.")
    return float(gaussian_deltas(mu, epsilon))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the exact epsilon of a mu-GDP mechanism at delta, rounded up.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    mu = non_negative("mu", mu, "It is sensitivity / standard deviation.")
    delta = open_probability("delta", delta, _NO_DELTA)
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # P[loss > eps] <= delta is sufficient, and it is a normal tail.
    return bisect_up(lambda e: gaussian_delta(mu, e) <= delta, 0.0, mu * mu / 2 + mu * float(-ndtri(delta)))


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu that is (epsilon, delta)-private, rounded down.

    >>> [round(1 / gaussian_mu(epsilon, 1e-5), 2) for epsilon in (1.0, 4.0, 10.0)]
    [3.73, 1.08, 0.5]
    """
    epsilon = non_negative("epsilon", epsilon)
    delta = open_probability("delta", delta, _NO_DELTA)
    high = 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    noise = 1.0
    while gaussian_delta(1 / noise, epsilon) > delta:
        noise *= 2
    return 1 / bisect_up(lambda s: gaussian_delta(1 / s, epsilon) <= delta, 1 / high, noise)


def gaussian_noise(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Return the smallest standard deviation of Gaussian noise for (epsilon, delta): the analytic Gaussian mechanism.

    >>> round(gaussian_noise(1.0, 1e-5), 3)
    3.731
    """
    return positive("sensitivity", sensitivity) / gaussian_mu(epsilon, delta)


def gaussian_trade_off(mu: float, false_positive_rate: float) -> float:
    """Return the largest true-positive rate of any test of N(mu, 1) against N(0, 1) at a false-positive rate.

    >>> round(gaussian_trade_off(1.0, 1 / 64), 3)
    0.124
    """
    rate = probability("false_positive_rate", false_positive_rate)
    return float(ndtr(ndtri(rate) + mu))


def central_limit_mu(mu: float, rate: float, steps: int) -> float:
    """Return the central-limit estimate rate sqrt(T(e^mu² - 1)) of mu after T sums over Poisson-sampled records.

    Guarantee: none; it approximates the true curve from below.
    """
    mu = non_negative("mu", mu)
    probability("sampling_rate", rate, "It is a probability: expected batch size / corpus size.")
    try:
        return rate * math.sqrt(whole("steps", steps) * math.expm1(mu * mu))
    except OverflowError:
        return math.inf


def central_limit_step(mu_total: float, rate: float, steps: int) -> float:
    """Return the mu of one step whose central-limit estimate after `steps` is mu_total."""
    return math.sqrt(math.log1p((mu_total / positive("sampling_rate", rate)) ** 2 / whole("steps", steps)))


def central_limit_mu_fixed(mu: float, rate: float, steps: int) -> float:
    """Return the central-limit estimate of mu for fixed-size sampling without replacement, under replace-one.

    Guarantee: none; it approximates the true curve from below.
    """
    try:
        spread = math.exp(mu * mu) * float(ndtr(1.5 * mu)) + 3 * float(ndtr(-0.5 * mu)) - 2
    except OverflowError:
        return math.inf
    return rate * math.sqrt(2 * steps * max(spread, 0.0))


def bisect_up(holds: Callable[[float], Any], low: float, high: float, relative: float = 1e-12) -> float:
    """Return the smallest number in [low, high] at and above which a condition holds, by bisection, rounded up."""
    if holds(low):
        return low
    while high - low > relative * max(abs(low), abs(high)):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if holds(middle):
            high = middle
        else:
            low = middle
    return high
