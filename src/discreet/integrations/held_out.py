"""Rows that a private Trainer evaluates on: they must not be the rows, or the units, that it trains on.

Figures of held-out rows are computed without noise, are logged, and choose a checkpoint or when to stop. Computed on
training rows they would be a release of private rows that no guarantee covers.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import IterableDataset

from discreet.core.errors import DataError
from discreet.integrations.rows import row_content

_IDS, _MASK = "input_ids", "attention_mask"
_LEAST = 8  # tokens with which two rows must begin to be the same row, truncated to different lengths
_SHARE = 0.1  # of the rows that may by chance begin like a row of the train dataset
_WIDTH = 8  # bytes of a token


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
        self._hashes: dict[
            tuple[str, ...] | None, set[bytes | None]
        ] = {}  # of the rows, by the columns that are compared
        self._starts: _Starts | None = None
        self._checked: list[tuple[Any, int | None]] = []  # datasets that were accepted, with their sizes

    def check(self, dataset: Any, name: str) -> None:
        """Reject a dataset, or a dict of them, with a unit or a row of the train dataset.

        Ids of units are compared where a column holds them: different people may have equal rows. A dataset without
        that column is rejected, because other rows of the same people cannot be recognized in it. Without ids, rows are
        compared by what the model is given, without padding, and also if they were truncated to different lengths.
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
        if self.unit is not None and self.units is not None:
            ids = self._ids_of(dataset, self.unit)
            if ids is None:
                raise DataError(
                    f"Expected the column {self.unit!r} in {name}, as in the train dataset, got rows without it. Other "
                    f"rows of a {self.unit} that is trained on could not be recognized; keep the column in {name} when "
                    "the text is tokenized."
                )
            common = set(map(_in_words, ids)) & set(map(_in_words, self.units))
            if common:
                raise _shared(name, f"{len(common):,} units of it")
        else:
            common_rows = self._common_rows(dataset) or self._truncated_rows(dataset)
            if common_rows:
                raise _shared(name, f"{common_rows:,} rows of it")
        self._checked.append((dataset, size))

    def _ids_of(self, dataset: Any, unit: str) -> list[Any] | None:
        """Return the ids of the units of a dataset; None if it has no such column."""
        if _is_map(dataset) and hasattr(dataset, "column_names"):
            return list(dataset[unit]) if unit in dataset.column_names else None
        ids = []
        for row in _rows_of(dataset):
            if not isinstance(row, Mapping) or unit not in row:
                return None
            ids.append(row[unit])
        return ids

    def _common_rows(self, dataset: Any) -> int:
        names = self._compared(next(_rows_of(self.dataset), None), next(_rows_of(dataset), None))
        if names not in self._hashes:
            self._hashes[names] = {_hash(row, names) for row in _rows_of(self.dataset)} - {None}
        return sum(_hash(row, names) in self._hashes[names] for row in _rows_of(dataset))

    def _truncated_rows(self, dataset: Any) -> int:
        """Return how many rows begin like a row of the train dataset as far as both go; 0 if few, as by chance."""
        if self._starts is None:
            self._starts = _Starts(_rows_of(self.dataset))
        found = [self._starts.shares(row) for row in _rows_of(dataset)]
        return sum(found) if sum(found) > _SHARE * len(found) else 0

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


class _Starts:
    """The tokens with which the rows of a dataset begin, as far as another row of other length can be compared.

    The last token of the shorter row is left out, because it may mark the end.
    """

    def __init__(self, rows: Iterable[Any]) -> None:
        self.rows = sorted({tokens for tokens in map(_tokens, rows) if len(tokens) > _LEAST * _WIDTH})
        self.starts = {_digest(tokens[:-_WIDTH]) for tokens in self.rows}
        self.sizes = sorted({len(tokens) - _WIDTH for tokens in self.rows})

    def shares(self, row: Any) -> bool:
        """Return whether a row and one of these rows begin with the same tokens, up to the end of the shorter one."""
        tokens = _tokens(row)
        start = tokens[:-_WIDTH]
        if len(tokens) <= _LEAST * _WIDTH:
            return False
        place = bisect_left(self.rows, start)
        if place < len(self.rows) and self.rows[place].startswith(start):
            return True
        return any(_digest(tokens[:size]) in self.starts for size in self.sizes if size < len(start))


def _tokens(row: Any) -> bytes:
    """Return the tokens of a row without padding, in bytes of equal number for each; none for a row without tokens."""
    ids = _unpadded(row) if isinstance(row, Mapping) else None
    return b"" if ids is None or ids.dtype.kind not in "iu" else ids.astype(">u8").tobytes()


def _unpadded(row: Mapping[str, Any]) -> npt.NDArray[Any] | None:
    """Return the ids of the tokens that the mask of a row keeps; None for a row without ids, or of several lengths."""
    if _IDS not in row:
        return None
    try:
        ids = np.asarray(row[_IDS]).reshape(-1)
        mask = np.asarray(row[_MASK]).reshape(-1) if _MASK in row else np.ones(ids.shape)
    except ValueError:
        return None
    return ids[mask != 0] if ids.shape == mask.shape else None


def _hash(row: Any, names: tuple[str, ...] | None) -> bytes | None:
    """Return a digest of what the model is given of a row, without padding; None if that has no form as text."""
    values = row if names is None else {name: row[name] for name in names if name in row}
    ids = None if names is None or _MASK not in values else _unpadded(values)
    if ids is not None:
        values = {name: value for name, value in values.items() if name not in (_MASK, "token_type_ids")}
        values[_IDS] = ids
    content = row_content(values)
    return None if content is None else _digest(content.encode())


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _shared(name: str, what: str) -> DataError:
    return DataError(
        f"Expected {name} to share no row and no unit with the train dataset, got {what}. Figures of these rows have "
        "no noise, are logged, and may choose the checkpoint. Hold rows out before training, all of a unit together. "
        "To look at the training rows for yourself, evaluate the saved model with a plain transformers.Trainer and "
        "another output folder: what that shows is not covered by the guarantee."
    )
