"""Files with named columns: CSV, TSV, JSON lines and Parquet, read alike and rejected alike.

A file taken apart into columns and written again, whole or not at all, with some of its texts rewritten.

Bytes of a file as text: UTF-8, or a rejection that says what the file seems to be and how to convert it.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discreet.core.errors import DataError, ExtraError, OutputError, did_you_mean, first_line, setting, shown
from discreet.core.files import write_atomic
from discreet.data.corpus import check_texts, numbers
from discreet.data.separated import Layout, read_rows, write_rows

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


STDIN = "-"
_HEAD = 4096
_BYTE_ORDER_MARKS = (  # those of UTF-32 first: one of them begins like that of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
# Windows-1252 leaves five bytes undefined. In Western text few letters have an accent; in Greek, Cyrillic or Asian
# encodings most do, and reading those as Windows-1252 would give nonsense without an error.
_NOT_WINDOWS_1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
_MOST_ACCENTS = 0.3
_HIGH = re.compile(rb"[\x80-\xff]")


def name_of_source(source: str) -> str:
    """Return how messages name a source: a path as it is, and `-` as stdin.

    >>> name_of_source("-"), name_of_source("a.csv")
    ('stdin', 'a.csv')
    """
    return "stdin" if source == STDIN else source


def read_bytes(source: str) -> bytes:
    """Return the bytes of a file, or of stdin where the source is `-`; reject a file that cannot be read."""
    try:
        return sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    except FileNotFoundError:
        raise DataError(f"Expected a file at {source!r}. There is none; check the path, or use - for stdin.") from None
    except IsADirectoryError:
        raise DataError(f"Expected a file at {source!r}, found a folder. Name a file in it.") from None
    except OSError as error:
        raise DataError(f"Expected to read {source!r}. {error.strerror}; check its permissions.") from None


def decode(data: bytes, where: str) -> str:
    r"""Return UTF-8 bytes as text, without a byte-order mark; reject other encodings with the command that converts.

    >>> decode(b"\xef\xbb\xbfcaf\xc3\xa9", "a.csv")
    'café'
    """
    expected = _expected(where)
    for mark, name in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            raise DataError(f"{expected}, found {name}. Convert it: {_command(name, where)}")
    at = data.find(b"\0")
    if at >= 0:
        if (wide := _utf16_without_mark(data[:_HEAD])) is not None:
            raise DataError(
                f"{expected}, found what looks like {wide} (every other byte is NUL). "
                f"Convert it: {_command(wide, where)}"
            )
        raise DataError(
            f"Expected text without NUL bytes in {name_of_source(where)!r}, found one in line {_line(data, at)}. "
            "Save the file as UTF-8, or remove the byte."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(_advice(data, where, error.start)) from None


def read_lines(source: str) -> list[str]:
    """Return the lines of a file, or of stdin where the source is `-`; the one reader of plain lines."""
    return lines_of(read_bytes(source), source)


def lines_of(data: bytes, where: str) -> list[str]:
    r"""Return the lines of UTF-8 text; only \n and \r\n end one, as other separators may stand inside a text."""
    lines = decode(data, where).split("\n")
    if lines[-1] == "":
        lines.pop()  # after the last new line
    return [line.removesuffix("\r") for line in lines]


def _expected(where: str) -> str:
    return f"Expected UTF-8 in {name_of_source(where)!r} (no other encoding is read, and there is no setting for it)"


def _advice(data: bytes, where: str, start: int) -> str:
    replaced = data.decode("utf-8", errors="replace")
    damaged = replaced.count("\ufffd")
    whole = sum(not c.isascii() for c in replaced) - damaged
    if whole > damaged:
        lines = [i for i, line in enumerate(replaced.split("\n"), start=1) if "\ufffd" in line]
        verb = "is" if len(lines) == 1 else "are"
        return (
            f"{_expected(where)}, but {numbers('line', lines)} {verb} not, while the rest is. The file mixes "
            "encodings or is damaged; fix those lines, as converting the whole file would corrupt the others."
        )
    said = f"{_expected(where)}, but line {_line(data, start)} is not. "
    around = b"".join(data[max(0, start - _HEAD) : start + _HEAD].split())
    if _NOT_WINDOWS_1252.search(data) or len(_HIGH.findall(around)) > _MOST_ACCENTS * len(around):
        return (
            f"{said}Find out its encoding (`file -i` guesses it; GB18030, Shift_JIS and Windows-1251 are common) and "
            f"convert it: {_command('ENCODING', where)}"
        )
    return (
        f"{said}It looks like Windows-1252. Convert it: {_command('WINDOWS-1252', where)}; then check quotation marks, "
        "dashes and accents."
    )


def _utf16_without_mark(head: bytes) -> str | None:
    """Return the kind of UTF-16 in which half of the bytes of plain letters are NUL, at even or at odd positions."""
    even, odd = head[0::2].count(0), head[1::2].count(0)
    if max(even, odd) * 4 < len(head) // 2 or min(even, odd) * 10 > max(even, odd):
        return None
    return "UTF-16LE" if odd > even else "UTF-16BE"


def _command(encoding: str, where: str) -> str:
    if where in (STDIN, "/dev/stdin"):
        return f"… | iconv -f {encoding} -t UTF-8 | discreet …"
    path = Path(where)
    return f"iconv -f {encoding} -t UTF-8 {shlex.quote(where)} > {shlex.quote('utf8' + path.suffix)}"


def _line(data: bytes, at: int) -> int:
    return data.count(b"\n", 0, at) + 1
