"""The cost with delta 0: the largest loss of every use, added up; infinite where a loss has no largest value."""

from __future__ import annotations

import math

from discreet.accounting import von_mises_fisher as vmf
from discreet.accounting.events import (
    DiscreteLaplaceDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
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
from discreet.accounting.parts import Parts, take_apart
from discreet.core.guarantee import Adjacency


def pure_epsilon(parts: Parts, adjacency: Adjacency) -> float:
    """Return the epsilon at delta 0 of all uses together, by basic composition.

    >>> from discreet.accounting.events import RandomizedResponseDpEvent, SelfComposedDpEvent
    >>> twice = SelfComposedDpEvent(RandomizedResponseDpEvent(0.5, 2), 2)
    >>> round(pure_epsilon(take_apart(twice, Adjacency.REPLACE_ONE), Adjacency.REPLACE_ONE) / math.log(3), 6)
    2.0
    """
    if parts.reasons or parts.mu_squared:
        return math.inf
    return math.fsum(count * _largest_loss(use, adjacency) for use, count in parts.uses)


def _largest_loss(use: DpEvent, adjacency: Adjacency) -> float:
    if isinstance(use, LaplaceDpEvent):
        return 1 / float(use.noise_multiplier)
    if isinstance(use, DiscreteLaplaceDpEvent):
        return float(use.noise_parameter) * int(use.sensitivity)
    if isinstance(use, EpsilonDeltaDpEvent | LocalDpEvent):
        return use.epsilon if use.delta == 0 else math.inf
    if isinstance(use, MetricDpEvent):
        return use.epsilon_per_distance * float(use.diameter or 0.0)
    if isinstance(use, RandomizedResponseDpEvent):
        k, p = use.num_buckets, use.noise_parameter
        if k == 1:
            return 0.0
        told, other = 1 - p + p / k, p / k
        if adjacency is Adjacency.ZERO_OUT:
            return max(math.log(told * k), -math.log(other * k))
        return math.log(told / other)
    if isinstance(use, VonMisesFisherDpEvent):
        if adjacency is Adjacency.ZERO_OUT:
            return vmf.largest_zeroed_loss(use.kappa, use.dimension)
        return 2 * use.kappa
    if isinstance(use, ZCDpEvent):
        return use.xi if use.rho == 0 else math.inf
    if isinstance(use, PoissonSampledDpEvent):
        return _sampled(use.event, use.sampling_probability, adjacency)
    if isinstance(use, SampledWithoutReplacementDpEvent):
        return _sampled(use.event, use.sample_size / use.source_dataset_size, Adjacency.REPLACE_ONE)
    if isinstance(use, VisibleVectorsDpEvent):
        return _sampled(use.event, use.drawn / use.population, Adjacency.REPLACE_ONE)
    return math.inf


def _sampled(event: DpEvent, rate: float, adjacency: Adjacency) -> float:
    if isinstance(event, VisibleVectorsDpEvent):
        rate, event = 1.0, event.event  # how many are seen varies, and all of them may be
    inner = pure_epsilon(take_apart(event, adjacency), adjacency)
    if not math.isfinite(inner):
        return math.inf
    if inner < 30:
        return math.log1p(rate * math.expm1(inner))
    return inner + math.log(rate + (1 - rate) * math.exp(-inner))
