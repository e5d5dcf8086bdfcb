"""How much noise, how many steps, or how large a draw a budget buys: root finding over parameter → event.

`least` and `most` know nothing of privacy: they find where a cost that only falls, or only rises, meets a target, and
return the side on which the target is kept. The named questions below them put an event's epsilon in as the cost.

>>> from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
>>> def training(noise):
...     return SelfComposedDpEvent(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(noise)), 10_000)
>>> round(least_noise(training, epsilon=3.0, delta=1e-5), 2)
1.57
"""

from __future__ import annotations

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
    """Return the least x in [low, high] whose cost is within the target, for a cost that falls as x grows; rounded up.

    Secant steps in logarithms, kept inside a shrinking bracket.

    >>> round(least(lambda x: 1 / x, 0.25, low=0.01, high=100.0, guess=1.0), 3)
    4.0
    """
    bad: tuple[float, float] | None = None  # x and its cost on either side
    good: tuple[float, float] | None = None
    x, slope = min(max(guess, low), high), -1.0
    for _ in range(200):
        found = cost(x)
        if math.isnan(found):
            raise invalid("cost", found, "a number", f"The event at {x:g} has no cost.")
        last = bad if bad is not None and (good is None or found <= target) else good
        if found <= target:
            good = (x, found)
            if x <= low:
                return low
        else:
            bad = (x, found)
            if x >= high:
                raise invalid(
                    "target", target, f">= {found:.6g}", f"Not even {high:g} reaches it; allow a larger cost."
                )
        if bad and good and good[0] <= bad[0] * (1 + tolerance):
            break
        if last is not None and last[0] != x and 0 < found < math.inf and 0 < last[1] < math.inf and found != last[1]:
            slope = min(math.log(found / last[1]) / math.log(x / last[0]), -0.05)
        if 0 < found < math.inf and target > 0:
            ahead = math.exp(max(-3.0, min(3.0, math.log(target / found) / slope)))
        else:
            ahead = 4.0 if found > target else 0.25
        # a nudge beyond the root, so that the bracket closes from both sides
        nudge = 1 + 0.4 * tolerance
        x = min(max(x * ahead * (nudge if found > target else 1 / nudge), low), high)
        if bad and good and not bad[0] < x < good[0]:
            x = math.sqrt(bad[0] * good[0])
    assert good is not None
    return good[0]


def most(cost: Cost, target: float, *, low: float, high: float, guess: float, tolerance: float = 1e-4) -> float:
    """Return the largest x in [low, high] whose cost is within the target, for a cost that rises with x; rounded down.

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

    def cost(noise: float) -> float:
        return epsilon_of(make(noise), delta, adjacency, accountant)

    guess = 1.0
    if accountant != "gdp":
        try:  # the central-limit estimate costs nothing to solve and is close
            guess = least(
                lambda noise: epsilon_of(make(noise), delta, adjacency, "gdp"),
                epsilon,
                low=low,
                high=high,
                guess=1.0,
                tolerance=1e-2,
            )
        except UnsupportedError:
            guess = 1.0
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
    """Return how many equal steps cost at most epsilon at delta; 0 if not even one does.

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
    """Return the largest sampling rate, or any parameter that only adds to the cost, within epsilon at delta."""
    epsilon, delta = positive("epsilon", epsilon), open_probability("delta", delta)
    return most(
        lambda rate: epsilon_of(make(rate), delta, adjacency, accountant),
        epsilon,
        low=low,
        high=high,
        guess=guess,
        tolerance=tolerance,
    )
