"""Files with named columns: CSV, TSV, JSON lines and Parquet, read alike and refused alike."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discreet.core.checks import did_you_mean
from discreet.core.errors import DataError


@dataclass(frozen=True, repr=False)
class Table:
    """Named columns of equal length from one place; a column is read when it is asked for.

    `classes` gives, for a column that is known to hold classes, their names in the source's own order.
    """

    where: str
    names: tuple[str, ...]
    rows: int
    read: Callable[[str], list[Any]] = field(compare=False)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def column(self, name: str, role: str) -> list[Any]:
        """Return a column, or refuse with the columns there are; `role` is the option that names it."""
        found = self.names.count(name)
        if found == 1:
            return self.read(name)
        if found > 1:
            raise DataError(
                f"Expected one column {name!r} for {role} in {self.where!r}, found {found}. Rename all but one."
            )
        lower = {known.casefold(): known for known in self.names}
        guess = f"Did you mean {lower[name.casefold()]!r}?" if name.casefold() in lower else ""
        guess = guess or did_you_mean(name, self.names) or f"Name it with --{role}."
        if len(self.names) == 1 and (mark := re.search(r"[;|\t]", self.names[0])):
            guess = f"They seem to be separated by {mark.group()!r}; save the file with commas, or as .tsv with tabs."
        raise DataError(
            f"Expected column {name!r} for {role} in {self.where!r}, "
            f"which has {', '.join(map(repr, self.names))}. {guess}"
        )


def read_table(path: Path) -> Table:
    """Return the columns of a file; its suffix says the format."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"Expected {str(path)!r} to end in one of {', '.join(READERS)}. Convert it, or rename it to what it is."
        )
    if not path.is_file():
        raise DataError(f"Expected a file at {str(path)!r}. There is none; check the path.")
    table = reader(path)
    if table.rows == 0:
        raise DataError(f"Expected rows in {str(path)!r}, found none. Check that the file was written to its end.")
    return table


def _text_of(path: Path) -> str:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"Expected to read {str(path)!r}. {error.strerror}; check its permissions.") from None
    if not data.strip():
        raise DataError(f"Expected rows in {str(path)!r}, but the file is empty. Check that it was written to its end.")
    at = data.find(b"\0")
    if at >= 0:
        line = data.count(b"\n", 0, at) + 1
        raise DataError(
            f"Expected text without NUL bytes in {str(path)!r}, found one in line {line}. "
            "Save the file as UTF-8 (it may be UTF-16), or mend it."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"Expected UTF-8 in {str(path)!r}, but line {line} is not. "
            f"Convert it, for example: iconv -f LATIN1 -t UTF-8 {path.name} > utf8{path.suffix}"
        ) from None


def _read_csv(path: Path) -> Table:
    return _from_rows(path, _parsed(path, _text_of(path), ","))


def _read_tsv(path: Path) -> Table:
    """Read tab-separated rows, quoted or not.

    Many TSV files, those of GLUE among them, are not quoted: a quotation mark is part of the text. Others are. A file
    counts as quoted if every field that begins with a mark is well-formed (it ends with one, and those inside are
    doubled) and some such field needed it (it holds a doubled mark, a tab or a new line), or the header is quoted.
    """
    text = _text_of(path)
    if '"' not in text:
        return _from_rows(path, _split(text))
    plain = _split(text)
    begins = [value for row in plain for value in row if value.startswith('"')]
    whole = [value for value in begins if re.fullmatch(r'"(?:[^"]|"")*"', value)]
    if len(whole) == len(begins):
        needed = any('""' in value[1:-1] or "\r" in value for value in whole) or any(
            name.startswith('"') for name in plain[0]
        )
        return _from_rows(path, _parsed(path, text, "\t") if needed else plain)
    if len({len(row) for row in plain}) > 1:
        # Broken fields and ragged rows together: a quoted tab or new line was cut, if it parses as quoted.
        try:
            quoted = _parsed(path, text, "\t")
        except DataError:
            return _from_rows(path, plain)
        if len({len(row) for row in quoted}) == 1:
            return _from_rows(path, quoted)
    return _from_rows(path, plain)


def _split(text: str) -> list[list[str]]:
    return [line.split("\t") for line in text.replace("\r\n", "\n").split("\n") if line]


def _parsed(path: Path, text: str, delimiter: str) -> list[list[str]]:
    with _long_fields():
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        try:
            return [row for row in reader if row]
        except csv.Error as error:
            raise DataError(
                f"Expected well-formed rows in {str(path)!r}; reading stopped at line {reader.line_num}: {error}. "
                'Put a field that holds the separator, a new line or a " in quotation marks, and double those inside.'
            ) from None


@contextmanager
def _long_fields() -> Iterator[None]:
    # The csv module refuses fields above 128 KiB unless told otherwise; a clinical record can be longer.
    limit = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _from_rows(path: Path, rows: list[list[str]]) -> Table:
    if not rows:
        raise DataError(f"Expected rows in {str(path)!r}, found none. Check that the file was written to its end.")
    header = tuple(name.strip() for name in rows[0])
    body = rows[1:]
    for number, row in enumerate(body, start=1):
        if len(row) != len(header):
            raise DataError(
                f"Expected {len(header)} fields in row {number} of {str(path)!r}, found {len(row)}. "
                "Every row needs as many fields as the header; quote a field that holds the separator."
            )
    columns = dict(zip(header, zip(*body, strict=True), strict=False)) if body else {}
    return Table(str(path), header, len(body), lambda name: list(columns[name]))


def _read_json(path: Path) -> Table:
    text = _text_of(path)
    rows: list[Any] = []
    if path.suffix.lower() == ".json" and text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise DataError(f"Expected a JSON list of objects in {str(path)!r}. {error}.") from None
    else:
        for number, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except (json.JSONDecodeError, RecursionError) as error:
                fault = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deeply"
                raise DataError(
                    f"Expected one JSON object in line {number} of {str(path)!r}, found none ({fault}). "
                    "Write one object per line."
                ) from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise DataError(
                f"Expected a JSON object in row {number} of {str(path)!r}, found {type(row).__name__}. "
                'Write rows such as {"text": "…", "label": 1}.'
            )
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    return Table(str(path), names, len(rows), lambda name: [row.get(name) for row in rows])


def _read_parquet(path: Path) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
        names: Sequence[str] = file.schema_arrow.names
        count = int(file.metadata.num_rows)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"Expected a Parquet file at {str(path)!r}. {_first_line(error)}; write it again.") from None

    def read(name: str) -> list[Any]:
        try:
            values: list[Any] = pyarrow.parquet.read_table(path, columns=[name]).column(name).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"Expected to read column {name!r} of {str(path)!r}. {_first_line(error)}; write the file again."
            ) from None
        return values

    return Table(str(path), tuple(names), count, read)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".tab": _read_tsv,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
}
