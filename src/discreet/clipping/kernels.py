"""Fused CUDA kernels for the two places where many small ones cost the most; used where Triton is installed.

Both compute what `ghost.pair_sizes` and the layer norm in `collect` compute with ordinary operations, and are tested
against them.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor

_TILE = 64
_CHUNKS = 512


@functools.cache
def installed() -> bool:
    """Whether Triton can be used at all."""
    return importlib.util.find_spec("triton") is not None


def usable(*tensors: Tensor) -> bool:
    """Whether the kernels take these tensors: on CUDA, without a graph to differentiate, with dense last dimensions."""
    return (
        installed()
        and all(t.is_cuda and t.stride(-1) == 1 and t.dtype != torch.float64 for t in tensors)
        and not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))
    )


class PairBuffer:
    """Room for the figures of several pairs of one length, reduced together when all have been launched."""

    def __init__(self, pairs: int, units: int, length: int, device: torch.device) -> None:
        """Make room for a number of pairs."""
        self._tiles = -(-length // _TILE)
        self._sums = torch.zeros(pairs, units, self._tiles**2, 3, device=device)
        self._rows = torch.empty(pairs, units, self._tiles, self._tiles, _TILE, device=device)
        self._used = 0

    def launch(self, scaled: Tensor, other: Tensor, precision: str) -> None:
        """Compute the figures of one pair, each (units, length, width), into the next place."""
        units, length, _ = scaled.shape
        place, self._used = self._used, self._used + 1
        kernel, _ = _compiled()
        kernel[(self._tiles, self._tiles, units)](
            scaled,
            other,
            self._sums[place],
            self._rows[place],
            length,
            scaled.shape[2],
            other.shape[2],
            *(scaled.stride(0), scaled.stride(1), other.stride(0), other.stride(1)),
            TILE=_TILE,
            DEPTH=64 if scaled.element_size() == 2 else 32,
            PRECISION=precision,
            num_warps=4,
        )

    def figures(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return squares, traces of the scaled factor times the widest row of the other, and sums of both traces."""
        squares, first, second = self._sums.sum(2).unbind(-1)
        widest = self._rows.sum(3).flatten(2).amax(2)
        return squares, first * widest, first + second


def norm_sums(given: Tensor, grad: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return, for each row of a batch, the gradients of a layer norm's weight and bias, both (rows, width), in float32.

    `given` and `grad` have the shape (rows, time, width).
    """
    rows, length, width = given.shape
    chunks = max(1, min(length, _CHUNKS // max(rows, 1)))
    each = -(-length // chunks)
    chunks = -(-length // each)
    parts = torch.empty(2, rows, chunks, width, device=given.device)
    _, kernel = _compiled()
    kernel[(rows, chunks)](
        given,
        grad,
        parts[0],
        parts[1],
        length,
        width,
        each,
        eps,
        *(given.stride(0), given.stride(1), grad.stride(0), grad.stride(1)),
        WIDTH=_power_of_two(width),
        ROWS=4 if width <= 1024 else 1,
        num_warps=4 if width <= 2048 else 8,
    )
    weight, bias = parts[:, :, 0] if chunks == 1 else parts.sum(2)
    return weight, bias


def _power_of_two(value: int) -> int:
    return 1 << max(value - 1, 0).bit_length()


@functools.cache
def _compiled() -> tuple[Any, Any]:
    import triton  # type: ignore[import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

    @triton.jit  # type: ignore[untyped-decorator]
    def pair_kernel(  # type: ignore[no-untyped-def]
        a, b, sums, rows, length, a_width, b_width, a_unit, a_row, b_unit, b_row,
        TILE: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        # One program for each unit and each tile of the lower triangle of its two Gram matrices.
        i, j, unit = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        tiles = tl.num_programs(0)
        if j <= i:
            at = tl.arange(0, TILE)
            row_i, row_j = i * TILE + at, j * TILE + at
            depth = tl.arange(0, DEPTH)
            live_i, live_j = row_i[:, None] < length, row_j[:, None] < length
            base = a + unit.to(tl.int64) * a_unit
            first = tl.zeros((TILE, TILE), tl.float32)
            for k in range(0, a_width, DEPTH):
                inside = (k + depth)[None, :] < a_width
                x = tl.load(base + row_i[:, None] * a_row + (k + depth)[None, :], mask=live_i & inside, other=0.0)
                y = tl.load(base + row_j[:, None] * a_row + (k + depth)[None, :], mask=live_j & inside, other=0.0)
                first = tl.dot(x, tl.trans(y), first, input_precision=PRECISION)
            base = b + unit.to(tl.int64) * b_unit
            second = tl.zeros((TILE, TILE), tl.float32)
            for k in range(0, b_width, DEPTH):
                inside = (k + depth)[None, :] < b_width
                x = tl.load(base + row_i[:, None] * b_row + (k + depth)[None, :], mask=live_i & inside, other=0.0)
                y = tl.load(base + row_j[:, None] * b_row + (k + depth)[None, :], mask=live_j & inside, other=0.0)
                second = tl.dot(x, tl.trans(y), second, input_precision=PRECISION)
            twice = tl.where(i == j, 1.0, 2.0)
            diagonal = (at[:, None] == at[None, :]) & (i == j)
            out = sums + ((unit * tiles + i) * tiles + j) * 3
            tl.store(out, twice * tl.sum(first * second))
            tl.store(out + 1, tl.sum(tl.where(diagonal, first, 0.0)))
            tl.store(out + 2, tl.sum(tl.where(diagonal, second, 0.0)))
            size = tl.abs(second)
            tl.store(rows + ((unit * tiles + i) * tiles + j) * TILE + at, tl.sum(size, 1))
            if i != j:
                tl.store(rows + ((unit * tiles + j) * tiles + i) * TILE + at, tl.sum(size, 0))

    @triton.jit  # type: ignore[untyped-decorator]
    def norm_kernel(  # type: ignore[no-untyped-def]
        given, grad, weight, bias, length, width, each, eps, x_row, x_time, g_row, g_time,
        WIDTH: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        # One program for each row of the batch and each stretch of its time.
        row, chunk = tl.program_id(0), tl.program_id(1)
        column, step = tl.arange(0, WIDTH), tl.arange(0, ROWS)
        inside = column[None, :] < width
        end = tl.minimum((chunk + 1) * each, length)
        by_weight = tl.zeros((WIDTH,), tl.float32)
        by_bias = tl.zeros((WIDTH,), tl.float32)
        for start in range(chunk * each, end, ROWS):
            time = (start + step)[:, None]
            live = (time < end) & inside
            x = tl.load(given + row.to(tl.int64) * x_row + time * x_time + column[None, :], mask=live, other=0.0)
            g = tl.load(grad + row.to(tl.int64) * g_row + time * g_time + column[None, :], mask=live, other=0.0)
            x, g = x.to(tl.float32), g.to(tl.float32)
            centred = tl.where(live, x - (tl.sum(x, 1) / width)[:, None], 0.0)
            scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
            by_weight += tl.sum(g * centred * scale[:, None], 0)
            by_bias += tl.sum(g, 0)
        out = (row * tl.num_programs(1) + chunk) * width + column
        tl.store(weight + out, by_weight, mask=column < width)
        tl.store(bias + out, by_bias, mask=column < width)

    return pair_kernel, norm_kernel
