r"""Read and write CSV and TSV files: written files are read back exactly; ambiguous files are rejected.

The rules:

- A line ends with \n or \r\n, or with \r in a file that has no \n. Blank lines are skipped.
- Quoted: a field that begins with a quotation mark ends at the next single one; a pair of marks inside is one
  mark. Separators and line ends inside are text.
- Not quoted: every separator and every line end counts, and a quotation mark is text.
- CSV is quoted. TSV may be either: quoted if a name in its header begins with a quotation mark; otherwise, where some
  field begins with one, the one reading in which every row has as many fields as the header. A file that fits both
  readings is rejected, and `quoting` says which it is.
"""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from discreet.core.errors import DataError, invalid, one_of, setting
from discreet.data.corpus import numbers

QUOTINGS = ("csv", "none")
_TAB = "\t"
_MARK = '"'
_NAMED = {"tab": _TAB, "\\t": _TAB, "comma": ",", "semicolon": ";"}
_EXCEL = "sep="  # first line in which spreadsheets declare their separator

_LIMIT = threading.Lock()  # the csv module has one limit of the length of fields for the whole process

Rows = list[list[str]]


@dataclass(frozen=True)
class Layout:
    """The format of a CSV or TSV file: the separator, and whether fields are quoted.

    None for the separator is a comma in .csv and a tab in .tsv files; None for the quoting follows the rules above.
    """

    separator: str | None = None
    quoting: str | None = None

    def __post_init__(self) -> None:
        """Reject an invalid separator or quoting."""
        if self.quoting is not None:
            one_of("quoting", self.quoting, QUOTINGS)
        if self.separator is not None:
            character = _NAMED.get(self.separator, self.separator)
            if len(character) != 1 or character in '"\r\n':
                raise invalid("separator", self.separator, "one character", "Use ';', ',', '|' or tab.")

    def character(self, default: str) -> str:
        """Return the separator character."""
        return default if self.separator is None else _NAMED.get(self.separator, self.separator)


def read_rows(text: str, where: str, default: str, layout: Layout) -> Rows:
    """Return the rows of a file, the header first; reject malformed and ambiguous files."""
    if "\n" not in text and "\r" in text:
        text = text.replace("\r", "\n")
    separator = layout.character(default)
    if layout.separator is None:
        head = next(_lines(text), "")
        if head.startswith(_EXCEL) and len(head) == len(_EXCEL) + 1:
            separator, text = head[-1], text[text.index(head) + len(head) :]
        else:
            _check_separator(head, where, separator)
    quoting = layout.quoting or _quoting(text, where, separator)
    rows = _quoted(text, where, separator) if quoting == "csv" else _unquoted(text, separator)
    if rows:
        _check_widths(rows, where)
    return rows


def write_rows(columns: Mapping[str, Sequence[Any]], separator: str) -> str:
    r"""Return columns as text that `read_rows` reads back: TSV with all fields or none quoted, CSV quoted if needed.

    >>> write_rows({"text": ['say "no"'], "label": [1]}, "\t")
    'text\tlabel\nsay "no"\t1\n'
    """
    rows = [list(map(str, columns))]
    rows += [["" if value is None else str(value) for value in row] for row in zip(*columns.values(), strict=True)]
    buffer = io.StringIO()
    if separator == _TAB:
        special = any(f.startswith(_MARK) or any(c in f for c in "\t\r\n") for row in rows for f in row)
        special = special or any(row == [""] for row in rows)  # otherwise it would be a blank line
        if not special:
            return "".join(_TAB.join(row) + "\n" for row in rows)
        csv.writer(buffer, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
        return buffer.getvalue()
    as_needed = csv.writer(buffer, delimiter=separator, lineterminator="\n")
    quote_all = csv.writer(buffer, delimiter=separator, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in rows:
        # the csv module does not quote a lone \r, which would end the row
        (quote_all if any("\r" in field for field in row) else as_needed).writerow(row)
    return buffer.getvalue()


def _check_separator(head: str, where: str, separator: str) -> None:
    """Reject a header that has another separator but not this one."""
    if separator in head:
        return
    other = next((mark for mark in ";\t|," if mark in head), None)
    if other is not None:
        names = {_TAB: "tab", ",": "comma"}
        named, mine = names.get(other, other), names.get(separator, separator)
        raise DataError(
            f"Expected columns separated by {separator!r} in {where!r}, but its header has none and has {other!r}. "
            f"Set {setting('separator', named)} if that separates them, or {setting('separator', mine)} for one column."
        )


def _quoting(text: str, where: str, separator: str) -> str:
    if separator != _TAB:
        return "csv"
    starts = (_MARK, "\n" + _MARK, separator + _MARK)
    if not (text.startswith(starts[0]) or starts[1] in text or starts[2] in text):
        return "none"  # no field begins with a mark: both readings are the same
    header = next(_lines(text)).split(separator)
    if any(name.lstrip().startswith(_MARK) for name in header):
        return "csv"
    unquoted = all(line.count(separator) == len(header) - 1 for line in _lines(text))
    try:
        quoted = all(len(row) == len(header) for row in _quoted(text, where, separator))
    except DataError:
        quoted = False
    if unquoted and quoted:
        line = next(i for i, line in enumerate(text.split("\n"), 1) if (separator + line).count(separator + _MARK))
        raise DataError(
            f"Expected one way to read {where!r}, but it fits two: in line {line} a field begins with a quotation "
            "mark, which may quote the field or be part of the text. Set "
            f"{setting('quoting', 'csv')} if fields are quoted, or {setting('quoting', 'none')} if the marks are text."
        )
    return "csv" if quoted else "none"


def split_lines(text: str) -> Iterator[str]:
    """Yield the parts of a text between its line ends, without a copy of the whole text."""
    at = 0
    while at <= len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield text[at:end]
        at = end + 1


def _lines(text: str) -> Iterator[str]:
    """Yield the lines that are not blank, without their ends."""
    return (line for part in split_lines(text) if (line := part.removesuffix("\r")))


def _unquoted(text: str, separator: str) -> Rows:
    return [line.split(separator) for line in _lines(text)]


def _quoted(text: str, where: str, separator: str) -> Rows:
    rows: Rows = []
    lines = (line + "\n" for line in split_lines(text))
    reader = csv.reader(lines, delimiter=separator, strict=True)  # given lines, it rejects a lone \r
    before = 0  # the last line of the rows so far
    with _LIMIT:
        limit = csv.field_size_limit(len(text) + 1)
        try:
            for row in reader:
                if row:
                    rows.append(row)
                before = reader.line_num
        except csv.Error as error:
            fault = str(error).partition(" - ")[0]  # without its advice to programmers
            raise DataError(
                f"Expected well-formed rows in {where!r}; reading stopped at line {before + 1}: {fault}. "
                'Put a field that holds the separator, a new line or a " in quotation marks, and double those inside.'
            ) from None
        finally:
            csv.field_size_limit(limit)
    return rows


def _check_widths(rows: Rows, where: str) -> None:
    width = len(rows[0])
    bad = [number for number, row in enumerate(rows[1:], start=1) if len(row) != width]
    if bad:
        count = f"got {len(rows[bad[0]])}" if len(bad) == 1 else f"got {len(rows[bad[0]])} in the first of them"
        raise DataError(
            f"Expected {width} fields in {numbers('row', bad)} of {where!r}, {count}. "
            "Every row needs as many fields as the header; quote a field that holds the separator."
        )
