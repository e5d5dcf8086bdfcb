"""From an event to its loss distribution: the default accountant.

Every single use becomes a `Curve` (exact or a proven bound), every curve a pessimistic loss distribution on one grid,
and these are composed. What no proof covers was refused before, by `discreet.accounting.parts`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from discreet.accounting import curve as curves
from discreet.accounting import von_mises_fisher as vmf
from discreet.accounting.curve import Array, Curve
from discreet.accounting.events import (
    DiscreteGaussianDpEvent,
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
from discreet.accounting.parts import LARGEST_GRID, Parts, gaussian_mu_of, refuse_pair, remembered, take_apart
from discreet.accounting.powers import Losses, Powers
from discreet.core.guarantee import Adjacency

# beyond this ratio of sensitivity to sigma the likelihood ratios leave double precision
_STEEPEST = 25.0
_WIDEST = 500.0  # e to the power of a grid's interval must be a double
_BEYOND = 1e-4  # the share of delta that losses beyond the grid may take
_ANY_DELTA = 1e-9  # where delta is not known


def curve_of(event: DpEvent, adjacency: Adjacency) -> Curve:
    """Return the curve of one use, or of everything inside a sampling, under an adjacency."""
    parts = take_apart(event, adjacency)
    if not parts.uses:
        return curves.gaussian(parts.mu)
    if len(parts.uses) == 1 and parts.uses[0][1] == 1 and not parts.mu_squared:
        return _single(parts.uses[0][0], adjacency)
    step, count = powers_of(parts, adjacency)
    return _as_curve(step.power(count))


def _as_curve(all_of: Powers) -> Curve:
    """Return the curve of a composed loss distribution; it is linear between the dots, so it stays a bound."""
    if all_of.absent is None:
        return Curve(_many(all_of.present), _top(all_of.present))
    return Curve(_many(all_of.present), _top(all_of.present), _many(all_of.absent), _top(all_of.absent))


def _many(losses: Losses) -> Callable[[Array], Array]:
    def deltas(eps: Array) -> Array:
        return losses.deltas(eps)

    return deltas


def _top(losses: Losses) -> float:
    return max(float(losses.first + len(losses.masses)) * losses.interval, 0.0)


def powers_of(parts: Parts, adjacency: Adjacency, delta: float | None = None, repeated: int = 1) -> tuple[Powers, int]:
    """Return the losses of one step and how often it is repeated: one use many times, or everything once.

    Several uses are put together from the finest grid to the coarsest: many small losses spread so far in sum that they
    need no finer grid than the large ones beside them. `delta` is what they will be asked at, if it is known, after
    everything is `repeated` so often: losses that are larger with a probability far below it are not on the grid.

    OverflowError is raised where losses are so large that no grid of doubles holds them; then only pure bounds hold.
    """
    made_of = [(use_curve(use, adjacency), count) for use, count in parts.uses]
    if parts.mu_squared:
        made_of.append((curves.gaussian(parts.mu), 1))
    beyond = _BEYOND * (_ANY_DELTA if delta is None else delta) / (len(made_of) * repeated)
    found = [(made.within(beyond / count), count) for made, count in made_of]
    if max(curves.interval_for(one) for one, _ in found) > _WIDEST:
        raise OverflowError("The losses are too large for a grid.")
    if len(found) == 1 and not parts.mu_squared:
        made, count = found[0]
        return _powers(made, curves.interval_for(made)), count
    share = None if delta is None else delta / (2 * len(found))  # the margins add up
    so_far: Powers | None = None
    for made, count in sorted(found, key=lambda one: curves.interval_for(one[0])):
        if so_far is None:
            so_far = _powers(made, curves.interval_for(made)).power(count, share)
            continue
        step = max(curves.interval_for(made, so_far.reach), so_far.interval)
        so_far = so_far.on(step).compose(_powers(made, step).power(count, share), share)
    assert so_far is not None
    return so_far, 1


def _powers(made: Curve, interval: float) -> Powers:
    return Powers.of(made.losses(interval), made.rounding)


@remembered
def use_curve(use: DpEvent, adjacency: Adjacency) -> Curve:
    """Return the curve of one use."""
    return _single(use, adjacency)


def _single(use: DpEvent, adjacency: Adjacency) -> Curve:
    if isinstance(use, PoissonSampledDpEvent):
        return _poisson(use, adjacency)
    if isinstance(use, SampledWithoutReplacementDpEvent):
        return _fixed(use, use.sample_size / use.source_dataset_size, adjacency)
    if isinstance(use, VisibleVectorsDpEvent):
        return _fixed(use, use.drawn / use.population, adjacency)
    mu = gaussian_mu_of(use, adjacency)
    if mu is not None:
        return curves.gaussian(mu)
    if isinstance(use, LaplaceDpEvent):
        return curves.laplace(1 / use.noise_multiplier)
    if isinstance(use, EpsilonDeltaDpEvent | LocalDpEvent):
        return curves.pure(use.epsilon, use.delta)
    if isinstance(use, MetricDpEvent):
        return curves.pure(use.epsilon_per_distance * float(use.diameter or 0.0))
    if isinstance(use, RandomizedResponseDpEvent):
        return _response(use, adjacency)
    if isinstance(use, VonMisesFisherDpEvent):
        make = vmf.replaced if adjacency is Adjacency.REPLACE_ONE else vmf.zeroed
        return make(use.kappa, use.dimension)
    if isinstance(use, DiscreteLaplaceDpEvent):
        return _discrete_laplace(use)
    if isinstance(use, DiscreteGaussianDpEvent):
        return _discrete_gaussian(use)
    if isinstance(use, ZCDpEvent):
        return curves.zero_concentrated(use.rho, use.xi)
    raise refuse_pair(use, adjacency, "pld", "No proof is at hand; account for it as EpsilonDeltaDpEvent.")


def _poisson(use: PoissonSampledDpEvent, adjacency: Adjacency) -> Curve:
    inner, rate = use.event, float(use.sampling_probability)
    if adjacency is not Adjacency.REPLACE_ONE:
        return curves.poisson(curve_of(inner, adjacency), rate)
    if isinstance(inner, VisibleVectorsDpEvent):
        return curves.bernoulli_visible(curve_of(inner.event, adjacency), rate, inner.population)
    return curves.poisson_replaced(inner.occurrences / inner.noise_multiplier, rate)


def _fixed(use: DpEvent, rate: float, adjacency: Adjacency) -> Curve:
    replaced = curve_of(use.event, Adjacency.REPLACE_ONE)
    if adjacency is Adjacency.REPLACE_ONE:
        return curves.fixed_size(replaced, rate)
    return curves.fixed_size_zeroed(curve_of(use.event, adjacency), replaced, rate)


def _response(use: RandomizedResponseDpEvent, adjacency: Adjacency) -> Curve:
    k, p = use.num_buckets, use.noise_parameter
    told, other = 1 - p + p / k, p / k
    if k == 1 or p == 1:
        return curves.pure(0.0)
    if adjacency is Adjacency.ZERO_OUT:  # the null record answers uniformly
        return curves.discrete(np.array([told, (k - 1) * other]), np.array([1 / k, (k - 1) / k]))
    rest = (k - 2) * other
    found = curves.discrete(np.array([told, other, rest]), np.array([other, told, rest]))
    return Curve(found.present, found.high)


def _discrete_laplace(use: DiscreteLaplaceDpEvent) -> Curve:
    a, s = float(use.noise_parameter), int(use.sensitivity)
    if s > LARGEST_GRID:
        return curves.pure(a * s)
    between = np.arange(1, s)
    peak = math.tanh(a / 2)
    tail = 1 / (1 + math.exp(-a))  # the mass at or below 0
    here = np.concatenate(([tail], peak * np.exp(-a * between), [math.exp(-a * s) * tail]))
    found = curves.discrete(here, here[::-1].copy())
    return Curve(found.present, found.high)


def _discrete_gaussian(use: DiscreteGaussianDpEvent) -> Curve:
    if use.sensitivity > _STEEPEST * use.sigma:
        return curves.zero_concentrated((use.sensitivity / use.sigma) ** 2 / 2)
    reach = math.ceil(12 * use.sigma) + use.sensitivity
    x = np.arange(-reach, reach + use.sensitivity + 1, dtype=np.float64)
    here, there = np.exp(-((x / use.sigma) ** 2) / 2), np.exp(-(((x - use.sensitivity) / use.sigma) ** 2) / 2)
    found = curves.discrete(here / here.sum(), there / here.sum())
    return Curve(found.present, found.high)
