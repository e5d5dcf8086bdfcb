"""A file taken apart into columns and written again, whole or not at all, with some of its texts rewritten."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discreet.core.errors import DataError, OutputError, first_line, setting
from discreet.core.files import write_atomic
from discreet.data.corpus import check_texts
from discreet.data.encoding import name_of_source, read_lines
from discreet.data.separated import Layout, write_rows
from discreet.data.tables import READERS, Table, read_table

_LINES = ".txt"
_LONGEST = 200
_STDIN = Path("/dev/stdin")


@dataclass(frozen=True, repr=False)
class FileColumns:
    """The columns of a file in order, those with the texts, and what is needed to read the others.

    Guarantee: none, this is the private data itself.
    """

    where: str
    names: tuple[str, ...]
    texts: dict[str, list[str]]
    table: Table | None = field(default=None, compare=False)

    def other(self, name: str) -> list[Any]:
        """Return a column that is copied as it is."""
        assert self.table is not None
        return self.table.read(name)


def read_columns(source: str, suffix: str, text: Sequence[str], layout: Layout | None = None) -> FileColumns:
    """Return a file, or stdin as `-`, with the columns named in `text` read and checked; plain text is one column."""
    layout = layout or Layout()
    if suffix not in READERS:
        return _read_lines(source, text)
    if source == "-":
        table = READERS[suffix](_STDIN, layout)
        if table.rows == 0:
            raise DataError("Expected rows on stdin, found none. Check what is piped in.")
    elif Path(source).suffix.lower() == suffix:
        table = read_table(Path(source), layout)
    else:
        table = READERS[suffix](Path(source), layout)
    twice = sorted({name for name in table.names if table.names.count(name) > 1})
    if twice:
        raise DataError(f"Expected each column once in {source!r}, found {twice[0]!r} again. Rename all but one.")
    texts = {name: table.column(name, "text") for name in dict.fromkeys(text)}
    for column in texts.values():
        check_texts(column, source)
    return FileColumns(source, table.names, texts, table)


def _read_lines(source: str, text: Sequence[str]) -> FileColumns:
    if tuple(text) != ("text",):
        raise DataError(
            f"Expected no {setting('text')} for {source!r}. Lines of plain text have no columns; give a file that "
            f"ends in one of {', '.join(READERS)}, or set {setting('format', 'csv')}."
        )
    lines = read_lines(source)
    if not any(line.strip() for line in lines):
        raise DataError(
            f"Expected at least one line of text in {name_of_source(source)!r}. It is empty; check that it was written."
        )
    check_texts([line for line in lines if line.strip()], name_of_source(source))
    return FileColumns(source, ("text",), {"text": lines})


def check_fits(found: FileColumns, suffix: str) -> None:
    """Refuse to write several columns as lines of plain text."""
    if suffix not in READERS and len(found.names) != 1:
        raise DataError(
            f"Expected one column to write lines of plain text, found {', '.join(found.names)}. Name a file that ends "
            f"in one of {', '.join(READERS)}."
        )


def format_of(out: str, usual: str) -> str:
    """Return the format that the name of an output asks for, or else the usual one.

    >>> format_of("clean.tsv", ".csv"), format_of("clean.bak", ".csv")
    ('.tsv', '.csv')
    """
    suffix = Path(out).suffix.lower()
    return suffix if suffix in READERS or suffix == _LINES else usual


def render(found: FileColumns, texts: Mapping[str, Sequence[str]], suffix: str) -> bytes:
    """Return the file again with new texts, in the format that a suffix names; other columns are as they were."""
    try:
        return _rendered(found, texts, suffix)
    except UnicodeEncodeError:
        raise DataError(
            f"Expected valid Unicode in every column of {found.where!r}, found half a surrogate pair. Fix the file."
        ) from None


def _rendered(found: FileColumns, texts: Mapping[str, Sequence[str]], suffix: str) -> bytes:
    columns = {name: texts[name] if name in texts else found.other(name) for name in found.names}
    for path in [name for name in texts if name not in columns]:  # a value inside an object
        top, *rest = path.split(".")
        columns[top] = [_replaced(value, rest, new) for value, new in zip(columns[top], texts[path], strict=True)]
    if suffix in (".parquet", ".pq"):
        return _parquet(columns)
    if suffix in (".csv", ".tsv", ".tab"):
        return write_rows(columns, "," if suffix == ".csv" else "\t").encode()
    if suffix in (".jsonl", ".ndjson", ".json"):
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        lines = [json.dumps(row, ensure_ascii=False, default=str) for row in rows]
        whole = "[" + ",\n".join(lines) + "]" if suffix == ".json" else "\n".join(lines)
        return (whole + "\n").encode()
    check_fits(found, suffix)
    return ("\n".join(next(iter(columns.values()))) + "\n").encode()


def _replaced(value: Mapping[str, Any], path: Sequence[str], new: str) -> dict[str, Any]:
    inner = new if len(path) == 1 else _replaced(value[path[0]], path[1:], new)
    return {**value, path[0]: inner}


def _parquet(columns: Mapping[str, Sequence[Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    held = io.BytesIO()
    made = {}
    for name, values in columns.items():
        try:
            made[name] = pyarrow.array(list(values))
        except UnicodeEncodeError:
            raise
        except (pyarrow.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise DataError(
                f"Expected values of one kind in column {name!r} for Parquet. {first_line(error, _LONGEST)}. Write CSV "
                "or JSON lines instead."
            ) from None
    try:
        pyarrow.parquet.write_table(pyarrow.table(made), held)
    except pyarrow.ArrowException as error:
        raise DataError(
            f"Expected columns that Parquet can hold. {first_line(error, _LONGEST)}. Write CSV or JSON lines instead."
        ) from None
    return held.getvalue()


def write_whole(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Write a file, synced and under its name only when it is whole; one that is there is kept unless `replace`."""
    try:
        write_atomic(path, data, replace=replace)
    except FileExistsError:
        raise OutputError(
            f"Expected no file at {str(path)!r}. It is there; name another, or replace it ({setting('force', True)})."
        ) from None
    except OSError as error:
        raise OutputError(f"Expected to be able to write {str(path)!r}. {error.strerror}. Check the path.") from None
