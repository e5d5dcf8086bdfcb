"""What a guarantee means for an attacker, whichever attack is used: the most that can be told or guessed.

Everything follows from the trade-off curve from the null record to the record, in that direction: a test that raises a
false alarm with probability a where the record is absent (or null) is right where it is present with probability at
most the least, over epsilon, of delta(epsilon) + e^epsilon a. At a = 1/n the same number bounds how often one of n
equally likely candidates is named.

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
from discreet.accounting.events import DpEvent, VonMisesFisherDpEvent
from discreet.accounting.gdp import gaussian_trade_off
from discreet.accounting.losses import powers_of
from discreet.accounting.parts import take_apart
from discreet.core.errors import invalid, open_probability, probability, whole
from discreet.core.guarantee import Adjacency


def most_true_positives(
    event: DpEvent, false_positive_rate: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE
) -> float:
    """Return the largest true-positive rate of any membership test at a false-positive rate, an upper bound.

    Under add/remove and zero-out the test is for presence; under replace-one it is for one record against another.
    """
    return float(most_true_positives_at(event, [false_positive_rate], adjacency)[0])


def most_true_positives_at(
    event: DpEvent, false_positive_rates: Sequence[float], adjacency: Adjacency | str = Adjacency.ADD_REMOVE
) -> Array:
    """Return the largest true-positive rate at each of many false-positive rates."""
    rates = [probability("false_positive_rate", rate) for rate in false_positive_rates]
    adjacency = Adjacency(adjacency)
    parts = take_apart(event, adjacency)
    if parts.reasons:
        return np.ones(len(rates))
    if not parts.uses:
        return np.array([gaussian_trade_off(parts.mu, rate) for rate in rates])
    only, count = parts.uses[0]
    alone = len(parts.uses) == 1 and count == 1 and not parts.mu_squared
    if alone and isinstance(only, VonMisesFisherDpEvent) and adjacency is Adjacency.ZERO_OUT:
        return np.array([vmf.cap_success(only.kappa, only.dimension, rate) for rate in rates])
    try:
        step, times = powers_of(parts, adjacency)
    except OverflowError:
        return np.ones(len(rates))
    losses = step.present.power(times)
    dots = (losses.first + np.arange(-1, len(losses.masses), dtype=np.float64)) * losses.interval
    deltas, grown = losses.deltas(dots), np.exp(np.minimum(dots, 700.0))
    # a bound that is linear in e^epsilon between the dots is least at a dot
    return np.array([min(1.0, float(np.min(deltas + grown * rate))) for rate in rates])


def most_identified(event: DpEvent, candidates: int, adjacency: Adjacency | str = Adjacency.ADD_REMOVE) -> float:
    """Return how often, at most, one of equally likely candidates can be named rightly from the release.

    For one von Mises–Fisher direction under zero-out it is the mass of the cap of uniform measure 1/candidates.
    """
    return most_true_positives(event, 1 / whole("candidates", candidates), adjacency)


def most_named(epsilon: float, delta: float, candidates: int) -> float:
    """Return how often, at most, one of equally likely candidates is named, from epsilon and delta alone.

    With a null record, or one fixed candidate, in the record's place, each is named with some probability, and these
    add up to at most 1; epsilon and delta say how much larger, and how much less often missed, it can be.

    >>> round(most_named(1.0, 0.0, 64), 4)
    0.0425
    """
    chance = 1 / candidates
    grown = math.exp(min(epsilon, 700.0)) * chance + delta
    missed = 1 - math.exp(-epsilon) * max(0.0, 1 - chance - delta)
    return min(1.0, grown, missed)


def least_noise_for_risk(
    make: Callable[[float], DpEvent],
    *,
    true_positive_rate: float,
    false_positive_rate: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    low: float = 1e-3,
    high: float = 1e6,
    tolerance: float = 1e-4,
) -> float:
    """Return the least noise with which no membership test exceeds a true-positive rate at a false-positive rate.

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> round(least_noise_for_risk(GaussianDpEvent, true_positive_rate=0.05, false_positive_rate=0.01), 3)
    1.467
    """
    target = open_probability("true_positive_rate", true_positive_rate)
    rate = open_probability("false_positive_rate", false_positive_rate)
    if target <= rate:
        raise invalid(
            "true_positive_rate", target, f"> {rate}", "Guessing blindly already reaches the false-alarm rate."
        )
    # the excess over blind guessing falls to zero as the noise grows, as a cost should
    return least(
        lambda noise: most_true_positives(make(noise), rate, adjacency) - rate,
        target - rate,
        low=low,
        high=high,
        guess=1.0,
        tolerance=tolerance,
    )
