"""The shapes of the parts of a private batch: a function of public facts and of each unit alone, never of the others.

Kernels choose how to add by the shape of what they are given, so a unit's gradient is rounded by the width to which it
is padded and by the number of rows beside it. If these depended on the other units, one unit would change the gradients
of others: in bf16 by several per cent of the clip norm. So a unit's padded width and number of rows follow from that
unit and a public grid, a part of each shape has a fixed number of units, and what is missing is filled up with rows
that weigh nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from discreet.core.errors import whole

Numbers = npt.NDArray[np.int64]

# How finely widths are told apart, in steps for each doubling, and the least width. On a CPU a part costs little more
# than its tokens; on a GPU a part costs as much as ten thousand tokens or more, so shapes are few.
_STEPS = {"cpu": 8, "cuda": 1}
_LEAST_WIDTH = {"cpu": 4, "cuda": 16}
# A part on a CPU has about so many tokens: a larger one is no faster, and wastes more when it is filled up.
_CPU_TOKENS = (256, 512)
MOST_TOKENS = 1 << 17  # of a part on a GPU, where a larger one is no faster


@dataclass(frozen=True)
class Part:
    """Some units of one shape: the numbers of their rows, -1 for a row of padding, and how many of them are real."""

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
    """How many rows a part has at each width of a public grid.

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
    def of(cls, device: str, max_length: int, expected_units: int) -> Shapes:
        """Return the shapes for a device, the longest text a model takes, and the expected number of units a batch."""
        whole("expected_units", expected_units)
        widths = sorted({_rounded_up(n, _STEPS[device], _LEAST_WIDTH[device]) for n in range(1, max_length + 1)})
        widths = [*(width for width in widths if width < max_length), max_length]
        return cls(device, max_length, tuple((width, _rows_at(device, width, expected_units)) for width in widths))

    def width_of(self, length: int) -> int:
        """Return the width to which a unit is padded whose longest row has so many tokens."""
        width = _rounded_up(max(1, length), _STEPS[self.device], _LEAST_WIDTH[self.device])
        return min(width, self.max_length)

    def rows_of(self, rows: int) -> int:
        """Return to how many rows a unit is filled up that has so many."""
        return _rounded_up(rows, min(4, _STEPS[self.device]), 1)

    def units_of(self, rows_each: int, width: int) -> int:
        """Return how many units a part holds, of so many rows each and of a width."""
        return max(1, dict(self.rows)[width] // rows_each)

    def at_most(self, rows: dict[int, int]) -> Shapes:
        """Return the same shapes with no more rows than given for each width, but at least one."""
        return replace(self, rows=tuple((w, max(1, min(r, rows.get(w, r)))) for w, r in self.rows))

    def halved(self) -> Shapes | None:
        """Return the shapes with half as many rows in each, or nothing if none can be halved."""
        if all(rows == 1 for _, rows in self.rows):
            return None
        return replace(self, rows=tuple((width, max(1, rows // 2)) for width, rows in self.rows))

    def parts(self, rows: Numbers, starts: Numbers, lengths: Numbers) -> Iterator[Part]:
        """Yield the parts of a batch in which unit u owns `rows[starts[u] : starts[u + 1]]`.

        `lengths` holds the tokens of every row of the corpus. Units of one shape stand together in the order they come
        in; a unit is never divided.
        """
        counts = np.diff(starts)
        longest = np.maximum.reduceat(lengths[rows], starts[:-1]) if len(counts) else counts
        kinds: dict[tuple[int, int], list[int]] = {}
        for unit, (count, length) in enumerate(zip(counts.tolist(), longest.tolist(), strict=True)):
            kinds.setdefault((self.width_of(length), self.rows_of(count)), []).append(unit)
        for (width, each), members in sorted(kinds.items(), reverse=True):
            size = self.units_of(each, width)
            for begun in range(0, len(members), size):
                some = members[begun : begun + size]
                filled = np.full((size, each), -1, dtype=np.int64)
                for place, unit in enumerate(some):
                    filled[place, : counts[unit]] = rows[starts[unit] : starts[unit + 1]]
                yield Part(filled.reshape(-1), size, each, width, len(some))


def _rounded_up(value: int, steps: int, least: int) -> int:
    """Return the next number of a grid with so many steps for each doubling, in multiples of the least.

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
    # Two parts if all units have this width, with room for how much the size of a Poisson batch varies.
    rows = math.ceil((expected_units + 4 * math.sqrt(expected_units)) / 2 / 8) * 8
    return max(1, min(rows, MOST_TOKENS // width))
