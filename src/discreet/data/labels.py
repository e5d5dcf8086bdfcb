"""Labels: whether a column holds classes or scores, by one rule for all file formats.

The rule: a column in which every value is a number and at least one is written with a decimal point or an exponent
(or stored as a float) holds scores, for regression. Any other column of words, integers or truth values holds
classes; their names are sorted, as numbers if all are integers, else as words. `task` overrides whether they
are classes or scores.
"""

from __future__ import annotations

import decimal
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discreet.core.errors import DataError, did_you_mean, setting, shown
from discreet.data.corpus import BadRows, LabelTask, numbers

_WHOLE = re.compile(r"-?[0-9]{1,18}")
_COMMA = re.compile(r"-?[0-9]+,[0-9]+")
_MISSING, _INFINITE, _BROKEN = "missing", "infinite", "broken"
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


Answers = Sequence[tuple[str, Sequence[Any]]]


@dataclass(frozen=True)
class Outcome:
    """The parsed label column: labels with class names, or scores."""

    labels: tuple[int, ...] | None = None
    label_names: tuple[str, ...] = ()
    scores: tuple[float, ...] | None = None


def outcome(columns: Answers, task: LabelTask | None = None, classes: Sequence[str] | None = None) -> Outcome:
    """Return the labels or scores of the columns, which are (where, values) and count as one column.

    With `classes` the classes are fixed, such as those of a trained model, and any other label is rejected.

    >>> outcome([("a.csv", ["10", "9", "10"])])
    Outcome(labels=(1, 0, 1), label_names=('9', '10'), scores=None)
    >>> outcome([("a.csv", ["0.5", "2"])]).scores
    (0.5, 2.0)
    """
    kinds: dict[tuple[type, Any], str] = {}
    bad = [_note_kinds(where, values, kinds) for where, values in columns]
    if sentences := [sentence for one in bad for sentence in one.sentences()]:
        raise DataError(" ".join(sentences))
    present = set(kinds.values())

    def is_word(value: Any) -> bool:
        return kinds[type(value), value] == "word"

    if task is None and classes is None:
        _check_points(columns, kinds, is_word)
    if task is None:
        if classes is None and "decimal" in present and "word" in present:
            where, rows = _first_place(columns, is_word)
            raise DataError(
                "Expected classes or scores, but the labels mix decimal numbers and words; the first word is in "
                f"row {rows[0]} of {where!r}. Fix the column, or set {setting('task', 'classification')}."
            )
        task = "regression" if "decimal" in present and classes is None else "classification"
    if task == "regression":
        if "word" in present:
            where, rows = _first_place(columns, is_word)
            raise DataError(
                f"Expected a number as score in {numbers('row', rows)} of {where!r}, got a word. "
                "Fix the row, or use another column."
            )
        return Outcome(scores=tuple(float(value) for _, values in columns for value in values))
    names = sorted({_class_name(value) for _, value in kinds})
    if classes is None:
        if all(_WHOLE.fullmatch(name) for name in names):
            names.sort(key=lambda name: (int(name), name))
    else:
        expected = [str(name) for name in classes]
        _check_known(columns, names, expected)
        names = expected
    number = {name: i for i, name in enumerate(names)}
    lookup = {key: number[_class_name(key[1])] for key in kinds}
    labels = tuple(lookup[type(value), value] for _, values in columns for value in values)
    return Outcome(labels=labels, label_names=tuple(names))


def _note_kinds(where: str, values: Sequence[Any], kinds: dict[tuple[type, Any], str]) -> BadRows:
    """Add the kind of each distinct value (whole, decimal or word); return the rows without a valid label."""
    bad = BadRows(where)
    for row, value in enumerate(values, start=1):
        try:
            if (type(value), value) in kinds:
                continue
            kind = _kind(value)
        except TypeError:
            kind = None
        if kind is None:
            fault = f", got {type(value).__name__}. Use another column, or write one label per row."
            bad.add(row, "a word or a number as label", fault)
        elif kind == _MISSING:
            bad.add(row, "a label", ", but it is missing or NaN. Fill it in, or remove the row.")
        elif kind == _BROKEN:
            bad.add(row, "a label of valid Unicode", ", got half a surrogate pair. Fix the row.")
        elif kind == _INFINITE:
            bad.add(row, "a finite number as score", f", got {shown(value)}. Fix the row.")
        else:
            kinds[type(value), value] = kind
    return bad


def _kind(value: Any) -> str | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return _MISSING
    if isinstance(value, bool):
        return "word"
    if isinstance(value, int):
        return "whole" if abs(value) <= sys.float_info.max else _INFINITE
    if isinstance(value, float | decimal.Decimal):
        return "decimal" if math.isfinite(value) else _INFINITE
    if isinstance(value, str):
        text = value.strip()
        if not text or text.casefold() == "nan":
            return _MISSING
        if _WHOLE.fullmatch(text):
            return "whole"
        if any("\ud800" <= c <= "\udfff" for c in text):
            return _BROKEN
        return "decimal" if _NUMBER.fullmatch(text) and math.isfinite(float(text)) else "word"
    return None


def _check_points(columns: Answers, kinds: Mapping[tuple[type, Any], str], is_word: Callable[[Any], bool]) -> None:
    """Reject numbers with a decimal comma, which would be read as classes."""
    words = [value for (_, value), kind in kinds.items() if kind == "word"]
    if words and all(isinstance(value, str) and _COMMA.fullmatch(value.strip()) for value in words):
        where, rows = _first_place(columns, is_word)
        raise DataError(
            f"Expected scores with a decimal point, got a comma in row {rows[0]} of {where!r} and {len(words)} "
            "different such numbers. Write 3.5 for 3,5, or set "
            f"{setting('task', 'classification')} if they are classes."
        )


def _check_known(columns: Answers, names: Sequence[str], known: Sequence[str]) -> None:
    """Reject labels that are not among the known classes, and name the rows."""
    unknown = [name for name in names if name not in known]
    if not unknown:
        return
    where, rows = _first_place(columns, lambda value: _class_name(value) in set(unknown))
    # A long label may be a text from a wrong column, and texts are private.
    names_shown = [repr(name) for name in unknown if len(name) <= 30][:3]
    which = f"={names_shown[0]}" if len(unknown) == 1 and names_shown else ""
    others = (
        f" Got {', '.join(names_shown)}{' and others' if len(unknown) > len(names_shown) else ''}."
        if len(unknown) > 1
        else ""
    )
    if len(unknown) == len(names):
        remedy = f" No label is known: this is another task or another column; set {setting('label')}."
    else:
        remedy = f" {did_you_mean(unknown[0], known)}".rstrip() or " Fix the rows, or remove them."
    raise DataError(
        f"Expected label{which} in {numbers('row', rows)} of {where!r} to be one of the known classes: "
        f"{', '.join(known)}.{others if names_shown else ''}{remedy}"
    )


def _class_name(value: Any) -> str:
    return str(value).strip()


def _first_place(columns: Answers, is_meant: Callable[[Any], bool]) -> tuple[str, list[int]]:
    """Return the first column with values that are meant, and the rows that hold them."""
    rows_of = ((where, [row for row, value in enumerate(values, 1) if is_meant(value)]) for where, values in columns)
    return next((where, rows) for where, rows in rows_of if rows)
