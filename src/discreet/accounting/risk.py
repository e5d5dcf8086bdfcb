"""Upper bounds on the success of any attack: membership inference and identification among candidates.

They follow from the trade-off curve for testing the null record against the record: a test with false-positive rate a
(the record is absent or null) has a true-positive rate of at most the minimum over epsilon of delta(epsilon) +
e^epsilon a. At a = 1/n the same number bounds the probability of identifying one of n equally likely candidates.

>>> from discreet.accounting.events import GaussianDpEvent
>>> round(most_true_positives(GaussianDpEvent(1.0), 0.01), 3)
0.092
>>> round(most_identified(GaussianDpEvent(2.0), 64), 3)
0.049
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from discreet.accounting import von_mises_fisher as vmf
from discreet.accounting.calibrate import least
from discreet.accounting.curve import Array
from discreet.accounting.events import DpEvent, VonMisesFisherDpEvent, decompose
from discreet.accounting.gdp import gaussian_trade_off
from discreet.accounting.losses import powers_of
from discreet.core.errors import invalid, open_probability, probability, whole
from discreet.core.guarantee import Adjacency


def most_true_positives(
    event: DpEvent, false_positive_rate: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE
) -> float:
    """Return an upper bound on the true-positive rate of any membership test at a false-positive rate.

    Under add/remove and zero-out the test is for presence, under replace-one for one record against another.

    Args:
        event: The event.
        false_positive_rate: The rate at which the test accuses wrongly.
        adjacency: add/remove, zero-out or replace-one.
    """
    return float(most_true_positives_at(event, [false_positive_rate], adjacency)[0])


def most_true_positives_at(
    event: DpEvent, false_positive_rates: Sequence[float], adjacency: Adjacency | str = Adjacency.ADD_REMOVE
) -> Array:
    """Return an upper bound on the true-positive rate at each false-positive rate."""
    rates = [probability("false_positive_rate", rate) for rate in false_positive_rates]
    adjacency = Adjacency(adjacency)
    parts = decompose(event, adjacency)
    if parts.reasons:
        return np.ones(len(rates))
    if not parts.uses:
        return np.array([gaussian_trade_off(parts.mu, rate) for rate in rates])
    single = parts.single
    if isinstance(single, VonMisesFisherDpEvent) and adjacency is Adjacency.ZERO_OUT:
        return np.array([vmf.cap_success(single.kappa, single.dimension, rate) for rate in rates])
    try:
        step, times = powers_of(parts, adjacency)
    except OverflowError:
        return np.ones(len(rates))
    losses = step.present.power(times)
    epsilons = (losses.first + np.arange(-1, len(losses.masses), dtype=np.float64)) * losses.interval
    deltas, factors = losses.deltas(epsilons), np.exp(np.minimum(epsilons, 700.0))
    # a bound that is linear in e^epsilon between grid points has its minimum at a grid point
    return np.array([min(1.0, float(np.min(deltas + factors * rate))) for rate in rates])


def most_identified(event: DpEvent, candidates: int, adjacency: Adjacency | str = Adjacency.ADD_REMOVE) -> float:
    """Return an upper bound on the probability of identifying the true candidate among equally likely ones.

    For one von Mises–Fisher direction under zero-out it is the mass of the cap of uniform measure 1/candidates.

    Args:
        event: The event.
        candidates: The number of equally likely candidates.
        adjacency: add/remove, zero-out or replace-one.
    """
    return most_true_positives(event, 1 / whole("candidates", candidates), adjacency)


def most_exposure(
    event: DpEvent, candidates: int, adjacency: Adjacency | str = Adjacency.ADD_REMOVE, *, copies: int = 1
) -> float:
    """Return an upper bound in bits on the mean exposure of a canary whose secret is uniform over n candidates.

    Exposure is log2(n) - log2(rank). The k candidates that an attack ranks first are a guess of k of n, which is right
    with probability at most that of a test with false-positive rate k/n. `copies` is the number of privacy units that
    hold a copy of the canary: the bound is then that of a group, by applying the bound on the test that often.

    Args:
        event: The event of the training.
        candidates: The number of equally likely secrets.
        adjacency: add/remove, zero-out or replace-one.
        copies: The number of privacy units that hold a copy.

    Paper: Dong, Roth and Su 2022, Gaussian differential privacy, theorem 2.14 (groups).

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> round(most_exposure(GaussianDpEvent(1.0), 10_000), 2), round(most_exposure(GaussianDpEvent(100.0), 10_000), 2)
    (3.22, 1.46)
    """
    whole("candidates", candidates, 2)
    ranks = np.arange(1.0, min(candidates, 64) + 1)
    if candidates > len(ranks):
        ranks = np.concatenate([ranks, np.geomspace(64, float(candidates), 400)[1:]])
    grid = ranks / candidates
    success = most_true_positives_at(event, grid.tolist(), adjacency)
    bound = success
    for _ in range(whole("copies", copies) - 1):
        # the bound increases: its value at the next larger point of the grid is an upper bound
        places = np.minimum(np.searchsorted(grid, bound, side="left"), len(grid) - 1)
        bound = np.where(bound >= 1, 1.0, success[places])
        if (bound >= 1).all():
            break
    # mean of log2(n / rank) = sum over ranks k < n of P[rank <= k] log2((k + 1) / k); where the grid leaves ranks out,
    # the probability is at most that at the next point
    most = np.where(np.diff(ranks) == 1, bound[:-1], bound[1:])
    return float((most * np.diff(np.log2(ranks))).sum())


def most_named(epsilon: float, delta: float, candidates: int) -> float:
    """Return an upper bound on the probability of identifying one of equally likely candidates, from epsilon and delta.

    If the record is replaced by a null record or one fixed candidate, the probabilities of naming each candidate add up
    to at most 1. Epsilon and delta bound how much larger the probability of naming the true one can be.

    Args:
        epsilon: The epsilon of the release.
        delta: Its delta.
        candidates: The number of equally likely candidates.

    >>> round(most_named(1.0, 0.0, 64), 4)
    0.0425
    """
    chance = 1 / candidates
    from_chance = math.exp(min(epsilon, 700.0)) * chance + delta
    from_misses = 1 - math.exp(-epsilon) * max(0.0, 1 - chance - delta)
    return min(1.0, from_chance, from_misses)


def least_noise_for_risk(
    make: Callable[[float], DpEvent],
    *,
    true_positive_rate: float,
    false_positive_rate: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    low: float = 1e-3,
) -> float:
    """Return the least noise at which no membership test exceeds a true-positive rate at a false-positive rate.

    Args:
        make: From a noise multiplier to the event of the whole release.
        true_positive_rate: The highest rate that any test may reach.
        false_positive_rate: The rate at which it is limited.
        adjacency: add/remove, zero-out or replace-one.
        low: The least noise that is tried.

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> round(least_noise_for_risk(GaussianDpEvent, true_positive_rate=0.05, false_positive_rate=0.01), 3)
    1.467
    """
    target = open_probability("true_positive_rate", true_positive_rate)
    rate = open_probability("false_positive_rate", false_positive_rate)
    if target <= rate:
        raise invalid(
            "true_positive_rate", target, f"> {rate}", "Random guessing already reaches the false-positive rate."
        )

    def excess(noise: float) -> float:  # over random guessing: it decreases to zero as the noise grows
        return most_true_positives(make(noise), rate, adjacency) - rate

    return least(excess, target - rate, low=low, high=1e6, guess=1.0)
