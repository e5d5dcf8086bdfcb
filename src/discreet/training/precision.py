"""Devices and number formats: bf16 where the device has it, float32 elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from discreet.core.errors import invalid, setting


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
    """Return the context that computes in bf16 where it pays and is asked for, and does nothing elsewhere."""
    wanted = precision == "bf16" or (precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported())
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=wanted)


_SKIPS_MASKS = ("_ignore_bidirectional_mask_sdpa", "_ignore_causal_mask_sdpa")


@contextmanager
def fixed_kernels(plain_attention: bool = False) -> Iterator[None]:
    """Let a model choose its kernels by the shapes of its inputs, and not by what they hold.

    Left alone, transformers gives attention no mask when no row of a batch is padded, and another kernel then computes
    every row. With `plain_attention`, attention is computed by ordinary products, since the fused kernels of a GPU may
    add in an order that changes from run to run.
    """
    masks = sys.modules.get("transformers.masking_utils")
    before = {name: getattr(masks, name) for name in _SKIPS_MASKS if hasattr(masks, name)}
    for name in before:
        setattr(masks, name, lambda *_, **__: False)
    try:
        with sdpa_kernel(SDPBackend.MATH) if plain_attention else nullcontext():
            yield
    finally:
        for name, skips in before.items():
            setattr(masks, name, skips)
