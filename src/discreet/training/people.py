"""Total epsilon of all training runs and rewritten files of the same people, recorded on this machine.

    $DISCREET_HOME or ~/.local/state/discreet   (mode 0700)
      key                a local secret of 32 bytes (mode 0600)
      people/NAME.json   one training run or rewritten file: what it spent, for which unit, when (mode 0600)
      people/NAME.units  keyed hashes of its units, 8 bytes each, sorted (mode 0600)

The records are never in a run folder. A unit is identified by a hash of its id, keyed with the local secret; without
ids, by a hash of the row's texts. So the same people are recognized in a corpus with a few more or fewer units. The
total of a set of people is the largest total of one of them: all releases that contain this unit, composed. It is an
upper bound for everyone in the set. Two units of different corpora with the same name and id count as one, which can
only increase the total.

A training run reserves before it spends: its record is always at least the spending in its own ledger, and at most
twice as much. It is set to the ledger's count when the run ends or is stopped. A training run whose folder is deleted
still counts, because its model may have been released.
"""

from __future__ import annotations

import contextlib
import datetime
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
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

Marks = npt.NDArray[np.uint64]
Spent = Mapping[str, int]  # events as JSON, and how often each is spent

TRAINING, SANITIZED, FIXED_SEED, STUDY = "training", "sanitized", "fixed-seed", "study"
COUNTED = (TRAINING, SANITIZED)  # the others are experiments and not added up
_FORMAT = 1
_MOST_PATTERNS = 8  # sets of training runs that are composed one by one; if there are more, all runs are composed
_MARK_BYTES = 8


def home_folder() -> Path:
    """Return the folder of the user's records: $DISCREET_HOME, or the user's state folder."""
    if "DISCREET_HOME" in os.environ:
        return Path(os.environ["DISCREET_HOME"])
    return Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local" / "state")) / "discreet"


@dataclass(frozen=True)
class Record:
    """Stored record of one training run, one rewritten file, or one study."""

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
        """Number of recorded spends."""
        return sum(self.spent.values())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _counts_text(trainings: int, files: int, noun: str = "training run") -> str:
    """Return the numbers of training runs and rewritten files as text.

    >>> _counts_text(2, 0), _counts_text(1, 1), _counts_text(0, 1)
    ('2 training runs', '1 training run and 1 sanitized file', '1 sanitized file')
    """
    counts = [_count(trainings, noun)] if trainings or not files else []
    return " and ".join([*counts, *([_count(files, "sanitized file")] if files else [])])


