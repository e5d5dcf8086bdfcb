"""The cross-check: Renyi divergences of every use, added up and turned into epsilon.

dp_accounting computes those of Laplace noise, randomized response and draws of fixed size, from events into which the
sensitivity of the adjacency has been written first. Ours are von Mises–Fisher directions, anything known only by its
epsilon, and Poisson-sampled Gaussian noise, where dp_accounting is loose at fractional orders and gives up the smallest
ones when there is little noise (they are the best ones for epsilon near 100).

Paper: Mironov 2017, Renyi Differential Privacy; Mironov, Talwar and Zhang 2019, Renyi Differential Privacy of the
Sampled Gaussian Mechanism; Wang, Balle and Kasiviswanathan 2019, Subsampled Renyi Differential Privacy; Canonne, Kamath
and Steinke 2020, The Discrete Gaussian (the conversion).
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp.rdp_privacy_accountant import (
    DEFAULT_RDP_ORDERS,
    RdpAccountant,
    compute_delta,
    compute_epsilon,
)
from scipy.special import gammaln, logsumexp

from discreet.accounting import von_mises_fisher as vmf
from discreet.accounting.curve import Array
from discreet.accounting.events import (
    DiscreteGaussianDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    LocalDpEvent,
    MetricDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
)
from discreet.accounting.parts import Parts, refuse_pair, remembered, take_apart
from discreet.core.guarantee import Adjacency

_AT_ONCE = 1 << 20  # numbers of an integral at the same time
_MOST_POINTS = 1 << 16
ORDERS: Array = np.array(DEFAULT_RDP_ORDERS, dtype=np.float64)
_RELATION = {
    Adjacency.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
    Adjacency.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
    Adjacency.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
}


def renyi_epsilon(parts: Parts, delta: float, adjacency: Adjacency) -> float:
    """Return epsilon at delta from the Renyi divergences of all uses together."""
    return float(compute_epsilon(ORDERS, renyi_divergences(parts, adjacency), delta)[0])


def renyi_delta(parts: Parts, epsilon: float, adjacency: Adjacency) -> float:
    """Return delta at epsilon from the Renyi divergences of all uses together."""
    return float(compute_delta(ORDERS, renyi_divergences(parts, adjacency), epsilon)[0])


def renyi_divergences(parts: Parts, adjacency: Adjacency) -> Array:
    """Return the Renyi divergence of all uses together at every order."""
    total = parts.mu_squared * ORDERS / 2
    for use, count in parts.uses:
        total = total + count * _divergences(use, adjacency)
    return total


@remembered
def _divergences(use: DpEvent, adjacency: Adjacency) -> Array:
    if isinstance(use, LaplaceDpEvent | ZCDpEvent):
        return _library(use, adjacency)
    if isinstance(use, RandomizedResponseDpEvent) and adjacency is not Adjacency.ADD_REMOVE:
        return _library(use, adjacency)
    if isinstance(use, EpsilonDeltaDpEvent | LocalDpEvent) and use.delta == 0:
        return _pure(use.epsilon)
    if isinstance(use, MetricDpEvent) and adjacency is Adjacency.REPLACE_ONE:
        return _pure(use.epsilon_per_distance * float(use.diameter or 0.0))
    if isinstance(use, DiscreteLaplaceDpEvent):
        return _pure(float(use.noise_parameter) * int(use.sensitivity))
    if isinstance(use, DiscreteGaussianDpEvent):
        return ORDERS * (use.sensitivity / use.sigma) ** 2 / 2
    if isinstance(use, VonMisesFisherDpEvent) and adjacency is not Adjacency.ADD_REMOVE:
        return _directions(use, adjacency)
    if isinstance(use, PoissonSampledDpEvent) and adjacency is not Adjacency.REPLACE_ONE:
        return sampled_gaussian(float(use.sampling_probability), _gaussian(use, adjacency).noise_multiplier)
    if isinstance(use, SampledWithoutReplacementDpEvent) and adjacency is Adjacency.REPLACE_ONE:
        size, drawn = use.source_dataset_size, use.sample_size
        return _library(SampledWithoutReplacementDpEvent(size, drawn, _gaussian(use, adjacency)), adjacency)
    if isinstance(use, VisibleVectorsDpEvent) and adjacency is Adjacency.REPLACE_ONE:
        inside = _gaussian(use, adjacency)
        return _library(SampledWithoutReplacementDpEvent(use.population, use.drawn, inside), adjacency)
    raise refuse_pair(use, adjacency, "rdp", "Use the pld accountant.")


def sampled_gaussian(rate: float, noise: float) -> Array:
    """Return the divergences of a Poisson-sampled sum with noise of this multiple of one record's norm.

    At order a it is ln E[(1 - q + q e^z)^a] / (a - 1), z = (2x - 1)/(2 noise²), x normal of width noise: a sum for
    whole orders, an integral for the others; both are as exact as floating point.
    """
    whole = np.floor(ORDERS) == ORDERS
    logs = np.empty_like(ORDERS)
    few = whole & (ORDERS < 100)
    logs[few] = _whole_orders(rate, noise, ORDERS[few])
    many = whole & ~few
    logs[many] = [_whole_orders(rate, noise, np.array([a]))[0] for a in ORDERS[many]]
    logs[~whole] = _broken_orders(rate, noise, ORDERS[~whole])
    return np.asarray(np.maximum(logs, 0.0) / (ORDERS - 1), dtype=np.float64)


def _whole_orders(rate: float, noise: float, orders: Array) -> Array:
    a, k = orders[:, None], np.arange(float(orders.max()) + 1)
    rest = np.maximum(a - k, 0.0)
    choose = gammaln(a + 1) - gammaln(k + 1) - gammaln(rest + 1)
    terms = choose + k * math.log(rate) + rest * math.log1p(-rate) + k * (k - 1) / (2 * noise * noise)
    return np.asarray(logsumexp(np.where(k <= a, terms, -np.inf), axis=1), dtype=np.float64)


def _broken_orders(rate: float, noise: float, orders: Array) -> Array:
    # the integrand is analytic within pi noise² of the real line: this step leaves an error below 1e-20
    gap = min(noise / 6, noise * noise / 2.5)
    if float(orders.max()) > _MOST_POINTS * gap:  # next to no noise: whole orders have to do
        return np.full_like(orders, math.inf)
    x = np.arange(-13 * noise, float(orders.max()) + 13 * noise, gap)
    z = (2 * x - 1) / (2 * noise * noise)
    log_ratio = np.where(
        z < 1, np.log1p(rate * np.expm1(np.minimum(z, 1.0))), np.logaddexp(math.log1p(-rate), math.log(rate) + z)
    )
    log_weight = -(x * x) / (2 * noise * noise) + math.log(gap / (noise * math.sqrt(2 * math.pi)))
    weight, largest = np.exp(log_weight), float(log_ratio.max())
    found = np.empty_like(orders)
    small = orders * largest < 20  # small divergences keep their digits
    together = max(1, _AT_ONCE // len(x))
    for chosen in (np.flatnonzero(small), np.flatnonzero(~small)):
        for some in np.split(chosen, range(together, len(chosen), together)):
            raised = orders[some, None] * log_ratio
            if small[some].all():
                found[some] = np.log1p(np.maximum(np.expm1(raised) @ weight, 0.0))
            else:
                found[some] = logsumexp(log_weight + raised, axis=1)
    return found


def _library(use: DpEvent, adjacency: Adjacency) -> Array:
    accountant = RdpAccountant(orders=list(ORDERS), neighboring_relation=_RELATION[adjacency])
    return np.asarray(accountant.compose(use).rdp, dtype=np.float64)


def _gaussian(use: DpEvent, adjacency: Adjacency) -> GaussianDpEvent:
    """Return what is sampled as one Gaussian event with the sensitivity of the adjacency in it."""
    inside = take_apart(use.event, adjacency)
    if inside.uses or not inside.mu_squared:
        raise refuse_pair(use, adjacency, "rdp", "It samples Gaussian noise only; use the pld accountant.")
    return GaussianDpEvent(1 / inside.mu)


def _pure(epsilon: float) -> Array:
    """Return the largest divergences of anything that is epsilon-private, reached by randomized response.

    ln((e^(a e) + e^((1-a) e)) / (1 + e^e)) / (a-1), written so that nothing overflows.
    """
    a = ORDERS
    bent = np.log1p(np.exp(-(2 * a - 1) * epsilon)) - math.log1p(math.exp(-epsilon))
    return np.asarray(np.maximum(epsilon + bent / (a - 1), 0.0), dtype=np.float64)


def _directions(use: VonMisesFisherDpEvent, adjacency: Adjacency) -> Array:
    kappa, d = use.kappa, use.dimension
    found = np.empty_like(ORDERS)
    base = vmf.log_mean(kappa, d) if kappa <= vmf.MOST_EXACT else 0.0
    for i, a in enumerate(ORDERS.tolist()):
        if (2 * a - 1) * kappa > vmf.MOST_EXACT:
            found[i] = 2 * kappa  # no divergence exceeds the largest loss
        elif adjacency is Adjacency.REPLACE_ONE:
            found[i] = (vmf.log_mean((2 * a - 1) * kappa, d) - base) / (a - 1)
        else:
            there = (vmf.log_mean(a * kappa, d) - a * base) / (a - 1)
            back = (vmf.log_mean((a - 1) * kappa, d) + (a - 1) * base) / (a - 1)
            found[i] = max(there, back)
    return np.where(np.isfinite(found), np.maximum(found, 0.0), math.inf)
