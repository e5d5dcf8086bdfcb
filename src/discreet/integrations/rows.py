"""The rows that a private training draws from: whose they are, the parts in which a batch is read, and whether a loop
changed a part that it was handed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.device import mapped
from discreet.core.errors import DataError, UnsupportedError
from discreet.core.randomness import digest
from discreet.data.batches import Part, Shapes
from discreet.data.corpus import Grouped
from discreet.runs.people import Marks, People
from discreet.training.changes import Known, checksum

_SMALL = 1 << 16  # numbers; copying so many takes less time than two sums


class Dataset(Protocol):
    """A map-style dataset: a list, a `torch.utils.data.Dataset`, or a `datasets.Dataset`."""

    def __len__(self) -> int:
        """Return the number of rows."""
        ...

    def __getitem__(self, index: int, /) -> Any:
        """Return one row."""
        ...


@dataclass(frozen=True)
class Rows:
    """The rows that a training draws from, in parts of fixed sizes; `PrivateTraining.rows` makes them."""

    dataset: Dataset
    collate: Callable[[list[Any]], Any]
    units: Grouped
    shapes: Shapes
    grouped: bool = False  # whether units may have several rows, which the caller says by giving their ids

    @classmethod
    def of(
        cls, dataset: Dataset, collate: Callable[[list[Any]], Any], groups: Sequence[Any] | str | None, max_rows: int
    ) -> Rows:
        """Return the rows of a dataset by unit, in parts of at most `max_rows` rows, or of one unit."""
        units = Grouped.of(unit_numbers(dataset, groups))
        return cls(dataset, collate, units, Shapes("cpu", 1, ((1, max_rows),)), groups is not None)

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """The units and rows of each of all parts of several units that can occur, whichever units are drawn."""
        width, most = self.shapes.rows[0]
        each = sorted({self.shapes.rows_of(count) for count in range(1, most + 1)}) if self.grouped else [1]
        sizes = [(self.shapes.units_of(rows, width), rows) for rows in each]
        return [size for size in sizes if size[0] > 1]

    def parts(self, drawn: Any) -> list[Part]:
        """Return the drawn units in parts; a unit's rows stay together."""
        rows, starts = self.units.of_units(drawn)
        return list(self.shapes.parts(rows, starts, np.ones(len(self.dataset), dtype=np.int64)))

    def filler(self) -> Part:
        """Return a part without units."""
        size = self.shapes.units_of(1, 1)
        return Part(np.full(size, -1, dtype=np.int64), size, 1, 1, 0)

    def batch(self, part: Part) -> Any:
        """Return the rows of a part, collated; a missing row is filled with a row of its own unit.

        So no unit's gradient can become NaN by a row of another one.
        """
        rows = part.rows.reshape(part.units, part.rows_each)
        spare = rows[0, 0] if part.real else self.units.rows[0]
        first = np.where(rows[:, 0] < 0, spare, rows[:, 0])
        filled = np.where(rows < 0, first[:, None], rows).reshape(-1)
        return self.collate([self.dataset[int(row)] for row in filled])


class Handed:
    """A collated part, and a copy of its lists and mappings with the same tensors, made when it was handed out.

    A loss function that was checked is certified for parts as the collate function made them. A loop that writes into
    a part first, such as a mean over its rows that is taken off, has mixed its rows where nobody looked.

    Guarantee: none; it reads private rows, and says only whether a part was changed.
    """

    def __init__(self, batch: Any) -> None:
        """Note the part as it is now."""
        self.given = batch
        try:
            self.kept = mapped(batch, lambda value: value.copy() if isinstance(value, np.ndarray) else value)
        except Exception:  # a collection that cannot be made from its items
            self.kept = batch
        self._known = [(Known.of(tensor), _bits(tensor.detach()).clone()) for tensor in _tensors(self.kept)]

    @property
    def is_same(self) -> bool:
        """Whether the tensors of the copy are those of the collate function, with the same values."""
        tensors = list(_tensors(self.kept))
        return len(tensors) == len(self._known) and all(
            known.is_same(tensor) and torch.equal(_bits(tensor.detach()), bits)
            for tensor, (known, bits) in zip(tensors, self._known, strict=True)
        )

    @property
    def is_rearranged(self) -> bool:
        """Whether the loop has put other tensors into the part, which the copy does not have."""
        return [id(one) for one in _tensors(self.given)] != [id(known.tensor) for known, _ in self._known]


