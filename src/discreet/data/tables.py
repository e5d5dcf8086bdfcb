"""Read and write files with named columns: CSV, TSV, JSON lines, Parquet, and lines of text.

`read_table` reads the columns of a file. `read_columns`, `render` and `write_whole` rewrite some texts of a file and
copy the other columns. `decode` accepts only UTF-8; for other files its error says how to convert them.
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
from functools import partial
from pathlib import Path
from typing import Any

from discreet.core.errors import DataError, ExtraError, OutputError, did_you_mean, first_line, setting, shown
from discreet.core.files import write_atomic
from discreet.data.corpus import check_texts, numbers
from discreet.data.separated import Layout, read_rows, split_lines, write_rows

_MOST_NAMES, _LONGEST_NAME, _LONGEST_REASON = 40, 60, 200  # columns in an error, and characters


@dataclass(frozen=True, repr=False)
class Table:
    """Named columns of equal length from one source; a column is read on demand.

    `classes` holds the class names of class columns, in the order of the source. `nested` holds the paths of values
    inside objects, such as "ticket.body"; they can be read like columns. `expected` are the columns of the training
    rows, if these are other rows of the same source.
    """

    where: str
    names: tuple[str, ...]
    rows: int
    read: Callable[[str], list[Any]] = field(compare=False)
    classes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nested: tuple[str, ...] = ()
    expected: tuple[str, ...] = ()

    def column(self, name: str, role: str) -> list[Any]:
        """Return a column; the error for a missing one lists the columns. `role` is the setting that names it."""
        count = self.names.count(name)
        within = [path for path in self.nested if path.startswith(name + ".")]
        if (count == 1 and not within) or (count == 0 and name in self.nested):
            return self.read(name)
        if count > 1:
            raise DataError(
                f"Expected one column {name!r} for {role} in {self.where!r}, got {count}. Rename all but one."
            )
        objects = {path.split(".")[0] for path in self.nested}
        columns = [column for column in self.names if column not in objects] + list(self.nested)
        there = f"which has {_listed(columns)}"
        if count:
            there = f"which is an object there with {_listed(within)}"
        remedy = "Add the column to that file." if name in self.expected else _guess(name, columns, role)
        raise DataError(f"Expected column {shown(name)} for {role} in {self.where!r}, {there}. {remedy}")


def _listed(names: Sequence[str]) -> str:
    """Return a list of names for an error, with long names and long lists truncated."""
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(shown(name, _LONGEST_NAME) for name in names[:_MOST_NAMES]) + more


def _guess(name: str, known: Sequence[str], role: str) -> str:
    """Return a suggestion: a column that differs only in case, a value inside an object, or a similar name."""
    lower = name.casefold()
    same = [k for k in known if k.casefold() == lower]
    last = [k for k in known if "." in k and k.casefold().rsplit(".", 1)[1] == lower]
    inside = [k for k in known if k.casefold().startswith(lower + ".")]
    likely = [k for k in inside if k.casefold().rsplit(".", 1)[1] in (role, "text", "body", "content", "label", "id")]
    best = next(iter((*same, *last, *likely, *inside)), None)
    if best is not None:
        return f"Did you mean {shown(best, _LONGEST_NAME)}?"
    return did_you_mean(name, known) or f"Set {setting(role.replace('-', '_'))}."


def read_table(path: Path, layout: Layout | None = None) -> Table:
    """Return the columns of a file; its suffix sets the format, `layout` that of CSV and TSV."""
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"Expected {str(path)!r} to end in one of {', '.join(READERS)}. Convert it, or fix its extension."
        )
    if not path.is_file():
        raise DataError(f"Expected a file at {str(path)!r}, but there is none. Check the path.")
    table = reader(path, layout or Layout())
    if table.rows == 0:
        raise DataError(f"Expected rows in {str(path)!r}, got none. Check that the file is complete.")
    return table


def _text_of(path: Path) -> str:
    data = read_bytes(str(path))
    if not data or data.isspace():
        raise DataError(f"Expected rows in {str(path)!r}, but the file is empty. Check that it is complete.")
    return decode(data, str(path))


def _read_separated(separator: str, path: Path, layout: Layout) -> Table:
    rows = read_rows(_text_of(path), str(path), separator, layout)
    if not rows:
        raise DataError(f"Expected rows in {str(path)!r}, got none. Check that the file is complete.")
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
        kind = type(rows[bad[0] - 1]).__name__
        raise DataError(
            f"Expected a JSON object in {numbers('row', bad)} of {str(path)!r}, got {kind}. "
            'Write rows such as {"text": "…", "label": 1}.'
        )
    names = tuple(dict.fromkeys(name for row in rows for name in row))
    nested = tuple(dict.fromkeys(leaf for row in rows for leaf in _leaves(row) if leaf not in names))
    return Table(str(path), names, len(rows), lambda name: [_value(row, name) for row in rows], nested=nested)


def _json_lines(path: Path, text: str) -> list[Any]:
    rows: list[Any] = []
    bad: dict[int, str] = {}
    for number, line in enumerate(split_lines(text), start=1):
        if not line or line.isspace():
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            deep = isinstance(error, RecursionError)
            bad[number] = "nested too deeply" if deep else getattr(error, "msg", "a number with too many digits")
    if bad:
        raise DataError(
            f"Expected one JSON object in {numbers('line', list(bad))} of {str(path)!r}, got none "
            f"({next(iter(bad.values()))}). Write one object per line."
        )
    return rows


def _leaves(row: Mapping[str, Any], before: str = "", depth: int = 8) -> Iterator[str]:
    """Yield the paths of the values inside nested objects."""
    for name, value in row.items():
        if isinstance(value, dict) and depth:
            yield from _leaves(value, f"{before}{name}.", depth - 1)
        elif before:
            yield before + name


def _value(row: Any, name: str) -> Any:
    """Return a row's value by its name or path, or None."""
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
        raise _damaged(f"Expected a Parquet file at {str(path)!r}.", error, "it") from None
    nested = tuple(leaf for kind in schema for leaf in _fields(kind, pyarrow) if leaf not in names)

    def read(name: str) -> list[Any]:
        top = name if name in names else name.split(".")[0]
        try:
            values: list[Any] = pyarrow.parquet.read_table(path, columns=[top]).column(top).to_pylist()
            if len(values) != count:
                raise ValueError(f"It has {len(values)} values for {count} rows")
        except (pyarrow.ArrowException, OSError, ValueError, OverflowError, KeyError) as error:
            raise _damaged(f"Expected to read column {name!r} of {str(path)!r}.", error, "the file") from None
        return values if top == name else [_value({top: value}, name) for value in values]

    return Table(str(path), tuple(names), count, read, nested=nested)


