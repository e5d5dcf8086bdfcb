"""Find the noise, the number of steps or the sampling rate for a privacy budget, by root finding over events.

`least` and `most` are generic: they find where a monotone cost meets a target and return the side on which the target
is met. The other functions use the epsilon of an event as the cost.

>>> from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
>>> def training(noise):
...     return SelfComposedDpEvent(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(noise)), 10_000)
>>> round(least_noise(training, epsilon=3.0, delta=1e-5), 2)
1.57
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from discreet.accounting import ledger_file
from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DpEvent,
    OneOfDpEvent,
    RepeatAndSelectDpEvent,
)
from discreet.accounting.interpret import Meter
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.accounting.selection import poisson_rate
from discreet.core.errors import SettingError, UnsupportedError, invalid, open_probability, positive
from discreet.core.guarantee import Adjacency

Cost = Callable[[float], float]
Make = Callable[[float], DpEvent]


def least(cost: Cost, target: float, *, low: float, high: float, guess: float, tolerance: float = 1e-4) -> float:
    """Return the least x in [low, high] whose cost is at most the target, for a decreasing cost; rounded up.

    Uses secant steps in logarithms inside a shrinking bracket.

    >>> round(least(lambda x: 1 / x, 0.25, low=0.01, high=100.0, guess=1.0), 3)
    4.0
    """
    above: tuple[float, float] | None = None  # x and its cost on either side of the target
    below: tuple[float, float] | None = None
    x, slope = min(max(guess, low), high), -1.0
    for _ in range(200):
        value = cost(x)
        if math.isnan(value):
            raise invalid("cost", value, "a number", f"The cost of the event at {x:g} is NaN.")
        last = above if above is not None and (below is None or value <= target) else below
        if value <= target:
            below = (x, value)
            if x <= low:
                return low
        else:
            above = (x, value)
            if x >= high:
                raise invalid(
                    "target", target, f">= {value:.6g}", f"Not even {high:g} reaches it. Allow a larger cost."
                )
        if above and below and below[0] <= above[0] * (1 + tolerance):
            break
        if last is not None and last[0] != x and 0 < value < math.inf and 0 < last[1] < math.inf and value != last[1]:
            slope = min(math.log(value / last[1]) / math.log(x / last[0]), -0.05)
        if 0 < value < math.inf and target > 0:
            factor = math.exp(max(-3.0, min(3.0, math.log(target / value) / slope)))
        else:
            factor = 4.0 if value > target else 0.25
        # slightly beyond the root, so that the bracket closes from both sides
        nudge = 1 + 0.4 * tolerance
        x = min(max(x * factor * (nudge if value > target else 1 / nudge), low), high)
        if above and below and not above[0] < x < below[0]:
            x = math.sqrt(above[0] * below[0])
    assert below is not None
    return below[0]


def most(cost: Cost, target: float, *, low: float, high: float, guess: float, tolerance: float = 1e-4) -> float:
    """Return the largest x in [low, high] whose cost is at most the target, for an increasing cost; rounded down.

    >>> round(most(lambda x: x * x, 9.0, low=0.01, high=100.0, guess=1.0), 3)
    3.0
    """
    flipped = least(
        lambda y: cost(1 / y),
        target,
        low=1 / high,
        high=1 / low,
        guess=1 / min(max(guess, low), high),
        tolerance=tolerance,
    )
    return min(max(1 / flipped, low), high)


def least_noise(
    make: Make,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
    low: float = 1e-3,
    high: float = 1e6,
    guess: float | None = None,
    tolerance: float = 1e-4,
) -> float:
    """Return the least noise whose event costs at most epsilon at delta; a guess saves a search for one.

    Args:
        make: From a noise multiplier to the event of the whole release.
        epsilon: The budget.
        delta: Its delta.
        adjacency: add/remove, zero-out or replace-one.
        accountant: pld, rdp or gdp; the last may be an estimate.
        low: The least noise that is tried.
        high: The most noise that is tried.
        guess: Where to start.
        tolerance: The relative error of the result, which is rounded up.
    """
    epsilon, delta = positive("epsilon", epsilon), open_probability("delta", delta)

    def cost(noise: float, accountant: str = accountant) -> float:
        return epsilon_of(make(noise), delta, adjacency, accountant)

    if guess is None:
        guess = 1.0
        if accountant != "gdp":
            with contextlib.suppress(UnsupportedError):  # the central-limit estimate is cheap and close
                guess = least(lambda noise: cost(noise, "gdp"), epsilon, low=low, high=high, guess=1.0, tolerance=1e-2)
    return least(cost, epsilon, low=low, high=high, guess=guess, tolerance=tolerance)


def most_steps(
    step: DpEvent,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
    limit: int = 100_000_000,
) -> int:
    """Return the largest number of equal steps that cost at most epsilon at delta; 0 if one step costs more.

    Args:
        step: The event of one step.
        epsilon: The budget.
        delta: Its delta.
        adjacency: add/remove, zero-out or replace-one.
        accountant: pld, rdp or gdp; the last may be an estimate.
        limit: The most steps that are tried.

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> most_steps(GaussianDpEvent(10.0), epsilon=1.0, delta=1e-5)
    7
    """
    meter = Meter(step, delta, Adjacency(adjacency), accountant)
    return ledger_file.most(meter.epsilon, positive("epsilon", epsilon), limit)


def largest_rate(
    make: Make,
    *,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
    low: float = 1e-7,
    high: float = 1.0,
    guess: float = 0.01,
    tolerance: float = 1e-4,
) -> float:
    """Return the largest sampling rate, or other parameter that increases the cost, within epsilon at delta.

    Args:
        make: From a sampling rate to the event of the whole release.
        epsilon: The budget.
        delta: Its delta.
        adjacency: add/remove, zero-out or replace-one.
        accountant: pld, rdp or gdp; the last may be an estimate.
        low: The smallest rate that is tried.
        high: The largest rate that is tried.
        guess: Where to start.
        tolerance: The relative error of the result, which is rounded down.
    """
    epsilon, delta = positive("epsilon", epsilon), open_probability("delta", delta)
    return most(
        lambda rate: epsilon_of(make(rate), delta, adjacency, accountant),
        epsilon,
        low=low,
        high=high,
        guess=guess,
        tolerance=tolerance,
    )


@dataclass(frozen=True)
class Search:
    """The cost of a private search: the noise of every kind of trial, the epsilon of one trial, and the whole event."""

    noises: tuple[float, ...]
    score_noise: float | None
    trial_epsilon: float
    event: DpEvent


# A noisy score with 20 / epsilon of a trial takes about a fortieth of that epsilon, and 10 units at epsilon 2.
_SCORE_NOISE = 20.0
_LEAST_SHARE = 1 / 10  # of the epsilon of a search for one trial; with less of it, no trial learns anything


def search_noise(
    trials: Sequence[Make],
    *,
    mean: float,
    epsilon: float,
    delta: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    scored: bool = True,
) -> Search:
    """Return the least noise with which a random number of trials and the choice of the best cost at most epsilon.

    `trials` are the kinds of trial, each an event as a function of its noise; every trial is one of them, chosen
    without the data, and all get the same epsilon. The number of trials is Poisson with this mean, conditioned on at
    least one. If they are `scored` on the private records, each releases a sum with Gaussian noise too, to which a
    record adds at most 1.

    >>> from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    >>> def training(noise):
    ...     return SelfComposedDpEvent(PoissonSampledDpEvent(0.05, ClippedSumDpEvent(noise)), 500)
    >>> search = search_noise([training], mean=5, epsilon=3, delta=1e-5)
    >>> 1.9 < search.trial_epsilon < 2, epsilon_of(search.event, 1e-5) <= 3
    (True, True)
    """
    epsilon, delta = positive("epsilon", epsilon), open_probability("delta", delta)
    rule = f"small enough for epsilon={epsilon:g}"
    remedy = "Every trial would get less than a tenth of it. Use fewer trials, or a larger epsilon."
    guesses: list[float | None] = [None] * len(trials)

    def search(share: float) -> Search:
        score = _SCORE_NOISE / share if scored else None
        events = []
        for number, make in enumerate(trials):

            def with_score(noise: float, make: Make = make) -> DpEvent:
                return make(noise) if score is None else ComposedDpEvent((make(noise), ClippedSumDpEvent(score)))

            guess = guesses[number]
            noise = least_noise(
                with_score, epsilon=share, delta=delta, adjacency=adjacency, guess=guess, tolerance=1e-3
            )
            guesses[number] = noise
            events.append(with_score(noise))
        noises = tuple(noise for noise in guesses if noise is not None)
        each = events[0] if len(events) == 1 else OneOfDpEvent(tuple(events))
        return Search(noises, score, share, RepeatAndSelectDpEvent(each, float(mean), math.inf))

    within: list[Search] = []

    def total(share: float) -> float:
        one = search(share)
        cost = epsilon_of(one.event, delta, adjacency)
        if cost <= epsilon:
            within.append(one)
        return cost

    lowest = epsilon * _LEAST_SHARE
    poisson_rate(mean)  # rejects a mean outside its range
    try:
        most(total, epsilon, low=lowest, high=epsilon, guess=epsilon * 2 / 3, tolerance=1e-3)
    except SettingError as error:
        if error.setting != "target":
            raise
        raise invalid("trials", mean, rule, remedy) from None
    return max(within, key=lambda one: one.trial_epsilon)
