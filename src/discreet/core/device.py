"""Nested batches of tensors, the device of a model, its precision (bf16 if supported), and its free memory."""

from __future__ import annotations

import copy
import os
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discreet.core.errors import invalid, setting


def free_on_cuda(device: torch.device) -> int:
    """Return the bytes of GPU memory that this process can still allocate."""
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    unused = torch.cuda.memory_reserved(device) - allocated
    share = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    limit = total if share is None else int(total * share(device))
    return int(max(0, min(free + unused, limit - allocated)))


def available_memory() -> int | None:
    """Return the bytes of main memory that can be allocated without swapping, or None if unknown."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return int(os.sysconf("SC_AVPHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return None


def find_device(name: str = "auto") -> torch.device:
    """Return the device by name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise invalid("device", name, "one of auto, cpu, cuda, cuda:N", "") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise invalid(
            "device", name, "a device of this machine", f"There is no usable GPU; use {setting('device', 'cpu')}."
        )
    if device.type not in {"cpu", "cuda"}:
        raise invalid("device", name, "one of auto, cpu, cuda, cuda:N", "Other devices are not tested.")
    return device


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the autocast context of a precision; `auto` is bf16 on a GPU that supports it, and float32 elsewhere."""
    bf16 = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16)


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
