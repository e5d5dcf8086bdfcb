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
from collections.abc import Callable

from discreet.accounting.events import DpEvent
from discreet.accounting.interpret import Meter
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.core.errors import UnsupportedError, invalid, open_probability, positive
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
    tolerance: float = 1e-4,
) -> float:
    """Return the least noise whose event costs at most epsilon at delta."""
    epsilon, delta = positive("epsilon", epsilon), open_probability("delta", delta)

    def cost(noise: float, accountant: str = accountant) -> float:
        return epsilon_of(make(noise), delta, adjacency, accountant)

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

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> most_steps(GaussianDpEvent(10.0), epsilon=1.0, delta=1e-5)
    7
    """
    meter = Meter(step, delta, Adjacency(adjacency), accountant)
    if meter.epsilon(1) > positive("epsilon", epsilon):
        return 0
    good, bad = 1, 2
    while meter.epsilon(bad) <= epsilon:
        good, bad = bad, bad * 4
        if good >= limit:
            return limit
    while bad - good > 1:
        middle = int(math.sqrt(good * bad)) if bad > 2 * good else (good + bad) // 2
        middle = min(max(middle, good + 1), bad - 1)
        good, bad = (middle, bad) if meter.epsilon(middle) <= epsilon else (good, middle)
    return good


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
    """Return the largest sampling rate, or other parameter that increases the cost, within epsilon at delta."""
    epsilon, delta = positive("epsilon", epsilon), open_probability("delta", delta)
    return most(
        lambda rate: epsilon_of(make(rate), delta, adjacency, accountant),
        epsilon,
        low=low,
        high=high,
        guess=guess,
        tolerance=tolerance,
    )
