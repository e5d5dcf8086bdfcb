"""What a ledger holds, as a value: how often each event was spent, what that guarantees, and what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from discreet.accounting.events import ComposedDpEvent, NoOpDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import guarantee
from discreet.core.errors import invalid, positive
from discreet.core.guarantee import Adjacency, Caveat, Guarantee

MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class Budget:
    """The most that may be spent: epsilon, at delta.

    >>> Budget(epsilon=3.0, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Refuse what cannot be a budget."""
        epsilon = positive("epsilon", self.epsilon, "A budget needs a limit; open the ledger without one to have none.")
        if not 0 <= self.delta < 1:
            raise invalid("delta", self.delta, "in [0, 1)", "Well below 1 / units is usual.")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", float(self.delta))


UNSTATED = "the randomness of every spend was secret: a seed that someone knows hides nothing"


@dataclass(frozen=True)
class Terms:
    """What the guarantee of a spend rests on: assumptions, as sentences, and caveats, as values.

    They are written into the ledger with the spend, so that everyone who reads it states the same guarantee. They are
    about the mechanism and never about a text.

    >>> Terms(("the batches are secret",), {Caveat.FIXED_SEED}).caveats
    frozenset({<Caveat.FIXED_SEED: 'fixed-seed'>})
    """

    assumptions: tuple[str, ...] = ()
    caveats: frozenset[Caveat] = frozenset()

    def __post_init__(self) -> None:
        """Keep plain tuples and sets."""
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        object.__setattr__(self, "caveats", frozenset(map(Caveat, self.caveats)))

    @classmethod
    def of(cls, found: Guarantee) -> Terms:
        """Return the terms of a guarantee."""
        return cls(found.assumptions, found.caveats)

    def __or__(self, other: Terms) -> Terms:
        """Return what both rest on together."""
        return Terms(tuple(dict.fromkeys((*self.assumptions, *other.assumptions))), self.caveats | other.caveats)


@dataclass(frozen=True)
class Statement:
    """What was spent, for which unit and adjacency: each distinct event with its count, in the order of first use.

    `terms` are those of all spends together. `unstated` is true if some spend came without terms, as every spend of a
    ledger that was written before terms were recorded.
    """

    unit: str
    adjacency: Adjacency
    budget: Budget | None
    spent: tuple[tuple[Any, int], ...] = ()
    respent: int = 0
    torn: int = 0
    unfinished: bool = False
    terms: Terms = Terms()
    unstated: bool = False

    @property
    def spends(self) -> int:
        """How many spends were counted."""
        return sum(count for _, count in self.spent)

    @property
    def event(self) -> Any:
        """All that was spent as one event, each distinct event once with its count."""
        return composed(self.spent)

    def guarantee(
        self, delta: float | None = None, accountant: str = "pld", assumptions: Sequence[str] = ()
    ) -> Guarantee:
        """Return what all spends together guarantee at delta; without delta, at the budget's.

        It states the assumptions that were recorded with the spends; with a recorded caveat it is an estimate.

        Guarantee: for the unit and adjacency of the ledger, over every spend it holds.
        """
        return self.stated(priced(self.event, self.delta(delta), self, accountant), assumptions)

    def stated(self, found: Guarantee, assumptions: Sequence[str] = ()) -> Guarantee:
        """Return a guarantee with the assumptions and caveats of this ledger."""
        unstated = (UNSTATED,) if self.unstated and Caveat.FIXED_SEED not in self.terms.caveats else ()
        said = dict.fromkeys((*assumptions, *self.terms.assumptions, *unstated, *found.assumptions))
        return replace(found, assumptions=tuple(said)).with_caveats(self.terms.caveats)

    def remaining(self, event: Any) -> int:
        """Return how many more spends of an event the budget allows, looking no further than ten million."""
        budget = self.budget
        if budget is None:
            raise invalid("budget", None, "given", "Without a budget there is no end; open the ledger with one.")
        return most(
            lambda n: priced(composed((*self.spent, (event, n))), budget.delta, self).epsilon,
            budget.epsilon,
            MOST_STEPS,
            priced(event, budget.delta, self).epsilon,
        )

    def delta(self, delta: float | None) -> float:
        """Return the delta to account at: the one given, or the budget's."""
        if delta is not None:
            return delta
        if self.budget is None:
            raise invalid("delta", None, "given", "This ledger has no budget to take it from; say at which delta.")
        return self.budget.delta


def composed(spent: Sequence[tuple[Any, int]]) -> Any:
    """Return counted events as one event; equal events are counted together.

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> composed([(GaussianDpEvent(1.0), 2), (GaussianDpEvent(1.0), 3)])
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=1.0), count=5)
    """
    distinct: list[Any] = []
    counts: list[int] = []
    for event, count in spent:
        if event in distinct:
            counts[distinct.index(event)] += count
        elif count:
            distinct.append(event)
            counts.append(count)
    parts = [SelfComposedDpEvent(event, count) for event, count in zip(distinct, counts, strict=True)]
    if not parts:
        return NoOpDpEvent()
    return parts[0] if len(parts) == 1 else ComposedDpEvent(parts)


def priced(
    event: Any, delta: float, whose: Statement, accountant: str = "pld", assumptions: Sequence[str] = ()
) -> Guarantee:
    """Return what an event guarantees for the unit and adjacency of a statement."""
    return guarantee(
        event, delta=delta, adjacency=whose.adjacency, accountant=accountant, unit=whose.unit, assumptions=assumptions
    )


def most(cost: Callable[[int], float], limit: float, cap: int, each: float = math.inf) -> int:
    """Return the largest n up to a cap whose cost is within the limit, for a cost that never falls.

    The n returned has been tried, so its cost is within the limit even where `cost` is not quite monotone. The bracket
    grows eightfold and is then cut where a power law through its ends would meet the limit, with a halving whenever
    that gains little: about ten calls for ten thousand steps, where halving alone takes near thirty.

    With `each`, what one alone costs, the first n tried is the one at which costs simply added up meet the limit, and
    from there on the way up follows the last slope: where little is gained by composing, two or three calls, and for
    thousands of steps whose costs grow ever more slowly half a dozen.

    >>> most(lambda n: n**0.5, 10.0, 1_000)
    100
    >>> most(lambda n: 2.0 * n, 999.0, 1_000, each=2.0)
    499
    """
    low, low_cost, high, high_cost = _bracket(cost, limit, cap, each)
    halve = False
    while high - low > 1:
        middle = (low + high) // 2 if halve else _power_law(low, low_cost, high, high_cost, limit)
        middle_cost = cost(middle)
        before = high - low
        if middle_cost <= limit:
            low, low_cost = middle, middle_cost
        else:
            high, high_cost = middle, middle_cost
        halve = not halve and 2 * (high - low) > before
    return low


def _bracket(cost: Callable[[int], float], limit: float, cap: int, each: float) -> tuple[int, float, int, float]:
    """Return an n within the limit and a larger one beyond it, with their costs; the second is cap + 1 if none is."""
    low, low_cost, high, slope, least = 0, 0.0, 1, 0.0, 1
    if 0 < each < math.inf:
        low_cost, slope = cost(0), each
        if low_cost > limit:
            return 0, low_cost, 1, math.inf  # what is spent is too much already
        high = max(_meets(0, low_cost, slope, limit, cap), 1)
    while (high_cost := cost(high)) <= limit:
        if high == cap:
            return cap, high_cost, cap + 1, math.inf
        if not slope:
            low, low_cost, high = high, high_cost, min(8 * high, cap)
            continue
        slope = (high_cost - low_cost) / (high - low)
        low, low_cost = high, high_cost
        # One beyond where the last slope meets the limit: where costs grow ever more slowly it comes short of it, by
        # less every time. A cost that is flat and then rises is reached by steps that double.
        high, least = min(max(_meets(low, low_cost, slope, limit, cap) + 1, low + least), cap), 2 * least
    return low, low_cost, high, high_cost


def _meets(start: int, cost: float, slope: float, limit: float, cap: int) -> int:
    return min(math.floor(start + min((limit - cost) / slope, cap)), cap) if slope > 0 else cap


def _power_law(low: int, low_cost: float, high: int, high_cost: float, limit: float) -> int:
    if not (low > 0 and 0 < low_cost < high_cost < math.inf):
        return (low + high) // 2
    slope = math.log(high / low) / math.log(high_cost / low_cost)
    guess = math.floor(low * math.pow(limit / low_cost, slope))
    return min(max(guess, low + 1), high - 1)
