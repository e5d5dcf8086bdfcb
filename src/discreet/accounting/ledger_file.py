r"""The file format of a ledger: the locked file, its lines, and its contents as a `Statement`.

`LedgerFile` appends lines durably under an exclusive lock, `Tally` reads and writes the lines, and `Statement` is the
result: how often each event was spent, what that guarantees, and what remains of the budget.

A ledger is text with one JSON value per line. The first line holds the unit, the adjacency and the budget. An object
sets the current event, by its number and, the first time, its value, or it sets the current terms: the assumptions and
caveats of the spends after it. An array is one spend of the current event under the current terms, with its id and
whether the randomness was secure. Each line ends with a check: a hash of the previous check and the line.

    {"discreet-ledger":1,"name":"…","unit":"note","adjacency":"add/remove","budget":null,"check":"…"}
    {"terms":{"assumptions":["…"],"caveats":["fixed-seed"]},"check":"…"}
    {"event":0,"is":{"GaussianDpEvent":{"noise_multiplier":1.0}},"check":"…"}
    ["step 1",0,"…"]
    ["step 2",0,"…"]

**A torn last line counts as spent.** Write `used` for the spends that returned. Two rules hold: (1) a line is written
only when all lines before it are on disk; (2) a spend returns only when its line is on disk. Suppose the file is cut
off, or its last write is corrupted, at any byte; let L be the complete lines and t the torn rest.

- t is empty: every line of which a byte survives is in L. Nothing in `used` is missing, by (2).
- t is not empty: it is a part of one line, by (1). If that line is a spend, it is a spend of the current event after L,
  because the line that set the event comes earlier and is complete, by (1). So counting one spend of that event counts
  t exactly, whatever is left of it. If the line sets an event, no spend of that event is on disk after it, by (1), and
  counting nothing, or one spend of the previous event, is never too little. The same holds for a line that sets terms:
  no spend under them is on disk, and the next spend writes them again.

So a torn line counts as one spend of the current event, unless it is a prefix of `{"event":` or `{"terms":`, or starts
with one of them. Without a current event nothing can have been spent. The line that sets an event is on disk before any
spend of it, so the cost of a torn spend is always known. A torn line stays in the file. Opening the file for writing
ends the line with a tab, which no other line contains, and a mark that continues the chain of checks; a torn mark is
ended by another. A line with a newline but without a valid check is damage, not a crash, and the file is rejected.

The planned steps of a run are written together and synced once, before the noise of the first of them is used. A
file that is cut off in them is read as above: what is lost was never used. If their blocks reach the disk in another
order, a line in the middle is damaged, and the file is rejected.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
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
from discreet.accounting.interpret import guarantee_of
from discreet.core.errors import DiscreetError, LedgerError, OutputError, invalid, positive, shown
from discreet.core.files import write_all, write_atomic
from discreet.core.guarantee import Adjacency, Caveat, Guarantee


class Store(Protocol):
    """A store to which lines are appended."""

    def append(self, line: bytes) -> None:
        """Store a line, or several, before returning; raise OutputError if nothing of it was stored."""

    def read(self) -> bytes:
        """Return all bytes."""
        ...

    def close(self) -> None:
        """Close the store."""


class Memory:
    """A store that keeps its lines, for a ledger in memory."""

    def __init__(self, first_line: bytes) -> None:
        """Start with the first line."""
        self._lines = [first_line]

    def append(self, line: bytes) -> None:
        """Keep the line."""
        self._lines.append(line)

    def read(self) -> bytes:
        """Return all bytes, which are those of a file with the same spends."""
        return b"".join(self._lines)

    def close(self) -> None:
        """Do nothing."""


class LedgerFile:
    """A file open for appending under an exclusive lock, which the system releases when the process ends."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Wrap a descriptor that is already locked; use `LedgerFile.open`."""
        self.path = path
        self._descriptor = descriptor
        self._status = os.fstat(descriptor)
        self._size = self._status.st_size
        _OPEN.add(self)

    @classmethod
    def open(cls, path: Path, first_line: bytes) -> LedgerFile:
        """Open and lock a file; a new one is created with its first line."""
        try:
            if not path.exists():
                # A crash never leaves a ledger without its first line. If two processes create it, the first wins.
                with contextlib.suppress(FileExistsError):
                    write_atomic(path, first_line, replace=False)
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise LedgerError(
                f"Expected to open a ledger at {str(path)!r}: {error.strerror}. Check the folder and its permissions."
            ) from error
        try:
            # flock, not lockf: it also rejects a second open in the same process, and closing another descriptor of
            # the same file, as a reader does, does not release it.
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise LedgerError(
                    f"Expected to lock the ledger {str(path)!r}: {error.strerror}. Keep it on a local disk."
                ) from error
            raise LedgerError(
                f"Expected the ledger {str(path)!r} to be unlocked. Another process, or another Ledger in this "
                "process, has it open. Close that first, or read it without the lock with Ledger.read."
            ) from None
        return cls(path, descriptor)

    def read(self) -> bytes:
        """Sync the file and return all bytes.

        A process that is killed between writing a line and syncing it leaves a line that can be read but that a power
        failure could still remove, so it must be synced before it is relied on.
        """
        _sync(self._descriptor)
        return self.path.read_bytes()

    def append(self, line: bytes) -> None:
        """Write a line and sync it. After a failed write nothing of it remains, or LedgerError is raised."""
        self._check_unchanged()
        try:
            write_all(self._descriptor, line)
        except OSError as error:
            # The spend has not returned, so no noise was used and these bytes may be removed.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
            if os.fstat(self._descriptor).st_size != self._size:
                raise LedgerError(
                    f"Expected to write to the ledger {str(self.path)!r}: {error.strerror}. Part of a line is in it "
                    "and will be counted as spent. Free some space and open it again."
                ) from error
            raise OutputError(
                f"Expected to write to the ledger {str(self.path)!r}: {error.strerror}. Nothing was spent. Free some "
                "space and try again."
            ) from error
        try:
            _sync(self._descriptor)
        except OSError as error:
            # After a failed sync the bytes may or may not be on disk; only reading the file can tell.
            raise LedgerError(
                f"Expected to sync the ledger {str(self.path)!r}: {error.strerror}. Do not use the noise of this "
                "spend. Check the disk and open the ledger again."
            ) from error
        self._size += len(line)

    def _check_unchanged(self) -> None:
        try:
            now = self.path.stat()
        except OSError:
            now = None
        expected = (self._status.st_dev, self._status.st_ino, self._size)
        if now is None or (now.st_dev, now.st_ino, now.st_size) != expected:
            raise LedgerError(
                f"Expected the ledger {str(self.path)!r} to be unchanged since this process wrote it. It was moved, "
                "deleted or modified while open. Restore it and open it again."
            )

    def close(self) -> None:
        """Close the descriptor, which releases the lock unless a forked process holds a copy."""
        _OPEN.discard(self)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _sync(descriptor: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:  # macOS, where fsync does not reach the disk
        fcntl.fcntl(descriptor, full)
    elif hasattr(os, "fdatasync"):
        os.fdatasync(descriptor)
    else:
        os.fsync(descriptor)


_OPEN: weakref.WeakSet[LedgerFile] = weakref.WeakSet()


def _close_in_child() -> None:
    # A forked child shares the lock. Closing its copies ties the lock to the process that opened the ledger.
    for file in list(_OPEN):
        file.close()


os.register_at_fork(after_in_child=_close_in_child)


VERSION = 1
_DECLARATIONS = (b'{"event":', b'{"terms":')
_CHECK_BYTES = 8
_TAIL = 2 * _CHECK_BYTES + 3  # the quoted check and the closing bracket
_TORN_SPEND = re.compile(rb'(\["(?:[^"\\]|\\.)*",[01],)("?[0-9a-f]{0,16}"?\]?)')


def _hash(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=_CHECK_BYTES).hexdigest().encode()


def header(unit: str, adjacency: Adjacency, budget: Budget | None) -> bytes:
    """Return the first line of a new ledger. Its random name ties every later check to this file."""
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
    """Return a complete line: its body, the check that continues the chain, and the closing bracket."""
    return b"".join((body, b'"', _hash(chain, body), b'"', close, b"\n"))


def _spent(body: bytes) -> tuple[str, bool]:
    if b"\\" not in body:  # without escapes this takes a third of the time of JSON, and it is the common case
        return body[2:-4].decode("ascii"), body[-2:] == b"1,"
    name, secure = json.loads(body[:-1] + b"]")
    return name, bool(secure)


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


@dataclass
class Tally:
    """The totals of the lines of a ledger so far; only complete lines are added."""

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
    terms: Terms | None = None  # the current terms; None before the first that were recorded
    all_terms: dict[Terms | None, None] = field(default_factory=dict)  # all so far; None for a spend without terms
    unfinished: bytes = b""  # bytes to append before the next line if the last one is torn

    @property
    def ends_torn(self) -> bool:
        """Whether the last line is torn and not yet ended; a line that lacks only its newline is complete."""
        return len(self.unfinished) > 1

    def statement(self) -> Statement:
        """Return the contents of the ledger."""
        spent = tuple((event, count) for event, count in zip(self.events, self.counts, strict=True) if count)
        return Statement(
            self.unit,
            self.adjacency,
            self.budget,
            spent,
            self.respent,
            self.torn,
            self.ends_torn,
            self.stated,
            None in self.all_terms,
            self.chain.decode(),
        )

    @property
    def stated(self) -> Terms:
        """The terms recorded so far, all together."""
        return functools.reduce(Terms.__or__, (terms for terms in self.all_terms if terms is not None), Terms())

    def conditions(self, terms: Terms | None) -> bytes:
        """Return the line that sets the current terms."""
        value = None
        if terms is not None:
            value = {"assumptions": list(terms.assumptions), "caveats": sorted(terms.caveats)}
        return seal(self.chain, b'{"terms":' + _dump(value) + b',"check":', b"}")

    def declaration(self, text: str) -> bytes:
        """Return the line that sets the current event."""
        index = self.texts.get(text)
        number = b"%d" % (len(self.events) if index is None else index)
        event = b',"is":' + text.encode() if index is None else b""
        return seal(self.chain, b'{"event":' + number + event + b',"check":', b"}")

    def spend(self, name: str, secure: bool) -> bytes:
        """Return the line of one spend of the current event."""
        return seal(self.chain, b"[%s,%d," % (json.dumps(name).encode(), secure), b"]")

    def take(self, line: bytes) -> bool:
        """Add one line, without its newline, and return True; return False if its check is wrong."""
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
        """Add a torn last line and set the bytes that will end it."""
        tab = b"" if b"\t" in rest else b"\t"
        ending = b'%s{"torn":%d,"check":' % (tab, len(rest))
        line = seal(self.chain, rest + ending, b"}")
        self._take_marked(rest)
        self.chain = line[-_TAIL:-3]
        self.unfinished = line[len(rest) :]

    def _take_marked(self, line: bytes) -> None:
        torn = line.partition(b"\t")[0]
        if not self._is_spend(torn):
            return
        self.torn += 1
        spend = self._torn_spend(torn)
        if spend is None:
            assert self.in_force is not None
            self.counts[self.in_force] += 1
            self.all_terms.setdefault(self.terms)
        else:
            self._count(*spend)

    def _is_spend(self, torn: bytes) -> bool:
        declaration = bool(torn) and any(torn[: len(prefix)] == prefix[: len(torn)] for prefix in _DECLARATIONS)
        return self.in_force is not None and not declaration

    def _torn_spend(self, torn: bytes) -> tuple[str, bool] | None:
        # If the id and the flag are complete and the rest of the check is right, the torn line is fully known: a seeded
        # step that is repeated after it need not be spent a second time.
        match = _TORN_SPEND.fullmatch(torn)
        if match is None or not (b'"' + _hash(self.chain, match[1]) + b'"]').startswith(match[2]):
            return None
        try:
            return _spent(match[1])
        except ValueError:
            return None

    def _count(self, name: str, secure: bool) -> None:
        if self.in_force is None or not isinstance(name, str):
            raise ValueError("a spend without a current event")
        self.respent += name in self.ids
        self.counts[self.in_force] += 1
        self.all_terms.setdefault(self.terms)
        self.ids[name] = self.in_force
        if secure:
            self.secure.add(name)

    def _declare(self, value: dict[str, Any]) -> None:
        if "terms" in value:
            fields = value["terms"]
            self.terms = None if fields is None else Terms(tuple(fields["assumptions"]), frozenset(fields["caveats"]))
            if self.terms is not None:
                self.all_terms.setdefault(self.terms)
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
    """Return the totals of the bytes of a ledger; raise LedgerError if it is damaged."""
    lines = data.split(b"\n")
    rest = lines.pop()
    tally = _read_header(lines[0] if lines else rest, bool(lines), where)
    for number, line in enumerate(lines[1:], 2):
        try:
            if not tally.take(line):
                _damaged(where, number, "its check does not match the lines before it")
        except LedgerError:
            raise
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError, DiscreetError) as error:
            _damaged(where, number, f"it cannot be read: {shown(error)}")
    try:
        if rest and tally.take(rest):  # complete except for its newline
            tally.unfinished = b"\n"
        elif rest:
            tally.take_torn(rest)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, DiscreetError) as error:
        _damaged(where, len(lines) + 1, f"it cannot be read: {shown(error)}")
    return tally


