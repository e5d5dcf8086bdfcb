r"""The file under a ledger: made whole, locked for one writer, and on disk before anything is used.

The lines of a ledger: how they are written, how they are read back, and why a crash never hides a spend.

A ledger is text, one JSON value a line. The first line says what it is for. An object puts an event in force, the
first time with the event itself, or says what the guarantee of the spends after it rests on: assumptions and caveats.
An array is one spend of the event in force under the terms in force, with its id and whether the randomness was secure.
Each line ends in a check: a hash of the check before it and of the line.

    {"discreet-ledger":1,"name":"…","unit":"note","adjacency":"add/remove","budget":null,"check":"…"}
    {"terms":{"assumptions":["…"],"caveats":["fixed-seed"]},"check":"…"}
    {"event":0,"is":{"GaussianDpEvent":{"noise_multiplier":1.0}},"check":"…"}
    ["step 1",0,"…"]
    ["step 2",0,"…"]

**A torn last line is spent.** Write `used` for the spends that returned. Two rules hold: (1) a line is written only
when all lines before it are on disk; (2) a spend returns only when its line is on disk. Let the file be cut off, or its
last write be garbled, at any byte; let L be the whole lines and t the torn rest.

- t is empty: every line of which a byte survives is in L. Nothing in `used` is missing, by (2).
- t is not empty: it is the remains of one line, by (1). If that line is a spend, it is a spend of the event in force
  after L, because the line that put it in force comes earlier and is whole, by (1). So counting one spend of that event
  counts t exactly, whatever is left of it. If the line puts an event in force, no spend of that event is on disk after
  it, by (1), and counting nothing, or one spend of the event that was in force, is never too little. The same holds of
  a line that puts terms in force: no spend under them is on disk, and whoever spends next writes them again.

So: a torn line counts as one spend of the event in force, unless it agrees with `{"event":` or `{"terms":` as far as it
goes; with no event in force nothing can have been spent. No line is lost before it can be priced, so "torn, of unknown
price" does not occur. A torn line stays in the file. Opening it for writing ends it with a tab, which no other line
holds, and a mark that carries on the chain of checks; a mark that is torn in turn is ended by another. A line that has
its newline and not its check is no crash but damage, and refused.

What a ledger holds, as a value: how often each event was spent, what that guarantees, and what is left.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import secrets
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from discreet.accounting.events import ComposedDpEvent, NoOpDpEvent, SelfComposedDpEvent, event_from_value
from discreet.accounting.interpret import guarantee
from discreet.core.errors import DiscreetError, LedgerError, OutputError, invalid, positive, shown
from discreet.core.files import write_all, write_atomic
from discreet.core.guarantee import Adjacency, Caveat, Guarantee


class Store(Protocol):
    """Where lines are appended."""

    def append(self, line: bytes) -> None:
        """Return when the line is stored; raise OutputError when nothing of it is."""

    def close(self) -> None:
        """Let go of it."""


class Memory:
    """A store that keeps nothing: the tally in memory is all there is."""

    def append(self, line: bytes) -> None:
        """Accept the line."""

    def close(self) -> None:
        """Do nothing."""


class LedgerFile:
    """A file open for appending under an exclusive lock, which ends with the process that holds it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Hold a descriptor that is already locked; `LedgerFile.open` makes one."""
        self.path = path
        self._descriptor = descriptor
        self._status = os.fstat(descriptor)
        self._size = self._status.st_size
        _OPEN.add(self)

    @classmethod
    def open(cls, path: Path, first_line: bytes) -> LedgerFile:
        """Return the file, locked for this process alone; one that does not exist is made with its first line."""
        try:
            if not path.exists():
                _create(path, first_line)
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise LedgerError(
                f"Expected to open a ledger at {str(path)!r}: {error.strerror}. Check the folder and its permissions."
            ) from error
        try:
            # flock and not lockf: the second open in one process is refused too, and closing another descriptor of the
            # same file, as a reader does, does not release it.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise LedgerError(
                    f"Expected to lock the ledger {str(path)!r}: {error.strerror}. Keep it on a local disk."
                ) from error
            raise LedgerError(
                f"Expected the ledger {str(path)!r} to be free. Another process, or another Ledger in this one, has it "
                "open; close that first, or read it without the lock with Ledger.read."
            ) from None
        return cls(path, descriptor)

    def read(self) -> bytes:
        """Return all bytes, after making sure that they are on disk and not only in memory.

        A process killed between writing a line and syncing it leaves a line that can be read and that a power cut could
        still undo; whoever relies on it must sync it first.
        """
        _sync(self._descriptor)
        return self.path.read_bytes()

    def append(self, line: bytes) -> None:
        """Write a line and sync it; on a failed write nothing of it remains, or the ledger is of no more use."""
        self._check_unchanged()
        try:
            write_all(self._descriptor, line)
        except OSError as error:
            # The spend has not returned, so nothing was used on the strength of these bytes and they may go.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            if os.fstat(self._descriptor).st_size != self._size:
                raise LedgerError(
                    f"Expected to write to the ledger {str(self.path)!r}: {error.strerror}. Part of a line is in it "
                    "and will be counted as spent; make room and open it again."
                ) from error
            raise OutputError(
                f"Expected to write to the ledger {str(self.path)!r}: {error.strerror}. Nothing was spent; make room "
                "and try again."
            ) from error
        try:
            _sync(self._descriptor)
        except OSError as error:
            # After a failed sync the system may have dropped the bytes or kept them: only reading can tell.
            raise LedgerError(
                f"Expected to sync the ledger {str(self.path)!r}: {error.strerror}. Do not use the noise of this "
                "spend; check the disk and open the ledger again."
            ) from error
        self._size += len(line)

    def _check_unchanged(self) -> None:
        try:
            now = self.path.stat()
        except OSError:
            now = None
        known = (self._status.st_dev, self._status.st_ino, self._size)
        if now is None or (now.st_dev, now.st_ino, now.st_size) != known:
            raise LedgerError(
                f"Expected the ledger {str(self.path)!r} as this process left it; it was moved, deleted or written to "
                "while open. Put it back and open it again."
            )

    def close(self) -> None:
        """Close the descriptor, which releases the lock unless a forked process still holds a copy."""
        _OPEN.discard(self)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _create(path: Path, first_line: bytes) -> None:
    # A crash never leaves a ledger without its first line. Of two processes that create one, the first wins.
    with contextlib.suppress(FileExistsError):
        write_atomic(path, first_line, replace=False)


def _sync(descriptor: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:  # macOS, where fsync does not reach the disk
        fcntl.fcntl(descriptor, full)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


_OPEN: weakref.WeakSet[LedgerFile] = weakref.WeakSet()


def _forget_in_child() -> None:
    # A forked child shares the lock. Closing its copies lets the lock end with the process that opened the ledger.
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_forget_in_child)


VERSION = 1
_DECLARES = (b'{"event":', b'{"terms":')
_CHECK_BYTES = 8
_TAIL = 2 * _CHECK_BYTES + 3  # the check in quotes and the bracket that closes the line
_TORN_SPEND = re.compile(rb'(\["(?:[^"\\]|\\.)*",[01],)("?[0-9a-f]{0,16}"?\]?)')


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=_CHECK_BYTES).hexdigest().encode()


def header(unit: str, adjacency: Adjacency, budget: Budget | None) -> bytes:
    """Return the first line of a new ledger, with a random name that ties every later check to this file."""
    limits = None if budget is None else {"epsilon": budget.epsilon, "delta": budget.delta}
    fields = {
        "discreet-ledger": VERSION,
        "name": secrets.token_hex(8),
        "unit": unit,
        "adjacency": adjacency.value,
        "budget": limits,
    }
    return seal(b"", _dump(fields)[:-1] + b',"check":', b"}")


def seal(chain: bytes, body: bytes, close: bytes) -> bytes:
    """Return a whole line: its body, the check that carries on the chain, and the bracket that closes it."""
    return b"".join((body, b'"', _hash(chain, body), b'"', close, b"\n"))


def _spent(body: bytes) -> tuple[str, bool]:
    if b"\\" not in body:  # nothing is escaped: a third of the time of JSON, and most ledgers are nothing else
        return body[2:-4].decode("ascii"), body[-2:] == b"1,"
    name, secure = json.loads(body[:-1] + b"]")
    return name, bool(secure)


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@dataclass
class Tally:
    """What a ledger's lines add up to so far; it grows by whole lines only."""

    unit: str
    adjacency: Adjacency
    budget: Budget | None
    chain: bytes
    name: str = ""
    events: list[Any] = field(default_factory=list)
    texts: dict[str, int] = field(default_factory=dict)
    counts: list[int] = field(default_factory=list)
    in_force: int | None = None
    ids: dict[str, int] = field(default_factory=dict)
    secure: set[str] = field(default_factory=set)
    respent: int = 0
    torn: int = 0
    terms: Terms | None = None  # in force; None in a ledger that was written before terms were recorded
    rests_on: dict[Terms | None, None] = field(default_factory=dict)  # all terms so far, None for a spend without
    unfinished: bytes = b""  # what must be appended before the next line, when the last one is torn

    @property
    def ends_torn(self) -> bool:
        """Whether the last line is torn and not yet ended; one that lacks its newline alone is whole."""
        return len(self.unfinished) > 1

    def statement(self) -> Statement:
        """Return what was spent, as a value."""
        spent = tuple((event, count) for event, count in zip(self.events, self.counts, strict=True) if count)
        terms, unstated = Terms(), False
        for each in self.rests_on:
            terms, unstated = (terms, True) if each is None else (terms | each, unstated)
        return Statement(
            self.unit, self.adjacency, self.budget, spent, self.respent, self.torn, self.ends_torn, terms, unstated
        )

    @property
    def caveats(self) -> frozenset[Caveat]:
        """The caveats recorded so far."""
        return frozenset().union(*(each.caveats for each in self.rests_on if each is not None))

    def conditions(self, terms: Terms | None) -> bytes:
        """Return the line that puts terms in force."""
        value = None
        if terms is not None:
            value = {"assumptions": list(terms.assumptions), "caveats": sorted(terms.caveats)}
        return seal(self.chain, b'{"terms":' + _dump(value) + b',"check":', b"}")

    def declaration(self, text: str) -> bytes:
        """Return the line that puts an event in force."""
        known = self.texts.get(text)
        number = b"%d" % (len(self.events) if known is None else known)
        event = b',"is":' + text.encode() if known is None else b""
        return seal(self.chain, b'{"event":' + number + event + b',"check":', b"}")

    def spend(self, name: str, secure: bool) -> bytes:
        """Return the line of one spend of the event in force."""
        return seal(self.chain, b"[%s,%d," % (json.dumps(name).encode(), secure), b"]")

    def take(self, line: bytes) -> bool:
        """Add one line, without its newline, and return True; or return False when it is not whole."""
        check, body, marked = line[1 - _TAIL : -2], line[:-_TAIL], b"\t" in line
        spend = line[:1] == b"[" and not marked
        if line[-_TAIL:] != b"".join((b'"', _hash(self.chain, body), b'"]' if spend else b'"}')):
            return False
        if marked:
            self._take_marked(line)
        elif spend:
            self._count(*_spent(body))
        else:
            self._declare(json.loads(line))
        self.chain = check
        return True

    def take_torn(self, rest: bytes) -> None:
        """Add a torn last line, and remember the bytes that will end it."""
        tab = b"" if b"\t" in rest else b"\t"
        ending = b'%s{"torn":%d,"check":' % (tab, len(rest))
        whole = seal(self.chain, rest + ending, b"}")
        self._take_marked(rest)
        self.chain = whole[-_TAIL:-3]
        self.unfinished = whole[len(rest) :]

    def _take_marked(self, line: bytes) -> None:
        torn = line.partition(b"\t")[0]
        if not self._is_spend(torn):
            return
        self.torn += 1
        known = self._torn_name(torn)
        if known is None:
            assert self.in_force is not None
            self.counts[self.in_force] += 1
            self.rests_on.setdefault(self.terms)
        else:
            self._count(*known)

    def _is_spend(self, torn: bytes) -> bool:
        agrees = bool(torn) and any(torn[: len(each)] == each[: len(torn)] for each in _DECLARES)
        return self.in_force is not None and not agrees

    def _torn_name(self, torn: bytes) -> tuple[str, bool] | None:
        # With its id and flag whole, and what is left of the check right, the torn line is known in full: a seeded step
        # that is redone after it need not be spent a second time.
        found = _TORN_SPEND.fullmatch(torn)
        if found is None or not (b'"' + _hash(self.chain, found[1]) + b'"]').startswith(found[2]):
            return None
        try:
            return _spent(found[1])
        except ValueError:
            return None

    def _count(self, name: str, secure: bool) -> None:
        if self.in_force is None or not isinstance(name, str):
            raise ValueError("a spend with no event in force")
        self.respent += name in self.ids
        self.counts[self.in_force] += 1
        self.rests_on.setdefault(self.terms)
        self.ids[name] = self.in_force
        if secure:
            self.secure.add(name)

    def _declare(self, value: dict[str, Any]) -> None:
        if "terms" in value:
            told = value["terms"]
            self.terms = None if told is None else Terms(tuple(told["assumptions"]), frozenset(told["caveats"]))
            if self.terms is not None:
                self.rests_on.setdefault(self.terms)
            return
        number = value["event"]
        if "is" in value:
            if number != len(self.events):
                raise ValueError(f"event {number} after {len(self.events)} events")
            event = event_from_value(value["is"])
            self.texts[_dump(value["is"]).decode()] = number
            self.events.append(event)
            self.counts.append(0)
        elif not 0 <= number < len(self.events):
            raise ValueError(f"event {number} of {len(self.events)}")
        self.in_force = number


