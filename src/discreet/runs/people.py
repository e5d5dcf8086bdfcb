"""Total epsilon of all training runs and rewritten files of the same people, recorded on this machine.

    $DISCREET_HOME or ~/.local/state/discreet   (mode 0700)
      key                a local secret of 32 bytes (mode 0600)
      people/NAME.json   one training run or rewritten file: what it spent, for which unit, when (mode 0600)
      people/NAME.units  keyed hashes of its units, 8 bytes each, sorted (mode 0600)

Every protected training writes it, through whichever door: the commands, `TextClassifier`, `train` and `tune` of
`discreet.training`, `make_private`, `PrivateTrainer` and federated clients. Whoever opens the ledger of a training
attaches an `Entry` to it (`Ledger.also`), and each spend goes there first. A ledger that has one already is not counted
again.

The records are never in a run folder. A unit is identified by a hash of its id, keyed with the local secret; without
ids, by a hash of the row's texts, or of all of a row that is not text. So the same people are recognized in a corpus
with a few more or fewer units. The total of a set of people is the largest total of one of them: all releases that
contain this unit, composed. It is an upper bound for everyone in the set. Two units of different corpora with the same
name and id count as one, which can only increase the total.

Releases under different adjacencies are composed under the weakest of them, where `interpret.restated` has a bound.
A total that is certified is proven if the number of releases and their costs were decided beforehand. If an earlier
result decided whether to release again, or at what cost, it is the reading of an odometer, for which composition is not
proven. A total with an estimate in it is an estimate.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from discreet.accounting.events import event_from_json, event_to_json
from discreet.accounting.interpret import can_restate, guarantee_of, restated, weakest
from discreet.accounting.ledger import Ledger, Terms
from discreet.accounting.ledger_file import composed
from discreet.core.errors import BudgetError, LedgerError, Message, OutputError, setting
from discreet.core.files import write_atomic
from discreet.core.guarantee import LARGEST_DELTA, Adjacency, Caveat, Guarantee, in_digits
from discreet.data.corpus import Corpus
from discreet.data.sources import unit_ids

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


Marks = npt.NDArray[np.uint64]
Spent = Mapping[str, int]  # events as JSON, and how often each is spent

TRAINING, SANITIZED, FIXED_SEED, STUDY = "training", "sanitized", "fixed-seed", "study"
COUNTED = (TRAINING, SANITIZED)  # the others are experiments and not added up
_FORMAT = 1
_MOST_PATTERNS = 8  # sets of training runs that are composed one by one; if there are more, all runs are composed
_MARK_BYTES = 8
DECIDED_BEFORE = (
    "the number of these releases, and the cost of each, were decided without looking at the result of an earlier one"
)
EMPTY_ADDS_NOTHING = "an empty record adds nothing to a release that was counted under add/remove"
ODOMETER = (
    "This total is proven if the number of these releases and the cost of each were decided beforehand. If an earlier "
    "result decided whether to release again, or at what cost, it is an estimate."
)


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
    command: str = "train"  # or sanitize, discreet.training.train, make_private and so on; whatever the kind
    exact: bool = False  # whether `spent` is what the ledger held, not a reservation for what it may hold after a crash

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
    which are experiments and not included. `converted` counts included releases that were made under a stronger
    adjacency than that of the guarantee, and `elsewhere` releases under a weaker one, which are not included.
    `other_units` counts releases recorded for units with another name, `other_names`, such as rows instead of patients:
    they cannot be matched to the same people. `unknown` counts releases whose people are not known, because the caller
    drew the batches. `restated` says that some releases stated their own guarantee at another delta than that of
    `noun`, the current release.
    """

    guarantee: Guarantee
    trainings: int
    apart: int = 0
    elsewhere: int = 0
    other_units: int = 0
    restated: bool = False
    files: int = 0
    noun: str = "training run"
    converted: int = 0
    other_names: tuple[str, ...] = ()
    unknown: int = 0

    @property
    def releases(self) -> int:
        """Number of composed releases."""
        return self.trainings + self.files

    @property
    def over(self) -> str:
        """Composed releases as text."""
        return _counts_text(self.trainings, self.files)

    def sentence(self, fresh: bool = False) -> str:
        """Return the total as a sentence; `fresh` adds that no limit is set, if there is a figure to limit.

        Releases recorded for units with another name are left to `remarks`, which `discreet ledger` shows.
        """
        total = self.guarantee
        over = _counts_text(self.trainings, self.files, "protected training run")
        if not self.releases:
            text = f"These {total.unit}s: no release is recorded here under {total.adjacency.value}."
        elif not total.exists:
            text = f"These {total.unit}s: no bound over {over} recorded here, as {total.reason}."
        else:
            kind = "" if total.certified else "an estimated "
            text = (
                f"These {total.unit}s: {kind}epsilon {in_digits(total.epsilon)} at delta {in_digits(total.delta)}"
                f"{f' (the delta of this {self.noun})' if self.restated else ''} over {over} recorded here "
                f"({total.adjacency.value})."
            )
        text = " ".join([text, *replace(self, other_units=0).remarks])
        if self.apart:
            text += f" Recorded apart: {self.apart} with a fixed seed, for experiments and not for release."
        return Message(text + (f" No limit is set; {setting('budget')} sets one." if fresh and total.exists else ""))

    @property
    def remarks(self) -> list[str]:
        """What the figure rests on and what is not in it, as sentences."""
        total, remarks = self.guarantee, []
        if self.converted and total.exists:
            remarks.append(
                f"Converted to {total.adjacency.value}: {_count(self.converted, 'release')} under another adjacency."
            )
        if self.releases > 1 and total.exists:
            remarks.append(ODOMETER if total.certified else f"This total is an estimate because {total.reason}.")
        if self.elsewhere:
            remarks.append(
                f"Not in this figure: {_count(self.elsewhere, 'release')} under an adjacency that has no bound under "
                f"{total.adjacency.value}."
            )
        if self.other_units:
            remarks.append(
                f"Not matched: {_count(self.other_units, 'release')} recorded for each "
                f"{' or '.join(self.other_names)}, not for each {total.unit}. Whether these are the same people cannot "
                "be known; use one name for the unit to add them up."
            )
        if self.unknown:
            remarks.append(
                f"Not matched: {_count(self.unknown, 'release')} whose people are not known, because the caller drew "
                "the batches; PrivateTraining.rows tells whose rows they are."
            )
        return remarks

    def as_dict(self) -> dict[str, Any]:
        """Return the total as plain values for JSON."""
        return {
            "guarantee": self.guarantee.as_dict(),
            "trainings": self.trainings,
            "sanitized_files": self.files,
            "fixed_seed": self.apart,
            "converted": self.converted,
            "other_adjacency": self.elsewhere,
            "other_units": self.other_units,
            "other_unit_names": list(self.other_names),
            "unknown_people": self.unknown,
            "remarks": self.remarks,
        }


