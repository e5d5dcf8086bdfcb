"""Files with named columns: CSV, TSV, JSON lines and Parquet, read alike and rejected alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discreet.core.errors import DataError, ExtraError, did_you_mean, first_line, setting, shown
from discreet.data.bad_rows import numbers
from discreet.data.encoding import decode, read_bytes
from discreet.data.separated import Layout, read_rows

_MOST_NAMES, _LONGEST_NAME, _LONGEST_SAID = 40, 60, 200  # columns in an error, and characters


@dataclass(frozen=True, repr=False)
class Table:
    """Named columns of equal length from one place; a column is read when it is asked for.

    `classes` gives, for a column that is known to hold classes, their names in the source's own order. `nested` names
    the values inside objects by their path, such as "ticket.body"; they are columns too.
    """

    where: str
    names: tuple[str, ...]
    rows: int
    read: Callable[[str], list[Any]] = field(compare=False)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nested: tuple[str, ...] = ()

    def column(self, name: str, role: str) -> list[Any]:
        """Return a column, or reject with the columns there are; `role` is the option that names it."""
        found = self.names.count(name)
        within = [path for path in self.nested if path.startswith(name + ".")]
        if (found == 1 and not within) or (found == 0 and name in self.nested):
            return self.read(name)
        if found > 1:
            raise DataError(
                f"Expected one column {name!r} for {role} in {self.where!r}, found {found}. Rename all but one."
            )
        objects = {path.split(".")[0] for path in self.nested}
        known = [known for known in self.names if known not in objects] + list(self.nested)
        there = f"which has {_listed(known)}"
        if found:
            there = f"which is an object there and holds {_listed(within)}"
        raise DataError(
            f"Expected column {shown(name)} for {role} in {self.where!r}, {there}. {_guess(name, known, role)}"
        )


def _listed(names: Sequence[str]) -> str:
    """Return names as an error lists them: the first of many, and long ones cut."""
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(shown(name, _LONGEST_NAME) for name in names[:_MOST_NAMES]) + more


def _guess(name: str, known: Sequence[str], role: str) -> str:
    """Return the column that was perhaps meant: the same but for case, a value inside an object, or close to it."""
    lower = name.casefold()
    same = [k for k in known if k.casefold() == lower]
    last = [k for k in known if "." in k and k.casefold().rsplit(".", 1)[1] == lower]
    inside = [k for k in known if k.casefold().startswith(lower + ".")]
    likely = [k for k in inside if k.casefold().rsplit(".", 1)[1] in (role, "text", "body", "content", "label", "id")]
    best = next(iter((*same, *last, *likely, *inside)), None)
    if best is not None:
        return f"Did you mean {shown(best, _LONGEST_NAME)}?"
    return did_you_mean(name, known) or f"Name it ({setting(role.replace('-', '_'))})."


def read_table(path: Path, layout: Layout | None = None) -> Table:
    """Return the columns of a file; its suffix says the format, and `layout` how CSV and TSV are written."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"Expected {str(path)!r} to end in one of {', '.join(READERS)}. Convert it, or rename it to what it is."
        )
    if not path.is_file():
        raise DataError(f"Expected a file at {str(path)!r}. There is none; check the path.")
    table = reader(path, layout or Layout())
    if table.rows == 0:
        raise DataError(f"Expected rows in {str(path)!r}, found none. Check that the file was written to its end.")
    return table


def _text_of(path: Path) -> str:
    data = read_bytes(str(path))
    if not data or data.isspace():
        raise DataError(f"Expected rows in {str(path)!r}, but the file is empty. Check that it was written to its end.")
    return decode(data, str(path))


def _read_csv(path: Path, layout: Layout) -> Table:
    return _from_rows(path, read_rows(_text_of(path), str(path), ",", layout))


def _read_tsv(path: Path, layout: Layout) -> Table:
    return _from_rows(path, read_rows(_text_of(path), str(path), "\t", layout))


def _from_rows(path: Path, rows: list[list[str]]) -> Table:
    if not rows:
        raise DataError(f"Expected rows in {str(path)!r}, found none. Check that the file was written to its end.")
    header = tuple(name.strip() for name in rows[0])
    body = rows[1:]
    columns = dict(zip(header, zip(*body, strict=True), strict=False)) if body else {}
    return Table(str(path), header, len(body), lambda name: list(columns[name]))