def read(data: bytes, where: str) -> Tally:
    """Return what the bytes of a ledger add up to, or refuse a damaged one."""
    lines = data.split(b"\n")
    rest = lines.pop()
    tally = _read_header(lines[0] if lines else rest, bool(lines), where)
    for number, line in enumerate(lines[1:], 2):
        try:
            if not tally.take(line):
                _damaged(where, number, "it does not carry on the line before it")
        except LedgerError:
            raise
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, DiscreetError) as error:
            _damaged(where, number, f"it cannot be read: {shown(error)}")
    try:
        if rest and tally.take(rest):  # whole but for its newline
            tally.unfinished = b"\n"
        elif rest:
            tally.take_torn(rest)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, DiscreetError) as error:
        _damaged(where, len(lines) + 1, f"it cannot be read: {shown(error)}")
    return tally


def _read_header(line: bytes, whole: bool, where: str) -> Tally:
    try:
        value = json.loads(line)
        version = value["discreet-ledger"]
    except (ValueError, TypeError, KeyError, RecursionError):
        version = None
    if version is None:
        raise LedgerError(
            f"Expected a ledger at {where!r}, found {'an empty file' if not line and not whole else 'something else'}. "
            "A new ledger is never left without its first line: restore the file from a copy, or, if nothing was ever "
            "spent in it, delete it."
        )
    if version != VERSION:
        raise LedgerError(
            f"Expected a ledger of format {VERSION} at {where!r}, found format {shown(version)}. Use the version of "
            "discreet that wrote it."
        )
    check = line[1 - _TAIL : -2]
    if not whole or check != _hash(line[:-_TAIL]):
        _damaged(where, 1, "its check is wrong")
    try:
        budget = None if value["budget"] is None else Budget(**value["budget"])
        unit, adjacency = value["unit"], Adjacency(value["adjacency"])
        if not isinstance(unit, str):
            raise TypeError(f"unit is {shown(unit)}")
    except (ValueError, TypeError, KeyError, DiscreetError) as error:
        _damaged(where, 1, f"it cannot be read: {shown(error)}")
    return Tally(unit, adjacency, budget, check, str(value.get("name", "")))


def _damaged(where: str, number: int, why: str) -> NoReturn:
    raise LedgerError(
        f"Expected line {number} of {where!r} as it was written; {why}. The file was changed, or its disk is failing: "
        "what was spent can no longer be read from it. Restore it from a copy that has every spend, or treat what it "
        "covers as having no guarantee."
    )


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
