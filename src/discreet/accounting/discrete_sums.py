"""Renyi divergences of integer noise that several clients add together: sums of discrete Gaussians, and Skellam noise.

Both are bounded by lines xi + rho a in the order a, up to a few. A sum of n discrete Gaussians of parameter sigma is
within a factor e^(+-tau) of one discrete Gaussian of parameter sigma sqrt(n) in each coordinate, with tau below 1e-37
for sigma >= 3. The bounds for Skellam noise hold at integer orders; between two of them (a - 1) times the divergence is
convex in a, so that it lies below its chord.

On a fine grid a discrete Gaussian vector is also close to a Gaussian vector that is rounded to integers, which is
post-processing: `gaussian_sum` returns nearly the exact curve of Gaussian noise.

Paper: Kairouz, Liu and Steinke 2021, The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation (Proposition 14); Agarwal, Kairouz and Liu 2021, The Skellam Mechanism for Differentially Private Federated
Learning (Corollary 3.6); van Erven and Harremoes 2014, Renyi divergence and Kullback-Leibler divergence (convexity).
"""

from __future__ import annotations

import math

import numpy as np

from discreet.accounting.curve import Array, Curve, concentrated, convex, gaussian, mirrored
from discreet.accounting.events import DiscreteGaussianSumDpEvent, SkellamDpEvent
from discreet.accounting.gdp import gaussian_deltas

Line = tuple[float, float]  # rho and xi
_RARE = 60.0  # a set of probability e^-60 is left out
_LARGEST_SLACK = 0.1


def lines_of(use: DiscreteGaussianSumDpEvent | SkellamDpEvent) -> list[Line]:
    """Return lines (rho, xi) that bound the divergence by xi + rho a: at every order, for Skellam at integers.

    >>> [(rho, xi)] = set(lines_of(DiscreteGaussianSumDpEvent(10.0, 4, 5.0, 25.0, 100)))
    >>> rho == 5**2 / (2 * 4 * 10**2), xi < 1e-100
    (True, True)
    """
    l2, l1 = float(use.l2_sensitivity), float(use.l1_sensitivity)
    if isinstance(use, SkellamDpEvent):
        v = float(use.variance)
        gaussian = l2 * l2 / (2 * v)
        return [(gaussian + l2 * l2 / (2 * v * v), max(6 * l1 - l2 * l2, 0.0) / (4 * v * v)), (gaussian, 1.5 * l1 / v)]
    std, d, tau = use.sigma * math.sqrt(use.terms), use.dimension, closeness(use.sigma, use.terms)
    x2, x1 = l2 / std, l1 / std
    return [
        (x2 * x2 / 2, tau * d),
        ((x2 * x2 + 2 * x1 * tau + tau * tau * d) / 2, 0.0),
        ((x2 + math.sqrt(d) * tau) ** 2 / 2, 0.0),
    ]


def closeness(sigma: float, terms: int) -> float:
    """Return tau for a sum of discrete Gaussians of parameter sigma; 0 for a single one.

    >>> closeness(1.0, 1), 5e-4 < closeness(1.0, 2) < 6e-4, closeness(3.0, 1000) < 1e-35
    (0.0, True, True)
    """
    # the terms k / (k + 1) increase with k, so all but the first thousand are at most the thousandth
    listed = min(terms - 1, 1000)
    k = np.arange(1, listed + 1)
    logs = -2 * (math.pi * sigma) ** 2 * k / (k + 1)
    rest = (terms - 1 - listed) * math.exp(float(logs[-1])) if listed else 0.0
    return 10 * (float(np.exp(logs).sum()) + rest)


def divergence(lines: list[Line], orders: Array) -> Array:
    """Return the least of the lines at every order."""
    return np.asarray(np.min([xi + rho * orders for rho, xi in lines], axis=0), dtype=np.float64)


def at_real_orders(lines: list[Line], orders: Array) -> Array:
    """Return bounds at real orders from lines that hold at integers a > 1, by the chords of (a - 1) divergence.

    >>> at_real_orders([(1.0, 0.5)], np.array([1.5, 2.0, 2.5])).tolist()
    [2.5, 2.5, 3.1666666666666665]
    """
    below = np.floor(orders)
    weight = orders - below
    first, second = ((k - 1) * divergence(lines, k) for k in (below, below + 1))  # zero at order 1
    return np.asarray(((1 - weight) * first + weight * second) / (orders - 1), dtype=np.float64)


def gaussian_sum(use: DiscreteGaussianSumDpEvent) -> Curve:
    """Return the curve of a sum of discrete Gaussians: nearly that of Gaussian noise on a fine grid.

    Let V be the variance of the sum, q the probabilities of the discrete Gaussian of parameter sqrt(V), r those of a
    rounded normal number, and Z the sum of the normal density over the integers. Then r(k) / q(k) / Z is the integral
    of e^(-(2 k u + u^2) / (2 V)) over u in [-1/2, 1/2]: at least e^(-1 / (24 V)) by Jensen's inequality, at most
    e^(k^2 / (24 V^2)) because sinh(x) / x <= e^(x^2 / 6). The noise less a shift is longer than sqrt(B) with
    probability at most e^-60 (Hsu, Kakade and Zhang 2012, for subgaussian vectors). Without that set, changing from q
    to r and back costs d / (24 V) + B / (24 V^2) + d log Z in epsilon; the sum of discrete Gaussians costs tau d more.
    An integer shift commutes with rounding, so r has at most the curve of Gaussian noise.

    If this slack is large, the bounds on the divergence are used.
    """
    d, variance = use.dimension, use.terms * use.sigma**2
    length = math.sqrt(variance * (d + 2 * math.sqrt(_RARE * d) + 2 * _RARE)) + use.l2_sensitivity
    near = d / (24 * variance) + d * closeness(use.sigma, use.terms)
    slack = near + length**2 / (24 * variance**2) + 3 * d * math.exp(-2 * math.pi**2 * variance)
    if use.sigma < 1 or slack > _LARGEST_SLACK:
        return concentrated(lines_of(use))
    mu = use.l2_sensitivity / math.sqrt(variance)

    def half(eps: Array) -> Array:
        return np.minimum(math.exp(near) * gaussian_deltas(mu, eps - slack) + math.exp(-_RARE), 1.0)

    high = gaussian(mu).high + slack
    return Curve(convex(mirrored(half), high), high)
