"""Which rows of a batch belong to which unit of privacy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.core.errors import invalid


@dataclass(frozen=True)
class Units:
    """The rows of a batch, each a unit of its own, or several rows to a unit.

    `index` is None when every row is its own unit. Otherwise it names each row's unit, and `buckets` lists the units
    by their number of rows: (units, rows) with shapes (k,) and (k, r).

    >>> units = Units.of(torch.tensor([0, 1, 0]), 3)
    >>> units.count, [(u.tolist(), r.tolist()) for u, r in units.buckets]
    (2, [([1], [[1]]), ([0], [[0, 2]])])
    """

    count: int
    index: Tensor | None = None
    buckets: tuple[tuple[Tensor, Tensor], ...] = ()

    @staticmethod
    def of(index: Tensor | None, rows: int) -> Units:
        """Return the units of a batch from each row's unit index, or one unit a row if there is no index."""
        if index is None:
            return Units(rows)
        if index.shape != (rows,) or index.is_floating_point():
            raise invalid("units", tuple(index.shape), f"integers of shape ({rows},)", "Give each row its unit.")
        if rows == 0:
            return Units(0)
        sizes = torch.bincount(index)  # refuses negative numbers itself
        if not bool((sizes > 0).all()):
            empty = int((sizes == 0).nonzero()[0])
            raise invalid(
                "units", f"units without {empty}", "numbered from 0 without gaps", "Renumber the units of the batch."
            )
        if sizes.numel() == rows and bool((index == torch.arange(rows, device=index.device)).all()):
            return Units(rows)
        order = torch.argsort(index, stable=True)
        starts = torch.cumsum(sizes, 0) - sizes
        buckets = []
        for size in torch.unique(sizes).tolist():
            units = (sizes == size).nonzero().flatten()
            steps = torch.arange(size, device=index.device)
            buckets.append((units, order[starts[units, None] + steps]))
        return Units(int(sizes.numel()), index, tuple(buckets))

    def rows(self, per_unit: Tensor) -> Tensor:
        """Return each row's value from each unit's value."""
        return per_unit if self.index is None else per_unit[self.index]

    def total(self, per_row: Tensor) -> Tensor:
        """Return each unit's sum over its rows."""
        if self.index is None:
            return per_row
        # Not index_add: on a GPU it adds in an order that changes from run to run.
        parts = [per_row[rows].sum(1) for _, rows in self.buckets]
        return parts[0] if len(parts) == 1 else torch.cat(parts)[self._back]

    def rows_of(self, unit: int) -> Tensor | slice:
        """Return the rows of one unit."""
        if self.index is None:
            return slice(unit, unit + 1)
        return (self.index == unit).nonzero().flatten()

    def apply(self, function: Callable[..., tuple[Tensor, ...]], *tensors: Tensor) -> tuple[Tensor, ...]:
        """Apply a function of (units, time, …) to tensors of shape (rows, time, …), a unit's rows laid end to end."""
        if self.index is None:
            return function(*tensors)
        parts = [
            function(*(t[rows].reshape(rows.shape[0], rows.shape[1] * t.shape[1], *t.shape[2:]) for t in tensors))
            for _, rows in self.buckets
        ]
        if len(parts) == 1:
            return parts[0]
        return tuple(torch.cat(column)[self._back] for column in zip(*parts, strict=True))

    @property
    def _back(self) -> Tensor:
        return torch.argsort(torch.cat([units for units, _ in self.buckets]))
