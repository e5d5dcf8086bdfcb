"""Linkage: texts without names are joined with a register of people by what they say about age, sex, work and dates.

Paper: Sweeney 2000, Simple demographics often identify people uniquely; the weights are those of Fellegi and Sunter
1969, A theory for record linkage. Differs: a column may hold several values, such as all dates of a person's visits, of
which one must agree; a text that says nothing about a column is neither for nor against anybody.
"""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from discreet.attacks.base import Need, PeopleAttack, Returns
from discreet.core.errors import DataError, UnsupportedError, invalid, open_probability
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, Release, TextRelease

SEVERAL = ";"  # separates the values of one person in one column
_MONTHS = ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_ISO = re.compile(r"\b(\d{4})\s?-\s?(\d\d?)\s?-\s?(\d\d?)\b")
_DAY_FIRST = re.compile(r"\b(\d\d?)(?:st|nd|rd|th)?\s+(?:of\s+)?([A-Za-z]{3,9})\.?,?\s+(\d{4})\b", re.IGNORECASE)
_MONTH_FIRST = re.compile(r"\b([A-Za-z]{3,9})\.?\s+(\d\d?)(?:st|nd|rd|th)?\s?,?\s+(\d{4})\b", re.IGNORECASE)
_NUMERIC = re.compile(r"\b(\d\d?)\s?([/.])\s?(\d\d?)\s?\2\s?(\d{4})\b")
_AGE = re.compile(r"\b(\d{1,3})\s?-?\s?years?\s?-?\s?old\b|\baged?\s+(\d{1,3})\b", re.IGNORECASE)
_YEARS = 130