def _read_json(path: Path, layout: Layout) -> Table:
    _check_no_layout(path, layout)
    text = _text_of(path)
    rows: list[Any] = []
    if path.suffix.lower() == ".json" and text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataError(f"Expected a JSON list of objects in {str(path)!r}. {error}.") from None
    else:
        rows = _json_lines(path, text)
    bad = [number for number, row in enumerate(rows, start=1) if not isinstance(row, dict)]
    if bad:
        found = type(rows[bad[0] - 1]).__name__
        raise DataError(
            f"Expected a JSON object in {numbers('row', bad)} of {str(path)!r}, found {found}. "
            'Write rows such as {"text": "…", "label": 1}.'
        )
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    nested = tuple(dict.fromkeys(leaf for row in rows for leaf in _leaves(row) if leaf not in names))
    return Table(str(path), names, len(rows), lambda name: [_value(row, name) for row in rows], nested=nested)


def _json_lines(path: Path, text: str) -> list[Any]:
    rows: list[Any] = []
    bad: dict[int, str] = {}
    for number, line in enumerate(_split_lines(text), start=1):
        if not line or line.isspace():
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            deep = isinstance(error, RecursionError)
            bad[number] = "nested too deeply" if deep else getattr(error, "msg", "a number with too many digits")
    if bad:
        raise DataError(
            f"Expected one JSON object in {numbers('line', list(bad))} of {str(path)!r}, found none "
            f"({next(iter(bad.values()))}). Write one object per line."
        )
    return rows


def _split_lines(text: str) -> Iterator[str]:
    at = 0
    while at <= len(text):
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield text[at:end]
        at = end + 1


def _leaves(row: Mapping[str, Any], before: str = "", depth: int = 8) -> Iterator[str]:
    """Yield the paths of the values that lie inside objects, not those at the top."""
    for name, value in row.items():
        if isinstance(value, dict) and depth:
            yield from _leaves(value, f"{before}{name}.", depth - 1)
        elif before:
            yield before + name


def _value(row: Any, name: str) -> Any:
    """Return a row's value by its name or else by its path; None if it is not there."""
    if name in row:
        return row[name]
    for part in name.split("."):
        row = row.get(part) if isinstance(row, dict) else None
    return row


def _read_parquet(path: Path, layout: Layout) -> Table:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ExtraError(
            f"Expected the library `pyarrow` to read {str(path)!r}. Install it: pip install pyarrow; or save the file "
            "as CSV or JSONL."
        ) from None
    _check_no_layout(path, layout)
    try:
        file = pyarrow.parquet.ParquetFile(path)
        schema = file.schema_arrow
        names: Sequence[str] = schema.names
        count = int(file.metadata.num_rows)
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(
            f"Expected a Parquet file at {str(path)!r}. {first_line(error, _LONGEST_SAID).rstrip('.')}; write it again."
        ) from None
    nested = tuple(leaf for kind in schema for leaf in _fields(kind, pyarrow) if leaf not in names)

    def read(name: str) -> list[Any]:
        top = name if name in names else name.split(".")[0]
        try:
            values: list[Any] = pyarrow.parquet.read_table(path, columns=[top]).column(top).to_pylist()
            if len(values) != count:
                raise ValueError(f"It has {len(values)} values for {count} rows")
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
            raise DataError(
                f"Expected to read column {name!r} of {str(path)!r}. "
                f"{first_line(error, _LONGEST_SAID).rstrip('.')}; write the file again."
            ) from None
        return values if top == name else [_value({top: value}, name) for value in values]

    return Table(str(path), tuple(names), count, read, nested=nested)


def _fields(column: Any, pyarrow: Any, before: str = "") -> Iterator[str]:
    if pyarrow.types.is_struct(column.type):
        for i in range(column.type.num_fields):
            yield from _fields(column.type.field(i), pyarrow, f"{before}{column.name}.")
    elif before:
        yield before + column.name


def _check_no_layout(path: Path, layout: Layout) -> None:
    if layout != Layout():
        given = "separator" if layout.separator is not None else "quoting"
        raise DataError(
            f"Expected no {given} for {str(path)!r}. It is for CSV and TSV files; leave {setting(given)} out."
        )


READERS: dict[str, Callable[[Path, Layout], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".tab": _read_tsv,
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
}
