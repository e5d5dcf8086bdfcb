"""Privacy loss distributions of events, for the default accountant.

Each use becomes a `Curve` (exact, or a proven bound), each curve becomes a pessimistic loss distribution on a grid, and
these are composed. `discreet.accounting.events` has already rejected events that no proof covers.
"""

from __future__ import annotations

import math

import numpy as np

from discreet.accounting import curve as curves
from discreet.accounting import von_mises_fisher as vmf
from discreet.accounting.allocation import random_allocation
from discreet.accounting.curve import Array, Curve
from discreet.accounting.discrete_sums import gaussian_sum, lines_of
from discreet.accounting.events import (
    FIXED_SIZE,
    LARGEST_GRID,
    DiscreteGaussianDpEvent,
    DiscreteGaussianSumDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    LaplaceDpEvent,
    LocalDpEvent,
    MetricDpEvent,
    OneOfDpEvent,
    Parts,
    PoissonSampledDpEvent,
    RandomAllocationDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SkellamDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
    cached_by_event,
    decompose,
    gaussian_mu_of,
    sampling_rate,
    unsupported,
)
from discreet.accounting.powers import Losses, Powers
from discreet.accounting.selection import either, selected
from discreet.core.guarantee import Adjacency

_STEEPEST = 25.0  # above this ratio of sensitivity to sigma the likelihood ratios overflow double precision
_WIDEST = 500.0  # exp(interval) must be representable as a double
_BEYOND = 1e-4  # fraction of delta reserved for losses beyond the grid
_ANY_DELTA = 1e-9  # used if delta is unknown


def curve_of(event: DpEvent, adjacency: Adjacency) -> Curve:
    """Return the curve of one use, or of everything inside a sampling event, under an adjacency."""
    parts = decompose(event, adjacency)
    if not parts.uses:
        return curves.gaussian(parts.mu)
    if parts.single is not None:
        return use_curve(parts.single, adjacency)
    step, count = powers_of(parts, adjacency)
    # linear between the grid points, so it stays an upper bound
    composed = step.power(count)
    if composed.absent is None:
        return Curve(composed.present.deltas, _largest(composed.present))
    return Curve(composed.present.deltas, _largest(composed.present), composed.absent.deltas, _largest(composed.absent))


def _largest(losses: Losses) -> float:
    return max(float(losses.first + len(losses.masses)) * losses.interval, 0.0)


def powers_of(parts: Parts, adjacency: Adjacency, delta: float | None = None, repeated: int = 1) -> tuple[Powers, int]:
    """Return the losses of one step and its number of repetitions: one use many times, or everything once.

    Several uses are composed from the finest grid to the coarsest: the sum of many small losses spreads so far that it
    needs no finer grid than the large losses it is added to. `delta` is where epsilon will be evaluated, if known,
    after everything is `repeated` that often. Losses that exceed the grid with a probability far below delta are left
    off it.

    Raises OverflowError if the losses are too large for a grid of doubles; then only pure bounds hold.
    """
    full_curves = [(use_curve(use, adjacency), count) for use, count in parts.uses]
    if parts.mu_squared:
        full_curves.append((curves.gaussian(parts.mu), 1))
    beyond = _BEYOND * (_ANY_DELTA if delta is None else delta) / (len(full_curves) * repeated)
    truncated: list[tuple[float, Curve, int]] = []
    for full_curve, count in full_curves:
        curve = full_curve.within(beyond / count)
        truncated.append((curves.interval_for(curve), curve, count))
    if max(interval for interval, _, _ in truncated) > _WIDEST:
        raise OverflowError("The losses are too large for a grid.")
    if len(truncated) == 1 and not parts.mu_squared:
        interval, curve, count = truncated[0]
        return _powers(curve, interval), count
    share = None if delta is None else delta / (2 * len(truncated))  # the margins add up
    total: Powers | None = None
    for interval, curve, count in sorted(truncated, key=lambda one: one[0]):
        if total is None:
            total = _powers(curve, interval).power(count, share)
            continue
        interval = max(curves.interval_for(curve, total.reach), total.interval)
        total = total.on(interval).compose(_powers(curve, interval).power(count, share), share)
    assert total is not None
    return total, 1


def _powers(curve: Curve, interval: float) -> Powers:
    return Powers.of(curve.losses(interval), curve.rounding)


@cached_by_event
def use_curve(use: DpEvent, adjacency: Adjacency) -> Curve:
    """Return the curve of one use, cached."""
    if isinstance(use, PoissonSampledDpEvent):
        return _poisson(use, adjacency)
    if isinstance(use, FIXED_SIZE):
        return _fixed(use, sampling_rate(use), adjacency)
    if isinstance(use, RandomAllocationDpEvent):
        return random_allocation(decompose(use.event, adjacency).mu, use.bins)
    if isinstance(use, TruncatedSubsampledGaussianDpEvent):
        size, population = int(use.truncated_batch_size), int(use.dataset_size)
        return curves.truncated_poisson(1 / use.noise_multiplier, sampling_rate(use), size, population)
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
    if isinstance(use, SkellamDpEvent):
        return curves.concentrated(lines_of(use), integer_orders=True)
    if isinstance(use, DiscreteGaussianSumDpEvent):
        return gaussian_sum(use)
    if isinstance(use, ZCDpEvent):
        return curves.concentrated([(use.rho, use.xi)])
    if isinstance(use, OneOfDpEvent):
        return either([curve_of(event, adjacency) for event in use.events])
    if isinstance(use, RepeatAndSelectDpEvent):
        return selected(curve_of(use.event, adjacency), float(use.mean), float(use.shape))
    raise unsupported(use, adjacency, "pld", "No proof is implemented. Account for it as EpsilonDeltaDpEvent.")


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
    truthful, other = 1 - p + p / k, p / k
    if k == 1 or p == 1:
        return curves.pure(0.0)
    if adjacency is Adjacency.ZERO_OUT:  # the null record answers uniformly
        return curves.discrete(np.array([truthful, (k - 1) * other]), np.array([1 / k, (k - 1) / k]))
    rest = (k - 2) * other
    return _symmetric(np.array([truthful, other, rest]), np.array([other, truthful, rest]))


def _discrete_laplace(use: DiscreteLaplaceDpEvent) -> Curve:
    a, s = float(use.noise_parameter), int(use.sensitivity)
    if s > LARGEST_GRID:
        return curves.pure(a * s)
    between = np.arange(1, s)
    peak = math.tanh(a / 2)
    tail = 1 / (1 + math.exp(-a))  # the mass at or below 0
    here = np.concatenate(([tail], peak * np.exp(-a * between), [math.exp(-a * s) * tail]))
    return _symmetric(here, here[::-1].copy())


def _discrete_gaussian(use: DiscreteGaussianDpEvent) -> Curve:
    if use.sensitivity > _STEEPEST * use.sigma:
        return curves.concentrated([((use.sensitivity / use.sigma) ** 2 / 2, 0.0)])
    reach = math.ceil(12 * use.sigma) + use.sensitivity
    x = np.arange(-reach, reach + use.sensitivity + 1, dtype=np.float64)
    here, there = np.exp(-((x / use.sigma) ** 2) / 2), np.exp(-(((x - use.sensitivity) / use.sigma) ** 2) / 2)
    return _symmetric(here / here.sum(), there / here.sum())


def _symmetric(present: Array, absent: Array) -> Curve:
    """Return the curve of two distributions that are mirror images, in one direction only."""
    both = curves.discrete(present, absent)
    return Curve(both.present, both.high)