def up_to(data: bytes, check: str) -> bytes | None:
    """Return the bytes of a ledger up to and including the line with a check, or None if it has no such line."""
    end = 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        if line.rstrip(b"\n")[1 - _TAIL : -2] == check.encode():
            return data[:end]
    return None


def _read_header(line: bytes, complete: bool, where: str) -> Tally:
    try:
        value = json.loads(line)
        version = value["discreet-ledger"]
    except (ValueError, TypeError, KeyError, RecursionError):
        version = None
    if version is None:
        kind = "an empty file" if not line and not complete else "a file of another kind"
        raise LedgerError(
            f"Expected a ledger at {where!r}, got {kind}. "
            "A ledger always has its first line. Restore the file from a copy or, if nothing was ever spent in it, "
            "delete it."
        )
    if version != VERSION:
        raise LedgerError(
            f"Expected a ledger of format {VERSION} at {where!r}, got format {shown(version)}. Use the version of "
            "discreet that wrote it."
        )
    check = line[1 - _TAIL : -2]
    if not complete or check != _hash(line[:-_TAIL]):
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
        f"Expected line {number} of {where!r} to be unchanged, but {why}. The file was modified, or its disk is "
        "failing, and the spends can no longer be read from it. Restore it from a copy that has every spend, or "
        "treat everything it covers as having no guarantee."
    )


