"""Renyi divergences of events, their sum, and its conversion to epsilon: the rdp accountant.

dp_accounting computes the divergences of Laplace noise, randomized response and fixed-size samples, from events that
already include the sensitivity under the adjacency. This module computes those of von Mises–Fisher directions, of
mechanisms known only by their epsilon, and of Poisson-sampled Gaussian noise. For the last, dp_accounting is loose at
fractional orders and skips the smallest orders if there is little noise (the best orders for epsilon near 100).

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
from discreet.accounting.discrete_sums import at_real_orders, divergence, lines_of
from discreet.accounting.events import (
    DiscreteGaussianDpEvent,
    DiscreteGaussianSumDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    LocalDpEvent,
    MetricDpEvent,
    OneOfDpEvent,
    Parts,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SkellamDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
    cached_by_event,
    decompose,
    unsupported,
)
from discreet.accounting.selection import selected_divergences
from discreet.core.guarantee import Adjacency

_AT_ONCE = 1 << 20  # values of an integrand that are computed at a time
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


@cached_by_event
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
    if isinstance(use, DiscreteGaussianSumDpEvent):
        return divergence(lines_of(use), ORDERS)
    if isinstance(use, SkellamDpEvent):
        return at_real_orders(lines_of(use), ORDERS)
    if isinstance(use, VonMisesFisherDpEvent) and adjacency is not Adjacency.ADD_REMOVE:
        return _directions(use, adjacency)
    if isinstance(use, PoissonSampledDpEvent) and adjacency is not Adjacency.REPLACE_ONE:
        return sampled_gaussian(float(use.sampling_probability), _gaussian(use, adjacency).noise_multiplier)
    if isinstance(use, SampledWithoutReplacementDpEvent) and adjacency is Adjacency.REPLACE_ONE:
        sampled = SampledWithoutReplacementDpEvent(use.source_dataset_size, use.sample_size, _gaussian(use, adjacency))
        return _library(sampled, adjacency)
    if isinstance(use, VisibleVectorsDpEvent) and adjacency is Adjacency.REPLACE_ONE:
        inside = _gaussian(use, adjacency)
        return _library(SampledWithoutReplacementDpEvent(use.population, use.drawn, inside), adjacency)
    if isinstance(use, OneOfDpEvent):
        inside = [renyi_divergences(decompose(event, adjacency), adjacency) for event in use.events]
        return np.asarray(np.max(inside, axis=0), dtype=np.float64)
    if isinstance(use, RepeatAndSelectDpEvent):
        one = renyi_divergences(decompose(use.event, adjacency), adjacency)
        return selected_divergences(ORDERS, one, float(use.mean), float(use.shape))
    raise unsupported(use, adjacency, "rdp", "Use the pld accountant.")


def sampled_gaussian(rate: float, noise: float) -> Array:
    """Return the divergences of a Poisson-sampled sum with this noise multiplier.

    At order a it is ln E[(1 - q + q e^z)^a] / (a - 1), z = (2x - 1)/(2 noise²), x normal with standard deviation noise:
    a sum for integer orders, an integral for the others; both are exact up to floating-point rounding.
    """
    integer = np.floor(ORDERS) == ORDERS
    logs = np.empty_like(ORDERS)
    few = integer & (ORDERS < 100)
    logs[few] = _integer_orders(rate, noise, ORDERS[few])
    many = integer & ~few
    logs[many] = [_integer_orders(rate, noise, np.array([a]))[0] for a in ORDERS[many]]
    logs[~integer] = _fractional_orders(rate, noise, ORDERS[~integer])
    return np.asarray(np.maximum(logs, 0.0) / (ORDERS - 1), dtype=np.float64)


def _integer_orders(rate: float, noise: float, orders: Array) -> Array:
    a, k = orders[:, None], np.arange(float(orders.max()) + 1)
    rest = np.maximum(a - k, 0.0)
    choose = gammaln(a + 1) - gammaln(k + 1) - gammaln(rest + 1)
    terms = choose + k * math.log(rate) + rest * math.log1p(-rate) + k * (k - 1) / (2 * noise * noise)
    return np.asarray(logsumexp(np.where(k <= a, terms, -np.inf), axis=1), dtype=np.float64)


def _fractional_orders(rate: float, noise: float, orders: Array) -> Array:
    # the integrand is analytic within pi noise² of the real line: this step leaves an error below 1e-20
    gap = min(noise / 6, noise * noise / 2.5)
    if float(orders.max()) > _MOST_POINTS * gap:  # almost no noise: use the integer orders only
        return np.full_like(orders, math.inf)
    x = np.arange(-13 * noise, float(orders.max()) + 13 * noise, gap)
    z = (2 * x - 1) / (2 * noise * noise)
    log_ratio = np.where(
        z < 1, np.log1p(rate * np.expm1(np.minimum(z, 1.0))), np.logaddexp(math.log1p(-rate), math.log(rate) + z)
    )
    log_weight = -(x * x) / (2 * noise * noise) + math.log(gap / (noise * math.sqrt(2 * math.pi)))
    weight, largest = np.exp(log_weight), float(log_ratio.max())
    logs = np.empty_like(orders)
    small = orders * largest < 20  # expm1 and log1p keep the digits of small divergences
    together = max(1, _AT_ONCE // len(x))
    for indices in (np.flatnonzero(small), np.flatnonzero(~small)):
        for batch in np.split(indices, range(together, len(indices), together)):
            log_powers = orders[batch, None] * log_ratio
            if small[batch].all():
                logs[batch] = np.log1p(np.maximum(np.expm1(log_powers) @ weight, 0.0))
            else:
                logs[batch] = logsumexp(log_weight + log_powers, axis=1)
    return logs


def _library(use: DpEvent, adjacency: Adjacency) -> Array:
    accountant = RdpAccountant(orders=list(ORDERS), neighboring_relation=_RELATION[adjacency])
    return np.asarray(accountant.compose(use).rdp, dtype=np.float64)


def _gaussian(use: DpEvent, adjacency: Adjacency) -> GaussianDpEvent:
    """Return the sampled event as one Gaussian event that includes the sensitivity under the adjacency."""
    inside = decompose(use.event, adjacency)
    if inside.uses or not inside.mu_squared:
        raise unsupported(use, adjacency, "rdp", "It covers sampled Gaussian noise only. Use the pld accountant.")
    return GaussianDpEvent(1 / inside.mu)


def _pure(epsilon: float) -> Array:
    """Return the largest divergences of any epsilon-private mechanism, attained by randomized response.

    They are ln((e^(a e) + e^((1-a) e)) / (1 + e^e)) / (a-1), written to avoid overflow.
    """
    a = ORDERS
    correction = np.log1p(np.exp(-(2 * a - 1) * epsilon)) - math.log1p(math.exp(-epsilon))
    return np.asarray(np.maximum(epsilon + correction / (a - 1), 0.0), dtype=np.float64)


def _directions(use: VonMisesFisherDpEvent, adjacency: Adjacency) -> Array:
    kappa, d = use.kappa, use.dimension
    divergences = np.empty_like(ORDERS)
    base = vmf.log_mean(kappa, d) if kappa <= vmf.MOST_EXACT else 0.0
    for i, a in enumerate(ORDERS.tolist()):
        if (2 * a - 1) * kappa > vmf.MOST_EXACT:
            divergences[i] = 2 * kappa  # no divergence exceeds the largest loss
        elif adjacency is Adjacency.REPLACE_ONE:
            divergences[i] = (vmf.log_mean((2 * a - 1) * kappa, d) - base) / (a - 1)
        else:
            forward = (vmf.log_mean(a * kappa, d) - a * base) / (a - 1)
            backward = (vmf.log_mean((a - 1) * kappa, d) + (a - 1) * base) / (a - 1)
            divergences[i] = max(forward, backward)
    return np.where(np.isfinite(divergences), np.maximum(divergences, 0.0), math.inf)
