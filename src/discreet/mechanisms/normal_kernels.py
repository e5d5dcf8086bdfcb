"""A fused CUDA kernel for normal noise: it draws in float64, adds, rounds once and writes, where Triton is there.

A counter goes through Philox4x32-10. Of its 128 bits, 75 make the radius of a Box-Muller pair and 53 its angle. The
kernel is used on a device only after its numbers agreed there with `reference`, which is the same in numpy.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.first_test import passes

_BLOCK = 512
_LARGEST = 1 << 32
_LOW, _WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
_trusted: dict[torch.device, bool] = {}
Floats = npt.NDArray[np.float64]


def usable(like: Tensor) -> bool:
    """Whether the kernel takes this tensor: float32 or float64 on a CUDA device where it proved right."""
    fit = like.is_cuda and like.dtype in (torch.float32, torch.float64) and 0 < like.numel() < _LARGEST
    if not fit or importlib.util.find_spec("triton") is None:
        return False
    if like.device not in _trusted:
        if torch.cuda.is_current_stream_capturing():
            return False  # nothing can be compared while a graph is recorded
        _trusted[like.device] = agree(like.device)
    return _trusted[like.device]


def key_words(seed: int, nonce: int, std: float, shift: float) -> Tensor:
    """Return what the kernel reads: the key, a step that a recorded graph may count up, and two numbers as bits."""
    bits = [int.from_bytes(struct.pack("<d", number), "little", signed=True) for number in (std, shift)]
    return torch.tensor([seed, nonce, 0, *bits], dtype=torch.int64)


def add(values: Tensor, key: Tensor, number: int, out: Tensor | None = None) -> Tensor:
    """Return values plus the noise of an array's number, in float64, rounded as the key says and then once to `out`."""
    values = values.contiguous()
    out = torch.empty_like(values) if out is None else out
    _launch(values, out, key, number, True)
    return out


def fill(out: Tensor, key: Tensor, number: int) -> Tensor:
    """Fill a contiguous tensor with normal numbers and return it."""
    _launch(out, out, key, number, False)
    return out


