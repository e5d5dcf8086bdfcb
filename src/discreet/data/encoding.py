"""Bytes of a file as text: UTF-8, or a rejection that says what the file seems to be and how to convert it."""

from __future__ import annotations

import codecs
import re
import shlex
import sys
from pathlib import Path

from discreet.core.errors import DataError
from discreet.data.bad_rows import numbers

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
