"""A corpus: texts with labels or scores, splits and privacy units; its checks, and warnings for its owner.

Errors name all faulty rows by number in one message, so that a user can fix a file at once. `doubts` returns warnings
about units, texts and classes before a training run.

Guarantee: none. All of it is computed from private rows: it is for the owner, never for a run folder, a model card or a
report.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, Message, did_you_mean, setting
from discreet.core.task import Task

LabelTask = Literal["classification", "regression", "unlabelled"]  # how the labels of a text are read

_SURROGATE = re.compile("[\ud800-\udfff]")
_PER_ROW = ("texts", "labels", "scores", "second", "units", "splits")


@dataclass(frozen=True, repr=False)
class Corpus:
    """Texts, or pairs of texts, with labels (classification), scores (regression) or neither.

    Every row is in one split. `units` holds the privacy unit of each row (`unit_name` is its name, such as "patient");
    without it each row is a unit. `remarks` describe how the rows were selected. `names_read` says that the names of
    the classes were read from the labels, and were not known before: they may then depend on a single unit.

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
        """Return the rows of one split."""
        if name not in self.split_names:
            guess = did_you_mean(name, self.split_names)
            raise DataError(
                f"Expected split={name!r} in corpus {self.name!r}, which has {', '.join(self.split_names) or 'none'}. "
                f"{guess}".rstrip()
            )
        return self.take([row for row, split in enumerate(self.splits) if split == name])

    def take(self, indices: Iterable[int] | npt.NDArray[np.int64]) -> Corpus:
        """Return the rows with these numbers, in this order."""
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
        """Return the rows of these units, unit by unit, in this order."""
        selected = units if isinstance(units, np.ndarray) else np.fromiter(units, dtype=np.int64)
        if self.units is None:
            return np.asarray(selected, dtype=np.int64).copy()
        return self._rows_by_unit.of_units(selected)[0]

    def renamed(self, name: str, *remarks: str) -> Corpus:
        """Return the same rows under another name, with remarks added."""
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
            "Load both with the same label_names."
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