@dataclass(frozen=True)
class Register:
    """An auxiliary table: one row per person, and what is known of each. Names are not needed to join.

    A cell may hold several values, separated by semicolons; an empty cell says nothing.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        """Check the shape."""
        if len(self.rows) < 2 or not self.columns:
            raise DataError(
                f"Expected a register of at least 2 people and 1 column, got {len(self.rows)} and {len(self.columns)}. "
                "Add rows or columns."
            )
        if any(len(row) != len(self.columns) for row in self.rows):
            raise DataError(f"Expected {len(self.columns)} values in every row of the register. Complete the rows.")

    def column(self, name: str) -> Column:
        """Return a column by its name."""
        if name not in self.columns:
            raise invalid("columns", name, f"in {', '.join(self.columns)}", "They are the columns of the register.")
        place = self.columns.index(name)
        return Column(name, tuple(frozenset(filter(None, row[place].split(SEVERAL))) for row in self.rows))


@dataclass(frozen=True)
class Column:
    """A column of a register: the values of each person."""

    name: str
    values: tuple[frozenset[str], ...]

    @cached_property
    def kind(self) -> str:
        """The kind of all its values: `date` (as 2021-06-24), `age` (whole numbers up to 130) or `words`."""
        values = [value for row in self.values for value in row]
        if values and all(_ISO.fullmatch(value) for value in values):
            return "date"
        return "age" if values and all(value.isdigit() and int(value) <= _YEARS for value in values) else "words"

    @cached_property
    def shares(self) -> dict[str, float]:
        """The share of people that have each value."""
        counts = Counter(value for row in self.values for value in row)
        return {value: count / len(self.values) for value, count in counts.items()}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        longest_first = sorted(self.shares, key=len, reverse=True)  # "retired teacher" before "teacher"
        return re.compile(rf"\b(?:{'|'.join(map(re.escape, longest_first)) or '(?!)'})\b", re.IGNORECASE)

    def said(self, text: str) -> frozenset[str]:
        """Return what a text says about the column, as values; empty if it says nothing."""
        if self.kind == "date":
            return dates_in(text)
        if self.kind == "age":
            return frozenset(first or second for first, second in _AGE.findall(text))
        spelling = {value.lower(): value for value in self.shares}
        return frozenset(spelling[match.lower()] for match in self._pattern.findall(text))


def dates_in(text: str) -> frozenset[str]:
    """Return the dates of a text as year-month-day.

    A numeric date is read with the day or with the month first, and in both ways where both are dates.

    >>> sorted(dates_in("Seen 24 June 2021, again on Jul 1, 2021 and 2021-08-02."))
    ['2021-06-24', '2021-07-01', '2021-08-02']
    >>> sorted(dates_in("24th June 2021, the 1st of July 2021, August 2nd, 2021, 25/06/2021, 9/30/2021, 2.3.2021"))
    ['2021-02-03', '2021-03-02', '2021-06-24', '2021-06-25', '2021-07-01', '2021-08-02', '2021-09-30']
    """
    parts = [(year, month, day) for year, month, day in _ISO.findall(text)]
    parts += [(year, _month(month), day) for day, month, year in _DAY_FIRST.findall(text)]
    parts += [(year, _month(month), day) for month, day, year in _MONTH_FIRST.findall(text)]
    for first, _, second, year in _NUMERIC.findall(text):
        parts += [(year, second, first), (year, first, second)]
    dates = set()
    for year, month, day in parts:
        try:
            dates.add(datetime.date(int(year), int(month), int(day)).isoformat())
        except ValueError:  # a month of another name, or the 31st of June
            continue
    return frozenset(dates)


def _month(name: str) -> int:
    return _MONTHS.index(name[:3].lower()) if name[:3].lower() in _MONTHS else 0


@dataclass(frozen=True)
class Linkage(PeopleAttack):
    """Return for each released text the most likely person of a register.

    `extra["register"]` is the `Register`. `columns` are the columns that the attacker uses, separated by commas (all by
    default). `reliability` is the probability that what a text says about its person is true: below 1, because words
    may be wrong or changed by a sanitizer. In the guess, `indices` are rows of the register and `scores` the log of the
    odds; ties are decided at random.

    `register` is a CSV file with one row per person, whose column `unit` holds the unit of the corpus; it is read by
    the experiment. The built-in notes have a register of their own.
    """

    columns: str = ""
    reliability: float = 0.95
    register: str = ""

    name: ClassVar[str] = "linkage"
    sees: ClassVar[type[Release]] = TextRelease
    returns: ClassVar[Returns] = Returns.SCORES
    needs: ClassVar[frozenset[Need]] = frozenset({Need.REGISTER})

    def __post_init__(self) -> None:
        """Check the settings."""
        open_probability("reliability", self.reliability, "It is the probability that a stated fact is true.")

    def run(self, seen: TextRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the most likely person of each text."""
        register = knows.extra.get(Need.REGISTER.value)
        if not isinstance(register, Register):
            raise UnsupportedError(
                "Expected a register for linkage, got none. Pass Knowledge(extra={'register': Register(columns, rows)})"
            )
        names = [name.strip() for name in self.columns.split(",") if name.strip()] or list(register.columns)
        columns = [register.column(name) for name in names]
        indices, scores = [], []
        for number, text in enumerate(seen.texts):
            odds = log_odds(text, columns, self.reliability)
            best = np.flatnonzero(odds == odds.max())
            pick = int(rng.fork("ties", number).uniform(1)[0] * len(best)) if len(best) > 1 else 0
            indices.append(int(best[pick]))
            scores.append(float(odds.max()))
        return Guess(indices=tuple(indices), scores=tuple(scores))


def log_odds(text: str, columns: Sequence[Column], reliability: float) -> npt.NDArray[np.float64]:
    """Return the log-likelihood ratio of a text being about each person of a register rather than about anybody.

    A column of which the text says nothing, or of which nothing is known about a person, counts nothing.
    """
    odds = np.zeros(len(columns[0].values))
    for column in columns:
        said = column.said(text)
        if not said:
            continue
        for person, values in enumerate(column.values):
            if not values:
                continue
            agreed = said & values
            # rare values weigh more: how often somebody else's would agree
            share = min(max((column.shares[value] for value in agreed), default=_mean_share(column)), 1 - 1e-9)
            likelihood = reliability / share if agreed else (1 - reliability) / (1 - share)
            odds[person] += math.log(likelihood)
    return odds


def _mean_share(column: Column) -> float:
    return min(sum(share**2 for share in column.shares.values()), 1 - 1e-9)


def register_of(people: Sequence[Mapping[str, str]]) -> Register:
    """Return a register from one mapping per person; missing values are empty."""
    columns = tuple(dict.fromkeys(name for person in people for name in person))
    return Register(columns, tuple(tuple(person.get(name, "") for name in columns) for person in people))
