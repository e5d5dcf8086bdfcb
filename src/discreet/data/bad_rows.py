"""Rows with a fault, named by their numbers: all of them in one message, so that a file is fixed in one go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from discreet.core.errors import DataError

_NAMED = 10


def numbers(word: str, rows: Sequence[int]) -> str:
    """Return numbered rows (or lines) in words: the first ten by number, and how many there are.

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
    """The faulty rows of one place, gathered by fault, so that all are named together and never shown.

    >>> bad = BadRows("a.csv")
    >>> for row in (2, 5):
    ...     bad.add(row, "a text", ", but it is empty. Fill it in, or remove the row.")
    >>> bad.sentences()
    ["Expected a text in rows 2 and 5 of 'a.csv', but it is empty. Fill it in, or remove the row."]
    """

    where: str
    rows: dict[tuple[str, str], list[int]] = field(default_factory=dict)

    def add(self, row: int, expected: str, fault: str) -> None:
        """Note a row in which something was expected, with what follows in the message: the fault and its remedy."""
        self.rows.setdefault((expected, fault), []).append(row)

    def check(self) -> None:
        """Reject the place if a row has a fault."""
        if self.rows:
            raise DataError(" ".join(self.sentences()))

    def sentences(self) -> list[str]:
        """Return one message for each kind of fault."""
        return [
            f"Expected {expected} in {numbers('row', rows)} of {self.where!r}{fault}"
            for (expected, fault), rows in self.rows.items()
        ]
