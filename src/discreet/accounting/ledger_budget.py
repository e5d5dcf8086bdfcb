"""What a ledger's counts cost, remembered, and how far a budget still reaches, found in few looks."""

from __future__ import annotations

import math
from collections import Counter

from discreet.accounting.event_json import event_from_json
from discreet.accounting.ledger_lines import Tally
from discreet.accounting.ledger_statement import MOST_STEPS, Budget, composed, most, priced
from discreet.accounting.parts import Parts, take_apart
from discreet.accounting.pure import pure_epsilon
from discreet.core.errors import BudgetError
from discreet.core.guarantee import Guarantee, in_digits

_REMEMBERED = 1024
_MARGIN = 1e-4

Counts = Counter[str]  # events as JSON, and how often each is spent


class Allowance:
    """The price of counts of events, and a set of counts known to be within the budget.

    Spending more never costs less, so whatever is event by event at most the known counts is within the budget too, and
    the accountant need not be asked. It is asked when a step leaves them: they are then extended by as much again as
    was spent since the ledger was opened, or, where that is too much, as far as the budget reaches. So a run of
    thousands of equal steps asks a dozen times, and a single spend prices a single spend: what the whole budget could
    hold of a costly event takes a hundred times as long to price.
    """

    def __init__(self, tally: Tally) -> None:
        """Follow a tally; nothing is known to be within the budget yet."""
        self._tally = tally
        self._prices: dict[tuple[object, ...], Guarantee] = {}
        self._opened = self.counts()
        self._known = Counts()
        self._then = Counts()  # the counts when that was found
        self._along = Counts()  # the step of which as many as fit were added to those

    def counts(self) -> Counts:
        """Return how often each event was spent so far."""
        return Counts(dict(zip(self._tally.texts, self._tally.counts, strict=True)))

    def price(self, counts: Counts, delta: float, accountant: str = "pld") -> Guarantee:
        """Return what counts of events guarantee; asked again, from memory."""
        spent = [(text, count) for text, count in counts.items() if count]
        key = (tuple(spent), delta, accountant)
        if key not in self._prices:
            if len(self._prices) >= _REMEMBERED:
                self._prices.clear()
            event = composed([(event_from_json(text), count) for text, count in spent])
            self._prices[key] = priced(event, delta, self._tally.statement(), accountant)
        return self._prices[key]

    def bound(self, delta: float, rounding: float) -> float:
        """Return an epsilon not below the one so far: that of counts rounded up, so that few are ever priced."""
        counts, budget = self.counts(), self._tally.budget
        rounded = Counts({text: _round_up(count, rounding) for text, count in counts.items()})
        bound = self.price(rounded, delta).epsilon
        if budget is not None and delta == budget.delta and counts <= self._known:
            return min(bound, budget.epsilon)
        return bound

    def remaining(self, text: str, budget: Budget) -> int:
        """Return how many more spends of an event the budget allows."""
        now, step = self.counts(), Counts({text: 1})
        left = self._known - now
        if self._along == step and now <= self._known:
            return left[text]  # found before, and only this event was spent since
        return self._extend(step, budget)

    def at_least(self, text: str, budget: Budget) -> int:
        """Return a number of further spends of an event that the budget allows, by simple addition: a quick bound.

        Costs (e1, d1) and (e2, d2) are together at most (e1 + e2, d1 + d2). So either each costs its largest loss and
        no delta, or what was spent has half of the budget's delta and n more share the other half.
        """
        now, step = self.counts(), Counts({text: 1})
        each, before = self._largest_loss(step), self._largest_loss(now)
        if not self._parts(now + step).uses or (now <= self._known and self._along == step):
            return self.remaining(text, budget)  # in closed form, or from memory
        found = _quotient(budget.epsilon - before, each)
        while found and self._largest_loss(now + Counts({text: found})) > budget.epsilon:
            found -= 1  # three of 0.1 are a hair more than 0.3
        room = budget.epsilon * (1 - _MARGIN)  # the accountant rounds up: what it will say may be a little more
        found = max(found, _quotient(room - self.price(now, budget.delta).epsilon, each))
        if budget.delta and each > self.price(step, budget.delta).epsilon:
            half, closed = budget.delta / 2, not self._parts(step).uses
            spent = self.price(now, half).epsilon

            def cost(n: int) -> float:
                if closed:
                    return spent + self.price(Counts({text: n}), half).epsilon
                return spent + n * self.price(step, half / n).epsilon

            found = max(found, most(cost, room, MOST_STEPS))
        return found

    def check(self, text: str, name: str) -> None:
        """Refuse one more spend of an event if the budget does not allow it."""
        budget = self._tally.budget
        if budget is None:
            return
        now, step = self.counts(), Counts({text: 1})
        if now + step <= self._known:
            return
        again = now + (now - self._opened) + step
        if self.price(again, budget.delta).epsilon <= budget.epsilon:
            self._known, self._then, self._along = again, now, Counts()
            return
        # First in the proportions seen since the last look: steps of several kinds taken in turn then need few looks.
        mixed = now - self._then + step
        if (mixed != step and self._extend(mixed, budget)) or self._extend(step, budget):
            return
        would, spent = self.price(now + step, budget.delta).epsilon, self.price(now, budget.delta).epsilon
        raise BudgetError(
            f"Expected epsilon={in_digits(would, 6)} after {name!r} <= {in_digits(budget.epsilon, 6)}, the budget, at "
            f"delta={in_digits(budget.delta)}. Nothing was written: stop here, with epsilon {in_digits(spent, 6)} "
            "spent, or give a larger budget, or spend less each time, with more noise."
        )

    def _parts(self, counts: Counts) -> Parts:
        event = composed([(event_from_json(text), count) for text, count in counts.items() if count])
        return take_apart(event, self._tally.adjacency)

    def _largest_loss(self, counts: Counts) -> float:
        return pure_epsilon(self._parts(counts), self._tally.adjacency)

    def _extend(self, step: Counts, budget: Budget) -> int:
        now = self.counts()

        def after(times: int) -> Counts:
            return now + Counts({text: times * count for text, count in step.items()})

        times = most(
            lambda n: self.price(after(n), budget.delta).epsilon,
            budget.epsilon,
            MOST_STEPS,
            self.price(step, budget.delta).epsilon,
        )
        if times:
            self._known, self._then, self._along = after(times), now, step
        return times


def _quotient(room: float, each: float) -> int:
    if not room > 0 or not math.isfinite(each):
        return 0
    return min(math.floor(room / each * (1 + 1e-12)), MOST_STEPS) if each > 0 else MOST_STEPS


def _round_up(count: int, rounding: float) -> int:
    if count <= 1 or rounding == 0:
        return count
    power = math.ceil(math.log(count) / math.log1p(rounding))
    return max(count, math.ceil(math.pow(1 + rounding, power)))
