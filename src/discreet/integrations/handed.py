"""A part as it was handed to a loop: whether the loop changed it before its losses are computed.

A loss function that was checked is certified for parts as the collate function made them. A loop that writes into a
part first, such as a mean over its rows that is taken off, has mixed its rows where nobody looked.
"""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.integrations.watch import Known, checksum

_SMALL = 1 << 16  # numbers; copying so many takes less time than two sums


class Handed:
    """A collated part, and a copy of its lists and mappings with the same tensors, made when it was handed out.

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


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Return nested mappings, lists, tuples and dataclasses, copied, with a function applied to everything else."""
    changed: Any
    if isinstance(value, UserDict):  # BatchEncoding of transformers
        changed = copy.copy(value)
        changed.data = mapped(dict(value.data), function)
        return changed
    if isinstance(value, Mapping):
        items = {key: mapped(item, function) for key, item in value.items()}
        if type(value) is dict or not hasattr(value, "update"):
            return items
        changed = copy.copy(value)
        changed.update(items)
        return changed
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, function) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(mapped(item, function) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        changed = copy.copy(value)
        for field in fields(value):
            object.__setattr__(changed, field.name, mapped(getattr(value, field.name), function))
        return changed
    return function(value)


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
