"""Hostile bytes from seeds: flips, cuts, splices, and values that break parsers. Equal seeds give equal bytes."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_NUMBERS = (
    b"0", b"-0", b"-1", b"1e999", b"-1e999", b"1e-999", b"NaN", b"Infinity", b"nan", b"inf", b"true", b"null", b"1.",
    b"0x10", b"1_000", b"9" * 30, b"9" * 400, b"9" * 5000, b"4294967296", b"-9223372036854775809", b"0.1e1", b"2.5",
    b"00", b"+1",
)  # fmt: skip
_PIECES = (
    b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\r", b"\n", b"\r\n", b"\t", b",", b";",
    b'"', b'""', b"'", b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b"[[", b"=", b"#", b"\x1b]0;t\x07",
    "\u202e".encode(), "\u2028".encode(), "我被重复".encode(), "👩‍👧".encode(), b"\x85", b" " * 300, b"A" * 5000,
    b"[" * 2000, b"{" * 2000, b'{"a":' * 1500, b"[" * 1200 + b"]" * 1200, b"a." * 800, b"null", b"true", b"{}", b"[]",
    b'""', b"%s%n", b"../../../etc/passwd", b"__class__", b"=1+1", b'"text"', b'"label"',
)  # fmt: skip
_NUMBER = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_STRING = re.compile(rb'"[^"\n]*"')
_LARGEST = 200_000


def mutated(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """Return one of the seeds after one to six changes, or now and then bytes that are made up altogether."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(400))
    data = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 6))):
        data = rng.choice(_CHANGES)(data, rng, seeds)[:_LARGEST]
    return data


def _flip(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _byte(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + rng.randrange(2) :]


def _cut(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] if rng.random() < 0.7 else data[at:]


def _remove(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.randrange(1, 40) :]


def _repeat(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    start = rng.randrange(len(data) + 1)
    part = data[start : start + rng.randrange(1, 60)]
    return data[:start] + part * rng.choice((2, 2, 3, 50)) + data[start:]


def _insert(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(_PIECES) + data[at:]


def _number(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    return _exchanged(_NUMBER, rng.choice(_NUMBERS), data, rng)


def _string(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(
        (b'"\\u0000"', b"[]", b"{}", b"7", b"true", b"null", b'""', b'"' + b"x" * 3000 + b'"', b'"\xff"')
    )
    return _exchanged(_STRING, other, data, rng)


def _exchanged(pattern: re.Pattern[bytes], new: bytes, data: bytes, rng: random.Random) -> bytes:
    places = list(pattern.finditer(data))
    if not places:
        return data + new
    chosen = rng.choice(places)
    return data[: chosen.start()] + new + data[chosen.end() :]


def _lines(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    lines = data.split(b"\n")
    kind = rng.randrange(4)
    at = rng.randrange(len(lines))
    if kind == 0:
        lines.insert(rng.randrange(len(lines) + 1), lines[at])
    elif kind == 1:
        del lines[at]
    elif kind == 2:
        rng.shuffle(lines)
    else:
        lines[at] = b""
    return b"\n".join(lines)


def _splice(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    other = rng.choice(seeds)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _twice(data: bytes, rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    return data + rng.choice((b"", b"\n")) + data


_CHANGES = (_flip, _byte, _cut, _remove, _repeat, _insert, _number, _string, _lines, _splice, _twice)
