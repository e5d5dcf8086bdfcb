"""What a label column means: classes or scores, by one rule for every file format.

The rule: a column in which every value is a number and at least one is written with a decimal point or an exponent
(or stored as a float) holds scores, for regression. Any other column of words, whole numbers or truth values holds
classes; their names are sorted, as numbers if all are whole numbers, else as words. `task` overrules the first part.
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from discreet.core.checks import did_you_mean
from discreet.core.errors import DataError
from discreet.data.corpus import Task

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


Answers = Sequence[tuple[str, Sequence[Any]]]


@dataclass(frozen=True)
class Outcome:
    """What a label column came to: labels with the names of their classes, or scores."""

    labels: tuple[int, ...] | None = None
    label_names: tuple[str, ...] = ()
    scores: tuple[float, ...] | None = None


def outcome(columns: Answers, task: Task | None = None, label_names: Sequence[str] | None = None) -> Outcome:
    """Return the labels or scores of the columns, which are (where, values) and count as one column.

    With `label_names` the classes are given, such as those a model was trained on, and any other label is refused.

    >>> outcome([("a.csv", ["10", "9", "10"])])
    Outcome(labels=(1, 0, 1), label_names=('9', '10'), scores=None)
    >>> outcome([("a.csv", ["0.5", "2"])]).scores
    (0.5, 2.0)
    """
    kinds: dict[tuple[type, Any], str] = {}
    for where, values in columns:
        _note_kinds(where, values, kinds)
    found = set(kinds.values())
    if task is None:
        if label_names is None and "decimal" in found and "word" in found:
            where, row = _first(columns, kinds, "word")
            raise DataError(
                "Expected classes or scores, but the labels mix numbers with a decimal point and words; the first "
                f"word is in row {row} of {where!r}. Mend the column, or say which with task='classification'."
            )
        task = "regression" if "decimal" in found and label_names is None else "classification"
    if task == "regression":
        if "word" in found:
            where, row = _first(columns, kinds, "word")
            raise DataError(
                f"Expected a number as score in row {row} of {where!r}, found a word. "
                "Mend the row, or name another column."
            )
        return Outcome(scores=tuple(float(value) for _, values in columns for value in values))
    names = sorted({_class_name(value) for _, value in kinds})
    if label_names is None:
        if all(_WHOLE.fullmatch(name) for name in names):
            names.sort(key=lambda name: (int(name), name))
    else:
        known = [str(name) for name in label_names]
        for name in names:
            if name not in known:
                where, row = _where_is(columns, name)
                # A long label is perhaps a text from a column named by mistake, and texts are private.
                shown = f"={name!r}" if len(name) <= 30 else ""
                raise DataError(
                    f"Expected label{shown} in row {row} of {where!r} to be one of the known classes: "
                    f"{', '.join(known)}. {did_you_mean(name, known)}".rstrip()
                )
        names = known
    number = {name: i for i, name in enumerate(names)}
    lookup = {key: number[_class_name(key[1])] for key in kinds}
    labels = tuple(lookup[type(value), value] for _, values in columns for value in values)
    return Outcome(labels=labels, label_names=tuple(names))


def _note_kinds(where: str, values: Sequence[Any], kinds: dict[tuple[type, Any], str]) -> None:
    """Add the kind of each different value (whole, decimal or word), refusing what is missing or no label at all."""
    for row, value in enumerate(values, start=1):
        try:
            if (type(value), value) in kinds:
                continue
        except TypeError:
            raise _unknown(where, row, value) from None
        kinds[type(value), value] = _kind(where, row, value)


def _kind(where: str, row: int, value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise _missing(where, row)
    if isinstance(value, bool):
        return "word"
    if isinstance(value, int):
        return "whole"
    if isinstance(value, float | decimal.Decimal):
        if not math.isfinite(value):
            raise DataError(
                f"Expected a finite number as score in row {row} of {where!r}, found {value}. Mend the row."
            )
        return "decimal"
    if isinstance(value, str):
        text = value.strip()
        if not text or text.casefold() == "nan":
            raise _missing(where, row)
        if _WHOLE.fullmatch(text):
            return "whole"
        return "decimal" if _NUMBER.fullmatch(text) and math.isfinite(float(text)) else "word"
    raise _unknown(where, row, value)


def _class_name(value: Any) -> str:
    return str(value).strip()


def _missing(where: str, row: int) -> DataError:
    return DataError(
        f"Expected a label in row {row} of {where!r}, but it is missing or NaN. Fill it in, or remove the row."
    )


def _unknown(where: str, row: int, value: Any) -> DataError:
    return DataError(
        f"Expected a word or a number as label in row {row} of {where!r}, found {type(value).__name__}. "
        "Name another column, or write one label per row."
    )


def _first(columns: Answers, kinds: dict[tuple[type, Any], str], kind: str) -> tuple[str, int]:
    return next(
        (where, row)
        for where, values in columns
        for row, value in enumerate(values, start=1)
        if kinds[type(value), value] == kind
    )


def _where_is(columns: Answers, name: str) -> tuple[str, int]:
    return next(
        (where, row)
        for where, values in columns
        for row, value in enumerate(values, start=1)
        if _class_name(value) == name
    )