class People:
    """Records of a user's training runs and rewritten files, and their totals."""

    def __init__(self, home: Path | None = None) -> None:
        """Use a home folder, by default the user's; nothing is written yet."""
        self.home = home or home_folder()
        self.folder = self.home / "people"

    def marks_of(self, corpus: Corpus) -> Marks:
        """Return the distinct keyed hashes of the units of a corpus, sorted."""
        if corpus.units is not None:
            return self.marks_of_ids(corpus.unit_name, corpus.unit_names)
        return self.marks_of_texts(zip(corpus.texts, corpus.second or ("",) * len(corpus), strict=True))

    def marks_of_ids(self, unit: str, ids: Iterable[str]) -> Marks:
        """Return the distinct keyed hashes of units by their ids, sorted."""
        return self._hashes((unit, one) for one in ids)

    def marks_of_texts(self, texts: Iterable[tuple[str, str]]) -> Marks:
        """Return the distinct keyed hashes of rows without ids by their texts, sorted; a second text may be empty."""
        return self._hashes(("", *pair) for pair in texts)

    def marks_of_rows(self, rows: Iterable[str]) -> Marks:
        """Return the distinct keyed hashes of rows that are not text, each given as its whole content, sorted."""
        return self._hashes(("row", content) for content in rows)

    def _hashes(self, names: Iterable[tuple[str, ...]]) -> Marks:
        key = self._key()
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
        complete: bool = True,
    ) -> Total:
        """Return the composition of earlier releases of these people and of the planned spends for all of them.

        The planned spends are under `adjacency`. The total is under the weakest adjacency of all releases; unless
        `complete`, it is under `adjacency`, without releases that have no bound there. `leave_out` is the name of a
        record to ignore: that of the planned release, described by `kind`, `noun` and the `terms` of its guarantee.
        """
        touched: list[tuple[Record, npt.NDArray[np.bool_]]] = []
        apart = unknown = 0
        others: list[str] = []
        for record in self.records():
            if record.name == leave_out or record.kind == STUDY or not record.spends:
                continue
            theirs = self._marks(record.name)
            shared = np.isin(marks, theirs, assume_unique=True)
            if shared.any():
                apart += record.kind == FIXED_SEED
                if record.kind in COUNTED:
                    touched.append((record, shared))
            elif record.kind in COUNTED and not len(theirs):
                unknown += 1
            elif record.kind in COUNTED and record.unit != unit:
                others.append(record.unit)
        found = len(touched)
        if complete:
            target = weakest([adjacency, *(Adjacency(record.adjacency) for record, _ in touched)])
        else:
            target = adjacency
            touched = [one for one in touched if can_restate(Adjacency(one[0].adjacency), target)]
        own = {adjacency: Counter(planned)} if planned else {}
        worst: Guarantee | None = None
        for chosen in _patterns([shared for _, shared in touched]):
            spent = {one: counts.copy() for one, counts in own.items()}
            for place in chosen:
                record = touched[place][0]
                spent.setdefault(Adjacency(record.adjacency), Counter()).update(record.spent)
            pattern = _guarantee(spent, target, delta, unit)
            worst = pattern if worst is None or pattern.epsilon > worst.epsilon else worst
        assert worst is not None
        caveats = frozenset(Caveat(value) for record, _ in touched for value in record.caveats)
        recorded = Terms(tuple(text for record, _ in touched for text in record.assumptions), caveats)
        terms = recorded | (terms or Terms())
        kinds = Counter([record.kind for record, _ in touched] + ([kind] if planned is not None else []))
        adjacencies = [Adjacency(record.adjacency) for record, _ in touched] + ([adjacency] if planned else [])
        conditions = [DECIDED_BEFORE] if kinds.total() > 1 else []
        if target is Adjacency.ZERO_OUT and Adjacency.ADD_REMOVE in adjacencies:
            conditions.append(EMPTY_ADDS_NOTHING)
        assumptions = tuple(dict.fromkeys((*conditions, *terms.assumptions, *worst.assumptions)))
        return Total(
            replace(worst, assumptions=assumptions).with_caveats(terms.caveats),
            kinds[TRAINING],
            apart,
            found - len(touched),
            len(others),
            restated=any(record.delta != delta for record, _ in touched),
            files=kinds[SANITIZED],
            noun=noun,
            converted=sum(one is not target for one in adjacencies),
            other_names=tuple(dict.fromkeys(others)),
            unknown=unknown,
        )

    def write(self, record: Record, marks: Marks | None = None) -> None:
        """Write a record atomically and synced to disk; its units are written first."""
        self._make()
        try:
            if marks is not None and marks.nbytes != self._marks_size(record.name):
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
        alone = guarantee_of(
            _composed(record.spent), delta=record.delta, adjacency=Adjacency(record.adjacency), unit=record.unit
        )
        caveats = set(record.caveats) | ({Caveat.FIXED_SEED.value} if record.kind == FIXED_SEED else set())
        return alone.with_caveats(map(Caveat, caveats))

    def total_of(self, record: Record) -> Total:
        """Return the total over all recorded releases of the people of one release, at its delta."""
        return self.total(self._marks(record.name), record.unit, Adjacency(record.adjacency), record.delta)

    def largest_totals(self) -> list[Total]:
        """Return the largest total of one unit, for each name of a unit and each adjacency.

        A total holds all releases that have a bound under its adjacency; the one under the weakest holds all.
        """
        totals = []
        records = [record for record in self.records() if record.kind in COUNTED and record.spends]
        for unit, adjacency in dict.fromkeys((record.unit, record.adjacency) for record in records):
            own = [record for record in records if (record.unit, record.adjacency) == (unit, adjacency)]
            marks = np.unique(np.concatenate([self._marks(record.name) for record in own]))
            delta = min(record.delta for record in own)
            totals.append(self.total(marks, unit, Adjacency(adjacency), delta, complete=False))
        return totals

    def total_of_marks(self, marks: Marks, unit: str, delta: float | None = None) -> Total:
        """Return the total over all recorded releases of these people, by default at the smallest delta of theirs."""
        records = [record for record in self.records() if record.kind in COUNTED and record.spends]
        shared = [one for one in records if np.isin(marks, self._marks(one.name), assume_unique=True).any()]
        adjacency = Adjacency(shared[-1].adjacency) if shared else Adjacency.ZERO_OUT
        smallest = min((record.delta for record in shared), default=LARGEST_DELTA)
        return self.total(marks, unit, adjacency, smallest if delta is None else delta)

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

    def _marks_size(self, name: str) -> int:
        """Return how many bytes of hashes are stored, or -1 for none."""
        path = self._marks_path(name)
        return path.stat().st_size if path.exists() else -1

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _marks_path(self, name: str) -> Path:
        return self.folder / f"{name}.units"

    def _not_writable(self, error: OSError) -> OutputError:
        return OutputError(
            f"Expected {str(self.home)!r} to be writable, to record training runs in it. {error.strerror}. Set "
            "DISCREET_HOME to a folder of yours that can be written."
        )


