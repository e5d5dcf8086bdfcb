"""Tensors in nested mappings, lists, tuples and dataclasses, such as collated batches."""

from __future__ import annotations

import copy
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested mappings, lists, tuples and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def constants_in(value: Any) -> list[Any]:
    """Return what nested mappings, lists, tuples and dataclasses hold besides tensors."""
    if isinstance(value, Tensor):
        return []
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in (item[0], *constants_in(item[1]))]
    if isinstance(value, list | tuple):
        return [part for item in value for part in constants_in(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return [part for field in fields(value) for part in constants_in(getattr(value, field.name))]
    return [value]


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
