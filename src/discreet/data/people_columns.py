"""Columns that seem to identify people, for a warning where no column was named as the privacy unit.

A guarantee for each row protects a person with several rows less than its epsilon says. The check reads the names of
the columns and a few of their values, and its warning shows the name of a column, never a value.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any

from discreet.core.errors import DataError, Message, setting
from discreet.data.tables import Table

_PERSON = (
    r"patient(?:en|in|innen|e|i)?|subject|person|user|author|writer|speaker|customer|client|member|employee|worker|student|participant|"
    r"respondent|resident|citizen|applicant|account|reviewer|annotator|donor|tenant|physician|doctor|nurse"
)
_KEY = r"id|ids|no|nr|num|number|key|code|name|uid|uuid|guid|hash|ref"
# Whole names, after upper case letters inside a name and any separator have become an underscore.
_NAMES = re.compile(
    rf"(the_)?({_PERSON})s?(_({_KEY}))?|(full|first|last|given|family|sur|fore|user|nick|screen|display|middle|maiden)_?name|"
    r"name|surname|uid|pid|person_?id|subject_?id|mrn|mr_?number|medical_record_(no|number)|hadm_id|nhs(_?(no|number))?|"
    r"ssn|social_security(_number)?|national_id|passport(_(no|number))?|tax_id|insurance_(no|number)|"
    r"e_?mail(_address)?|mail_address|phone(_number)?|telephone|mobile|iban|login|handle"
)
_VALUES = (
    ("e-mail addresses", re.compile(r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}")),
    ("social security numbers", re.compile(r"\d{3}-\d{2}-\d{4}")),
    ("telephone numbers", re.compile(r"\+\d[\d ()/-]{6,}\d")),
)
# A person's number repeats; a row's number does not.
_NUMBERS = re.compile(
    r"[A-Za-z]{0,3}-?\d{5,12}|[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"
)
# A code has letters and digits, such as P0123. Few different codes are those of wards or kinds of rows.
_CODES = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z])[\w.:/#-]{2,40}")
_MANY_CODES = 20
_READ = 2_000  # values of a column
_LARGE = 1_000_000  # rows of a table, above which only the names of its columns are read
_FEW = 3  # distinct numbers, below which a column is a code or a year
_SHOWN = 60


def column_of_people(table: Table, used: Collection[str | None], *, read: bool = True) -> list[Message]:
    """Return a warning if a column that is not in use seems to identify people; else an empty list.

    Without `read`, only the names of the columns are considered.

    >>> table = Table("a.csv", ("text", "label", "patient_id"), 1, lambda name: ["x"])
    >>> "'patient_id'" in column_of_people(table, {"text", "label"})[0]
    True
    """
    for name in table.names:
        if name in used or table.names.count(name) > 1:
            continue
        values = _values(table, name) if read and table.rows <= _LARGE else []
        what = kind_of(name, values)
        if what is not None:
            what += "" if "repeat" in what or not _repeats(values) else " and its values repeat"
            shown = repr(name if len(name) <= _SHOWN else name[: _SHOWN - 1] + "…")
            return [
                Message(
                    f"Warning: the column {shown} {what}, and no unit was named: a guarantee would be for each row, "
                    "and a person with several rows is protected less. Name the column "
                    f"({setting('unit', name)}), or confirm that each row is one person ({setting('unit', 'row')})."
                )
            ]
    return []


def kind_of(name: str, values: Sequence[Any]) -> str | None:
    """Return why a column seems to identify people, or None.

    >>> kind_of("patient_id", []), kind_of("AuthorName", []), kind_of("drug_name", ["aspirin"])
    ('looks like the name or number of a person', 'looks like the name or number of a person', None)
    >>> kind_of("contact", ["a@example.org", "b@example.org"])
    'looks like e-mail addresses'
    """
    if _NAMES.fullmatch(_in_words(name)):
        return "looks like the name or number of a person"
    texts = [str(value).strip() for value in values if value is not None and str(value).strip()]
    if not texts:
        return None
    for what, pattern in _VALUES:
        if 2 * sum(pattern.fullmatch(text) is not None for text in texts) > len(texts):
            return f"looks like {what}"
    distinct = len(set(texts))
    if not _repeats(values):
        return None
    if distinct >= _FEW and all(_NUMBERS.fullmatch(text) for text in texts):
        return "holds numbers that repeat, as those of persons do"
    if distinct >= _MANY_CODES and all(_CODES.fullmatch(text) for text in texts):
        return "holds codes that repeat, as those of persons do"
    return None


def _repeats(values: Sequence[Any]) -> bool:
    texts = [str(value).strip() for value in values if value is not None and str(value).strip()]
    return len(set(texts)) < len(texts)


def _in_words(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    return re.sub(r"[\s.\-/]+", "_", spaced).lower().strip("_")


def _values(table: Table, name: str) -> list[Any]:
    try:
        return list(islice(table.read(name), _READ))
    except (DataError, KeyError, TypeError, ValueError):  # a nested or damaged column that nobody asked for
        return []
