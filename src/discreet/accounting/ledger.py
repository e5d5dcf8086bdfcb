"""The ledger: what was spent, on disk before it is used, so that no crash can make it less.

What a ledger's counts cost, remembered, and how far a budget still reaches, found in few looks.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

from discreet.accounting import ledger_file
from discreet.accounting.events import event_from_json, event_to_json
from discreet.accounting.interpret import pure_epsilon
from discreet.accounting.ledger_file import (
    MOST_STEPS,
    Budget,
    LedgerFile,
    Memory,
    Statement,
    Store,
    Tally,
    Terms,
    composed,
    most,
    priced,
)
from discreet.accounting.parts import Parts, take_apart
from discreet.core.errors import BudgetError, LedgerError, OutputError, invalid, non_negative, one_of
from discreet.core.guarantee import Adjacency, Guarantee, in_digits

__all__ = ["Budget", "Ledger", "Receipt", "Spends", "Statement", "Terms"]

LONGEST_ID = 200


@dataclass(frozen=True)
class Receipt:
    """Proof that a spend is counted; only with it may the noise be used.

    `repeated`: this id was spent before, with seeded randomness, and is counted once. `spent_again`: this id was spent
    before and is counted a second time, because secure randomness never repeats. `durable`: it is on disk.
    """

    id: str
    event: Any
    spends: int
    repeated: bool = False
    spent_again: bool = False
    durable: bool = True


class Spends(Protocol):
    """Anything that counts spends: a ledger, or the record of all trainings on the same people."""

    def spend(self, event: Any, id: str, *, secure: bool = False, terms: Terms | None = None) -> object:  # noqa: A002
        """Count one use of a mechanism; raise if it is not allowed."""
        ...

    def state(self, terms: Terms) -> None:
        """Record terms that what was counted turned out to rest on."""
        ...


class Ledger:
    """An append-only account of privacy spent, for one unit under one adjacency; one process at a time may write it.

    An id names one draw of randomness: run, seed and step. The same id again means the same noise on the same data, as
    when a seeded step is redone after a crash; whatever would draw other noise needs another id, or `secure=True`.

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> with Ledger.open(None, unit="note", adjacency="add/remove") as ledger:
    ...     ledger.spend(GaussianDpEvent(2.0), id="seed 7, step 1").spends
    ...     ledger.spend(GaussianDpEvent(2.0), id="seed 7, step 1").repeated
    ...     ledger.event
    1
    True
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=1)
    """

    def __init__(self, path: Path | None, store: Store, tally: ledger_file.Tally) -> None:
        """Hold an open store; `Ledger.open` makes one."""
        self.path = path
        self._store = store
        self._tally = tally
        self._process = os.getpid()
        self._thread = threading.Lock()
        self._open = True
        self._settled = True
        self._allowance = Allowance(tally)
        self.also: Spends | None = None  # whoever else counts each spend, before this ledger does
        # Names of spends may be made with it, so that they tell nothing of what they are made of; never written.
        self.key = secrets.token_bytes(32)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str] | None, *, unit: str, adjacency: str, budget: Budget | None = None
    ) -> Ledger:
        """Open or make a ledger for a unit of privacy under an adjacency; with no path it is kept in memory only.

        An existing ledger is refused when it was made for another unit, adjacency or budget, when it is open elsewhere,
        and when it is damaged. A torn last line is counted as spent and marked so.
        """
        if not isinstance(unit, str) or not unit.strip():
            raise invalid("unit", unit, "a word", "Say what is protected: 'note', 'author', 'client'.")
        relation = Adjacency(one_of("adjacency", adjacency, [each.value for each in Adjacency]))
        first = ledger_file.header(unit, relation, budget)
        if path is None:
            return cls(None, Memory(), ledger_file.read(first, "memory"))
        resolved = Path(path).resolve()
        file = LedgerFile.open(resolved, first)
        try:
            tally = ledger_file.read(file.read(), str(resolved))
            _same(resolved, "unit", tally.unit, unit)
            _same(resolved, "adjacency", tally.adjacency.value, relation.value)
            _same(resolved, "budget", tally.budget, budget)
            if tally.unfinished:
                file.append(tally.unfinished)
                tally.unfinished = b""
        except BaseException:
            file.close()
            raise
        return cls(resolved, file, tally)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Statement:
        """Return what a ledger holds now, without the lock: a training may be writing to it."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise LedgerError(f"Expected a ledger at {str(path)!r}: {error.strerror}. Check the path.") from error
        return ledger_file.read(data, str(path)).statement()

    def spend(
        self,
        event: Any,
        id: str,  # noqa: A002
        *,
        secure: bool = False,
        terms: Terms | None = None,
    ) -> Receipt:
        """Count one use of a mechanism and return its receipt; call it before the noise is used.

        `terms` are what its guarantee rests on. They are written into the ledger, and `guarantee` states them: with a
        caveat, such as a fixed seed, the figure of the whole ledger is an estimate from then on.

        When it returns, the spend is on disk. When it raises, do not use the noise: nothing was counted, or, where the
        disk failed half-way, too much. BudgetError is raised before anything is written.

        Guarantee: none of its own; the sum of all spends has one, from `guarantee`.
        """
        self._check_usable()
        if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID:
            raise invalid("id", id, f"a text of 1 to {LONGEST_ID} characters", "Name the run, the seed and the step.")
        text = event_to_json(event)
        with self._thread:
            self._check_usable()
            tally = self._tally
            number, earlier = tally.texts.get(text), tally.ids.get(id)
            if earlier is not None and earlier != number:
                raise LedgerError(
                    f"Expected id={id!r} with the event it was spent with, {tally.events[earlier]}; found {event}. An "
                    "id names one draw of randomness: give this one another."
                )
            if earlier is not None and not secure and id not in tally.secure:
                if terms is not None:
                    self._state(terms)
                return self._receipt(id, earlier, repeated=True)
            self._allowance.check(text, id)
            if number is None:
                event_from_json(text)  # what could not be read back must not be written
            if self.also is not None:
                self.also.spend(event, id, secure=secure, terms=terms)
            if terms != tally.terms:
                self._write(tally.conditions(terms))
            if number is None or number != tally.in_force:
                self._write(tally.declaration(text))
            self._write(tally.spend(id, secure))
            return self._receipt(id, tally.texts[text], spent_again=earlier is not None)

    def state(self, terms: Terms) -> None:
        """Record terms that earlier spends turned out to rest on, as when a step is redone in another way.

        A caveat that is new is on disk when this returns, here and wherever else each spend is counted.
        """
        self._check_usable()
        with self._thread:
            self._check_usable()
            self._state(terms)

    def holds(self, id: str) -> bool:  # noqa: A002
        """Return whether an id was spent; one look into a table, so a resumed run can ask for each of its steps.

        True only for what is counted and, in a ledger with a path, on disk. A torn line whose id could not be read is
        counted, but it holds no id.

        >>> from discreet.accounting.events import GaussianDpEvent
        >>> with Ledger.open(None, unit="note", adjacency="add/remove") as ledger:
        ...     receipt = ledger.spend(GaussianDpEvent(2.0), id="seed 7, step 0")
        ...     ledger.holds("seed 7, step 0"), ledger.holds("seed 7, step 1")
        (True, False)
        """
        return id in self._tally.ids

    def remaining(self, event: Any) -> int:
        """Return how many more spends of an event the budget allows, looking no further than ten million.

        Exactly as many as `spend` will allow: the number that is returned was priced, with all that was spent before,
        by the same accountant. That is an upper bound of epsilon, so what is truly left may be a few more and is never
        less.
        """
        budget = self._tally.budget
        if budget is None:
            return self.statement.remaining(event)  # refuses
        with self._thread:
            return self._allowance.remaining(event_to_json(event), budget)

    def at_least(self, event: Any) -> int:
        """Return a number of further spends of an event that the budget allows, by costs simply added up.

        It is at most `remaining`, and takes milliseconds where that takes a second or two: what was sampled and what
        was not, thousands of each, are long to price together.
        """
        budget = self._tally.budget
        if budget is None:
            return self.statement.remaining(event)  # refuses
        with self._thread:
            return self._allowance.at_least(event_to_json(event), budget)

    @property
    def name(self) -> str:
        """The random name that this ledger was given when it was made; it ties its lines to one file."""
        return self._tally.name

    @property
    def names(self) -> tuple[str, ...]:
        """The ids that were spent, in the order of their first use."""
        return tuple(self._tally.ids)

    @property
    def statement(self) -> Statement:
        """What was spent so far, as a value."""
        return self._tally.statement()

    @property
    def budget(self) -> Budget | None:
        """The most that may be spent, if there is a limit."""
        return self._tally.budget

    @property
    def event(self) -> Any:
        """All that was spent, as one event."""
        return self.statement.event

    def guarantee(
        self, delta: float | None = None, accountant: str = "pld", assumptions: Sequence[str] = ()
    ) -> Guarantee:
        """Return what all spends together guarantee at delta; without delta, at the budget's.

        It states the assumptions that were recorded with the spends; with a recorded caveat it is an estimate.

        Guarantee: for the unit and adjacency the ledger was opened for, over every spend it holds.
        """
        statement = self.statement
        found = self._allowance.price(self._allowance.counts(), statement.delta(delta), accountant)
        return statement.stated(found, assumptions)

    def epsilon(self, delta: float | None = None, *, rounding: float = 0.05) -> float:
        """Return a bound on epsilon so far, cheap enough for every step of a progress bar.

        Counts are rounded up to the next of a geometric row of numbers, `rounding` apart, so that the accountant runs
        for few of them; what is returned is the epsilon of that many spends, never below the one so far. With rounding
        0 it is that of `guarantee`.
        """
        at = self.statement.delta(delta)
        return self._allowance.bound(at, non_negative("rounding", rounding))

    def close(self) -> None:
        """Close the file and let go of its lock; what was spent stays spent."""
        self._open = False
        self._store.close()

    def __enter__(self) -> Self:
        """Return the ledger itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the ledger."""
        self.close()

    def __reduce__(self) -> NoReturn:
        """Refuse to be copied or sent to another process: two copies would each forget what the other spends."""
        raise LedgerError("Expected one Ledger object for one ledger; it cannot be copied. Spend where it was opened.")

    def __repr__(self) -> str:
        """Return where it is kept and how much is in it."""
        where = "in memory, forgotten when the process ends" if self.path is None else repr(str(self.path))
        tally = self._tally
        return f"Ledger({where}, unit={tally.unit!r}, adjacency={tally.adjacency.value!r}, {sum(tally.counts)} spends)"

    def _state(self, terms: Terms) -> None:
        if self.also is not None:
            self.also.state(terms)
        if not terms.caveats <= self._tally.caveats:
            self._write(self._tally.conditions(terms))

    def _receipt(self, name: str, number: int, *, repeated: bool = False, spent_again: bool = False) -> Receipt:
        tally = self._tally
        return Receipt(name, tally.events[number], sum(tally.counts), repeated, spent_again, self.path is not None)

    def _check_usable(self) -> None:
        if os.getpid() != self._process:
            raise LedgerError(
                f"Expected to spend in process {self._process}, which opened the ledger; this is {os.getpid()}, forked "
                "from it. Spend there."
            )
        if not self._open:
            raise LedgerError("Expected an open ledger. It was closed; open it again.")
        if not self._settled:
            raise LedgerError(
                "Expected the last spend to have ended. It was interrupted, so whether it is on disk is not known; "
                "open the ledger again to read it."
            )

    def _write(self, line: bytes) -> None:
        # Unsettled until file and tally agree again: an interrupt in between must not leave them apart unnoticed.
        self._settled = False
        try:
            self._store.append(line)
        except OutputError:
            self._settled = True
            raise
        self._tally.take(line[:-1])
        self._settled = True


def _same(path: Path, name: str, held: object, asked: object) -> None:
    if held != asked:
        raise LedgerError(
            f"Expected {name}={asked!r} to be that of the ledger {str(path)!r}, {held!r}. One ledger holds one unit, "
            f"one adjacency and one budget: open it with {name}={held!r}, or start another file."
        )


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