@dataclass(frozen=True)
class About:
    """Description of a release in its record, besides its people and its cost.

    `out` is None for a file written to stdout, and for a training that is kept in memory only.
    """

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
    ended: bool = False  # whether the release is complete, as far as its entry knows

    @classmethod
    def of(
        cls,
        people: People,
        who: Corpus | Marks,
        ledger: Ledger,
        about: About,
        planned: Spent,
        budget: float | None = None,
        marks: Marks | None = None,
    ) -> Entry:
        """Return the entry of a release; a resumed one is identified by the name of its ledger.

        `who` are its people. `marks` replace the hashes of the units if a unit may have several. A ledger that several
        trainings spend from has one entry, with the people of all of them: its guarantee is over all of its spends.
        """
        statement = ledger.statement
        used = Counter({event_to_json(event): count for event, count in statement.spent})
        count = who.unit_count if isinstance(who, Corpus) and marks is not None else None
        if marks is None:
            marks = people.marks_of(who) if isinstance(who, Corpus) else who
        record = people.find(ledger.name)
        if record is not None:
            if record.exact and Counter(record.spent) - used:
                raise LedgerError(
                    f"Expected {record.spends:,} spends in the ledger {str(ledger.path)!r}, as recorded for these "
                    f"{record.unit}s, got {used.total():,}. It is an older copy, or lines are missing: restore it."
                )
            kind = about.kind if record.kind == FIXED_SEED else record.kind
            known = people._marks(record.name)
            entry = cls(people, _with_terms(replace(record, kind=kind), statement.terms), known, used, planned, budget)
            entry.include(marks)
            return entry
        record = Record(
            ledger.name,
            about.kind,
            statement.unit,
            statement.adjacency.value,
            about.delta,
            len(marks) if count is None else count,
            ("stdout" if about.command == "sanitize" else "memory") if about.out is None else str(about.out.resolve()),
            about.protection,
            _now(),
            spent=dict(used),
            command=about.command,
        )
        return cls(people, _with_terms(record, statement.terms), marks, used, planned, budget)

    def include(self, marks: Marks) -> None:
        """Add people to those of the release; they are on disk with its next spend, or now if there were spends."""
        everyone = np.unique(np.concatenate([self.marks, marks]))
        if len(everyone) == len(self.marks):
            return
        self.marks = everyone
        self.record = replace(self.record, units=len(everyone))
        if self.used.total():
            with self.people.locked():
                self.people.write(self.record, self.marks)

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
                self.record = replace(record, spent={**record.spent, text: max(int(reserved), needed)}, exact=False)
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

    def close(self, *, finished: bool | None = None) -> None:
        """Set the record to the actual spends; a record without spends is deleted."""
        finished = self.ended if finished is None else finished
        with self.people.locked():
            if not self.used.total():
                # What an earlier process recorded is kept, whatever the ledger says now.
                if not self.record.spends:
                    self.people.delete(self.record.name)
                return
            self.record = replace(self.record, spent=dict(self.used), finished=finished, exact=True)
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
        check_budget(bound.epsilon, budget, bound.delta, f"these {bound.unit}s", what, self.record.kind, bound)


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
        total = guarantee_of(event, delta=self.delta, adjacency=statement.adjacency, unit=statement.unit)
        assert self.budget is not None
        check_budget(total.epsilon, self.budget, self.delta, f"the ledger {str(self.ledger.path)!r}", what, self.kind)


