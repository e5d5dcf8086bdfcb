"""A corpus: texts with labels or scores, the split each row is in, and the unit whose privacy is at stake."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, did_you_mean
from discreet.data.bad_rows import BadRows

Task = Literal["classification", "regression", "unlabelled"]

_SURROGATE = re.compile("[\ud800-\udfff]")
_PER_ROW = ("texts", "labels", "scores", "second", "units", "splits")


@dataclass(frozen=True, repr=False)
class Corpus:
    """Texts, or pairs of texts, with labels (classification), scores (regression) or neither.

    Every row is in one split. `units` names, row by row, the person whose privacy is at stake (`unit_name` is the word
    for that, such as "patient"); without it each row is its own unit. `remarks` say how the rows came to be.

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

    def __post_init__(self) -> None:
        """Refuse rows that cannot be used, by their number and never by their text."""
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
                    f"Expected {len(self.texts)} {name} in corpus {self.name!r}, found {len(value)}. "
                    "Give one for each row."
                )
        if self.labels is not None and self.scores is not None:
            raise DataError(f"Expected labels or scores in corpus {self.name!r}, found both. Give one of the two.")
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
        for row, label in enumerate(labels, start=1):
            if not 0 <= label < len(self.label_names) and len(self.label_names) > 1:
                raise DataError(
                    f"Expected label={label!r} in row {row} of corpus {self.name!r} in [0, {len(self.label_names)}). "
                    "Labels are positions in label_names."
                )
        if len(self.label_names) < 2:
            raise DataError(
                f"Expected at least 2 classes in corpus {self.name!r}, found {len(self.label_names)}. "
                "With one class there is nothing to learn; check the label column."
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.texts)

    @property
    def task(self) -> Task:
        """What there is to learn: classes, scores, or nothing."""
        if self.labels is not None:
            return "classification"
        return "regression" if self.scores is not None else "unlabelled"

    @property
    def classes(self) -> int:
        """The number of classes; 0 if the corpus has none."""
        return len(self.label_names) if self.labels is not None else 0

    @property
    def is_pairs(self) -> bool:
        """Whether each row is a pair of texts."""
        return self.second is not None

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
        picked: dict[str, Any] = {
            name: None if (column := getattr(self, name)) is None else tuple(column[row] for row in rows)
            for name in _PER_ROW
        }
        return dataclasses.replace(self, **picked)

    @cached_property
    def unit_names(self) -> tuple[str, ...]:
        """The units by name, in order of appearance; empty if each row is its own unit."""
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
    def _rows_by_unit(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        order = np.argsort(self.unit_index, kind="stable").astype(np.int64)
        starts = np.zeros(self.unit_count + 1, dtype=np.int64)
        np.cumsum(np.bincount(self.unit_index, minlength=self.unit_count), out=starts[1:])
        return order, starts

    def rows_of(self, units: Iterable[int] | npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows of these units, unit by unit in the order given."""
        wanted = units if isinstance(units, np.ndarray) else np.fromiter(units, dtype=np.int64)
        if self.units is None:
            return np.asarray(wanted, dtype=np.int64).copy()
        order, starts = self._rows_by_unit
        lengths = starts[wanted + 1] - starts[wanted]
        ends = np.cumsum(lengths)
        within = np.arange(int(ends[-1]) if len(ends) else 0, dtype=np.int64) - np.repeat(ends - lengths, lengths)
        return np.asarray(order[np.repeat(starts[wanted], lengths) + within], dtype=np.int64)

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
                "Join like with like."
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
    """Reject what is no text, empty, or not writable as UTF-8, naming the rows and not the texts."""
    bad = BadRows(where)
    for row, text in enumerate(texts, start=1):
        if fault := _fault(text):
            bad.add(row, f"a {what}", f", but it {fault}")
    bad.check()


def _fault(text: object) -> str:
    if not isinstance(text, str):
        if text is None:
            return "is missing. Fill it in, or remove the row."
        return f"is of type {type(text).__name__}. Write it as text, or name another column."
    if not text or text.isspace():
        return "is empty. Fill it in, or remove the row."
    if not text.isascii() and _SURROGATE.search(text):
        return "holds half a surrogate pair. It is no valid Unicode; fix the row."
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