def _bits(tensor: Tensor) -> Tensor:
    """Return a small tensor's bits, not copied, or a checksum of a large one's."""
    if tensor.layout != torch.strided or tensor.is_quantized or not 0 < tensor.numel() <= _SMALL:
        return checksum(tensor)
    return tensor.contiguous().view(-1).view(torch.uint8)


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a part, also those in attributes of an object."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dict__") and not callable(value):
        for item in vars(value).values():
            if isinstance(item, Tensor | Mapping | list | tuple):
                yield from _tensors(item)


def unit_numbers(dataset: Dataset, groups: Sequence[Any] | str | None) -> npt.NDArray[np.int64]:
    """Return the number of each row's unit, units counted in the order of their ids, not of their appearance."""
    ids = _ids(dataset, groups)
    if ids is None:
        return np.arange(len(dataset), dtype=np.int64)
    rank = {one: number for number, one in enumerate(sorted(set(ids)))}
    return np.array([rank[one] for one in ids], dtype=np.int64)


def people_of(dataset: Dataset, groups: Sequence[Any] | str | None, unit: str) -> Marks:
    """Return the keyed hashes by which the units of a dataset are recognized in the record of people.

    Units with ids are those of a corpus with the same name of a unit and the same ids. Without ids, a row of one or two
    texts is the row of a corpus with these texts. Any other row is recognized by all that it holds, as `row_content`
    returns it. A row of objects that have no such form is not recognized. Every row is read once for this.

    Guarantee: none is needed; the hashes stay on this machine, and their key too.
    """
    people, ids = People(), _ids(dataset, groups)
    if ids is not None:
        return people.marks_of_ids(unit, {str(one).strip() for one in ids})  # as in a corpus
    texts, contents = [], []
    with torch.random.fork_rng(devices=[]):  # a dataset may draw, and the training must draw as if nothing was read
        for number in range(len(dataset)):
            row = dataset[number]
            found = _texts_in(row)
            content = row_content(row) if found is None else None
            if found is not None:
                texts.append(found)
            elif content is not None:
                contents.append(content)
    return np.unique(np.concatenate([people.marks_of_texts(texts), people.marks_of_rows(contents)]))


def _texts_in(row: Any) -> tuple[str, str] | None:
    """Return the text of a row, or its two texts; None if it has none, or more."""
    if isinstance(row, str):
        return row, ""
    values = list(row.values()) if isinstance(row, Mapping) else row if isinstance(row, list | tuple) else []
    texts = [value for value in values if isinstance(value, str)]
    return (texts[0], texts[1] if len(texts) == 2 else "") if len(texts) in (1, 2) else None


def row_content(row: Any) -> str | None:
    """Return all that a row holds as text, by which it is recognized; None for a row of objects without such a form.

    Numbers are the same in a list, an array and a tensor.
    """
    try:
        return json.dumps(row, default=_plain, sort_keys=True)
    except (TypeError, ValueError):
        return None


def _plain(value: Any) -> Any:
    """Return a value as plain values for JSON; a TypeError says that it has no such form."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, bytes):
        return digest(value)
    return dict(value) if isinstance(value, Mapping) else vars(value)


def plain_ids(ids: Iterable[Any]) -> list[Any]:
    """Return ids as Python's own values: of two tensors that hold the same number, each would be a unit of its own."""
    return [one.item() if isinstance(one, Tensor | np.generic) else one for one in ids]


def column_of(dataset: Any, name: str) -> list[Any]:
    """Return the ids in a column of a dataset; only a `datasets.Dataset` gives a column as a whole."""
    whole = hasattr(dataset, "column_names")
    return plain_ids(dataset[name] if whole else [dataset[row][name] for row in range(len(dataset))])


def _ids(dataset: Dataset, groups: Sequence[Any] | str | None) -> list[Any] | None:
    """Return the id of each row's unit, or None where each row is one."""
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UnsupportedError(
            f"Expected a map-style dataset with a length, got {type(dataset).__name__}. A DataLoader or a stream draws "
            "its own batches, which the guarantee cannot count; pass the dataset itself."
        )
    count = len(dataset)
    if not count:
        raise DataError("Expected a dataset with rows, got an empty one.")
    if groups is None:
        return None
    ids = column_of(dataset, groups) if isinstance(groups, str) else plain_ids(groups)
    if len(ids) != count:
        raise DataError(
            f"Expected one unit for each of {count:,} rows, got {len(ids):,}. Give every row its unit's id."
        )
    kinds = sorted({type(one).__name__ for one in ids})
    if len(kinds) > 1 or any(one is None or one != one for one in ids):
        raise DataError(
            f"Expected ids of units of one type, none of them missing, got {', '.join(kinds)}. Somebody under two ids, "
            "or without one, would be protected less than the guarantee says; give every row its unit's id."
        )
    return ids