_NOUNS = {TRAINING: "training run", SANITIZED: "file"}
_REMEDIES = {
    TRAINING: f"train with a smaller {setting('epsilon')} or fewer steps",
    SANITIZED: f"rewrite with a smaller {setting('epsilon_per_word')}, or shorter texts",
}


def check_budget(
    epsilon: float,
    budget: float,
    delta: float,
    whose: str,
    what: str,
    kind: str = TRAINING,
    bound: Guarantee | None = None,
) -> None:
    """Reject a total that exceeds the budget; `bound` is the guarantee of the total, where it has one."""
    if epsilon > budget:
        under = "" if bound is None else f" under {bound.adjacency.value}"
        because = f" ({bound.reason})" if bound is not None and not bound.exists else ""
        raise BudgetError(
            f"Expected epsilon <= {in_digits(budget)}, the budget of {whose} at delta {in_digits(delta)}{under}, got "
            f"{in_digits(epsilon)}{because} with {what}. Nothing was spent: {_REMEDIES[kind]}, or set a larger "
            f"{setting('budget')}."
        )


def _composed(spent: Spent) -> DpEvent:
    return composed([(event_from_json(text), count) for text, count in spent.items()])


def _guarantee(spent: Mapping[Adjacency, Spent], target: Adjacency, delta: float, unit: str) -> Guarantee:
    """Return the guarantee of spends under several adjacencies, under a weaker one or the same."""
    if set(spent) <= {target}:
        return guarantee_of(_composed(spent.get(target, {})), delta=delta, adjacency=target, unit=unit)
    share = delta / 2 / len(spent)  # of delta, for each adjacency whose cost has to be converted
    events = [restated(_composed(counts), adjacency, target, share) for adjacency, counts in spent.items()]
    return guarantee_of(composed([(event, 1) for event in events]), delta=delta, adjacency=target, unit=unit)


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


