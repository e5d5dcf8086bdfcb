"""Fused CUDA kernels in Triton, used where Triton is installed.

Each kernel computes what ordinary operations compute elsewhere in this package, and is tested against them. All tensors
of one shape are processed in one launch, which reads their addresses from a table. While a CUDA graph is captured each
tensor has a launch of its own, because a table would have to outlive the capture.

Before the kernels are used on a device for the first time, they must agree with ordinary operations there.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from discreet.core.first_test import has_triton, passes

_TYPES = (torch.float32, torch.bfloat16, torch.float16)
TILE = 64  # rows and columns of a Gram matrix that one program computes
_PROGRAMS = 512
_BLOCK = 1024
_TURNS = 8
_STEPS, _COLUMNS = 16, 128  # steps and columns that one program of `time_sums` reads at once
SQUARES_TERMS = _BLOCK + _TURNS + 8  # upper bound on the terms added in float32 to one sum of `row_squares`

Pairs = Sequence[tuple[Tensor, Tensor]]


def usable(*tensors: Tensor) -> bool:
    """Return whether the kernels support these tensors: on CUDA, not differentiated, last dimension contiguous."""
    if not (tensors[0].is_cuda and has_triton()):
        return False
    differentiates = torch.is_grad_enabled()
    for t in tensors:  # a loop, for this runs several times for every layer and step
        if not t.is_cuda or t.dtype not in _TYPES or t.stride(-1) != 1 or t.data_ptr() % 16:
            return False
        if differentiates and t.requires_grad:
            return False
    return trusted(tensors[0])


def pair_figures(pairs: Pairs) -> tuple[list[int], Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return the arguments of `norms.bounded` for pairs of factors (units, length, width) of one type and length.

    They are the squared norms, the traces of the two Gram matrices, the largest absolute row sum of the second, and the
    sum over time of the products of norms, each of shape (pairs, units). They are in another order than the pairs; that
    order is returned first.
    """
    units, length = pairs[0][0].shape[:2]
    tiles = -(-length // TILE)
    device, half = pairs[0][0].device, pairs[0][0].element_size() == 2
    sums = torch.zeros(len(pairs), units, tiles**2, 4, device=device)
    rows = torch.empty(len(pairs), units, tiles, tiles, TILE, device=device)
    order = sorted(range(len(pairs)), key=lambda k: _layout(pairs[k]))
    done = 0
    for layout, places in itertools.groupby(order, key=lambda k: _layout(pairs[k])):
        for group in _launches([pairs[k] for k in places]):
            _compiled()["pairs"][(tiles**2, units, len(group))](
                *_addresses(group),
                sums[done:],
                rows[done:],
                length,
                tiles,
                *layout,
                TABLE=len(group) > 1,
                KIND=_kind(group[0][0]),
                TILE=TILE,
                DEPTH=64 if half else 32,
                num_warps=4,
            )
            done += len(group)
    squares, first, second, span = sums.sum(2, dtype=torch.float64).unbind(-1)
    return order, squares, first, second, rows.sum(3).flatten(2).amax(2).double(), span


def row_squares(values: Sequence[Tensor]) -> Tensor:
    """Return the squared norm of each row of matrices of one shape and type, (matrices, rows), in float64."""
    rows, width = values[0].shape
    chunks = -(-width // (_BLOCK * _TURNS))
    parts = torch.empty(len(values), rows, chunks, device=values[0].device)
    done = 0
    for group in _launches([(value,) for value in values]):
        _compiled()["squares"][(chunks, rows, len(group))](
            *_addresses(group),
            parts[done:],
            width,
            TABLE=len(group) > 1,
            KIND=_kind(group[0][0]),
            BLOCK=_BLOCK,
            TURNS=_TURNS,
            num_warps=4,
        )
        done += len(group)
    return parts.sum(2, dtype=torch.float64)


def weighted_rows(values: Sequence[Tensor], weights: Tensor) -> Tensor:
    """Return the weighted sum of the rows of matrices of one shape and type, (matrices, width), in float32."""
    rows, width = values[0].shape
    sums = torch.empty(len(values), width, device=values[0].device)
    weights = weights.float().contiguous()
    done = 0
    for group in _launches([(value,) for value in values]):
        _compiled()["weighted"][(-(-width // _BLOCK), len(group))](
            *_addresses(group),
            weights,
            sums[done:],
            rows,
            width,
            TABLE=len(group) > 1,
            KIND=_kind(group[0][0]),
            BLOCK=_BLOCK,
            num_warps=4,
        )
        done += len(group)
    return sums


def scaled(values: Sequence[Tensor], weights: Tensor, dtype: torch.dtype) -> Tensor:
    """Return contiguous tensors (rows, …) of one shape and type with each row times its weight, stacked, in a type."""
    out = torch.empty(len(values), *values[0].shape, dtype=dtype, device=values[0].device)
    rows, size = values[0].shape[0], values[0][0].numel()
    done = 0
    for group in _launches([(value,) for value in values]):
        _compiled()["scaled"][(-(-size // _BLOCK), rows, len(group))](
            *_addresses(group),
            weights,
            out[done:],
            size,
            TABLE=len(group) > 1,
            KIND=_kind(group[0][0]),
            BLOCK=_BLOCK,
            num_warps=4,
        )
        done += len(group)
    return out


def time_sums(values: Sequence[Tensor]) -> Tensor:
    """Return the sums over time of tensors (rows, time, width) of one shape, type and layout, stacked, in float32."""
    rows, length, width = values[0].shape
    sums = torch.empty(len(values), rows, width, device=values[0].device)
    done = 0
    for group in _launches([(value,) for value in values]):
        _compiled()["sums"][(-(-width // _COLUMNS), rows, len(group))](
            *_addresses(group),
            sums[done:],
            length,
            width,
            values[0].stride(0),
            values[0].stride(1),
            TABLE=len(group) > 1,
            KIND=_kind(group[0][0]),
            STEPS=_STEPS,
            COLUMNS=_COLUMNS,
            num_warps=4,
        )
        done += len(group)
    return sums


def norm_sums(pairs: Pairs, eps: float) -> tuple[Tensor, Tensor]:
    """Return each row's gradients of the weights and biases of layer norms, both (pairs, rows, width), in float32.

    The pairs are inputs and output gradients of shape (rows, time, width), of one shape, layout and types.
    """
    inputs, grads = pairs[0]
    rows, length, width = inputs.shape
    chunks = max(1, min(length, _PROGRAMS // max(rows, 1)))
    each = -(-length // chunks)
    chunks = -(-length // each)
    parts = torch.empty(2, len(pairs), rows, chunks, width, device=inputs.device)
    done = 0
    for group in _launches(pairs):
        _compiled()["norms"][(rows, chunks, len(group))](
            *_addresses(group),
            parts[0, done:],
            parts[1, done:],
            length,
            width,
            each,
            eps,
            *(inputs.stride(0), inputs.stride(1), grads.stride(0), grads.stride(1)),
            TABLE=len(group) > 1,
            KIND=_kind(inputs),
            GRAD_KIND=_kind(grads),
            WIDTH=1 << (width - 1).bit_length(),
            STEPS=4 if width <= 1024 else 1,
            num_warps=4 if width <= 2048 else 8,
        )
        done += len(group)
    weight, bias = (parts[:, :, :, 0] if chunks == 1 else parts.sum(3)).unbind()
    return weight, bias


def _layout(pair: tuple[Tensor, Tensor]) -> tuple[int, ...]:
    one, two = pair
    return (one.shape[2], two.shape[2], one.stride(0), one.stride(1), two.stride(0), two.stride(1))


def _launches(groups: Sequence[tuple[Tensor, ...]]) -> Iterator[Sequence[tuple[Tensor, ...]]]:
    if torch.cuda.is_current_stream_capturing():
        yield from ([one] for one in groups)
    else:
        yield groups


def _addresses(groups: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Return the tensors themselves if there is one of each, otherwise tables of their addresses."""
    if len(groups) == 1:
        return groups[0]
    device = groups[0][0].device
    numbers = [[tensor.data_ptr() for tensor in column] for column in zip(*groups, strict=True)]
    table = torch.tensor(numbers, dtype=torch.int64, pin_memory=device.type == "cuda").to(device, non_blocking=True)
    return table.unbind()


def _kind(tensor: Tensor) -> Any:
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float32: tl.float32}[tensor.dtype]


@functools.cache
def _compiled() -> dict[str, Any]:
    import triton  # type: ignore[import-not-found,unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def pairs(  # type: ignore[no-untyped-def]
        a, b, sums, rows, length, tiles, a_width, b_width, a_unit, a_row, b_unit, b_row,
        TABLE: tl.constexpr, KIND: tl.constexpr, TILE: tl.constexpr, DEPTH: tl.constexpr,
    ):  # fmt: skip
        # One program for each pair, each unit and each tile of the lower triangle of its two Gram matrices.
        tile, unit, pair = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        i, j = tile // tiles, tile % tiles
        if TABLE:
            a = tl.multiple_of(tl.load(a + pair).to(tl.pointer_type(KIND)), 16)
            b = tl.multiple_of(tl.load(b + pair).to(tl.pointer_type(KIND)), 16)
        if j <= i:
            at = tl.arange(0, TILE)
            row_i, row_j = i * TILE + at, j * TILE + at
            live_i, live_j = row_i[:, None] < length, row_j[:, None] < length
            depth = tl.arange(0, DEPTH)
            base = a + unit.to(tl.int64) * a_unit
            first = tl.zeros((TILE, TILE), tl.float32)
            for k in range(0, a_width, DEPTH):
                column = (k + depth)[None, :]
                x = tl.load(base + row_i[:, None] * a_row + column, mask=live_i & (column < a_width), other=0.0)
                y = tl.load(base + row_j[:, None] * a_row + column, mask=live_j & (column < a_width), other=0.0)
                first = tl.dot(x, tl.trans(y), first, input_precision="tf32")
            base = b + unit.to(tl.int64) * b_unit
            second = tl.zeros((TILE, TILE), tl.float32)
            for k in range(0, b_width, DEPTH):
                column = (k + depth)[None, :]
                x = tl.load(base + row_i[:, None] * b_row + column, mask=live_i & (column < b_width), other=0.0)
                y = tl.load(base + row_j[:, None] * b_row + column, mask=live_j & (column < b_width), other=0.0)
                second = tl.dot(x, tl.trans(y), second, input_precision="tf32")
            twice = tl.where(i == j, 1.0, 2.0)
            diagonal = (at[:, None] == at[None, :]) & (i == j)
            place = (pair.to(tl.int64) * tl.num_programs(1) + unit) * tiles * tiles
            out = sums + (place + i * tiles + j) * 4
            tl.store(out, twice * tl.sum(tl.sum(first * second, 1), 0))
            first = tl.where(diagonal, first, 0.0)
            tl.store(out + 1, tl.sum(tl.sum(first, 1), 0))
            tl.store(out + 2, tl.sum(tl.sum(tl.where(diagonal, second, 0.0), 1), 0))
            # On the diagonal both are squared norms, so neither is below zero; the roots go apart to keep their range.
            steps = tl.sqrt(tl.sum(first, 1)) * tl.sqrt(tl.sum(tl.where(diagonal, second, 0.0), 1))
            tl.store(out + 3, tl.sum(steps, 0))
            size = tl.abs(second)
            tl.store(rows + (place + i * tiles + j) * TILE + at, tl.sum(size, 1))
            if i != j:
                tl.store(rows + (place + j * tiles + i) * TILE + at, tl.sum(size, 0))

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def squares(  # type: ignore[no-untyped-def]
        values, parts, width,
        TABLE: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, TURNS: tl.constexpr,
    ):  # fmt: skip
        chunk, row, matrix = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        if TABLE:
            values = tl.multiple_of(tl.load(values + matrix).to(tl.pointer_type(KIND)), 16)
        total = tl.zeros((BLOCK,), tl.float32)
        for turn in range(TURNS):
            at = (chunk * TURNS + turn) * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(values + row.to(tl.int64) * width + at, mask=at < width, other=0.0).to(tl.float32)
            total += x * x
        place = (matrix * tl.num_programs(1) + row) * tl.num_programs(0) + chunk
        tl.store(parts + place, tl.sum(total))

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def weighted(  # type: ignore[no-untyped-def]
        values, weights, sums, rows, width,
        TABLE: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        block, matrix = tl.program_id(0), tl.program_id(1)
        if TABLE:
            values = tl.multiple_of(tl.load(values + matrix).to(tl.pointer_type(KIND)), 16)
        at = block * BLOCK + tl.arange(0, BLOCK)
        total = tl.zeros((BLOCK,), tl.float32)
        here = values + at
        for row in range(rows):
            total += tl.load(weights + row) * tl.load(here, mask=at < width, other=0.0).to(tl.float32)
            here += width
        tl.store(sums + matrix.to(tl.int64) * width + at, total, mask=at < width)

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def scaled(  # type: ignore[no-untyped-def]
        values, weights, out, size,
        TABLE: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr,
    ):  # fmt: skip
        block, row, tensor = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        if TABLE:
            values = tl.multiple_of(tl.load(values + tensor).to(tl.pointer_type(KIND)), 16)
        at = block * BLOCK + tl.arange(0, BLOCK)
        start = row.to(tl.int64) * size
        x = tl.load(values + start + at, mask=at < size, other=0.0).to(tl.float32) * tl.load(weights + row)
        start += tensor.to(tl.int64) * tl.num_programs(1) * size
        tl.store(out + start + at, x.to(out.dtype.element_ty), mask=at < size)

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def sums(  # type: ignore[no-untyped-def]
        values, out, length, width, row_stride, time_stride,
        TABLE: tl.constexpr, KIND: tl.constexpr, STEPS: tl.constexpr, COLUMNS: tl.constexpr,
    ):  # fmt: skip
        block, row, tensor = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        if TABLE:
            values = tl.multiple_of(tl.load(values + tensor).to(tl.pointer_type(KIND)), 16)
        column = block * COLUMNS + tl.arange(0, COLUMNS)
        step = tl.arange(0, STEPS)
        start = values + row.to(tl.int64) * row_stride
        total = tl.zeros((STEPS, COLUMNS), tl.float32)
        for first in range(0, length, STEPS):
            time = first + step
            live = (time < length)[:, None] & (column < width)[None, :]
            total += tl.load(start + time[:, None] * time_stride + column[None, :], mask=live, other=0.0).to(tl.float32)
        place = (tensor.to(tl.int64) * tl.num_programs(1) + row) * width
        tl.store(out + place + column, tl.sum(total, 0), mask=column < width)

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def norms(  # type: ignore[no-untyped-def]
        inputs, grad, weight_parts, bias_parts, length, width, each, eps, x_row, x_time, g_row, g_time,
        TABLE: tl.constexpr, KIND: tl.constexpr, GRAD_KIND: tl.constexpr, WIDTH: tl.constexpr, STEPS: tl.constexpr,
    ):  # fmt: skip
        # One program for each norm, each row of the batch and each part of its time.
        row, chunk, tensor = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        if TABLE:
            inputs = tl.multiple_of(tl.load(inputs + tensor).to(tl.pointer_type(KIND)), 16)
            grad = tl.multiple_of(tl.load(grad + tensor).to(tl.pointer_type(GRAD_KIND)), 16)
        column, step = tl.arange(0, WIDTH), tl.arange(0, STEPS)
        inside = column[None, :] < width
        end = tl.minimum((chunk + 1) * each, length)
        by_weight = tl.zeros((WIDTH,), tl.float32)
        by_bias = tl.zeros((WIDTH,), tl.float32)
        for start in range(chunk * each, end, STEPS):
            time = (start + step)[:, None]
            live = (time < end) & inside
            x = tl.load(inputs + row.to(tl.int64) * x_row + time * x_time + column[None, :], mask=live, other=0.0)
            g = tl.load(grad + row.to(tl.int64) * g_row + time * g_time + column[None, :], mask=live, other=0.0)
            x, g = x.to(tl.float32), g.to(tl.float32)
            centred = tl.where(live, x - (tl.sum(x, 1) / width)[:, None], 0.0)
            scale = 1.0 / tl.sqrt(tl.sum(centred * centred, 1) / width + eps)
            by_weight += tl.sum(g * centred * scale[:, None], 0)
            by_bias += tl.sum(g, 0)
        place = (tensor.to(tl.int64) * tl.num_programs(0) + row) * tl.num_programs(1) + chunk
        tl.store(weight_parts + place * width + column, by_weight, mask=column < width)
        tl.store(bias_parts + place * width + column, by_bias, mask=column < width)

    return {"pairs": pairs, "squares": squares, "weighted": weighted, "scaled": scaled, "sums": sums, "norms": norms}


_checked: dict[torch.device, bool] = {}


def trusted(like: Tensor) -> bool:
    """Return whether the kernels gave correct results on this device when they were first needed.

    A new driver, device or release of Triton must not change what is clipped: on any doubt ordinary operations are
    used. The kernels cannot be tested while a graph is captured; they are then not used unless they were tested before.
    """
    if like.device not in _checked:
        if torch.cuda.is_current_stream_capturing():
            return False
        _checked[like.device] = agree(like.device)
    return _checked[like.device]


def agree(device: torch.device) -> bool:
    """Return whether the kernels agree with ordinary operations on a small example, and warn if not."""
    generator = torch.Generator(device=device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device)

    def correct() -> bool:
        a, b, weights = draw(3, 70, 24), draw(3, 70, 40), draw(3).abs()
        one, two = (t.double() @ t.double().mT for t in (a, b))
        steps = one.diagonal(dim1=1, dim2=2).sqrt() * two.diagonal(dim1=1, dim2=2).sqrt()
        normal = torch.nn.functional.layer_norm(a.double(), a.shape[2:])
        _, squares, first, second, widest, span = pair_figures([(a, b)])
        narrow = b[:, :, :24].contiguous()
        by_weight, by_bias = norm_sums([(a, narrow), (a.neg(), narrow)], 1e-5)
        rows = a.flatten(1)
        pairs = [
            (squares[0], (one * two).sum((1, 2))),
            (first[0], one.diagonal(dim1=1, dim2=2).sum(1)),
            (second[0], two.diagonal(dim1=1, dim2=2).sum(1)),
            (widest[0], two.abs().sum(2).amax(1)),
            (span[0], steps.sum(1)),
            (row_squares([rows])[0], rows.double().square().sum(1)),
            (weighted_rows([rows], weights)[0], weights.double() @ rows.double()),
            (scaled([rows], weights, torch.float32)[0], rows.double() * weights.double()[:, None]),
            (scaled([rows, rows.neg()], weights, torch.float32)[1], rows.double() * -weights.double()[:, None]),
            (time_sums([b])[0], b.double().sum(1)),
            (time_sums([b, b.neg()])[1], -b.double().sum(1)),
            (by_weight[0], (normal * narrow).sum(1)),
            (by_weight[1], -(normal * narrow).sum(1)),
            (by_bias[1], narrow.double().sum(1)),
            (norm_sums([(a, narrow)], 1e-5)[0][0], (normal * narrow).sum(1)),
        ]
        return all(_near(result.double(), expected.double()) for result, expected in pairs)

    return passes(correct, f"Fused clipping is not used on {device}", "Clipping is correct, but slower.")


def _near(result: Tensor, expected: Tensor) -> bool:
    # TF32 keeps ten bits, and single sums may cancel, so whole tensors are compared.
    return bool((result - expected).norm() <= 1e-2 * expected.norm())
