r"""The lines of a ledger: how they are written, how they are read back, and why a crash never hides a spend.

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

import hashlib
import json
import re
import secrets
from dataclasses import dataclass, field
from typing import Any, NoReturn

from discreet.accounting.event_json import event_from_value
from discreet.accounting.ledger_statement import Budget, Statement, Terms
from discreet.core.checks import shown
from discreet.core.errors import DiscreetError, LedgerError
from discreet.core.guarantee import Adjacency, Caveat

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
