"""A corpus: texts with labels or scores, privacy units and splits; its checks, and warnings for its owner.

Errors name all faulty rows by number in one message, so that a user can fix a file at once. `doubts` returns warnings
about units, texts and classes before a training run.

Guarantee: none. All of it is computed from private rows: it is for the owner, never for a run folder, a model card or a
report.

Hold-out, subsampling by a share and the choice of members with a public seed depend, for each unit, only on its own
identity. A permutation of all units would depend on how many there are: if one patient joined or left, other patients
would change sides, and a guarantee for that one patient would not hold. So each unit has its own uniform number, a
keyed hash of its identity, which is compared with a share; the sizes vary around the share. The key is public: a
selection hides nothing, it is only independent of the other units.

The identity of a unit is its name if a column names units. If each row is a unit, it is the row's position under
zero-out and replace-one (the number of rows is public, and a changed record keeps its position), and the row's text
under add/remove (positions move when a row is removed; equal texts stay together).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from discreet.core.errors import (
    DataError,
    Message,
    did_you_mean,
    invalid,
    open_probability,
    positive,
    probability,
    setting,
    whole,
)
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.core.task import Task

LabelTask = Literal["classification", "regression", "unlabelled"]  # how the labels of a text are read

_SURROGATE = re.compile("[\ud800-\udfff]")
_PER_ROW = ("texts", "labels", "scores", "second", "units", "splits")


@dataclass(frozen=True, repr=False)
class Corpus:
    """Texts, or pairs of texts, with labels (classification), scores (regression) or neither.

    Every row is in one split.

    Args:
        name: What the corpus is called in messages.
        texts: The texts.
        labels: The number of the class of each text.
        scores: Instead of labels: a number for each text.
        second: The second text of each row, for pairs.
        label_names: The names of the classes.
        units: The privacy unit of each row; without it each row is a unit.
        unit_name: The word for a unit, such as patient.
        splits: The split of each row; by default all rows are in train.
        remarks: Sentences that describe how the rows were selected.
        names_read: Whether the names of the classes were read from the labels, and were not known before: they may then
            depend on a single unit.

    Guarantee: none, this is the private data itself; its repr and its errors never show a text.

    >>> corpus = Corpus("toy", ("good film", "bad film"), labels=(1, 0), label_names=("bad", "good"))
    >>> corpus
    Corpus('toy', 2 rows, classification with 2 classes, train 2)
    >>> corpus.take([1]).texts
    ('bad film',)
    """

    name: str
    texts: tuple[str, ...]
    labels: tuple[int, ...] | None = None
    scores: tuple[float, ...] | None = None
    second: tuple[str, ...] | None = None
    label_names: tuple[str, ...] = ()
    units: tuple[str, ...] | None = None
    unit_name: str = "row"
    splits: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    names_read: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        """Reject invalid rows; errors name their numbers and never their texts."""
        for name in (*_PER_ROW, "label_names", "remarks"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, tuple):
                object.__setattr__(self, name, tuple(value.tolist() if isinstance(value, np.ndarray) else value))
        if not self.splits:
            object.__setattr__(self, "splits", ("train",) * len(self.texts))
        for name in _PER_ROW:
            value = getattr(self, name)
            if value is not None and len(value) != len(self.texts):
                raise DataError(
                    f"Expected {len(self.texts)} {name} in corpus {self.name!r}, got {len(value)}. "
                    "Pass one for each row."
                )
        if self.labels is not None and self.scores is not None:
            raise DataError(f"Expected labels or scores in corpus {self.name!r}, got both. Pass only one.")
        check_texts(self.texts, self.name)
        if self.second is not None:
            check_texts(self.second, self.name, "second text")
        if self.labels is not None:
            self._check_labels(self.labels)
        if self.scores is not None:
            check_scores(self.scores, self.name)

    def _check_labels(self, labels: Sequence[int]) -> None:
        if not self.label_names:
            count = max(labels, default=-1) + 1 if len(set(labels)) > 1 else len(set(labels))
            object.__setattr__(self, "label_names", tuple(str(i) for i in range(count)))
            object.__setattr__(self, "names_read", True)
        for row, label in enumerate(labels, start=1):
            if not 0 <= label < len(self.label_names) and len(self.label_names) > 1:
                raise DataError(
                    f"Expected label={label!r} in row {row} of corpus {self.name!r} in [0, {len(self.label_names)}). "
                    "Labels are indices into label_names."
                )
        if len(self.label_names) < 2:
            raise DataError(
                f"Expected at least 2 classes in corpus {self.name!r}, got {len(self.label_names)}. "
                "Check the label column."
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.texts)

    @property
    def task(self) -> Task:
        """The task: classification, regression, or unlabelled."""
        if self.labels is not None:
            return Task.CLASSIFICATION
        return Task.REGRESSION if self.scores is not None else Task.UNLABELLED

    @property
    def classes(self) -> int:
        """The number of classes; 0 if the corpus has none."""
        return len(self.label_names) if self.labels is not None else 0

    @property
    def is_pairs(self) -> bool:
        """Whether each row is a pair of texts."""
        return self.second is not None

    @property
    def row_texts(self) -> list[tuple[str, ...]]:
        """The text or the two texts of each row."""
        return list(zip(self.texts, *([] if self.second is None else [self.second]), strict=True))

    @property
    def score_range(self) -> tuple[float, float]:
        """Whole numbers around the scores of the held-out rows, which are not protected; 0 and 1 without any."""
        kept = [s for s, split in zip(self.scores or (), self.splits, strict=False) if split != "train"]
        return (float(math.floor(min(kept))), float(math.ceil(max(kept)))) if kept else (0.0, 1.0)

    def unlabelled(self) -> Corpus:
        """Return the same texts without labels or scores."""
        return dataclasses.replace(self, labels=None, scores=None, label_names=())

    @property
    def split_names(self) -> tuple[str, ...]:
        """The names of the splits, in order of appearance."""
        return tuple(dict.fromkeys(self.splits))

    def split(self, name: str) -> Corpus:
        """Return the rows of one split.

        Args:
            name: train, validation or test.
        """
        if name not in self.split_names:
            guess = did_you_mean(name, self.split_names)
            raise DataError(
                f"Expected split={name!r} in corpus {self.name!r}, which has {', '.join(self.split_names) or 'none'}. "
                f"{guess}".rstrip()
            )
        return self.take([row for row, split in enumerate(self.splits) if split == name])

    def take(self, indices: Iterable[int] | npt.NDArray[np.int64]) -> Corpus:
        """Return the rows with these numbers, in this order.

        Args:
            indices: The numbers of the rows, from 0.
        """
        rows = indices.tolist() if isinstance(indices, np.ndarray) else list(indices)
        columns: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else tuple(column[row] for row in rows)
            for name in _PER_ROW
        }
        return dataclasses.replace(self, **columns)

    @cached_property
    def unit_names(self) -> tuple[str, ...]:
        """The names of the units, in order of appearance; empty if each row is a unit."""
        return () if self.units is None else tuple(dict.fromkeys(self.units))

    @cached_property
    def unit_index(self) -> npt.NDArray[np.int64]:
        """The number of each row's unit: units are counted from 0 in order of appearance."""
        if self.units is None:
            return np.arange(len(self), dtype=np.int64)
        number = {name: i for i, name in enumerate(self.unit_names)}
        return np.array([number[name] for name in self.units], dtype=np.int64)

    @property
    def unit_count(self) -> int:
        """The number of units."""
        return len(self) if self.units is None else len(self.unit_names)

    @cached_property
    def _rows_by_unit(self) -> Grouped:
        return Grouped.of(self.unit_index)

    def rows_of(self, units: Iterable[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows of these units, unit by unit, in this order.

        Args:
            units: The numbers of the units, from 0.
        """
        selected = units if isinstance(units, np.ndarray) else np.fromiter(units, dtype=np.int64)
        if self.units is None:
            return np.asarray(selected, dtype=np.int64).copy()
        return self._rows_by_unit.of_units(selected)[0]

    def renamed(self, name: str, *remarks: str) -> Corpus:
        """Return the same rows under another name, with remarks added.

        Args:
            name: The new name.
            remarks: Sentences to add.
        """
        return dataclasses.replace(self, name=name, remarks=(*self.remarks, *remarks))

    def __repr__(self) -> str:
        """Return the name and the sizes, never a text."""
        kind = f"classification with {self.classes} classes" if self.labels is not None else self.task
        parts = [f"{len(self)} rows", f"{kind} on pairs" if self.is_pairs else kind]
        if self.units is not None:
            parts.append(f"{self.unit_count} {self.unit_name} units")
        counts = {name: self.splits.count(name) for name in self.split_names}
        parts += [f"{name} {count}" for name, count in counts.items()]
        return f"Corpus({self.name!r}, {', '.join(parts)})"


def joined(first: Corpus, second: Corpus) -> Corpus:
    """Return the rows of two corpora of the same kind, one after the other."""
    for name in ("labels", "scores", "second", "units"):
        if (getattr(first, name) is None) != (getattr(second, name) is None):
            raise DataError(
                f"Expected corpora {first.name!r} and {second.name!r} of the same kind, but only one has {name}. "
                "Join corpora with the same columns."
            )
    if first.label_names != second.label_names:
        raise DataError(
            f"Expected corpora {first.name!r} and {second.name!r} with the same label_names. "
            "Load both with the same classes."
        )
    rows: dict[str, Any] = {
        name: None if getattr(first, name) is None else (*getattr(first, name), *getattr(second, name))
        for name in _PER_ROW
    }
    return dataclasses.replace(first, **rows)


def check_texts(texts: Sequence[object], where: str, what: str = "text") -> None:
    """Reject values that are not text, empty, or invalid Unicode; errors name the rows, not the texts."""
    bad = BadRows(where)
    for row, text in enumerate(texts, start=1):
        if fault := _fault(text):
            bad.add(row, f"a {what}", f", but it {fault}")
    bad.check()


def _fault(text: object) -> str:
    if not isinstance(text, str):
        if text is None:
            return "is missing. Fill it in, or remove the row."
        return f"is of type {type(text).__name__}. Write it as text, or use another column."
    if not text or text.isspace():
        return "is empty. Fill it in, or remove the row."
    if not text.isascii() and _SURROGATE.search(text):
        return "holds half a surrogate pair. It is not valid Unicode; fix the row."
    if "\0" in text:
        return "holds a NUL character. Remove it; the file may be damaged."
    return ""


def check_scores(scores: Sequence[float], where: str) -> None:
    """Reject scores that are NaN or infinite, naming the rows."""
    bad = BadRows(where)
    for row, score in enumerate(scores, start=1):
        if not math.isfinite(score):
            bad.add(row, f"score={score!r}", " to be a finite number. Fill it in, or remove the row.")
    bad.check()


_NAMED = 10


def numbers(word: str, rows: Sequence[int]) -> str:
    """Return a phrase for numbered rows or lines: the first ten numbers, and how many more.

    >>> numbers("row", [3])
    'row 3'
    >>> numbers("row", [3, 5, 8])
    'rows 3, 5 and 8'
    >>> numbers("line", range(1, 31))
    'lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 20 more'
    """
    if len(rows) == 1:
        return f"{word} {rows[0]}"
    named = [str(row) for row in rows[:_NAMED]]
    last = f"{len(rows) - _NAMED:,} more" if len(rows) > _NAMED else named.pop()
    return f"{word}s {', '.join(named)} and {last}"


@dataclass(frozen=True)
class BadRows:
    """The faulty rows of one source, grouped by fault, so that one error names all of them without their content.

    >>> bad = BadRows("a.csv")
    >>> for row in (2, 5):
    ...     bad.add(row, "a text", ", but it is empty. Fill it in, or remove the row.")
    >>> bad.sentences()
    ["Expected a text in rows 2 and 5 of 'a.csv', but it is empty. Fill it in, or remove the row."]
    """

    where: str
    rows: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, row: int, expected: str, fault: str) -> None:
        """Add a faulty row: what was expected, and the rest of the message with the fault and its remedy."""
        self.rows.setdefault((expected, fault), []).append(row)

    def check(self) -> None:
        """Raise an error if a row has a fault."""
        if self.rows:
            raise DataError(" ".join(self.sentences()))

    def sentences(self) -> list[str]:
        """Return one message for each kind of fault."""
        return [
            f"Expected {expected} in {numbers('row', rows)} of {self.where!r}{fault}"
            for (expected, fault), rows in self.rows.items()
        ]


PRIVATE_DETAIL = "Private detail, do not share this line"  # before a warning that depends on private rows
_MANY_CLASSES = 20
_PER_CLASS = 2  # rows a class has on average, at or below which the labels look like identifiers


def doubts(corpus: Corpus, label: str | None = None, unit: str | None = None) -> list[str]:
    """Return warnings about a corpus, one sentence each; `label` and `unit` are the names of their columns.

    >>> toy = Corpus("toy", ("a", "b", "a"), labels=(0, 1, 0), splits=("train", "train", "validation"))
    >>> doubts(toy)
    ['1 of 1 validation texts are also training texts: utility is measured on rows that the model was trained on.']
    """
    warnings = [*_classes(corpus), *_units(corpus)]
    if unit is not None and unit == label:
        warnings.append(
            f"The column {unit!r} is both label and unit: rows with the same label count as one {corpus.unit_name}. "
            "Use the column of the author or patient as unit."
        )
    if "train" in corpus.split_names:
        for name in corpus.split_names:
            if name != "train":
                warnings += _across(corpus, corpus.split("train"), corpus.split(name), name)
    return warnings


def _across(corpus: Corpus, train: Corpus, other: Corpus, name: str) -> Iterator[str]:
    both = set(train.unit_names) & set(other.unit_names)
    if both:
        yield (
            f"{len(both):,} of {corpus.unit_count:,} {corpus.unit_name} units are in both train and {name}: "
            f"utility is measured on people the model has seen, and figures about the {name} rows are not covered "
            "by the guarantee. Split by units."
        )
    trained = set(train.row_texts)
    repeated = sum(row in trained for row in other.row_texts)
    if repeated:
        yield (
            f"{repeated:,} of {len(other):,} {name} texts are also training texts: utility is measured on rows that "
            "the model was trained on."
        )
    missing = sorted(set(other.labels or ()) - set(train.labels or ()))
    if missing:
        names = ", ".join([*(repr(corpus.label_names[label]) for label in missing[:3]), *["…"][: len(missing) > 3]])
        count = "1 class is" if len(missing) == 1 else f"{len(missing):,} classes are"
        yield f"{count} only in the {name} rows ({names}): the model cannot learn them."


def _classes(corpus: Corpus) -> Iterator[str]:
    count = len(set(corpus.labels or ()))
    if count > _MANY_CLASSES and count * _PER_CLASS >= len(corpus):
        yield Message(
            f"There are {count:,} classes for {len(corpus):,} rows: the label column looks like an identifier. Use "
            f"another column ({setting('label')})."
        )


def _units(corpus: Corpus) -> Iterator[str]:
    if corpus.units is not None and "train" in corpus.split_names and corpus.split("train").unit_count == 1:
        yield Message(
            f"All training rows belong to one {corpus.unit_name}, so a guarantee would hide a single unit among no "
            f"others. Use the column of the author or patient ({setting('unit')})."
        )


Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Grouped:
    """Rows of a corpus grouped by privacy unit: unit u owns `rows[starts[u] : starts[u + 1]]`."""

    rows: Rows
    starts: Rows

    @classmethod
    def of(cls, unit_index: Rows) -> Grouped:
        """Return the rows grouped by unit index."""
        count = int(unit_index.max(initial=-1)) + 1
        sizes = np.bincount(unit_index, minlength=count)
        return cls(np.argsort(unit_index, kind="stable"), np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.starts) - 1

    def of_units(self, units: Rows) -> tuple[Rows, Rows]:
        """Return the rows of these units, one unit after the other, and the offsets of each unit's rows."""
        sizes = self.starts[units + 1] - self.starts[units]
        first = np.concatenate([[0], np.cumsum(sizes)])
        return self.rows[np.repeat(self.starts[units] - first[:-1], sizes) + np.arange(first[-1])], first


def unit_numbers(corpus: Corpus) -> Rows:
    """Return the unit number of each row, where units are numbered in the order of their names.

    In the order of appearance, a change of one unit's first row would change which units are sampled.
    """
    if corpus.units is None:
        return corpus.unit_index
    rank = np.empty(corpus.unit_count, dtype=np.int64)
    rank[sorted(range(corpus.unit_count), key=corpus.unit_names.__getitem__)] = np.arange(corpus.unit_count)
    return np.asarray(rank[corpus.unit_index])


Indices = npt.NDArray[np.int64]
_SHOWN = 3  # classes named in an error
_LONGEST = 30  # characters of a class name in an error
_SHARES = (0.2, 0.15, 0.25, 0.1, 0.3, 0.4, 0.5)  # to hold out, tried in this order if another share leaves a side empty


def hold_out(
    corpus: Corpus,
    fraction: float,
    *,
    seed: int = 0,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
    every_class: bool = True,
) -> Corpus:
    """Return the corpus with about a fraction of its training units moved to the split "validation".

    Each unit is moved with this probability, by a keyed hash of its own identity, independently of the other units.
    Units are never split, so that no patient is on both sides. An empty side is an error and, with `every_class`,
    a side that lacks a class of the other.
    """
    open_probability("fraction", fraction, "It is the share of units to hold out.")
    places = uniform(corpus, Purpose.HOLD_OUT, seed, adjacency)
    fault = _unusable(corpus, places, fraction, every_class)
    if fault is not None:
        working = next((share for share in _SHARES if not _unusable(corpus, places, share, every_class)), None)
        another = "" if working is None else f" hold out another share ({setting('validation', working)}),"
        raise DataError(f"{fault} use a validation file,{another} or add rows.")
    splits = _held_out(corpus, places, fraction)
    count, moved_count = corpus.splits.count("train"), corpus.splits.count("train") - splits.count("train")
    what = f"{corpus.unit_name} units" if corpus.units is not None else "rows"
    remark = (
        f"{moved_count} of {count} rows were held out as validation (each of the {what} independently), because the "
        "source has no such split"
    )
    return dataclasses.replace(corpus, splits=splits, remarks=(*corpus.remarks, remark))


def _held_out(corpus: Corpus, places: npt.NDArray[np.float64], share: float) -> tuple[str, ...]:
    """Return the splits of all rows after a share of the training units is held out."""
    moved = zip(corpus.splits, (places < share).tolist(), strict=True)
    return tuple("validation" if split == "train" and moves else split for split, moves in moved)


def _unusable(corpus: Corpus, places: npt.NDArray[np.float64], share: float, every_class: bool) -> str | None:
    """Return why a share cannot be held out, or None: one side has no row, or lacks a class of the other."""
    after = _held_out(corpus, places, share)
    if after == corpus.splits or "train" not in after:
        return (
            f"Expected {'training' if 'train' not in after else 'validation'} rows after holding out {share:.0%} of "
            f"the {corpus.splits.count('train')} rows of corpus {corpus.name!r}, got none. Each unit is held out "
            "independently;"
        )
    if corpus.labels is None or not every_class:
        return None
    classes: dict[str, set[int]] = {"train": set(), "validation": set()}
    for label, split in zip(corpus.labels, after, strict=True):
        classes.setdefault(split, set()).add(label)
    for side, other in (("train", "validation"), ("validation", "train")):
        missing = sorted(classes[other] - classes[side])
        if missing:
            # A long label may be a text from a wrong column, and texts are private.
            names = [repr(name) for name in (corpus.label_names[label] for label in missing) if len(name) <= _LONGEST]
            shown = f" ({', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else ''})" if names else ""
            return (
                f"Expected every class among the {side} rows of corpus {corpus.name!r}, but {len(missing)} of "
                f"{len(corpus.label_names)} classes{shown} are only in the {other} rows. Each unit is held out "
                "independently of its class; merge or remove rare classes,"
            )
    return None


def keep_share(
    corpus: Corpus, share: float, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> Corpus:
    """Return the corpus with about a share of its training units, each kept independently."""
    if not probability("share", share, "It is the share of the training units to keep.") > 0:
        raise invalid("share", share, "in (0, 1]", "It is the share of the training units to keep.")
    if share == 1:
        return corpus
    return _fewer(corpus, share_of(corpus, share, Purpose.SHARE, seed, adjacency), f"share {share:g} and seed {seed}")


def keep_rows(corpus: Corpus, rows: int, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> Corpus:
    """Return the corpus with exactly `rows` of its training rows, or all if there are fewer.

    Rejected under add/remove and if a column names units: an exact number would depend on the other units.
    """
    whole("rows", rows, remedy="It is the number of rows to keep.")
    check_exact("rows", rows, corpus, adjacency)
    train = np.flatnonzero([split == "train" for split in corpus.splits])
    if rows >= len(train):
        return corpus
    kept = np.zeros(len(corpus), dtype=bool)
    kept[train] = exactly(corpus.take(train), rows, Purpose.ROWS, seed, adjacency)
    return _fewer(corpus, kept, f"seed {seed}")


def keep_per_unit(corpus: Corpus, most: int, *, seed: int = 0) -> Corpus:
    """Return the corpus with at most `most` training rows of each unit, chosen at random.

    Which rows of a unit stay depends on the seed, the name of the unit and the order of its own rows, and never on a
    text or on another unit. The cap itself must be chosen without looking at the data.
    """
    whole("max_per_unit", most, 1, "It is the largest number of rows of one unit.")
    if corpus.units is None:
        remedy = f"Each row is a unit of its own; name the column of the person ({setting('unit')}), or leave this out."
        raise invalid("max_per_unit", most, "used with a column that names units", remedy)
    key = _key_of(Purpose.PER_UNIT, seed)
    rows_of: dict[str, list[int]] = {}
    for row, (unit, split) in enumerate(zip(corpus.units, corpus.splits, strict=True)):
        if split == "train":
            rows_of.setdefault(unit, []).append(row)
    kept = np.zeros(len(corpus), dtype=bool)
    for unit, rows in rows_of.items():
        identity = unit.encode("utf-8", "surrogatepass")
        numbers = [_number_of(b"%d\0%s" % (order, identity), key) for order in range(len(rows))]
        kept[[rows[order] for order in sorted(range(len(rows)), key=numbers.__getitem__)[:most]]] = True
    return _fewer(corpus, kept, f"at most {most} of each {corpus.unit_name} and seed {seed}")


def _fewer(corpus: Corpus, kept: npt.NDArray[np.bool_], how: str) -> Corpus:
    """Return the corpus with the kept training rows, in order."""
    train = np.array([split == "train" for split in corpus.splits], dtype=bool)
    kept_count, count = int((kept & train).sum()), int(train.sum())
    if kept_count == 0:
        raise DataError(
            f"Expected at least one of the {count} training rows of corpus {corpus.name!r} to be kept, got none. "
            "Each unit is kept independently; use a larger share, or add rows."
        )
    remark = f"{kept_count} of {count} training rows were sampled with {how}"
    return corpus.take(np.flatnonzero(kept | ~train)).renamed(corpus.name, remark)


def halves(corpus: Corpus, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> tuple[Corpus, Corpus]:
    """Return members and non-members: each unit is a member with probability one half, independently."""
    member = share_of(corpus, 0.5, Purpose.HALVES, seed, adjacency)
    if member.all() or not member.any():
        raise DataError(
            f"Expected members and non-members in corpus {corpus.name!r}, got an empty side with "
            f"{corpus.unit_count} units. Each unit is assigned independently; add units, or use another seed."
        )
    return (
        corpus.take(np.flatnonzero(member)).renamed(f"{corpus.name} (members)"),
        corpus.take(np.flatnonzero(~member)).renamed(f"{corpus.name} (non-members)"),
    )


def equal_clients(
    corpus: Corpus, clients: int, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> tuple[Indices, ...]:
    """Return the rows of each client: random rows, in equal numbers up to one.

    Rejected under add/remove and if a column names units: use `clients_by_unit`.

    Args:
        corpus: The text.
        clients: The number of clients.
        seed: Seed of the assignment.
        adjacency: That of the guarantees of the clients.
    """
    _check_clients(clients, len(corpus), "rows")
    check_exact("equal clients", clients, corpus, adjacency, "use clients_by_unit")
    order = np.argsort(places(corpus, Purpose.EQUAL_CLIENTS, seed, adjacency), kind="stable")
    return tuple(np.sort(part).astype(np.int64) for part in np.array_split(order, clients))


def clients_by_unit(
    corpus: Corpus, clients: int, *, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> tuple[Indices, ...]:
    """Return the rows of each client: units are not split, and each is assigned to a client independently.

    No person is at two clients; a client without rows is an error.

    Args:
        corpus: The text.
        clients: The number of clients.
        seed: Seed of the assignment.
        adjacency: That of the guarantees of the clients.
    """
    _check_clients(clients, corpus.unit_count, "units")
    at = (uniform(corpus, Purpose.CLIENTS, seed, adjacency) * clients).astype(np.int64)
    return _by_client(corpus, at, clients, 1, "Use fewer clients, another seed, or more units.")


def dirichlet_clients(
    corpus: Corpus,
    clients: int,
    concentration: float,
    *,
    seed: int = 0,
    least: int = 1,
    adjacency: Adjacency | str = Adjacency.ZERO_OUT,
) -> tuple[Indices, ...]:
    """Return the rows of each client, with class proportions from a Dirichlet distribution.

    A small concentration gives clients with few classes; a large one makes them similar. A client with fewer than
    `least` rows is an error.

    Args:
        corpus: The text.
        clients: The number of clients.
        concentration: How alike the clients' classes are: large is alike, small is one class each.
        seed: Seed of the assignment.
        least: The least number of rows of a client.
        adjacency: That of the guarantees of the clients.

    Paper: Hsu et al. 2019, Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification.
    Differs: each class is distributed over the clients by its own Dirichlet sample, and each row is assigned
    independently, so every row is used exactly once and none depends on the others.
    """
    if corpus.labels is None:
        raise DataError(f"Expected classes in corpus {corpus.name!r}, got {corpus.task}. Use equal_clients.")
    positive("concentration", concentration, "Small is uneven, large is even; 0.5 is common.")
    whole("least", least, 0)
    _check_clients(clients, len(corpus) // max(least, 1), f"groups of {least} rows")
    numbers = uniform(corpus, Purpose.DIRICHLET_CLIENTS, seed, adjacency)
    labels = np.array(corpus.labels)
    at = np.zeros(len(corpus), dtype=np.int64)
    for label in range(len(corpus.label_names)):
        source = Rng(seed).fork("dirichlet clients", label).numpy("dirichlet_clients")
        shares = source.dirichlet(np.full(clients, concentration))
        # With a tiny concentration all shares can underflow to 0: then one client gets the class.
        shares = np.nan_to_num(shares) if shares.sum() > 0 else np.eye(clients)[source.integers(clients)]
        cuts = np.cumsum(shares / shares.sum())[:-1]
        rows = labels == label
        at[rows] = np.searchsorted(cuts, numbers[rows], side="right")
    remedy = "Use fewer clients, a larger concentration, another seed, or more rows."
    return _by_client(corpus, at, clients, least, remedy)


def _by_client(corpus: Corpus, at: Indices, clients: int, least: int, remedy: str) -> tuple[Indices, ...]:
    sizes = np.bincount(at, minlength=clients)
    if sizes.min() < least:
        raise DataError(
            f"Expected at least {least} rows of corpus {corpus.name!r} at each of {clients} clients, got "
            f"{int(sizes.min())} at one. Each unit is assigned independently. {remedy}"
        )
    return tuple(np.flatnonzero(at == client).astype(np.int64) for client in range(clients))


def _check_clients(clients: int, available: int, what: str) -> None:
    whole("clients", clients)
    if clients > available:
        raise invalid("clients", clients, f"<= {available}, the number of {what}", "Use fewer clients.")


Places = npt.NDArray[np.uint64]
Chosen = npt.NDArray[np.bool_]
_KEY = b"discreet selection"


class Purpose(enum.StrEnum):
    """The purpose of a selection; every selection with a public seed has one, and a test of its independence."""

    HOLD_OUT = "hold-out"
    ROWS = "rows"
    SHARE = "share"
    HALVES = "halves"
    EQUAL_CLIENTS = "equal clients"
    CLIENTS = "clients"
    DIRICHLET_CLIENTS = "dirichlet clients"
    CANARIES = "canaries"
    PER_UNIT = "rows per unit"


def identities(corpus: Corpus, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> list[bytes]:
    """Return, row by row, the identity of the unit that owns it."""
    if corpus.units is not None:
        return [name.encode("utf-8", "surrogatepass") for name in corpus.units]
    if Adjacency(adjacency) is not Adjacency.ADD_REMOVE:
        return [str(row).encode("ascii") for row in range(len(corpus))]
    second = corpus.second or ("",) * len(corpus)
    return [f"{len(one)} {one}{two}".encode() for one, two in zip(corpus.texts, second, strict=True)]


def places(corpus: Corpus, purpose: Purpose, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT) -> Places:
    """Return, row by row, a uniform 64-bit number that is a keyed hash of the identity of the row's unit.

    >>> corpus = Corpus("toy", ("a", "b", "c"), units=("ann", "bob", "ann"))
    >>> ann, bob, again = places(corpus, Purpose.HOLD_OUT).tolist()
    >>> ann == again != bob
    True
    """
    key = _key_of(purpose, seed)
    hashes: dict[bytes, int] = {}
    numbers = np.empty(len(corpus), dtype=np.uint64)
    for row, identity in enumerate(identities(corpus, adjacency)):
        if identity not in hashes:
            hashes[identity] = _number_of(identity, key)
        numbers[row] = hashes[identity]
    return numbers


def _key_of(purpose: Purpose, seed: int) -> bytes:
    about = f"{purpose.value}\0{int(seed)}".encode()
    return hashlib.blake2b(about, key=_KEY, digest_size=32).digest()


def _number_of(identity: bytes, key: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(identity, key=key, digest_size=8).digest(), "little")


def uniform(
    corpus: Corpus, purpose: Purpose, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> npt.NDArray[np.float64]:
    """Return, row by row, the number of the row's unit in [0, 1)."""
    return np.asarray((places(corpus, purpose, seed, adjacency) >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def share_of(
    corpus: Corpus, share: float, purpose: Purpose, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> Chosen:
    """Return, row by row, whether its unit is in a share of all units; the actual share varies.

    A larger share contains all units of a smaller one.
    """
    probability("share", share, "It is the share of units to select.")
    return np.asarray(uniform(corpus, purpose, seed, adjacency) < share)


def exactly(
    corpus: Corpus, count: int, purpose: Purpose, seed: int = 0, adjacency: Adjacency | str = Adjacency.ZERO_OUT
) -> Chosen:
    """Return, row by row, whether it is among the `count` rows with the smallest numbers, if each row is a unit.

    Under zero-out and replace-one the number of rows is public and this depends only on positions.
    """
    whole(purpose.value, count)
    check_exact(purpose.value, count, corpus, adjacency)
    chosen = np.zeros(len(corpus), dtype=bool)
    chosen[np.argsort(places(corpus, purpose, seed, adjacency), kind="stable")[:count]] = True
    return chosen


def check_exact(
    name: str,
    value: object,
    corpus: Corpus,
    adjacency: Adjacency | str,
    instead: str = f"keep a share of the units ({setting('share')})",
) -> None:
    """Reject an exact number of rows if the selection of a unit would depend on the others."""
    if Adjacency(adjacency) is Adjacency.ADD_REMOVE:
        remedy = f"Without one unit, another would take its place; {instead}."
        raise invalid(name, value, "left out under add/remove", remedy)
    if corpus.units is not None:
        remedy = f"A {corpus.unit_name} with one more row would displace others; {instead}."
        raise invalid(name, value, f"left out if a column names each row's {corpus.unit_name}", remedy)


_BRACKETS = re.compile(r"-(?:lrb|rrb|lsb|rsb|lcb|rcb)-")
_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[\W_]+")
_BY_CHANCE = 20  # held-out rows, below which all of their texts may occur among the training rows by chance
_SHARE = 0.1  # of the held-out rows that may have the text of a training row, in addition to the repeated texts


def normalised(text: str) -> str:
    """Return a text without case, white space, punctuation, accents and tokenization.

    >>> normalised("It ca n't be -lrb- so -rrb- NAÏVE .") == normalised("it can't be (so) naive")
    True
    """
    # Only letters and digits: "ca n't" equals "can't", and "( so )" equals "-lrb- so -rrb-".
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    folded = "".join(c for c in folded if not unicodedata.combining(c)) if not folded.isascii() else folded
    bare = _NEITHER_LETTER_NOR_DIGIT.sub("", _BRACKETS.sub("", folded))
    # A text of only punctuation is kept, so that it does not equal every other such text.
    return bare or "".join(folded.split())


def overlapping(public: Corpus, private: Corpus) -> tuple[int, ...]:
    """Return the rows of the public corpus whose first or second normalized text is in the private one."""
    private_texts = {text for row in _keys(private) for text in row}
    return tuple(i for i, row in enumerate(_keys(public)) if not private_texts.isdisjoint(row))


def without_overlap(public: Corpus, private: Corpus) -> Corpus:
    """Return the public corpus without the rows whose text is in the private one; a remark says how many were removed.

    Use it for every public or auxiliary corpus: otherwise an attacker would be given the answers, and a model "trained
    on public text" would have seen private text.

    Args:
        public: The text that rows are removed from.
        private: The text that must not occur in it.

    Guarantee: none for near duplicates; a row is removed if its text is the same after `normalised`.

    >>> public = Corpus("web", ("It can't be!", "Another one"), labels=(0, 1))
    >>> private = Corpus("ward", ("it ca n't be .", "A secret"), labels=(0, 1))
    >>> kept = without_overlap(public, private)
    >>> kept.texts, kept.remarks
    (('Another one',), ("1 of 2 rows were removed, because their text is in 'ward'",))
    """
    removed = overlapping(public, private)
    kept = np.setdiff1d(np.arange(len(public)), np.array(removed, dtype=np.int64))
    remark = f"{len(removed)} of {len(public)} rows were removed, because their text is in {private.name!r}"
    return public.take(kept).renamed(public.name, remark)


def check_held_out(train: Corpus, held_out: Corpus) -> None:
    """Reject held-out rows of units that are trained on.

    Held-out rows are read without noise: utility figures are computed on them, and they decide when to stop. Without
    ids, rows are compared by their `normalised` texts. A few equal texts may be those of other people: the held-out
    rows are rejected if all of them, or 10% more of them than of the training rows themselves, have the text of another
    training row.

    Guarantee: no held-out row belongs to a named unit of the training rows.
    """
    if train.units is not None:
        shared = len(set(train.unit_names) & set(held_out.unit_names))
        expected, got = f"of other {train.unit_name}s than the training rows", f"{shared:,} of them"
    else:
        shared = _shared_rows(_keys(train), _keys(held_out))
        expected = "that are not training rows"
        got = f"{shared:,} of {len(held_out):,} with the text of a training row"
    if shared:
        raise DataError(
            f"Expected validation rows {expected}, got {got}. Validation rows are read without noise, and would reveal "
            f"protected ones. Divide the rows by units, or leave {setting('validation')} out: a part of the units is "
            "then held out."
        )


def _shared_rows(train: list[tuple[str, ...]], held_out: list[tuple[str, ...]]) -> int:
    """Return how many held-out rows occur among the training rows; 0 if that may be by chance."""
    rows = Counter(train)
    shared = sum(one in rows for one in held_out)
    if shared <= 1 or (len(held_out) < _BY_CHANCE and not rows.keys() <= set(held_out)):
        return 0
    repeated = sum(count for count in rows.values() if count > 1) / len(train)
    return shared if shared == len(held_out) or shared / len(held_out) > _SHARE + repeated else 0


def _keys(corpus: Corpus) -> list[tuple[str, ...]]:
    """Return the normalised texts of every row."""
    return [tuple(map(normalised, texts)) for texts in corpus.row_texts]