def _damaged(expected: str, error: Exception, what: str) -> DataError:
    """Return the error of a Parquet file that cannot be read."""
    return DataError(f"{expected} {first_line(error, _LONGEST_REASON).rstrip('.')}; write {what} again.")


def _fields(column: Any, pyarrow: Any, before: str = "") -> Iterator[str]:
    if pyarrow.types.is_struct(column.type):
        for i in range(column.type.num_fields):
            yield from _fields(column.type.field(i), pyarrow, f"{before}{column.name}.")
    elif before:
        yield before + column.name


def _check_no_layout(path: Path, layout: Layout) -> None:
    if layout != Layout():
        name = "separator" if layout.separator is not None else "quoting"
        raise DataError(
            f"Expected no {name} for {str(path)!r}. It applies only to CSV and TSV files; remove {setting(name)}."
        )


READERS: dict[str, Callable[[Path, Layout], Table]] = {
    ".csv": partial(_read_separated, ","),
    ".tsv": partial(_read_separated, "\t"),
    ".tab": partial(_read_separated, "\t"),
    ".jsonl": _read_json,
    ".ndjson": _read_json,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".pq": _read_parquet,
}


_LINES = ".txt"
_STDIN = Path("/dev/stdin")


@dataclass(frozen=True, repr=False)
class FileColumns:
    """The columns of a file in order, the texts to rewrite, and the table with the other columns.

    Guarantee: none, this is the private data itself.
    """

    where: str
    names: tuple[str, ...]
    texts: dict[str, list[str]]
    table: Table | None = field(default=None, compare=False)

    def other(self, name: str) -> list[Any]:
        """Return a column that is copied unchanged."""
        assert self.table is not None
        return self.table.read(name)


def read_columns(source: str, suffix: str, text: Sequence[str], layout: Layout | None = None) -> FileColumns:
    """Read a file, or stdin as `-`, and check the columns named in `text`; a text file has one column."""
    layout = layout or Layout()
    if suffix not in READERS:
        return _read_lines(source, text)
    if source == "-":
        table = READERS[suffix](_STDIN, layout)
        if table.rows == 0:
            raise DataError("Expected rows on stdin, got none. Check the input.")
    elif Path(source).suffix.lower() == suffix:
        table = read_table(Path(source), layout)
    else:
        table = READERS[suffix](Path(source), layout)
    repeated = sorted({name for name in table.names if table.names.count(name) > 1})
    if repeated:
        raise DataError(f"Expected unique column names in {source!r}, got {repeated[0]!r} again. Rename all but one.")
    texts = {name: table.column(name, "text") for name in dict.fromkeys(text)}
    for column in texts.values():
        check_texts(column, source)
    return FileColumns(source, table.names, texts, table)


