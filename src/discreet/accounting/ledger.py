"""The privacy ledger: every spend is on disk before its noise is used, so that a crash cannot lose one.

`Ledger` is the open file. `Allowance` caches the cost of spends and computes how many more the budget allows.
"""

from __future__ import annotations

import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Protocol, Self

from discreet.accounting import ledger_file
from discreet.accounting.events import Parts, decompose, event_from_json, event_to_json
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
    cost_of,
    most,
)
from discreet.core.errors import BudgetError, LedgerError, OutputError, invalid, non_negative, one_of, setting
from discreet.core.guarantee import Adjacency, Guarantee, in_digits

__all__ = ["Budget", "Ledger", "Receipt", "Spends", "Statement", "Terms"]

LONGEST_ID = 200


@dataclass(frozen=True)
class Receipt:
    """Proof that a spend is counted. Use the noise only after receiving it.

    `repeated`: the id was spent before with seeded randomness and is counted once. `spent_again`: the id was spent
    before and is counted a second time, because secure randomness never repeats. `durable`: the spend is on disk.
    """

    id: str
    event: Any
    spends: int
    repeated: bool = False
    spent_again: bool = False
    durable: bool = True


class Spends(Protocol):
    """An object that counts spends: a ledger, or the record of all training runs on the same people."""

    def spend(self, event: Any, id: str, *, secure: bool = False, terms: Terms | None = None) -> object:  # noqa: A002
        """Count one use of a mechanism; raise if it is not allowed."""
        ...

    def spend_all(self, spends: Sequence[tuple[Any, str]], *, terms: Terms | None = None) -> int:
        """Count spends in order, and return how many of them are allowed."""
        ...

    def state(self, terms: Terms) -> None:
        """Record terms that apply to spends that were already counted."""
        ...


