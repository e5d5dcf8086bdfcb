"""Devices and number formats: bf16 where the device has it, float32 elsewhere."""

from __future__ import annotations

import torch

from discreet.core.checks import refuse


def find_device(name: str = "auto") -> torch.device:
    """Return the device by name; `auto` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise refuse("device", name, "in auto, cpu, cuda, cuda:N", "") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise refuse("device", name, "on this machine", "There is no usable GPU; use --device cpu.")
    if device.type not in {"cpu", "cuda"}:
        raise refuse("device", name, "in auto, cpu, cuda, cuda:N", "Other devices are not tested.")
    return device


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context that computes in bf16 where it pays and is asked for, and does nothing elsewhere."""
    wanted = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=wanted)