def _read_lines(source: str, text: Sequence[str]) -> FileColumns:
    if tuple(text) != ("text",):
        raise DataError(
            f"Expected no {setting('text')} for {source!r}. Text files have no columns; use a file that ends in one "
            f"of {', '.join(READERS)}, or set {setting('format', 'csv')}."
        )
    lines = read_lines(source)
    if not any(line.strip() for line in lines):
        raise DataError(
            f"Expected at least one line of text in {name_of_source(source)!r}. It is empty; check that it is complete."
        )
    check_texts([line for line in lines if line.strip()], name_of_source(source))
    return FileColumns(source, ("text",), {"text": lines})


def check_fits(file: FileColumns, suffix: str) -> None:
    """Reject several columns for a text file."""
    if suffix not in READERS and len(file.names) != 1:
        raise DataError(
            f"Expected one column to write a text file, got {', '.join(file.names)}. Choose a file that ends in one "
            f"of {', '.join(READERS)}."
        )


def format_of(out: str, default: str) -> str:
    """Return the format of an output by its extension, or the default.

    >>> format_of("clean.tsv", ".csv"), format_of("clean.bak", ".csv")
    ('.tsv', '.csv')
    """
    suffix = Path(out).suffix.lower()
    return suffix if suffix in READERS or suffix == _LINES else default


def render(file: FileColumns, texts: Mapping[str, Sequence[str]], suffix: str) -> bytes:
    """Return the file with new texts in the format of a suffix; other columns are unchanged."""
    try:
        return _rendered(file, texts, suffix)
    except UnicodeEncodeError:
        raise DataError(
            f"Expected valid Unicode in every column of {file.where!r}, got half a surrogate pair. Fix the file."
        ) from None


def _rendered(file: FileColumns, texts: Mapping[str, Sequence[str]], suffix: str) -> bytes:
    columns = {name: texts[name] if name in texts else file.other(name) for name in file.names}
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
        text = "[" + ",\n".join(lines) + "]" if suffix == ".json" else "\n".join(lines)
        return (text + "\n").encode()
    check_fits(file, suffix)
    return ("\n".join(next(iter(columns.values()))) + "\n").encode()


def _replaced(value: Mapping[str, Any], path: Sequence[str], new: str) -> dict[str, Any]:
    inner = new if len(path) == 1 else _replaced(value[path[0]], path[1:], new)
    return {**value, path[0]: inner}


def _parquet(columns: Mapping[str, Sequence[Any]]) -> bytes:
    import pyarrow
    import pyarrow.parquet

    buffer = io.BytesIO()
    arrays = {}
    for name, values in columns.items():
        try:
            arrays[name] = pyarrow.array(list(values))
        except UnicodeEncodeError:
            raise
        except (pyarrow.ArrowException, OverflowError, ValueError, TypeError) as error:
            raise _unsupported(f"values of one type in column {name!r} for Parquet", error) from None
    try:
        pyarrow.parquet.write_table(pyarrow.table(arrays), buffer)
    except pyarrow.ArrowException as error:
        raise _unsupported("columns that Parquet supports", error) from None
    return buffer.getvalue()


def _unsupported(expected: str, error: Exception) -> DataError:
    """Return the error of values that a Parquet file cannot hold."""
    return DataError(f"Expected {expected}. {first_line(error, _LONGEST_REASON)}. Write CSV or JSON lines instead.")


def write_whole(path: Path, data: bytes, *, replace: bool = False) -> None:
    """Write a file atomically and sync it; an existing file is an error unless `replace`."""
    try:
        write_atomic(path, data, replace=replace)
    except FileExistsError:
        raise OutputError(
            f"Expected no file at {str(path)!r}, but it exists. Choose another, or replace it "
            f"({setting('force', True)})."
        ) from None
    except OSError as error:
        raise OutputError(f"Expected to be able to write {str(path)!r}. {error.strerror}. Check the path.") from None


