"""What all trainings and rewritten files of the same people add up to, kept on this machine and never in a run folder.

    $DISCREET_HOME or ~/.local/state/discreet   (mode 0700)
      key                a local secret of 32 bytes (mode 0600)
      people/NAME.json   one training or rewritten file: what it spent, for which unit, when (mode 0600)
      people/NAME.units  keyed hashes of its units, 8 bytes each, sorted (mode 0600)

A unit is known by a hash of its id, keyed with the local secret; without ids, by a hash of the row's texts. So one more
or one less finds the same people again. The total of a set of people is the largest total of one of them: all releases
that this unit was in, composed. It is an upper bound for everybody in the set. Two units of different corpora with the
same name and id count as one, which only raises it.

A training reserves before it spends: what is written here is at all times at least what its own ledger holds, by at
most twice, and is set to the ledger's count when the training ends or is stopped. A training whose folder is deleted
still counts: its model may have been released.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import math
import os
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.accounting.events import event_from_json, event_to_json
from discreet.accounting.interpret import guarantee
from discreet.accounting.ledger import Ledger, Terms
from discreet.accounting.ledger_file import composed
from discreet.core.errors import BudgetError, LedgerError, Message, OutputError, setting
from discreet.core.files import write_atomic
from discreet.core.guarantee import Adjacency, Caveat, Guarantee, in_digits
from discreet.data.corpus import Corpus

Marks = npt.NDArray[np.uint64]
Spent = Mapping[str, int]  # events as JSON, and how often each is spent

TRAINING, SANITIZED, FIXED_SEED, STUDY = "training", "sanitized", "fixed-seed", "study"
COUNTED = (TRAINING, SANITIZED)  # the others are for experiments and are not added up
_FORMAT = 1
_MOST_PATTERNS = 8  # sets of trainings that are priced one by one; beyond, all of them together are
_MARK_BYTES = 8


def home_folder() -> Path:
    """Return where the user's own records are kept: $DISCREET_HOME, or the user's state folder."""
    if "DISCREET_HOME" in os.environ:
        return Path(os.environ["DISCREET_HOME"])
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "discreet"


@dataclass(frozen=True)
class Record:
    """One training, one rewritten file, or one study, as it is kept."""

    name: str
    kind: str
    unit: str
    adjacency: str
    delta: float
    units: int
    out: str
    protection: str
    began: str
    finished: bool = False
    spent: dict[str, int] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    command: str = "train"  # or sanitize, whatever the kind

    @property
    def spends(self) -> int:
        """How many spends are counted."""
        return sum(self.spent.values())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _listed(trainings: int, files: int, training: str = "training") -> str:
    """Return how many trainings and rewritten files there are, in words.

    >>> _listed(2, 0), _listed(1, 1), _listed(0, 1)
    ('2 trainings', '1 training and 1 sanitized file', '1 sanitized file')
    """
    found = [_count(trainings, training)] if trainings or not files else []
    return " and ".join([*found, *([_count(files, "sanitized file")] if files else [])])


@dataclass(frozen=True)
class Total:
    """What the releases of a set of people add up to for the one of them with the largest total.

    It is over `trainings` and `files`, those that `discreet sanitize` rewrote. `apart` counts releases that are not in
    it: with a fixed seed, which are for experiments. `elsewhere` counts those under another adjacency, whose figures do
    not add up with these. `other_units` counts those recorded for another unit, such as rows where these are
    patients: nobody can say whether they are of the same people. `restated` says
    that some of them stated their own guarantee at another delta than `noun`, what is being released, has.
    """

    guarantee: Guarantee
    trainings: int
    apart: int = 0
    elsewhere: int = 0
    other_units: int = 0
    restated: bool = False
    files: int = 0
    noun: str = "training"

    @property
    def releases(self) -> int:
        """How many releases are added up."""
        return self.trainings + self.files

    @property
    def over(self) -> str:
        """What is added up, in words."""
        return _listed(self.trainings, self.files)

    def sentence(self, fresh: bool = False) -> str:
        """Return the total as a sentence; `fresh` says that no limit was set, where there is a figure to limit."""
        found = self.guarantee
        over = _listed(self.trainings, self.files, "protected training")
        if not self.releases:
            text = f"These {found.unit}s: nothing is spent so far."
        elif not found.exists:
            text = f"These {found.unit}s: no bound over {over} recorded here, as {found.reason}."
        else:
            kind = "" if found.certified else "an estimated "
            text = (
                f"These {found.unit}s: {kind}epsilon {in_digits(found.epsilon)} at delta {in_digits(found.delta)}"
                f"{f' (the delta of this {self.noun})' if self.restated else ''} over {over} recorded here "
                f"({found.adjacency.value})."
            )
        if self.elsewhere:
            text += f" Not in this figure: {_count(self.elsewhere, 'release')} under another adjacency."
        if self.other_units:
            text += f" Not matched: {_count(self.other_units, 'release')} of another unit than the {found.unit}."
        if self.apart:
            text += f" Recorded apart: {self.apart} with a fixed seed, for experiments and not for release."
        return Message(text + (f" No limit is set; {setting('budget')} sets one." if fresh and found.exists else ""))

    def as_dict(self) -> dict[str, Any]:
        """Return the total as plain values for JSON."""
        return {
            "guarantee": self.guarantee.as_dict(),
            "trainings": self.trainings,
            "sanitized_files": self.files,
            "fixed_seed": self.apart,
            "other_adjacency": self.elsewhere,
            "other_units": self.other_units,
        }


class People:
    """The records of a user's trainings and rewritten files, and the totals that follow from them."""

    def __init__(self, home: Path | None = None) -> None:
        """Use a home folder, the user's if none is given; nothing is written yet."""
        self.home = home or home_folder()
        self.folder = self.home / "people"

    def marks_of(self, corpus: Corpus) -> Marks:
        """Return keyed hashes of the units of a corpus, sorted, each once."""
        key = self._key()
        if corpus.units is not None:
            names: Sequence[tuple[str, ...]] = [(name,) for name in corpus.unit_names]
        else:
            second = corpus.second or ("",) * len(corpus)
            names = list(zip(corpus.texts, second, strict=True))
        kind = corpus.unit_name if corpus.units is not None else ""
        found = [
            hashlib.blake2b(json.dumps((kind, *name)).encode(), key=key, digest_size=_MARK_BYTES).digest()
            for name in names
        ]
        return np.unique(np.frombuffer(b"".join(found), dtype="<u8").astype(np.uint64))

    def records(self) -> list[Record]:
        """Return all records, in the order in which they were begun."""
        found = [self._read(path) for path in sorted(self.folder.glob("*.json"))]
        return sorted(found, key=lambda record: (record.began, record.name))

    def total(
        self,
        marks: Marks,
        unit: str,
        adjacency: Adjacency,
        delta: float,
        planned: Spent | None = None,
        *,
        leave_out: str = "",
        terms: Terms | None = None,
        kind: str = TRAINING,
        noun: str = "training",
    ) -> Total:
        """Return what earlier releases of these people add up to, with what is planned for all of them.

        `leave_out` is the name of a record that is not counted: that of the release whose plan is given, with its kind,
        the word for it, and what its guarantee rests on as `terms`.
        """
        touched: list[tuple[Record, npt.NDArray[np.bool_]]] = []
        apart = elsewhere = other_units = 0
        for record in self.records():
            if record.name == leave_out or record.kind == STUDY or not record.spends:
                continue
            if record.unit != unit:
                other_units += record.kind in COUNTED
                continue
            shared = np.isin(marks, self._marks(record.name), assume_unique=True)
            if not shared.any():
                continue
            apart += record.kind == FIXED_SEED
            elsewhere += record.kind in COUNTED and record.adjacency != adjacency.value
            if record.kind in COUNTED and record.adjacency == adjacency.value:
                touched.append((record, shared))
        worst: Guarantee | None = None
        for chosen in _patterns([shared for _, shared in touched]):
            counts = Counter(planned or {})
            for place in chosen:
                counts.update(touched[place][0].spent)
            event = composed([(event_from_json(text), count) for text, count in counts.items()])
            one = guarantee(event, delta=delta, adjacency=adjacency, unit=unit)
            worst = one if worst is None or one.epsilon > worst.epsilon else worst
        assert worst is not None
        known = frozenset(Caveat(value) for record, _ in touched for value in record.caveats)
        told = Terms(tuple(text for record, _ in touched for text in record.assumptions), known) | (terms or Terms())
        stated = replace(worst, assumptions=tuple(dict.fromkeys((*told.assumptions, *worst.assumptions))))
        kinds = Counter([record.kind for record, _ in touched] + ([kind] if planned is not None else []))
        restated = any(record.delta != delta for record, _ in touched)
        stated = stated.with_caveats(told.caveats)
        return Total(
            stated, kinds[TRAINING], apart, elsewhere, other_units, restated, files=kinds[SANITIZED], noun=noun
        )

    def write(self, record: Record, marks: Marks | None = None) -> None:
        """Write a record, whole or not at all, and on disk when this returns; its units are written first."""
        self._make()
        try:
            if marks is not None and not self._marks_path(record.name).exists():
                write_atomic(self._marks_path(record.name), marks.astype("<u8").tobytes())
            about = {"format": _FORMAT, **{name: getattr(record, name) for name in record.__dataclass_fields__}}
            write_atomic(self._path(record.name), json.dumps(about, allow_nan=False))
        except OSError as error:
            raise self._cannot(error) from None

    def find(self, name: str) -> Record | None:
        """Return a record by its name, if there is one."""
        path = self._path(name)
        return self._read(path) if path.exists() else None

    def guarantee_of(self, record: Record) -> Guarantee | None:
        """Return what one release guarantees by itself, at its own delta; nothing for a study or where none spent."""
        if record.kind == STUDY or not record.spends:
            return None
        event = composed([(event_from_json(text), count) for text, count in record.spent.items()])
        found = guarantee(event, delta=record.delta, adjacency=Adjacency(record.adjacency), unit=record.unit)
        caveats = set(record.caveats) | ({Caveat.FIXED_SEED.value} if record.kind == FIXED_SEED else set())
        return found.with_caveats(map(Caveat, caveats))

    def touched_most(self) -> list[tuple[str, Adjacency, Total]]:
        """Return the total of whoever has the largest, for each unit and adjacency."""
        found = []
        records = [record for record in self.records() if record.kind in COUNTED and record.spends]
        for unit, adjacency in dict.fromkeys((record.unit, record.adjacency) for record in records):
            own = [record for record in records if (record.unit, record.adjacency) == (unit, adjacency)]
            marks = np.unique(np.concatenate([self._marks(record.name) for record in own]))
            at = min(record.delta for record in own)
            total = self.total(marks, unit, Adjacency(adjacency), at)
            found.append((unit, Adjacency(adjacency), total))
        return found

    def delete(self, name: str) -> None:
        """Delete a record that spent nothing."""
        for path in (self._path(name), self._marks_path(name)):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time look at the totals and write what follows from them."""
        self._make()
        handle = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _make(self) -> None:
        try:
            self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.folder.mkdir(exist_ok=True, mode=0o700)
            if "DISCREET_HOME" not in os.environ:
                self.home.chmod(0o700)
            self.folder.chmod(0o700)
        except OSError as error:
            raise self._cannot(error) from None

    def _key(self) -> bytes:
        path = self.home / "key"
        try:
            if not path.exists():
                self._make()
                with contextlib.suppress(FileExistsError):  # of two processes, one wins
                    write_atomic(path, secrets.token_hex(32), replace=False)
            return bytes.fromhex(path.read_text(encoding="ascii"))
        except OSError as error:
            raise self._cannot(error) from None
        except ValueError:
            raise LedgerError(
                f"Expected 64 hexadecimal digits in {str(path)!r}. It is the key that earlier releases were recorded "
                "with, and without it their people are not found: restore it, or move the folder away to start anew."
            ) from None

    def _read(self, path: Path) -> Record:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values.pop("format") != _FORMAT:
                raise ValueError("another format")
            values["spent"] = {str(text): int(count) for text, count in values["spent"].items()}
            lists = {name: tuple(values.get(name, ())) for name in ("caveats", "assumptions")}
            return Record(**{**values, **lists})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            raise LedgerError(
                f"Expected a record of a training at {str(path)!r}, found something else. What was spent can no longer "
                "be added up: restore the file, or move it away to leave its training out of the total."
            ) from None

    def _marks(self, name: str) -> Marks:
        try:
            data = self._marks_path(name).read_bytes()
            return np.frombuffer(data, dtype="<u8").astype(np.uint64)
        except (OSError, ValueError):
            path = str(self._marks_path(name))
            raise LedgerError(f"Expected the units of a training at {path!r}. Restore the file from a copy.") from None

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _marks_path(self, name: str) -> Path:
        return self.folder / f"{name}.units"

    def _cannot(self, error: OSError) -> OutputError:
        return OutputError(
            f"Expected to be able to keep records of trainings in {str(self.home)!r}. {error.strerror}. Set "
            f"DISCREET_HOME to a folder of yours, or name a ledger ({setting('ledger')})."
        )


@dataclass(frozen=True)
class About:
    """What is recorded of a release besides its people and its cost; `out` is None for what is written to stdout."""

    kind: str
    delta: float
    out: Path | None
    protection: str
    command: str = "train"


@dataclass
class Entry:
    """The record of one training or rewritten file while it is made; whoever spends in its ledger spends here first.

    Guarantee: what is on disk here is at least what its own ledger holds.
    """

    people: People
    record: Record
    marks: Marks
    used: Counter[str]
    planned: Spent
    budget: float | None = None

    @classmethod
    def of(
        cls,
        people: People,
        corpus: Corpus,
        ledger: Ledger,
        about: About,
        planned: Spent,
        budget: float | None = None,
        marks: Marks | None = None,
    ) -> Entry:
        """Return the entry of a release, found again by the name of its ledger if it is resumed.

        `marks` are given where a unit may be known by several.
        """
        told = ledger.statement
        used = Counter({event_to_json(event): count for event, count in told.spent})
        count = None if marks is None else corpus.unit_count
        marks = people.marks_of(corpus) if marks is None else marks
        record = people.find(ledger.name) or Record(
            ledger.name,
            about.kind,
            told.unit,
            told.adjacency.value,
            about.delta,
            len(marks) if count is None else count,
            "stdout" if about.out is None else str(about.out.resolve()),
            about.protection,
            _now(),
            spent=dict(used),
            command=about.command,
        )
        return cls(people, _resting_on(record, told.terms), marks, used, planned, budget)

    def before(self) -> Total:
        """Return what earlier releases of these people add up to, without this one."""
        told = self.record
        adjacency = Adjacency(told.adjacency)
        return self.people.total(self.marks, told.unit, adjacency, told.delta, leave_out=told.name, noun=self.noun)

    @property
    def noun(self) -> str:
        """The word for what is released."""
        return "file" if self.record.command == "sanitize" else "training"

    def now(self) -> Total:
        """Return what all releases of these people add up to, with what this one has spent; not with a fixed seed."""
        return self._with(self.used) if self.record.kind in COUNTED else self.before()

    def told(self) -> tuple[str, dict[str, Any]]:
        """Return the total in words and as plain values."""
        total = self.now()
        apart = "" if self.record.kind in COUNTED else f"This {self.noun} had a fixed seed and is recorded apart. "
        limit = "" if self.budget is None else f" Their budget is {in_digits(self.budget)}."
        return apart + total.sentence(self.budget is None) + limit, total.as_dict()

    def check(self) -> None:
        """Reject a plan that would take the total of these people beyond the budget; nothing is written."""
        if self.budget is None or not self.planned:
            return
        self._allow(Counter(self.planned) | self.used, self.budget, f"this {self.noun}")

    def spend(self, event: Any, id: str, *, secure: bool = False, terms: Terms | None = None) -> None:  # noqa: A002
        """Count one spend, on disk before this returns; what is written runs ahead by at most as much again."""
        text = event_to_json(event)
        needed = self.used[text] + 1
        stated = _resting_on(self.record, terms or Terms())
        if stated != self.record or needed > self.record.spent.get(text, 0):
            with self.people.locked():
                if self.budget is not None:  # again, for another training on the same people may run beside this one
                    self._allow(Counter(self.planned) | (self.used + Counter({text: 1})), self.budget, repr(id))
                reserved = min(max(2 * self.used[text], 1), max(self.planned.get(text, math.inf), needed))
                self.record = replace(stated, spent={**stated.spent, text: max(int(reserved), needed)})
                self.people.write(self.record, self.marks)
        self.used[text] = needed

    def state(self, terms: Terms) -> None:
        """Record terms that what was spent turned out to rest on, on disk before this returns."""
        stated = _resting_on(self.record, terms)
        if stated != self.record:
            with self.people.locked():
                self.record = stated
                self.people.write(self.record, self.marks)

    def close(self, *, finished: bool = False) -> None:
        """Set the record to what was spent, which its own ledger holds; one that spent nothing is deleted."""
        with self.people.locked():
            if not self.used.total():
                self.people.delete(self.record.name)
                return
            self.record = replace(self.record, spent=dict(self.used), finished=finished)
            self.people.write(self.record, self.marks)

    def _with(self, spent: Counter[str]) -> Total:
        told = self.record
        terms = Terms(told.assumptions, frozenset(map(Caveat, told.caveats)))
        return self.people.total(
            self.marks,
            told.unit,
            Adjacency(told.adjacency),
            told.delta,
            spent,
            leave_out=told.name,
            terms=terms,
            kind=told.kind,
            noun=self.noun,
        )

    def _allow(self, spent: Counter[str], budget: float, what: str) -> None:
        if self.record.kind not in COUNTED:
            return
        total = self._with(spent)
        found = total.guarantee
        if total.elsewhere:
            raise BudgetError(
                f"Expected all releases of these {found.unit}s under {found.adjacency.value}, found "
                f"{_count(total.elsewhere, 'release')} under another adjacency, which cannot be added up with this "
                "one. Release under the same adjacency (a training with or without a population; a rewritten text is "
                f"always under replace-one), or leave {setting('budget')} out."
            )
        refuse_beyond(found.epsilon, budget, found.delta, f"these {found.unit}s", what, self.record.kind)


@dataclass
class Shared:
    """A ledger that several trainings and rewritten files spend from, as `--ledger` names it; they spend here first."""

    ledger: Ledger
    delta: float
    planned: Spent
    budget: float | None = None
    kind: str = TRAINING

    @classmethod
    def open(
        cls, path: Path, own: Ledger, delta: float, planned: Spent, budget: float | None, kind: str = TRAINING
    ) -> Shared:
        """Open a named ledger for what is counted in a ledger of its own; reject what would go beyond the budget."""
        told, held = own.statement, Ledger.read(path).budget if path.exists() else None
        shared = Ledger.open(path, unit=told.unit, adjacency=told.adjacency, budget=held)
        found = cls(shared, delta, planned, budget, kind)
        try:
            found.check_resumed(own)
            found.check()
        except BaseException:
            shared.close()
            raise
        return found

    def check(self) -> None:
        """Reject a plan that would take the ledger beyond the budget; nothing is written."""
        if self.budget is not None and self.planned:
            self._allow(self.planned, f"this {_NOUNS[self.kind]}")

    def check_resumed(self, own: Ledger) -> None:
        """Reject a ledger that lacks what the training has spent before."""
        if any(not self.ledger.holds(name) for name in own.names):
            raise LedgerError(
                f"Expected every spend of the unfinished run in {str(self.ledger.path)!r}, some are missing. Resume "
                f"with the {setting('ledger')} that the run was started with."
            )

    def told(self) -> tuple[str, dict[str, Any]]:
        """Return what the ledger guarantees so far, in words and as plain values."""
        found, path = self.ledger.guarantee(self.delta), str(self.ledger.path)
        kind = "" if found.certified else "an estimated "
        figure = f"{kind}epsilon {in_digits(found.epsilon)} at delta {in_digits(found.delta)}"
        text = f"The ledger {path}, all that spent from it: {figure if found.exists else 'no bound'}."
        return text, {"ledger": path, "guarantee": found.as_dict()}

    def close(self, *, finished: bool = False) -> None:
        """Close the ledger; what was spent stays spent."""
        self.ledger.close()

    def spend(self, event: Any, id: str, *, secure: bool = False, terms: Terms | None = None) -> None:  # noqa: A002
        """Count one spend in the shared ledger."""
        text = event_to_json(event)
        if self.budget is not None and text not in self.planned and not self.ledger.holds(id):
            self._allow({text: 1}, repr(id))
        self.ledger.spend(event, id, secure=secure, terms=terms)

    def state(self, terms: Terms) -> None:
        """Record terms in the shared ledger that what was spent there turned out to rest on."""
        self.ledger.state(terms)

    def _allow(self, more: Spent, what: str) -> None:
        told = self.ledger.statement
        added = [(event_from_json(text), count) for text, count in more.items()]
        event = composed([*told.spent, *added])
        found = guarantee(event, delta=self.delta, adjacency=told.adjacency, unit=told.unit)
        assert self.budget is not None
        refuse_beyond(found.epsilon, self.budget, self.delta, f"the ledger {str(self.ledger.path)!r}", what, self.kind)


_NOUNS = {TRAINING: "training", SANITIZED: "file"}
_REMEDIES = {
    TRAINING: f"train with a smaller {setting('epsilon')} or fewer steps",
    SANITIZED: f"rewrite with a smaller {setting('epsilon_per_word')}, or shorter texts",
}


def refuse_beyond(epsilon: float, budget: float, delta: float, whose: str, what: str, kind: str = TRAINING) -> None:
    """Reject a total beyond the budget."""
    if epsilon > budget:
        raise BudgetError(
            f"Expected epsilon <= {in_digits(budget)}, the budget of {whose} at delta {in_digits(delta)}, got "
            f"{in_digits(epsilon)} with {what}. Nothing was spent: {_REMEDIES[kind]}, or give a larger "
            f"{setting('budget')}."
        )


def _resting_on(record: Record, terms: Terms) -> Record:
    """Return a record with further terms that its guarantee rests on."""
    caveats = tuple(sorted({*record.caveats, *terms.caveats}))
    return replace(record, caveats=caveats, assumptions=tuple(dict.fromkeys((*record.assumptions, *terms.assumptions))))


def _patterns(touched: Sequence[npt.NDArray[np.bool_]]) -> list[tuple[int, ...]]:
    """Return the sets of trainings that some unit was in, without those that are part of another one.

    >>> _patterns([np.array([True, True, False]), np.array([False, True, False])])
    [(0, 1)]
    """
    if not touched:
        return [()]
    distinct = np.unique(np.stack(touched, axis=1), axis=0)
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in distinct]
    largest = [one for one in sets if not any(one < other for other in sets)]
    if len(largest) > _MOST_PATTERNS:
        return [tuple(range(len(touched)))]
    return [tuple(sorted(one)) for one in largest]


def _now() -> str:
    import datetime

    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def record_study(people: People, out: Path, source: str) -> None:
    """List a study: its trials draw from fixed seeds, so they are not added to anyone's total."""
    name = hashlib.blake2b(str(out.resolve()).encode(), digest_size=_MARK_BYTES).hexdigest()
    if people.find(name) is None:
        record = Record(name, STUDY, "", "", 0.0, 0, str(out.resolve()), f"trials on {source}", _now())
        with people.locked():
            people.write(record)
