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
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, Protocol

from discreet.accounting.events import event_from_value
from discreet.accounting.ledger_statement import Budget, Statement, Terms
from discreet.core.errors import DiscreetError, LedgerError, OutputError, shown
from discreet.core.files import write_all, write_atomic
from discreet.core.guarantee import Adjacency, Caveat


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
