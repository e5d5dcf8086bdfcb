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
    # Not read by the csv module, which needs several times 4 bytes per character for a long field, and for which a
    # lone \r ends a row.
    rows: Rows = []
    at, size = 0, len(text)
    while at < size:
        end = text.find("\n", at)
        end = size if end < 0 else end
        if text.find(_MARK, at, end) < 0:
            line = text[at:end].removesuffix("\r")
            if "\r" in line:
                raise _malformed(text, where, at, "a carriage return outside quotation marks")
            if line:
                rows.append(line.split(separator))
            at = end + 1
        else:
            row, at = _quoted_row(text, where, separator, at)
            rows.append(row)
    return rows


def _quoted_row(text: str, where: str, separator: str, at: int) -> tuple[list[str], int]:
    """Return the fields of the row that begins at a position, and where the next one begins."""
    row: list[str] = []
    while True:
        if text.startswith(_MARK, at):
            close = at + 1
            while True:
                close = text.find(_MARK, close)
                if close < 0:
                    raise _malformed(text, where, at, "an unclosed quotation mark")
                if not text.startswith(_MARK, close + 1):
                    break
                close += 2
            row.append(text[at + 1 : close].replace(_MARK * 2, _MARK))
            at = close + 1
        else:
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            end -= text.endswith("\r", at, end)
            stop = text.find(separator, at, end)
            stop = end if stop < 0 else stop
            if text.find("\r", at, stop) >= 0:
                raise _malformed(text, where, at, "a carriage return outside quotation marks")
            row.append(text[at:stop])
            at = stop
        if text.startswith(separator, at):
            at += 1
            continue
        at += text.startswith("\r", at)
        if at >= len(text) or text[at] == "\n":
            return row, at + 1
        raise _malformed(text, where, at, f"{separator!r} expected after a closing quotation mark")


def _malformed(text: str, where: str, at: int, fault: str) -> DataError:
    return DataError(
        f"Expected well-formed rows in {where!r}; reading stopped at line {text.count(chr(10), 0, at) + 1}: {fault}. "
        'Put a field that holds the separator, a new line or a " in quotation marks, and double those inside.'
    )


def _check_widths(rows: Rows, where: str) -> None:
    width = len(rows[0])
    bad = [number for number, row in enumerate(rows[1:], start=1) if len(row) != width]
    if bad:
        count = f"got {len(rows[bad[0]])}" if len(bad) == 1 else f"got {len(rows[bad[0]])} in the first of them"
        raise DataError(
            f"Expected {width} fields in {numbers('row', bad)} of {where!r}, {count}. "
            "Every row needs as many fields as the header; quote a field that holds the separator."
        )
