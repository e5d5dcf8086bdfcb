"""The device of a model, its precision (bf16 if the device supports it, float32 otherwise), and its free memory."""

from __future__ import annotations

import os
from pathlib import Path

import torch

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
