"""Rows of a corpus by privacy unit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discreet.data.corpus import Corpus

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Grouped:
    """Rows of a corpus grouped by privacy unit: unit u owns `rows[starts[u] : starts[u + 1]]`."""

    rows: Rows
    starts: Rows

    @classmethod
    def of(cls, unit_index: Rows) -> Grouped:
        """Return the rows grouped by unit index."""
        count = int(unit_index.max(initial=-1)) + 1
        sizes = np.bincount(unit_index, minlength=count)
        return cls(np.argsort(unit_index, kind="stable"), np.concatenate([[0], np.cumsum(sizes)]))

    def __len__(self) -> int:
        """Return the number of units."""
        return len(self.starts) - 1

    def of_units(self, units: Rows) -> tuple[Rows, Rows]:
        """Return the rows of these units, one unit after the other, and the offsets of each unit's rows."""
        sizes = self.starts[units + 1] - self.starts[units]
        first = np.concatenate([[0], np.cumsum(sizes)])
        return self.rows[np.repeat(self.starts[units] - first[:-1], sizes) + np.arange(first[-1])], first


def unit_numbers(corpus: Corpus) -> Rows:
    """Return the unit number of each row, where units are numbered in the order of their names.

    In the order of appearance, a change of one unit's first row would change which units are sampled.
    """
    if corpus.units is None:
        return corpus.unit_index
    rank = np.empty(corpus.unit_count, dtype=np.int64)
    rank[sorted(range(corpus.unit_count), key=corpus.unit_names.__getitem__)] = np.arange(corpus.unit_count)
    return np.asarray(rank[corpus.unit_index])