MOST_STEPS = 10_000_000


@dataclass(frozen=True)
class Budget:
    """The largest epsilon that may be spent, at delta.

    >>> Budget(epsilon=3.0, delta=1e-5)
    Budget(epsilon=3.0, delta=1e-05)
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        """Check the fields and convert them to floats."""
        epsilon = positive("epsilon", self.epsilon, "Open the ledger without a budget for no limit.")
        if not 0 <= self.delta < 1:
            raise invalid("delta", self.delta, "in [0, 1)", "Use a value well below 1 / units.")
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", float(self.delta))


UNSTATED = "the randomness of every spend was secret: a seed that someone knows hides nothing"


@dataclass(frozen=True)
class Terms:
    """The assumptions, as sentences, and caveats, as values, of the guarantee of a spend.

    They are written into the ledger with the spend, so that every reader states the same guarantee. They describe the
    mechanism and never a text.

    >>> Terms(("the batches are secret",), {Caveat.FIXED_SEED}).caveats
    frozenset({<Caveat.FIXED_SEED: 'fixed-seed'>})
    """

    assumptions: tuple[str, ...] = ()
    caveats: frozenset[Caveat] = frozenset()

    def __post_init__(self) -> None:
        """Convert the fields to a tuple and a frozenset."""
        object.__setattr__(self, "assumptions", tuple(self.assumptions))
        object.__setattr__(self, "caveats", frozenset(map(Caveat, self.caveats)))

    @classmethod
    def of(cls, guarantee: Guarantee) -> Terms:
        """Return the terms of a guarantee."""
        return cls(guarantee.assumptions, guarantee.caveats)

    def __or__(self, other: Terms) -> Terms:
        """Return the terms of both together."""
        return Terms(tuple(dict.fromkeys((*self.assumptions, *other.assumptions))), self.caveats | other.caveats)


@dataclass(frozen=True)
class Statement:
    """The contents of a ledger: its unit and adjacency, and each distinct event with its count in order of first use.

    `terms` are those of all spends together. `unstated` is true if a spend has no terms. `check` is that of the
    last line, which depends on all lines before it.
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
    check: str = ""

    @property
    def spends(self) -> int:
        """The number of spends."""
        return sum(count for _, count in self.spent)

    def values(self) -> dict[str, Any]:
        """Return plain values for JSON, without the events."""
        return {
            "unit": self.unit,
            "adjacency": self.adjacency.value,
            "spends": self.spends,
            "spent_again": self.respent,
            "torn": self.torn,
            "budget": None if self.budget is None else vars(self.budget),
        }

    @property
    def event(self) -> Any:
        """All spends composed into one event, each distinct event once with its count."""
        return composed(self.spent)

    def guarantee(
        self, delta: float | None = None, accountant: str = "pld", assumptions: Sequence[str] = ()
    ) -> Guarantee:
        """Return the guarantee of all spends together at delta, by default that of the budget.

        It includes the assumptions that were recorded with the spends; with a recorded caveat it is an estimate.

        Guarantee: for the unit and adjacency of the ledger, over every spend in it.
        """
        return self.stated(cost_of(self.event, self.delta(delta), self, accountant), assumptions)

    def stated(self, cost: Guarantee, assumptions: Sequence[str] = ()) -> Guarantee:
        """Return a guarantee with the assumptions and caveats of this ledger."""
        unstated = (UNSTATED,) if self.unstated and Caveat.FIXED_SEED not in self.terms.caveats else ()
        distinct = dict.fromkeys((*assumptions, *self.terms.assumptions, *unstated, *cost.assumptions))
        return replace(cost, assumptions=tuple(distinct)).with_caveats(self.terms.caveats)

    def remaining(self, event: Any) -> int:
        """Return how many more spends of an event the budget allows, at most ten million."""
        budget = self.budget
        if budget is None:
            raise invalid("budget", None, "set", "Open the ledger with a budget.")
        return most(
            lambda n: cost_of(composed((*self.spent, (event, n))), budget.delta, self).epsilon,
            budget.epsilon,
            MOST_STEPS,
            cost_of(event, budget.delta, self).epsilon,
        )

    def delta(self, delta: float | None) -> float:
        """Return `delta`, or that of the budget if it is None."""
        if delta is not None:
            return delta
        if self.budget is None:
            raise invalid("delta", None, "set", "Pass a delta: this ledger has no budget.")
        return self.budget.delta


