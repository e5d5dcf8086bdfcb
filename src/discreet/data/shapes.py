"""The shapes of the parts into which a batch is divided: a public grid of widths and numbers of rows.

Kernels choose the order of additions by the shapes of their inputs, so the rounding of a unit's gradient depends on its
padded width and on the number of rows in its part. If these depended on the other units, one unit would change the
gradients of others: in bf16 by several per cent of the clip norm. So the padded width and the number of rows of a unit
are functions of that unit and a public grid; a part of each shape has a fixed number of units, and is filled up with
padding rows of weight zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from discreet.core.errors import whole

Numbers = npt.NDArray[np.int64]


# Resolution of the grid of widths, in steps per doubling, and the smallest width. On a CPU the cost of a part is about
# that of its tokens; on a GPU a part costs at least as much as ten thousand tokens, so there are few shapes.
_STEPS = {"cpu": 8, "cuda": 1}


_LEAST_WIDTH = {"cpu": 4, "cuda": 16}


# Tokens of a part on a CPU: a larger part is not faster, and wastes more on padding.
_CPU_TOKENS = (256, 512)


# Tokens of a part on a GPU: a larger part is not faster, and a smaller one is hardly faster than one of 8,192 tokens.
# Notes of 391 patients, 64 of them expected in a batch, are read in 4.5 parts instead of 9.5 with this lower limit.
MOST_TOKENS = 1 << 17


_LEAST_TOKENS = 1 << 13
_LEAST_CAPTURED_TOKENS = 1 << 12


@dataclass(frozen=True)
class Part:
    """Units of one shape: the indices of their rows, -1 for padding rows, and the number of real units."""

    rows: Numbers
    units: int
    rows_each: int
    width: int
    real: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Units, rows of each, and padded width."""
        return self.units, self.rows_each, self.width