class NotRecorded:
    """What a ledger counts with instead of the record of people, if that has its spends already, or never will.

    The trials of a search are in the cost of the whole search. Trials of a study and reference models of an attack have
    fixed seeds or stay with the data holder, and are not released.
    """

    @classmethod
    def on(cls, ledger: Ledger) -> Ledger:
        """Return the ledger, whose spends are recorded nowhere else."""
        ledger.also = cls()
        return ledger

    def spend(self, event: Any, id: str, *, secure: bool = False, terms: Terms | None = None) -> None:  # noqa: A002
        """Count nothing."""

    def spend_all(self, spends: Sequence[tuple[Any, str]], *, terms: Terms | None = None) -> int:
        """Count nothing, and allow all."""
        return len(spends)

    def state(self, terms: Terms) -> None:
        """Record nothing."""


def detach(entry: Entry, ledger: Ledger, finished: bool | None = None) -> None:
    """Close an entry; later spends of the ledger are not counted in it."""
    if ledger.also is entry:
        ledger.also = None
    entry.close(finished=finished)


def place_of(ledger: Ledger, workspace: Path | None = None) -> Path | None:
    """Return where a training is listed as kept: its folder, or its ledger's file; None if it is in memory."""
    if workspace is not None or ledger.path is None:
        return workspace
    return ledger.path.parent if ledger.path.name == "ledger.jsonl" else ledger.path


def people_totals(
    ids: Sequence[Any] | None = None, *, unit: str = "person", delta: float | None = None
) -> tuple[Total, ...]:
    """Return the total epsilon of the recorded people over all their releases, as `discreet ledger` shows it.

    Args:
        ids: The ids of the units; without them, the largest total of one unit, for each name of a unit and each
            adjacency.
        unit: The name of these units.
        delta: Delta of the total; by default the smallest of their releases.

    Guarantee: an upper bound for each unit over the releases recorded on this machine, in `Total.guarantee`, under the
        assumptions stated there.

    ```python
    (total,) = people_totals(["p1", "p7"], unit="patient")
    print(total.guarantee)
    ```
    """
    people = People()
    if ids is None:
        return tuple(people.largest_totals())
    marks = people.marks_of_ids(unit, unit_ids(list(ids), "the given ids", "ids"))
    return (people.total_of_marks(marks, unit, delta),)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def record_study(people: People, out: Path, source: str) -> None:
    """Record a study: its trials have fixed seeds, so they are not added to any total."""
    name = hashlib.blake2b(str(out.resolve()).encode(), digest_size=_MARK_BYTES).hexdigest()
    if people.find(name) is None:
        record = Record(name, STUDY, "", "", 0.0, 0, str(out.resolve()), f"trials on {source}", _now())
        with people.locked():
            people.write(record)