STDIN = "-"
_HEAD = 4096
_BYTE_ORDER_MARKS = (  # UTF-32 first: one of its marks begins like that of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
# Windows-1252 leaves five bytes undefined. In Western text few bytes are above 127; in Greek, Cyrillic or Asian
# encodings most are, and reading those as Windows-1252 would give nonsense without an error.
_NOT_WINDOWS_1252 = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")
_MOST_ACCENTS = 0.3
_HIGH = re.compile(rb"[\x80-\xff]")


def name_of_source(source: str) -> str:
    """Return the name of a source for messages: the path, or "stdin" for `-`.

    >>> name_of_source("-"), name_of_source("a.csv")
    ('stdin', 'a.csv')
    """
    return "stdin" if source == STDIN else source


def read_bytes(source: str) -> bytes:
    """Return the bytes of a file, or of stdin if the source is `-`; reject a file that cannot be read."""
    try:
        return sys.stdin.buffer.read() if source == STDIN else Path(source).read_bytes()
    except FileNotFoundError:
        raise DataError(
            f"Expected a file at {source!r}, but there is none. Check the path, or use - for stdin."
        ) from None
    except IsADirectoryError:
        raise DataError(f"Expected a file at {source!r}, got a folder. Choose a file in it.") from None
    except OSError as error:
        raise DataError(f"Expected to read {source!r}. {error.strerror}; check its permissions.") from None


def decode(data: bytes, where: str) -> str:
    r"""Return UTF-8 bytes as text, without a byte-order mark; for other encodings the error says how to convert.

    >>> decode(b"\xef\xbb\xbfcaf\xc3\xa9", "a.csv")
    'café'
    """
    expected = _expected(where)
    for mark, name in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            raise DataError(f"{expected}, got {name}. Convert it: {_command(name, where)}")
    at = data.find(b"\0")
    if at >= 0:
        if (encoding := _utf16_without_mark(data[:_HEAD])) is not None:
            raise DataError(
                f"{expected}, got what looks like {encoding} (every other byte is NUL). "
                f"Convert it: {_command(encoding, where)}"
            )
        raise DataError(
            f"Expected text without NUL bytes in {name_of_source(where)!r}, got one in line {_line(data, at)}. "
            "Save the file as UTF-8, or remove the byte."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(_advice(data, where, error.start)) from None


def split_pairs(lines: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split lines at the tab between the two texts of a pair.

    >>> split_pairs(["a\\tb", "c\\td"])
    (['a', 'c'], ['b', 'd'])
    """
    pairs = [line.split("\t") for line in lines]
    for number, parts in enumerate(pairs, start=1):
        if len(parts) != 2:
            raise DataError(
                f"Expected two texts separated by a tab in line {number}, got {len(parts)}. The model expects pairs."
            )
    return [first for first, _ in pairs], [second for _, second in pairs]


def read_lines(source: str) -> list[str]:
    """Return the lines of a file, or of stdin if the source is `-`."""
    return lines_of(read_bytes(source), source)


def lines_of(data: bytes, where: str) -> list[str]:
    r"""Return the lines of UTF-8 text; only \n and \r\n end a line, because other separators may be part of a text."""
    lines = decode(data, where).split("\n")
    if lines[-1] == "":
        lines.pop()  # after the last line break
    return [line.removesuffix("\r") for line in lines]


def _expected(where: str) -> str:
    return f"Expected UTF-8 in {name_of_source(where)!r} (no other encoding is supported)"


def _advice(data: bytes, where: str, start: int) -> str:
    replaced = data.decode("utf-8", errors="replace")
    damaged = replaced.count("\ufffd")
    valid = sum(not c.isascii() for c in replaced) - damaged
    if valid > damaged:
        lines = [i for i, line in enumerate(replaced.split("\n"), start=1) if "\ufffd" in line]
        verb = "is" if len(lines) == 1 else "are"
        return (
            f"{_expected(where)}, but {numbers('line', lines)} {verb} not, while the rest is. The file mixes "
            "encodings or is damaged; fix those lines; converting the whole file would corrupt the others."
        )
    fault = f"{_expected(where)}, but line {_line(data, start)} is not. "
    around = b"".join(data[max(0, start - _HEAD) : start + _HEAD].split())
    if _NOT_WINDOWS_1252.search(data) or len(_HIGH.findall(around)) > _MOST_ACCENTS * len(around):
        return (
            f"{fault}Find out its encoding (`file -i` guesses it; GB18030, Shift_JIS and Windows-1251 are common) and "
            f"convert it: {_command('ENCODING', where)}"
        )
    return (
        f"{fault}It looks like Windows-1252. Convert it: {_command('WINDOWS-1252', where)}; then check quotation "
        "marks, dashes and accents."
    )


def _utf16_without_mark(head: bytes) -> str | None:
    """Return the byte order of UTF-16 without a mark: half of the bytes of ASCII letters are NUL."""
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