class Ledger:
    """An append-only record of privacy spent, for one unit under one adjacency. One process at a time can write it.

    An id identifies one sample of randomness: run, seed and step. Repeating an id means the same noise on the same
    data, as when a seeded step is repeated after a crash. Different noise needs a different id, or `secure=True`.

    Args:
        path: The file, or None for a ledger in memory; use `Ledger.open`.
        store: Where its lines are written.
        tally: What they say.

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
        """Wrap an open store; use `Ledger.open`."""
        self.path = path
        self._store = store
        self._tally = tally
        self._process = os.getpid()
        self._thread = threading.Lock()
        self._open = True
        self._settled = True
        self._allowance = Allowance(tally)
        self.also: Spends | None = None  # another object that counts each spend, before this ledger does
        # A key for ids, so that they reveal nothing about the data they are derived from. It is never written.
        self.key = secrets.token_bytes(32)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str] | None, *, unit: str, adjacency: str, budget: Budget | None = None
    ) -> Self:
        """Open or create a ledger for a privacy unit under an adjacency; without a path it is in memory only.

        Raises LedgerError if an existing ledger has another unit, adjacency or budget, is open elsewhere, or is
        damaged. A torn last line is counted as spent and marked in the file.

        Args:
            path: The file, or None for a ledger in memory.
            unit: The word for the privacy unit.
            adjacency: add/remove, zero-out or replace-one.
            budget: The most that may be spent; what would exceed it is rejected.
        """
        if not isinstance(unit, str) or not unit.strip():
            raise invalid("unit", unit, "a non-empty word", "Name what is protected: 'note', 'author', 'client'.")
        relation = Adjacency(one_of("adjacency", adjacency, [member.value for member in Adjacency]))
        first = ledger_file.header(unit, relation, budget)
        if path is None:
            return cls(None, Memory(first), ledger_file.read(first, "memory"))
        resolved = Path(path).resolve()
        file = LedgerFile.open(resolved, first)
        try:
            tally = ledger_file.read(file.read(), str(resolved))
            _check_same(resolved, "unit", tally.unit, unit)
            _check_same(resolved, "adjacency", tally.adjacency.value, relation.value)
            _check_budget(resolved, tally.budget, budget)
            if tally.unfinished:
                file.append(tally.unfinished)
                tally.unfinished = b""
        except BaseException:
            file.close()
            raise
        return cls(resolved, file, tally)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Statement:
        """Return the contents of a ledger without taking the lock, for example while a training run writes to it.

        Args:
            path: The file.
        """
        return ledger_file.read(_bytes(path), str(path)).statement()

    @staticmethod
    def read_until(path: str | os.PathLike[str], check: str) -> Statement | None:
        """Return the contents of a ledger up to the line with a check (`Statement.check`), or None without that line.

        A ledger only grows, so what a release recorded of it at its end can be found later too.

        Args:
            path: The file.
            check: The check of the last line to read.
        """
        data = ledger_file.up_to(_bytes(path), check)
        return None if data is None else ledger_file.read(data, str(path)).statement()

    def spend(
        self,
        event: Any,
        id: str,  # noqa: A002
        *,
        secure: bool = False,
        terms: Terms | None = None,
    ) -> Receipt:
        """Count one use of a mechanism and return its receipt. Call it before using the noise.

        `terms` are the assumptions and caveats of its guarantee. They are written into the ledger, and `guarantee`
        includes them: after a caveat, such as a fixed seed, the figure of the whole ledger is an estimate.

        When it returns, the spend is on disk. If it raises, do not use the noise: nothing was counted or, after a
        partial disk failure, too much. BudgetError is raised before anything is written.

        Args:
            event: What is about to be released.
            id: Names the sample of randomness: run, seed and step.
            secure: Count it again although the id was spent before: the randomness is fresh every time.
            terms: Assumptions and caveats of its guarantee.

        Guarantee: none on its own; `guarantee` returns that of all spends together.
        """
        self.check_usable()
        if not isinstance(id, str) or not 0 < len(id) <= LONGEST_ID:
            raise invalid("id", id, f"a string of 1 to {LONGEST_ID} characters", "Name the run, the seed and the step.")
        text = event_to_json(event)
        with self._thread:
            self.check_usable()
            tally = self._tally
            number, earlier = tally.texts.get(text), tally.ids.get(id)
            if earlier is not None and earlier != number:
                raise LedgerError(
                    f"Expected id={id!r} with the event it was spent with, {tally.events[earlier]}, got {event}. An "
                    "id identifies one sample of randomness. Use another id."
                )
            if earlier is not None and not secure and id not in tally.secure:
                if terms is not None:
                    self._state(terms)
                return self._receipt(id, earlier, repeated=True)
            self._allowance.check(text, id)
            if number is None:
                event_from_json(text)  # an event that cannot be read back must not be written
            if self.also is not None:
                self.also.spend(event, id, secure=secure, terms=terms)
            if terms != tally.terms:
                self._write(tally.conditions(terms))
            if number is None or number != tally.in_force:
                self._write(tally.declaration(text))
            self._write(tally.spend(id, secure))
            return self._receipt(id, tally.texts[text], spent_again=earlier is not None)

    def spend_all(self, spends: Iterable[tuple[Any, str]], *, terms: Terms | None = None) -> int:
        """Count spends in order, as many as the budget allows, and return how many. Call it before using the noise.

        A training run counts all planned steps before the first. They are written together and synced once, which
        takes milliseconds where thousands of single spends take many seconds. Ids that were spent before are counted
        once, as by `spend`.

        Args:
            spends: The events, each with its id, as for `spend`.
            terms: Assumptions and caveats of their guarantee.

        Guarantee: none on its own; `guarantee` returns that of all spends together.
        """
        self.check_usable()
        listed = [(event_to_json(event), event, name) for event, name in spends]
        with self._thread:
            self.check_usable()
            tally, new = self._tally, dict[str, tuple[str, Any]]()
            for text, event, name in listed:
                known = tally.ids.get(name)
                if (known is not None and known != tally.texts.get(text)) or new.get(name, (text,))[0] != text:
                    raise LedgerError(
                        f"Expected id={name!r} with the event it was spent with, got {event}. An id identifies one "
                        "sample of randomness. Use another id."
                    )
                if known is None:
                    new.setdefault(name, (text, event))
            count = self._allowance.allowed([text for text, _ in new.values()])
            allowed = [(event, name) for name, (_, event) in new.items()][:count]
            if allowed and self.also is not None:
                allowed = allowed[: self.also.spend_all(allowed, terms=terms)]
            self._settled = not allowed  # until file and tally agree again, as in `_write`
            lines = []
            for _, name in allowed:
                text = new[name][0]
                if terms != tally.terms:
                    lines.append(self._taken(tally.conditions(terms)))
                if text not in tally.texts or tally.texts[text] != tally.in_force:
                    lines.append(self._taken(tally.declaration(text)))
                lines.append(self._taken(tally.spend(name, secure=False)))
            if lines:
                self._store.append(b"".join(lines))
                self._settled = True
            left_out = set(new) - {name for _, name in allowed}
            return next((place for place, (_, _, name) in enumerate(listed) if name in left_out), len(listed))

    def _taken(self, line: bytes) -> bytes:
        self._tally.take(line[:-1])
        return line

    def state(self, terms: Terms) -> None:
        """Record terms that apply to earlier spends, as when a step is repeated with other randomness.

        A new caveat or assumption is on disk when this returns, here and in `also`.

        Args:
            terms: Assumptions and caveats.
        """
        self.check_usable()
        with self._thread:
            self.check_usable()
            self._state(terms)

    def holds(self, id: str) -> bool:  # noqa: A002
        """Return whether an id was spent. It is a fast lookup, so a resumed run can check each of its steps.

        True only if the spend is counted and, in a ledger with a path, on disk. A torn line whose id could not be read
        is counted, but without an id.

        Args:
            id: The id of a spend.

        >>> from discreet.accounting.events import GaussianDpEvent
        >>> with Ledger.open(None, unit="note", adjacency="add/remove") as ledger:
        ...     receipt = ledger.spend(GaussianDpEvent(2.0), id="seed 7, step 0")
        ...     ledger.holds("seed 7, step 0"), ledger.holds("seed 7, step 1")
        (True, False)
        """
        return id in self._tally.ids

    def check_usable(self) -> None:
        """Raise LedgerError in a fork of the process, after `close`, or after an interrupted spend; it is cheap."""
        if os.getpid() != self._process:
            raise LedgerError(
                f"Expected to spend in process {self._process}, which opened the ledger, got its fork {os.getpid()}. "
                "Spend in the process that opened it."
            )
        if not self._open:
            raise LedgerError("Expected an open ledger, got a closed one. Open it again.")
        if not self._settled:
            raise LedgerError(
                "Expected the last spend to be complete. It was interrupted and may or may not be on disk. Open the "
                "ledger again to read it."
            )

    def remaining(self, event: Any) -> int:
        """Return how many more spends of an event the budget allows, at most ten million.

        It is exactly the number that `spend` will allow, computed by the same accountant together with all earlier
        spends. The accountant gives an upper bound of epsilon, so the true remainder is never smaller.

        Args:
            event: What would be released.
        """
        budget = self._tally.budget
        if budget is None:
            return self.statement.remaining(event)  # raises
        with self._thread:
            return self._allowance.remaining(event_to_json(event), budget)

    def at_least(self, event: Any) -> int:
        """Return a lower bound on `remaining`, by basic composition.

        It takes milliseconds where `remaining` takes a second or two: composing thousands of sampled and unsampled
        events is slow.

        Args:
            event: What would be released.
        """
        budget = self._tally.budget
        if budget is None:
            return self.statement.remaining(event)  # raises
        with self._thread:
            return self._allowance.at_least(event_to_json(event), budget)

    @property
    def name(self) -> str:
        """The random name given at creation, which ties the lines of the ledger to one file."""
        return self._tally.name

    @property
    def names(self) -> tuple[str, ...]:
        """The ids that were spent, in order of first use."""
        return tuple(self._tally.ids)

    @property
    def statement(self) -> Statement:
        """The contents of the ledger so far."""
        return self._tally.statement()

    @property
    def content(self) -> bytes:
        """The bytes of the ledger so far, as in its file; also those of a ledger in memory."""
        return self._store.read() if self.path is None else self.path.read_bytes()

    @property
    def budget(self) -> Budget | None:
        """The budget, or None without a limit."""
        return self._tally.budget

    @property
    def event(self) -> Any:
        """All spends, composed into one event."""
        return self.statement.event

    def guarantee(
        self, delta: float | None = None, accountant: str = "pld", assumptions: Sequence[str] = ()
    ) -> Guarantee:
        """Return the guarantee of all spends together at delta, by default that of the budget.

        It includes the assumptions that were recorded with the spends; with a recorded caveat it is an estimate.

        Args:
            delta: Delta of the guarantee; by default that of the budget.
            accountant: pld, rdp or gdp; the last may be an estimate.
            assumptions: Further assumptions to state.

        Guarantee: for the unit and adjacency of the ledger, over every spend in it.
        """
        statement = self.statement
        cost = self._allowance.cost(self._allowance.counts(), statement.delta(delta), accountant)
        return statement.stated(cost, assumptions)

    def epsilon(self, delta: float | None = None, *, rounding: float = 0.05) -> float:
        """Return an upper bound on epsilon so far, cheap enough for every step of a progress bar.

        Counts are rounded up to a geometric sequence with ratio 1 + `rounding`, so that the accountant runs for few of
        them. The result is the epsilon of the rounded counts, never below the epsilon so far. With rounding 0 it is
        that of `guarantee`.

        Args:
            delta: Delta of the guarantee; by default that of the budget.
            rounding: How coarsely counts are rounded up; 0 is exact.
        """
        return self._allowance.bound(self.statement.delta(delta), non_negative("rounding", rounding))

    def close(self) -> None:
        """Close the file and release its lock."""
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
        """Reject copying and pickling: two copies would each miss what the other spends."""
        raise LedgerError("Expected one Ledger object per ledger; it cannot be copied. Spend where it was opened.")

    def __repr__(self) -> str:
        """Return the path, unit, adjacency and number of spends."""
        where = "in memory only" if self.path is None else repr(str(self.path))
        tally = self._tally
        return f"Ledger({where}, unit={tally.unit!r}, adjacency={tally.adjacency.value!r}, {sum(tally.counts)} spends)"

    def _state(self, terms: Terms) -> None:
        if self.also is not None:
            self.also.state(terms)
        stated = self._tally.stated
        if not (terms.caveats <= stated.caveats and set(terms.assumptions) <= set(stated.assumptions)):
            self._write(self._tally.conditions(terms))

    def _receipt(self, name: str, number: int, *, repeated: bool = False, spent_again: bool = False) -> Receipt:
        tally = self._tally
        return Receipt(name, tally.events[number], sum(tally.counts), repeated, spent_again, self.path is not None)

    def _write(self, line: bytes) -> None:
        # Unsettled until file and tally agree again, so that an interrupt in between is detected.
        self._settled = False
        try:
            self._store.append(line)
        except OutputError:
            self._settled = True
            raise
        self._tally.take(line[:-1])
        self._settled = True


def _bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LedgerError(f"Expected a ledger at {str(path)!r}: {error.strerror}. Check the path.") from error


def _check_budget(path: Path, stored: Budget | None, value: Budget | None) -> None:
    """Reject another budget; the default delta falls when data grow, so a ledger that is used again needs its own."""
    if stored is not None and value is not None and stored.epsilon == value.epsilon and stored.delta != value.delta:
        raise LedgerError(
            f"Expected delta to be {stored.delta!r}, as in the ledger {str(path)!r}, got {value.delta!r}. A ledger has "
            f"one budget, and the default delta depends on the number of units. Set {setting('delta', stored.delta)}, "
            "or create another file."
        )
    _check_same(path, "budget", stored, value)


def _check_same(path: Path, name: str, stored: object, value: object) -> None:
    if stored != value:
        with_it = setting(name, stored.epsilon if isinstance(stored, Budget) else stored)
        how = f"without {setting(name)}" if stored is None else f"with {with_it}"
        raise LedgerError(
            f"Expected {name} to be {_words(stored)}, as in the ledger {str(path)!r}, got {_words(value)}. A ledger "
            f"has one unit, one adjacency and one budget. Open it {how}, or create another file."
        )


def _words(value: object) -> str:
    return f"epsilon {value.epsilon} at delta {value.delta}" if isinstance(value, Budget) else repr(value)


_CACHE_SIZE = 1024
_MARGIN = 1e-4  # the accountant rounds up: its epsilon may exceed a sum of costs by this fraction

Counts = Counter[str]  # the number of spends per event, as JSON


class Allowance:
    """The cost of counts of events, and a set of counts that is known to be within the budget.

    Cost is monotone, so any counts that are at most the known ones, event by event, are within the budget, and the
    accountant need not run. It runs when a spend exceeds them. They are then extended by as much as was spent since the
    ledger was opened or, if that exceeds the budget, as far as the budget allows. A run of thousands of equal steps
    thus needs a dozen runs of the accountant, and a single spend computes the cost of a single spend. Computing at once
    how often the budget allows a costly event would take a hundred times as long.
    """

    def __init__(self, tally: Tally) -> None:
        """Start without counts known to be within the budget."""
        self._tally = tally
        self._costs: dict[tuple[object, ...], Guarantee] = {}
        self._opened = self.counts()
        self._known = Counts()
        self._base = Counts()  # the counts when `_known` was computed
        self._step = Counts()  # the step that was added to `_base` as often as the budget allows

    def counts(self) -> Counts:
        """Return the number of spends per event so far."""
        return Counts(dict(zip(self._tally.texts, self._tally.counts, strict=True)))

    def cost(self, counts: Counts, delta: float, accountant: str = "pld") -> Guarantee:
        """Return the guarantee of counts of events, cached."""
        key = (tuple((text, count) for text, count in counts.items() if count), delta, accountant)
        if key not in self._costs:
            if len(self._costs) >= _CACHE_SIZE:
                self._costs.clear()
            self._costs[key] = cost_of(_composed(counts), delta, self._tally.statement(), accountant)
        return self._costs[key]

    def bound(self, delta: float, rounding: float) -> float:
        """Return an upper bound on epsilon so far: that of counts rounded up, so that the cache has few entries."""
        counts, budget = self.counts(), self._tally.budget
        rounded = Counts({text: _round_up(count, rounding) for text, count in counts.items()})
        bound = self.cost(rounded, delta).epsilon
        if budget is not None and delta == budget.delta and counts <= self._known:
            return min(bound, budget.epsilon)
        return bound

    def remaining(self, text: str, budget: Budget) -> int:
        """Return the number of further spends of an event that the budget allows."""
        now, step = self.counts(), Counts({text: 1})
        if self._step == step and now <= self._known:
            return (self._known - now)[text]  # only this event was spent since it was computed
        return self._extend(step, budget)

    def at_least(self, text: str, budget: Budget) -> int:
        """Return a lower bound on `remaining` by basic composition, which is fast.

        Costs (e1, d1) and (e2, d2) are together at most (e1 + e2, d1 + d2). So either each spend costs its largest loss
        and no delta, or the earlier spends use half of the budget's delta and n more share the other half.
        """
        now, step = self.counts(), Counts({text: 1})
        largest, before = self._largest_loss(step), self._largest_loss(now)
        if not self._parts(now + step).uses or (now <= self._known and self._step == step):
            return self.remaining(text, budget)  # in closed form, or cached
        count = _quotient(budget.epsilon - before, largest)
        while count and self._largest_loss(now + Counts({text: count})) > budget.epsilon:
            count -= 1  # rounding: 0.1 + 0.1 + 0.1 > 0.3
        limit = budget.epsilon * (1 - _MARGIN)
        count = max(count, _quotient(limit - self.cost(now, budget.delta).epsilon, largest))
        if budget.delta and largest > self.cost(step, budget.delta).epsilon:
            half, closed = budget.delta / 2, not self._parts(step).uses
            spent = self.cost(now, half).epsilon

            def total(n: int) -> float:
                if closed:
                    return spent + self.cost(Counts({text: n}), half).epsilon
                return spent + n * self.cost(step, half / n).epsilon

            count = max(count, most(total, limit, MOST_STEPS))
        return count

    def allowed(self, texts: Sequence[str]) -> int:
        """Return how many of these further spends the budget allows, in their order."""
        now, budget = self.counts(), self._tally.budget

        def cost(count: int) -> float:
            assert budget is not None
            return self.cost(now + Counts(texts[:count]), budget.delta).epsilon

        if budget is None or not texts or cost(len(texts)) <= budget.epsilon:
            return len(texts)
        return most(cost, budget.epsilon, len(texts) - 1)

    def check(self, text: str, name: str) -> None:
        """Raise BudgetError if the budget does not allow one more spend of an event."""
        budget = self._tally.budget
        if budget is None:
            return
        now, step = self.counts(), Counts({text: 1})
        if now + step <= self._known:
            return
        doubled = now + (now - self._opened) + step
        if self.cost(doubled, budget.delta).epsilon <= budget.epsilon:
            self._known, self._base, self._step = doubled, now, Counts()
            return
        # First in the proportions spent since the last extension: alternating kinds of steps then need few extensions.
        mixed = now - self._base + step
        if (mixed != step and self._extend(mixed, budget)) or self._extend(step, budget):
            return
        after, spent = self.cost(now + step, budget.delta).epsilon, self.cost(now, budget.delta).epsilon
        raise BudgetError(
            f"Expected epsilon after {name!r} to be within the budget of {in_digits(budget.epsilon, 6)} at "
            f"delta={in_digits(budget.delta)}, got {in_digits(after, 6)}. Nothing was written. Stop here, with epsilon "
            f"{in_digits(spent, 6)} spent, increase the budget, or use more noise."
        )

    def _parts(self, counts: Counts) -> Parts:
        return decompose(_composed(counts), self._tally.adjacency)

    def _largest_loss(self, counts: Counts) -> float:
        return pure_epsilon(self._parts(counts), self._tally.adjacency)

    def _extend(self, step: Counts, budget: Budget) -> int:
        now = self.counts()

        def after(times: int) -> Counts:
            return now + Counts({text: times * count for text, count in step.items()})

        times = most(
            lambda n: self.cost(after(n), budget.delta).epsilon,
            budget.epsilon,
            MOST_STEPS,
            self.cost(step, budget.delta).epsilon,
        )
        if times:
            self._known, self._base, self._step = after(times), now, step
        return times


def _composed(counts: Counts) -> Any:
    return composed([(event_from_json(text), count) for text, count in counts.items() if count])


def _quotient(total: float, cost: float) -> int:
    if not total > 0 or not math.isfinite(cost):
        return 0
    return min(math.floor(total / cost * (1 + 1e-12)), MOST_STEPS) if cost > 0 else MOST_STEPS


def _round_up(count: int, rounding: float) -> int:
    if count <= 1 or rounding == 0:
        return count
    power = math.ceil(math.log(count) / math.log1p(rounding))
    return max(count, math.ceil(math.pow(1 + rounding, power)))