@dataclass(frozen=True)
class Total:
    """Composed guarantee of all releases of a set of people, for the person with the largest total.

    It covers `trainings` and `files` (rewritten by `discreet sanitize`). `apart` counts releases with a fixed seed,
    which are experiments and not included. `elsewhere` counts releases under another adjacency, which cannot be
    composed with these. `other_units` counts releases recorded for another unit, such as rows instead of patients: they
    cannot be matched to the same people. `restated` says that some releases stated their own guarantee at another
    delta than that of `noun`, the current release.
    """

    guarantee: Guarantee
    trainings: int
    apart: int = 0
    elsewhere: int = 0
    other_units: int = 0
    restated: bool = False
    files: int = 0
    noun: str = "training run"

    @property
    def releases(self) -> int:
        """Number of composed releases."""
        return self.trainings + self.files

    @property
    def over(self) -> str:
        """Composed releases as text."""
        return _counts_text(self.trainings, self.files)

    def sentence(self, fresh: bool = False) -> str:
        """Return the total as a sentence; `fresh` adds that no limit is set, if there is a figure to limit."""
        total = self.guarantee
        over = _counts_text(self.trainings, self.files, "protected training run")
        if not self.releases:
            text = f"These {total.unit}s: nothing is spent so far."
        elif not total.exists:
            text = f"These {total.unit}s: no bound over {over} recorded here, as {total.reason}."
        else:
            kind = "" if total.certified else "an estimated "
            text = (
                f"These {total.unit}s: {kind}epsilon {in_digits(total.epsilon)} at delta {in_digits(total.delta)}"
                f"{f' (the delta of this {self.noun})' if self.restated else ''} over {over} recorded here "
                f"({total.adjacency.value})."
            )
        if self.elsewhere:
            text += f" Not in this figure: {_count(self.elsewhere, 'release')} under another adjacency."
        if self.other_units:
            text += f" Not matched: {_count(self.other_units, 'release')} of another unit than the {total.unit}."
        if self.apart:
            text += f" Recorded apart: {self.apart} with a fixed seed, for experiments and not for release."
        return Message(text + (f" No limit is set; {setting('budget')} sets one." if fresh and total.exists else ""))

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
    """Records of a user's training runs and rewritten files, and their totals."""

    def __init__(self, home: Path | None = None) -> None:
        """Use a home folder, by default the user's; nothing is written yet."""
        self.home = home or home_folder()
        self.folder = self.home / "people"

    def marks_of(self, corpus: Corpus) -> Marks:
        """Return the distinct keyed hashes of the units of a corpus, sorted."""
        key = self._key()
        if corpus.units is not None:
            names: list[tuple[str, ...]] = [(corpus.unit_name, name) for name in corpus.unit_names]
        else:
            second = corpus.second or ("",) * len(corpus)
            names = [("", *texts) for texts in zip(corpus.texts, second, strict=True)]
        hashes = [hashlib.blake2b(json.dumps(n).encode(), key=key, digest_size=_MARK_BYTES).digest() for n in names]
        return np.unique(np.frombuffer(b"".join(hashes), dtype="<u8").astype(np.uint64))

    def records(self) -> list[Record]:
        """Return all records, in the order of their start."""
        records = [self._read(path) for path in sorted(self.folder.glob("*.json"))]
        return sorted(records, key=lambda record: (record.began, record.name))

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
        noun: str = "training run",
    ) -> Total:
        """Return the composition of earlier releases of these people and of the planned spends for all of them.

        `leave_out` is the name of a record to ignore: that of the planned release, described by `kind`, `noun` and the
        `terms` of its guarantee.
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
            pattern = guarantee(_composed(counts), delta=delta, adjacency=adjacency, unit=unit)
            worst = pattern if worst is None or pattern.epsilon > worst.epsilon else worst
        assert worst is not None
        caveats = frozenset(Caveat(value) for record, _ in touched for value in record.caveats)
        recorded = Terms(tuple(text for record, _ in touched for text in record.assumptions), caveats)
        terms = recorded | (terms or Terms())
        assumptions = tuple(dict.fromkeys((*terms.assumptions, *worst.assumptions)))
        kinds = Counter([record.kind for record, _ in touched] + ([kind] if planned is not None else []))
        return Total(
            replace(worst, assumptions=assumptions).with_caveats(terms.caveats),
            kinds[TRAINING],
            apart,
            elsewhere,
            other_units,
            restated=any(record.delta != delta for record, _ in touched),
            files=kinds[SANITIZED],
            noun=noun,
        )

    def write(self, record: Record, marks: Marks | None = None) -> None:
        """Write a record atomically and synced to disk; its units are written first."""
        self._make()
        try:
            if marks is not None and not self._marks_path(record.name).exists():
                write_atomic(self._marks_path(record.name), marks.astype("<u8").tobytes())
            about = {"format": _FORMAT, **{name: getattr(record, name) for name in record.__dataclass_fields__}}
            write_atomic(self._path(record.name), json.dumps(about, allow_nan=False))
        except OSError as error:
            raise self._not_writable(error) from None

    def find(self, name: str) -> Record | None:
        """Return a record by its name, or None."""
        path = self._path(name)
        return self._read(path) if path.exists() else None

    def guarantee_of(self, record: Record) -> Guarantee | None:
        """Return the guarantee of one release alone, at its own delta; None for a study or if nothing was spent."""
        if record.kind == STUDY or not record.spends:
            return None
        alone = guarantee(
            _composed(record.spent), delta=record.delta, adjacency=Adjacency(record.adjacency), unit=record.unit
        )
        caveats = set(record.caveats) | ({Caveat.FIXED_SEED.value} if record.kind == FIXED_SEED else set())
        return alone.with_caveats(map(Caveat, caveats))

    def total_of(self, record: Record) -> Total:
        """Return the total over all recorded releases of the people of one release, at its delta."""
        return self.total(self._marks(record.name), record.unit, Adjacency(record.adjacency), record.delta)

    def largest_totals(self) -> list[tuple[str, Adjacency, Total]]:
        """Return the largest total of one unit, for each kind of unit and adjacency."""
        totals = []
        records = [record for record in self.records() if record.kind in COUNTED and record.spends]
        for unit, adjacency in dict.fromkeys((record.unit, record.adjacency) for record in records):
            own = [record for record in records if (record.unit, record.adjacency) == (unit, adjacency)]
            marks = np.unique(np.concatenate([self._marks(record.name) for record in own]))
            delta = min(record.delta for record in own)
            total = self.total(marks, unit, Adjacency(adjacency), delta)
            totals.append((unit, Adjacency(adjacency), total))
        return totals

    def delete(self, name: str) -> None:
        """Delete a record that spent nothing."""
        for path in (self._path(name), self._marks_path(name)):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock under which totals are read and records are written."""
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
            raise self._not_writable(error) from None

    def _key(self) -> bytes:
        path = self.home / "key"
        try:
            if not path.exists():
                self._make()
                with contextlib.suppress(FileExistsError):  # of two processes, one wins
                    write_atomic(path, secrets.token_hex(32), replace=False)
            return bytes.fromhex(path.read_text(encoding="ascii"))
        except OSError as error:
            raise self._not_writable(error) from None
        except ValueError:
            raise LedgerError(
                f"Expected 64 hexadecimal digits in {str(path)!r}. It is the key of earlier records, which identifies "
                "their people: restore it, or move the folder away to start again."
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
                f"Expected a valid record of a training run at {str(path)!r}. The total cannot be computed: restore "
                "the file, or move it away to leave the run out of the total."
            ) from None

    def _marks(self, name: str) -> Marks:
        try:
            data = self._marks_path(name).read_bytes()
            return np.frombuffer(data, dtype="<u8").astype(np.uint64)
        except (OSError, ValueError):
            path = str(self._marks_path(name))
            raise LedgerError(f"Expected the units of a training run at {path!r}. Restore the file.") from None

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _marks_path(self, name: str) -> Path:
        return self.folder / f"{name}.units"

    def _not_writable(self, error: OSError) -> OutputError:
        return OutputError(
            f"Expected {str(self.home)!r} to be writable, to record training runs in it. {error.strerror}. Set "
            f"DISCREET_HOME to a folder of yours, or name a ledger ({setting('ledger')})."
        )