@dataclass(frozen=True)
class Shapes:
    """Number of rows of a part at each width of a public grid.

    >>> shapes = Shapes.of("cpu", max_length=128, expected_units=256)
    >>> [shapes.width_of(length) for length in (1, 12, 33, 127)]
    [4, 12, 36, 128]
    >>> shapes.units_of(1, 64), shapes.units_of(3, 64), shapes.units_of(100, 64)
    (8, 2, 1)
    """

    device: str
    max_length: int
    rows: tuple[tuple[int, int], ...]  # (width, rows of a part), by width

    @classmethod
    def of(cls, device: str, max_length: int, expected_units: int, *, captured: bool = False) -> Shapes:
        """Return the shapes for a device, the maximum length of a text, and the expected number of units per batch.

        `captured` is whether parts are replayed as CUDA graphs, of which a small one costs little.
        """
        whole("expected_units", expected_units)
        widths = sorted({_rounded_up(n, _STEPS[device], _LEAST_WIDTH[device]) for n in range(1, max_length + 1)})
        widths = [*(width for width in widths if width < max_length), max_length]
        rows = [(width, _rows_at(device, width, expected_units)) for width in widths]
        if captured:
            rows = [(width, _captured_rows(width, max_length, expected_units)) for width in widths]
        return cls(device, max_length, tuple(rows))

    def width_of(self, length: int) -> int:
        """Return the padded width of a unit whose longest row has `length` tokens."""
        width = _rounded_up(max(1, length), _STEPS[self.device], _LEAST_WIDTH[self.device])
        return min(width, self.max_length)

    def rows_of(self, rows: int) -> int:
        """Return the padded number of rows of a unit with `rows` rows."""
        return _rounded_up(rows, min(4, _STEPS[self.device]), 1)

    def units_of(self, rows_each: int, width: int) -> int:
        """Return the number of units of a part, for a number of rows per unit and a width."""
        return max(1, dict(self.rows)[width] // rows_each)

    def grid(self, most_rows: int | None = None) -> set[tuple[int, int, int]]:
        """Return the shapes of all parts of several units: units, rows of each, and padded width.

        `most_rows` is the largest number of rows of a unit, if that is public. A part of a single unit needs no test.

        >>> sorted(Shapes.of("cuda", max_length=32, expected_units=4).at_most({16: 4, 32: 2}).grid())
        [(2, 1, 32), (2, 2, 16), (4, 1, 16)]
        """
        shapes = set()
        for width, _ in self.rows:
            each = self.rows_of(1)
            while (units := self.units_of(each, width)) > 1 and (most_rows is None or each <= self.rows_of(most_rows)):
                shapes.add((units, each, width))
                each = self.rows_of(each + 1)
        return shapes

    def at_most(self, rows: dict[int, int]) -> Shapes:
        """Return the same shapes with at most `rows[width]` rows for each width, but at least one."""
        return replace(self, rows=tuple((w, max(1, min(r, rows.get(w, r)))) for w, r in self.rows))

    def halved(self) -> Shapes | None:
        """Return the shapes with half as many rows in each, or None if none can be halved."""
        if all(rows == 1 for _, rows in self.rows):
            return None
        return replace(self, rows=tuple((width, max(1, rows // 2)) for width, rows in self.rows))

    def parts(self, rows: Numbers, starts: Numbers, lengths: Numbers) -> Iterator[Part]:
        """Yield the parts of a batch in which unit u owns `rows[starts[u] : starts[u + 1]]`.

        `lengths` are the numbers of tokens of all rows of the corpus. Units of one shape are grouped in their order; a
        unit is never divided.
        """
        counts = np.diff(starts)
        if not len(counts):
            return
        longest = np.maximum.reduceat(lengths[rows], starts[:-1])
        kinds = _looked_up(longest, self.width_of), _looked_up(counts, self.rows_of)
        for width, each in sorted(set(zip(*(kind.tolist() for kind in kinds), strict=True)), reverse=True):
            size = self.units_of(each, width)
            members = np.flatnonzero((kinds[0] == width) & (kinds[1] == each))
            for start in range(0, len(members), size):
                chosen = members[start : start + size]
                places = starts[chosen][:, None] + np.arange(each)
                filled = np.full((size, each), -1, dtype=np.int64)
                own = places < starts[chosen + 1][:, None]
                filled[: len(chosen)] = np.where(own, rows[np.where(own, places, 0)], -1)
                yield Part(filled.reshape(-1), size, each, width, len(chosen))


def _looked_up(values: Numbers, function: Callable[[int], int]) -> Numbers:
    """Return a function of each value, which is called once for values that are equal."""
    distinct, where = np.unique(values, return_inverse=True)
    return np.array([function(int(value)) for value in distinct], dtype=np.int64)[where]


def _rounded_up(value: int, steps: int, least: int) -> int:
    """Return the next number of a grid with `steps` steps per doubling, in multiples of `least`.

    >>> [_rounded_up(value, 8, 4) for value in (3, 31, 33, 65)], [_rounded_up(value, 1, 16) for value in (3, 33)]
    ([4, 32, 36, 72], [16, 64])
    """
    power = 1 << (max(value - 1, 1).bit_length() - 1)
    step = max(least, power // steps)
    return -(-value // step) * step


def _rows_at(device: str, width: int, expected_units: int) -> int:
    if device == "cpu":
        tokens = min(max(expected_units, _CPU_TOKENS[0]), _CPU_TOKENS[1])
        multiple = 8 if width < 128 else 4 if width < 256 else 2
        return max(multiple, tokens // width // multiple * multiple)
    # Two parts if all units have this width, with a margin for the varying size of a Poisson batch.
    rows = math.ceil((expected_units + 4 * math.sqrt(expected_units)) / 2 / 8) * 8
    least = _LEAST_TOKENS // width if width > 1 else 1  # vectors of a frozen encoder have width 1, and are cheap
    return max(1, min(max(rows, least), MOST_TOKENS // width))


def _captured_rows(width: int, max_length: int, expected_units: int) -> int:
    """Return the rows of a part that is replayed as a graph.

    Texts that are truncated have the largest width, and may be all texts of a batch: its parts together are a little
    larger than a batch, of which one in forty needs one more. How many texts have another width is not public. On
    an H200 a part of MiniLM takes 1.8 ms and 0.4 ms for every 1,024 tokens.

    >>> _captured_rows(64, 64, 256), _captured_rows(64, 512, 256), _captured_rows(16, 512, 4096)
    (288, 64, 1024)
    """
    most = expected_units + 2 * math.sqrt(expected_units)
    if width == max_length:
        return math.ceil(most / math.ceil(most * width / MOST_TOKENS) / 8) * 8
    tokens = max(_LEAST_CAPTURED_TOKENS, 4 * expected_units)
    return min(math.ceil(most / 8) * 8, max(8, tokens // width // 8 * 8))