def composed(spent: Sequence[tuple[Any, int]]) -> Any:
    """Return counted events as one event; equal events are merged.

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


def cost_of(event: Any, delta: float, statement: Statement, accountant: str = "pld") -> Guarantee:
    """Return the guarantee of an event for the unit and adjacency of a statement."""
    return guarantee_of(event, delta=delta, adjacency=statement.adjacency, accountant=accountant, unit=statement.unit)


def most(cost: Callable[[int], float], limit: float, cap: int, single: float = math.inf) -> int:
    """Return the largest n <= cap whose cost is at most the limit, for a non-decreasing cost.

    The cost of the returned n has been computed, so it is within the limit even if `cost` is not quite monotone. The
    bracket grows eightfold and is then split where a power law through its ends meets the limit, or halved whenever
    that gains little: about ten calls for ten thousand steps, where bisection takes almost thirty.

    `single` is the cost of one step alone. With it, the first n is where n times that cost meets the limit, and the
    next ones follow the last slope: two or three calls if composition gains little, and about six for thousands of
    steps with a concave cost.

    >>> most(lambda n: n**0.5, 10.0, 1_000)
    100
    >>> most(lambda n: 2.0 * n, 999.0, 1_000, single=2.0)
    499
    """
    low, low_cost, high, high_cost = _bracket(cost, limit, cap, single)
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


def _bracket(cost: Callable[[int], float], limit: float, cap: int, single: float) -> tuple[int, float, int, float]:
    """Return an n within the limit and a larger one above it, with their costs; cap and cap + 1 if none is above it."""
    low, low_cost, high, slope, least = 0, 0.0, 1, 0.0, 1
    if 0 < single < math.inf:
        low_cost, slope = cost(0), single
        if low_cost > limit:
            return 0, low_cost, 1, math.inf  # the budget is already exceeded
        high = max(_meets(0, low_cost, slope, limit, cap), 1)
    while (high_cost := cost(high)) <= limit:
        if high == cap:
            return cap, high_cost, cap + 1, math.inf
        if not slope:
            low, low_cost, high = high, high_cost, min(8 * high, cap)
            continue
        slope = (high_cost - low_cost) / (high - low)
        low, low_cost = high, high_cost
        # Go one step beyond the point where the last slope meets the limit. For a concave cost that point is still
        # within the limit, but closer each time. Doubling the least step handles a cost that is flat, then rises.
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
