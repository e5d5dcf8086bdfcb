"""Rows that a private Trainer evaluates on: they must not be the rows, or the units, that it trains on.

Figures of held-out rows are computed without noise, are logged, and choose a checkpoint or when to stop. Computed on
training rows they would be a release of private rows that no guarantee covers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from discreet.core.errors import DataError

_IDS, _MASK = "input_ids", "attention_mask"


class TrainedRows:
    """The rows and units of a train dataset, which no other dataset may share.

    `units` are the ids of the units, and `unit` is the column that holds them, both None where each row is a unit.
    `inputs` are the columns that the model takes.

    Guarantee: none is needed; a dataset is accepted, or rejected to its owner, and nothing is kept.
    """

    def __init__(
        self, dataset: Any, unit: str | None, units: Collection[Any] | None, inputs: Callable[[], Collection[str]]
    ) -> None:
        """Take the train dataset; it is read when a dataset without ids of units is checked for the first time."""
        self.dataset, self.unit, self.units, self.inputs = dataset, unit, units, inputs
        self._hashes: dict[tuple[str, ...] | None, set[bytes]] = {}  # of the rows, by the columns that are compared
        self._checked: list[tuple[Any, int | None]] = []  # datasets that were accepted, with their sizes

    def check(self, dataset: Any, name: str) -> None:
        """Reject a dataset, or a dict of them, with a unit or a row of the train dataset.

        Ids of units are compared where both datasets have the column of the unit: different people may have equal rows.
        Otherwise rows are compared by what the model is given, without padding.
        """
        if isinstance(dataset, dict):
            for key, one in dataset.items():
                self.check(one, f"{name}[{key!r}]")
            return
        size = len(dataset) if hasattr(dataset, "__len__") else None
        if any(one is dataset and before == size for one, before in self._checked):
            return
        if dataset is self.dataset:
            raise _shared(name, "that dataset itself")
        ids = self._ids_of(dataset)
        if ids is not None:
            assert self.units is not None
            common = set(map(_in_words, ids)) & set(map(_in_words, self.units))
            if common:
                raise _shared(name, f"{len(common):,} units of it")
        else:
            common_rows = self._common_rows(dataset)
            if common_rows:
                raise _shared(name, f"{common_rows:,} rows of it")
        self._checked.append((dataset, size))

    def _ids_of(self, dataset: Any) -> list[Any] | None:
        """Return the ids of the units of a dataset; None if it has no such column."""
        if self.unit is None or self.units is None:
            return None
        if _is_map(dataset) and hasattr(dataset, "column_names"):
            return list(dataset[self.unit]) if self.unit in dataset.column_names else None
        ids = []
        for row in _rows_of(dataset):
            if not isinstance(row, Mapping) or self.unit not in row:
                return None
            ids.append(row[self.unit])
        return ids

    def _common_rows(self, dataset: Any) -> int:
        names = self._compared(next(_rows_of(self.dataset), None), next(_rows_of(dataset), None))
        if names not in self._hashes:
            self._hashes[names] = {_hash(row, names) for row in _rows_of(self.dataset)}
        return sum(_hash(row, names) in self._hashes[names] for row in _rows_of(dataset))

    def _compared(self, row: Any, other: Any) -> tuple[str, ...] | None:
        """Return the columns that are compared: those of both datasets that the model takes; None for whole rows."""
        if not isinstance(row, Mapping) or not isinstance(other, Mapping):
            return None
        common = {name for name in row if name in other} - {self.unit}
        return tuple(sorted(common & set(self.inputs()) or common)) or None


def _is_map(dataset: Any) -> bool:
    stream = isinstance(dataset, IterableDataset)
    return not stream and hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def _in_words(one: Any) -> str:
    """Return an id as text: 7 and "7" are the same person."""
    return str(one.item() if isinstance(one, Tensor | np.generic) else one).strip()


def _rows_of(dataset: Any) -> Iterator[Any]:
    """Return the rows of a dataset: by their numbers, or of a stream; of one that can be read only once, none."""
    if _is_map(dataset):
        # A dataset may draw at random, and the training must draw as if nothing was read.
        with torch.random.fork_rng(devices=[]):
            yield from (dataset[number] for number in range(len(dataset)))
    elif isinstance(dataset, Iterable) and not isinstance(dataset, Iterator):
        yield from dataset


def _hash(row: Any, names: tuple[str, ...] | None) -> bytes:
    values = row if names is None else {name: row[name] for name in names if name in row}
    if names is not None and {_IDS, _MASK} <= values.keys():
        ids, mask = (np.asarray(values[name]).reshape(-1) for name in (_IDS, _MASK))
        if ids.shape == mask.shape:
            values[_IDS] = ids[mask != 0].tolist()
            values = {name: value for name, value in values.items() if name not in (_MASK, "token_type_ids")}
    text = json.dumps(values, default=_plain, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    return dict(value) if isinstance(value, Mapping) else repr(value)


def _shared(name: str, what: str) -> DataError:
    return DataError(
        f"Expected {name} to share no row and no unit with the train dataset, got {what}. Figures of these rows have "
        "no noise, are logged, and may choose the checkpoint. Hold rows out before training, all of a unit together. "
        "To look at the training rows for yourself, evaluate the saved model with a plain transformers.Trainer and "
        "another output folder: what that shows is not covered by the guarantee."
    )