def _launch(values: Tensor, out: Tensor, key: Tensor, number: int, add_up: bool) -> None:
    programs = -(-((values.numel() + 1) // 2) // _BLOCK)
    with torch.cuda.device(values.device):
        _compiled()[(programs,)](values, out, key, values.numel(), number, ADD=add_up, BLOCK=_BLOCK)


def agree(device: torch.device) -> bool:
    """Return whether the kernel's numbers agree with the reference on a small example, and warn if not."""

    def right() -> bool:
        shift = 1.5 * 2.0**32
        key = key_words(-(2**62) + 12345, 0x1234567, 3.0, shift)
        placed, count = key.to(device), 3 * _BLOCK + 77
        wanted = reference(key.tolist(), count, 5)
        drawn = fill(torch.empty(count, dtype=torch.float64, device=device), placed, 5)
        near = np.abs(drawn.cpu().numpy() - wanted).max() < 1e-12
        values = torch.linspace(-2, 2, count, device=device)
        sums = values.cpu().double().numpy() + 3.0 * wanted
        wide = add(values.double(), placed, 5).cpu().numpy()
        rounded = bool((np.abs(wide - sums) <= 2.0**-21 + 1e-9).all()) and bool((wide * 2.0**20 % 1 == 0).all())
        narrow = add(values, placed, 5).cpu().numpy()
        return bool(near) and rounded and bool((np.abs(narrow - wide) <= 2.0**-20).all())

    return passes(right, f"Fused noise is not used on {device}", "Noise is right, but slower.")


def reference(key: list[int], count: int, number: int) -> Floats:
    """Return the kernel's normal numbers, by numpy."""
    half = (count + 1) // 2
    at = np.arange(half, dtype=np.uint64)
    counter = [at & _LOW, _full(key[2], half), _full(number, half), _full(key[1], half)]
    w = philox(counter, key[0])
    uniform = ((w[0] << _WORD) | w[1]).astype(np.float64) * 2.0**-64
    uniform += ((w[2] & np.uint64(2047)).astype(np.float64) + 0.5) * 2.0**-75
    radius = np.sqrt(-2.0 * np.log(uniform))
    within = (((w[2] >> np.uint64(11)) & np.uint64(0x3FFFF)) << _WORD | w[3]).astype(np.float64)
    angle = (within + 0.5) * (math.pi / 4 * 2.0**-50)
    octant = w[2] >> np.uint64(29)
    swapped = octant & np.uint64(1) != 0
    cos = np.where(swapped, np.sin(angle), np.cos(angle)) * np.where(octant & np.uint64(2) != 0, -1.0, 1.0)
    sin = np.where(swapped, np.cos(angle), np.sin(angle)) * np.where(octant & np.uint64(4) != 0, -1.0, 1.0)
    return np.concatenate([radius * cos, radius * sin])[:count]


def _full(value: int, count: int) -> npt.NDArray[np.uint64]:
    return np.full(count, value & 0xFFFFFFFF, dtype=np.uint64)


def philox(counter: list[npt.NDArray[np.uint64]], key: int) -> list[npt.NDArray[np.uint64]]:
    """Return the four 32-bit words of Philox4x32-10 for counters of four 32-bit words and a 64-bit key.

    Paper: Salmon, Moraes, Dror and Shaw 2011, Parallel random numbers: as easy as 1, 2, 3.
    """
    a, b, c, d = counter
    low, high = key & 0xFFFFFFFF, (key >> 32) & 0xFFFFFFFF
    for turn in range(10):
        k0, k1 = (np.uint64((k + turn * step) & 0xFFFFFFFF) for k, step in ((low, 0x9E3779B9), (high, 0xBB67AE85)))
        one, two = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (two >> _WORD) ^ b ^ k0, two & _LOW, (one >> _WORD) ^ d ^ k1, one & _LOW
    return [a, b, c, d]


@functools.cache
def _compiled() -> Any:
    import triton  # type: ignore[import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

    @triton.jit(do_not_specialize=["number"])  # type: ignore[untyped-decorator,unused-ignore]
    def noise(values, out, key, count, number, ADD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        half = (count + 1) // 2
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        c0 = at.to(tl.int32)
        c1 = c0 * 0 + tl.load(key + 2).to(tl.int32)
        c2 = c0 * 0 + number
        c3 = c0 * 0 + tl.load(key + 1).to(tl.int32)
        w0, w1, w2, w3 = tl.philox(tl.load(key), c0, c1, c2, c3)
        uniform = ((w0.to(tl.uint64) << 32) | w1.to(tl.uint64)).to(tl.float64) * 5.421010862427522e-20
        uniform += ((w2 & 2047).to(tl.float64) + 0.5) * 2.6469779601696886e-23
        radius = tl.sqrt(-2.0 * tl.log(uniform))
        within = ((((w2 >> 11) & 0x3FFFF).to(tl.uint64) << 32) | w3.to(tl.uint64)).to(tl.float64)
        angle = (within + 0.5) * 6.975736996017264e-16
        # Taylor series: below pi / 4 the first term left out is under 1e-17.
        x = angle * angle
        cos = x * 0.0 + 1.0
        sin = x * 0.0 + 1.0
        for k in tl.static_range(8):
            cos = 1.0 - cos * x * (1.0 / ((16 - 2 * k) * (15 - 2 * k)))
            sin = 1.0 - sin * x * (1.0 / ((17 - 2 * k) * (16 - 2 * k)))
        sin = sin * angle
        octant = w2 >> 29
        swapped = (octant & 1) != 0
        first = radius * tl.where(swapped, sin, cos)
        second = radius * tl.where(swapped, cos, sin)
        first = tl.where((octant & 2) != 0, -first, first)
        second = tl.where((octant & 4) != 0, -second, second)
        if ADD:
            std = tl.load(key + 3).to(tl.float64, bitcast=True)
            shift = tl.load(key + 4).to(tl.float64, bitcast=True)
            first = tl.load(values + at, at < half, 0.0).to(tl.float64) + std * first
            second = tl.load(values + half + at, half + at < count, 0.0).to(tl.float64) + std * second
            first = (first + shift) - shift
            second = (second + shift) - shift
        tl.store(out + at, first, at < half)
        tl.store(out + half + at, second, half + at < count)

    return noise