@dataclass(frozen=True)
class About:
    """Description of a release in its record, besides its people and its cost; `out` is None for stdout."""

    kind: str
    delta: float
    out: Path | None
    protection: str
    command: str = "train"


@dataclass
class Entry:
    """Record of a training run or rewritten file in progress; its ledger spends here first.

    Guarantee: the record on disk is at least the spending in its own ledger.
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
        """Return the entry of a release; a resumed one is identified by the name of its ledger.

        `marks` replace the hashes of the units if a unit may have several.
        """
        statement = ledger.statement
        used = Counter({event_to_json(event): count for event, count in statement.spent})
        count = None if marks is None else corpus.unit_count
        marks = people.marks_of(corpus) if marks is None else marks
        record = people.find(ledger.name) or Record(
            ledger.name,
            about.kind,
            statement.unit,
            statement.adjacency.value,
            about.delta,
            len(marks) if count is None else count,
            "stdout" if about.out is None else str(about.out.resolve()),
            about.protection,
            _now(),
            spent=dict(used),
            command=about.command,
        )
        return cls(people, _with_terms(record, statement.terms), marks, used, planned, budget)

    def before(self) -> Total:
        """Return the total of earlier releases of these people, without this one."""
        at = self.record
        adjacency = Adjacency(at.adjacency)
        return self.people.total(self.marks, at.unit, adjacency, at.delta, leave_out=at.name, noun=self.noun)

    @property
    def noun(self) -> str:
        """Word for the release: file or training run."""
        return "file" if self.record.command == "sanitize" else "training run"

    def now(self) -> Total:
        """Return the total of all releases of these people, including this one unless its seed is fixed."""
        return self._with(self.used) if self.record.kind in COUNTED else self.before()

    def summary(self) -> tuple[str, dict[str, Any]]:
        """Return the total as a sentence and as plain values."""
        total = self.now()
        apart = "" if self.record.kind in COUNTED else f"This {self.noun} had a fixed seed and is recorded apart. "
        limit = "" if self.budget is None else f" Their budget is {in_digits(self.budget)}."
        return apart + total.sentence(self.budget is None) + limit, total.as_dict()

    def check(self) -> None:
        """Reject a plan whose total for these people exceeds the budget; nothing is written."""
        if self.budget is None or not self.planned:
            return
        self._allow(Counter(self.planned) | self.used, self.budget, f"this {self.noun}")

    def spend(self, event: Any, id: str, *, secure: bool = False, terms: Terms | None = None) -> None:  # noqa: A002
        """Record one spend on disk before returning; up to twice the spends so far are reserved."""
        text = event_to_json(event)
        needed = self.used[text] + 1
        record = _with_terms(self.record, terms or Terms())
        if record != self.record or needed > self.record.spent.get(text, 0):
            with self.people.locked():
                if self.budget is not None:  # again: another training run on the same people may run at the same time
                    self._allow(Counter(self.planned) | (self.used + Counter({text: 1})), self.budget, repr(id))
                reserved = min(max(2 * self.used[text], 1), max(self.planned.get(text, math.inf), needed))
                self.record = replace(record, spent={**record.spent, text: max(int(reserved), needed)})
                self.people.write(self.record, self.marks)
        self.used[text] = needed

    def spend_all(self, spends: Sequence[tuple[Any, str]], *, terms: Terms | None = None) -> int:
        """Record spends whose noise is never used, and return how many the budget allows."""
        for count, (event, id) in enumerate(spends):  # noqa: A001
            try:
                self.spend(event, id, terms=terms)
            except BudgetError:
                return count
        return len(spends)

    def state(self, terms: Terms) -> None:
        """Add terms to those of earlier spends, on disk before returning."""
        record = _with_terms(self.record, terms)
        if record != self.record:
            with self.people.locked():
                self.record = record
                self.people.write(self.record, self.marks)

    def close(self, *, finished: bool = False) -> None:
        """Set the record to the actual spends; a record without spends is deleted."""
        with self.people.locked():
            if not self.used.total():
                self.people.delete(self.record.name)
                return
            self.record = replace(self.record, spent=dict(self.used), finished=finished)
            self.people.write(self.record, self.marks)

    def _with(self, spent: Counter[str]) -> Total:
        record = self.record
        return self.people.total(
            self.marks,
            record.unit,
            Adjacency(record.adjacency),
            record.delta,
            spent,
            leave_out=record.name,
            terms=Terms(record.assumptions, frozenset(map(Caveat, record.caveats))),
            kind=record.kind,
            noun=self.noun,
        )

    def _allow(self, spent: Counter[str], budget: float, what: str) -> None:
        if self.record.kind not in COUNTED:
            return
        total = self._with(spent)
        bound = total.guarantee
        if total.elsewhere:
            raise BudgetError(
                f"Expected all releases of these {bound.unit}s under {bound.adjacency.value}, got "
                f"{_count(total.elsewhere, 'release')} under another adjacency, which cannot be composed with this "
                "one. Release under the same adjacency (a training run with or without a population; a rewritten text "
                f"is always under replace-one), or leave {setting('budget')} out."
            )
        check_budget(bound.epsilon, budget, bound.delta, f"these {bound.unit}s", what, self.record.kind)


@dataclass
class Shared:
    """A named ledger that several training runs and rewritten files spend from; their own ledgers spend here first."""

    ledger: Ledger
    delta: float
    planned: Spent
    budget: float | None = None
    kind: str = TRAINING

    @classmethod
    def open(
        cls, path: Path, own: Ledger, delta: float, planned: Spent, budget: float | None, kind: str = TRAINING
    ) -> Shared:
        """Open the named ledger for a release with a ledger of its own; reject a plan that exceeds the budget."""
        statement, limit = own.statement, Ledger.read(path).budget if path.exists() else None
        ledger = Ledger.open(path, unit=statement.unit, adjacency=statement.adjacency, budget=limit)
        shared = cls(ledger, delta, planned, budget, kind)
        try:
            shared.check_resumed(own)
            shared.check()
        except BaseException:
            ledger.close()
            raise
        return shared

    def check(self) -> None:
        """Reject a plan whose total in this ledger exceeds the budget; nothing is written."""
        if self.budget is not None and self.planned:
            self._allow(self.planned, f"this {_NOUNS[self.kind]}")

    def check_resumed(self, own: Ledger) -> None:
        """Reject a ledger that lacks earlier spends of the training."""
        if any(not self.ledger.holds(name) for name in own.names):
            raise LedgerError(
                f"Expected every spend of the unfinished run in {str(self.ledger.path)!r}, some are missing. Resume "
                f"with the {setting('ledger')} that the run was started with."
            )

    def summary(self) -> tuple[str, dict[str, Any]]:
        """Return the guarantee of the ledger so far, as a sentence and as plain values."""
        total, path = self.ledger.guarantee(self.delta), str(self.ledger.path)
        kind = "" if total.certified else "an estimated "
        figure = f"{kind}epsilon {in_digits(total.epsilon)} at delta {in_digits(total.delta)}"
        text = f"The ledger {path}, all releases in it: {figure if total.exists else 'no bound'}."
        return text, {"ledger": path, "guarantee": total.as_dict()}

    def close(self, *, finished: bool = False) -> None:
        """Close the ledger; what was spent stays spent."""
        self.ledger.close()

    def spend(self, event: Any, id: str, *, secure: bool = False, terms: Terms | None = None) -> None:  # noqa: A002
        """Record one spend in the shared ledger."""
        text = event_to_json(event)
        if self.budget is not None and text not in self.planned and not self.ledger.holds(id):
            self._allow({text: 1}, repr(id))
        self.ledger.spend(event, id, secure=secure, terms=terms)

    def spend_all(self, spends: Sequence[tuple[Any, str]], *, terms: Terms | None = None) -> int:
        """Record spends whose noise is never used in the shared ledger, and return how many the budget allows."""
        allowed = len(spends)
        for count, (event, id) in enumerate(spends):  # noqa: A001
            text = event_to_json(event)
            if self.budget is not None and text not in self.planned and not self.ledger.holds(id):
                try:
                    self._allow(Counter(event_to_json(one) for one, _ in spends[: count + 1]), repr(id))
                except BudgetError:
                    allowed = count
                    break
        return self.ledger.spend_all(spends[:allowed], terms=terms)

    def state(self, terms: Terms) -> None:
        """Add terms to those of earlier spends in the shared ledger."""
        self.ledger.state(terms)

    def _allow(self, more: Spent, what: str) -> None:
        statement = self.ledger.statement
        added = [(event_from_json(text), count) for text, count in more.items()]
        event = composed([*statement.spent, *added])
        total = guarantee(event, delta=self.delta, adjacency=statement.adjacency, unit=statement.unit)
        assert self.budget is not None
        check_budget(total.epsilon, self.budget, self.delta, f"the ledger {str(self.ledger.path)!r}", what, self.kind)


_NOUNS = {TRAINING: "training run", SANITIZED: "file"}
_REMEDIES = {
    TRAINING: f"train with a smaller {setting('epsilon')} or fewer steps",
    SANITIZED: f"rewrite with a smaller {setting('epsilon_per_word')}, or shorter texts",
}


def check_budget(epsilon: float, budget: float, delta: float, whose: str, what: str, kind: str = TRAINING) -> None:
    """Reject a total that exceeds the budget."""
    if epsilon > budget:
        raise BudgetError(
            f"Expected epsilon <= {in_digits(budget)}, the budget of {whose} at delta {in_digits(delta)}, got "
            f"{in_digits(epsilon)} with {what}. Nothing was spent: {_REMEDIES[kind]}, or set a larger "
            f"{setting('budget')}."
        )


def _composed(spent: Spent) -> DpEvent:
    return composed([(event_from_json(text), count) for text, count in spent.items()])


def _with_terms(record: Record, terms: Terms) -> Record:
    """Return a record with the terms of its guarantee extended."""
    caveats = tuple(sorted({*record.caveats, *terms.caveats}))
    return replace(record, caveats=caveats, assumptions=tuple(dict.fromkeys((*record.assumptions, *terms.assumptions))))


def _patterns(touched: Sequence[npt.NDArray[np.bool_]]) -> list[tuple[int, ...]]:
    """Return the maximal sets of training runs that contain a common unit.

    >>> _patterns([np.array([True, True, False]), np.array([False, True, False])])
    [(0, 1)]
    """
    if not touched:
        return [()]
    distinct = np.unique(np.stack(touched, axis=1), axis=0)
    sets = [frozenset(np.flatnonzero(row).tolist()) for row in distinct]
    maximal = [members for members in sets if not any(members < other for other in sets)]
    if len(maximal) > _MOST_PATTERNS:
        return [tuple(range(len(touched)))]
    return [tuple(sorted(members)) for members in maximal]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def record_study(people: People, out: Path, source: str) -> None:
    """Record a study: its trials have fixed seeds, so they are not added to any total."""
    name = hashlib.blake2b(str(out.resolve()).encode(), digest_size=_MARK_BYTES).hexdigest()
    if people.find(name) is None:
        record = Record(name, STUDY, "", "", 0.0, 0, str(out.resolve()), f"trials on {source}", _now())
        with people.locked():
            people.write(record)
