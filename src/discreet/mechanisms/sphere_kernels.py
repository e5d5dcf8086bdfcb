"""Two fused Triton kernels for directions on the sphere: one computes inner products, one rotates the noise.

Ordinary operations read the noise and the direction four times and write three times; these read twice and write once.
The noise and all sums are in float64, and the rotated noise is rounded once. The kernels are used on a device only
after a self-test there.
"""

from __future__ import annotations

import functools
import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from discreet.core.first_test import passes

_BLOCK, _TURNS = 1024, 16
_trusted: dict[torch.device, bool] = {}


def usable(noise: Tensor, x: Tensor, out: Tensor) -> bool:
    """Return whether the kernels support these tensors (dense CUDA rows, float64 noise) and passed their self-test."""
    fit = all(t.is_cuda and t.stride(-1) == 1 for t in (noise, x, out)) and noise.dtype == torch.float64
    fit = fit and all(t.dtype in (torch.float32, torch.float64) for t in (x, out))
    if not fit or importlib.util.find_spec("triton") is None or torch.cuda.is_current_stream_capturing():
        return False
    if noise.device not in _trusted:
        _trusted[noise.device] = agree(noise.device)
    return _trusted[noise.device]


def products(noise: Tensor, x: Tensor) -> Tensor:
    """Return <noise, noise>, <noise, x> and <x, x> of each row, (3, rows), in float64, in one pass over both."""
    rows, width = noise.shape
    chunks = -(-width // (_BLOCK * _TURNS))
    parts = torch.empty(3, rows, chunks, dtype=torch.float64, device=noise.device)
    _compiled()["products"][(chunks, rows)](
        noise, x, parts, width, noise.stride(0), x.stride(0), rows * chunks, chunks, BLOCK=_BLOCK, TURNS=_TURNS
    )
    return parts.sum(-1)


def turn(noise: Tensor, x: Tensor, scale: Tensor, shift: Tensor, grid: float, out: Tensor) -> None:
    """Write scale * noise + shift * x, rounded by adding and subtracting `grid`, to each row of `out`, in one pass.

    `grid` is 1.5 times a power of two, and so exact in float32, in which a kernel receives it.
    """
    rows, width = noise.shape
    chunks = -(-width // (_BLOCK * _TURNS))
    _compiled()["turn"][(chunks, rows)](
        noise,
        x,
        out,
        scale.double().contiguous(),
        shift.double().contiguous(),
        grid,
        width,
        *(noise.stride(0), x.stride(0), out.stride(0)),
        BLOCK=_BLOCK,
        TURNS=_TURNS,
    )


def agree(device: torch.device) -> bool:
    """Return whether the kernels agree with ordinary operations on a small example; warn if not."""
    generator = torch.Generator(device=device).manual_seed(0)
    noise, x = (torch.randn(3, _BLOCK * _TURNS + 77, generator=generator, device=device) for _ in range(2))
    scale, shift = (torch.rand(3, generator=generator, device=device, dtype=torch.float64) for _ in range(2))
    noise = noise.double() * math.pi
    grid = 1.5 * 2.0**32

    def test() -> bool:
        exact = torch.stack(
            [(a * b).sum(-1) for a, b in ((noise, noise), (noise, x.double()), (x.double(), x.double()))]
        )
        turned = scale[:, None] * noise + shift[:, None] * x
        size = (exact[0] * exact[2]).sqrt()
        close = ((products(noise, x) - exact).abs() <= 1e-12 * torch.stack([exact[0], size, exact[2]])).all()
        in_double, in_single = torch.empty_like(noise), torch.empty_like(x)
        turn(noise, x, scale, shift, grid, in_double)
        turn(noise, x, scale, shift, grid, in_single)
        steps = in_double * 2.0**20
        on_grid = bool((steps == steps.round()).all()) and bool((in_double - turned).abs().max() <= 2.0**-21 + 1e-12)
        return bool(close) and on_grid and bool((in_single - in_double).abs().max() <= 1e-5)

    return passes(test, f"The fused sphere kernels are not used on {device}", "Results are correct, but slower.")


@functools.cache
def _compiled() -> dict[str, Any]:
    import triton  # type: ignore[import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def products(a, b, out, width, a_row, b_row, plane, chunks, BLOCK: tl.constexpr, TURNS: tl.constexpr):  # type: ignore[no-untyped-def]
        chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
        aa = tl.zeros([BLOCK], tl.float64)
        ab = tl.zeros([BLOCK], tl.float64)
        bb = tl.zeros([BLOCK], tl.float64)
        for k in range(TURNS):
            at = (chunk * TURNS + k) * BLOCK + tl.arange(0, BLOCK)
            one = tl.load(a + row * a_row + at, at < width, 0.0)
            two = tl.load(b + row * b_row + at, at < width, 0.0).to(tl.float64)
            aa += one * one
            ab += one * two
            bb += two * two
        where = out + row * chunks + chunk
        tl.store(where, tl.sum(aa))
        tl.store(where + plane, tl.sum(ab))
        tl.store(where + 2 * plane, tl.sum(bb))

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def turn(a, b, out, scale, shift, rounder, width, a_row, b_row, out_row, BLOCK: tl.constexpr, TURNS: tl.constexpr):  # type: ignore[no-untyped-def]
        chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
        times, plus = tl.load(scale + row), tl.load(shift + row)
        for k in range(TURNS):
            at = (chunk * TURNS + k) * BLOCK + tl.arange(0, BLOCK)
            one = tl.load(a + row * a_row + at, at < width, 0.0)
            two = tl.load(b + row * b_row + at, at < width, 0.0).to(tl.float64)
            turned = times * one + plus * two
            rounded = (turned + rounder.to(tl.float64)) - rounder.to(tl.float64)
            tl.store(out + row * out_row + at, rounded, at < width)

    return {"products": products, "turn": turn}
