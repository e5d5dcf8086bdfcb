"""Norms of per-example gradients from their factors, without forming the gradients.

The gradient of a weight is a sum over time of outer products, g = sum_t l_t r_t^T, so its squared norm is the inner
product of two Gram matrices, <L L^T, R R^T>, each of the size of the sequence and not of the weight.

Where steps cancel, that inner product is a small difference of large terms. So the Gram matrices are computed in
float64, except from half precision on a GPU (and from TF32 in `kernels`), where they are computed in float32 on tensor
cores. Each squared norm comes with a proven bound on its rounding error.

Paper: Goodfellow 2015, Efficient per-example gradient computations; Li et al. 2022, Large language models can be strong
differentially private learners (the form for sequences); Bu et al. 2023, Differentially private optimization on large
model at small cost (norms and sums from one backward pass).
Differs: each norm comes with a bound on its rounding error, which the clip subtracts as a margin.

The second half of this file has products that accumulate in float32 or wider, and bounds on their rounding.

The model of rounding: an elementary operation errs by at most a relative unit roundoff u (2^-53 in float64, 2^-24 in
float32, 2^-23 for each addition in a tensor core), nothing underflows, and a sum may be formed in any order. The bounds
here follow from it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_CHUNK_BYTES = 2**26
# Half-precision factors wider than this, as of a vocabulary, are multiplied in blocks of _BLOCK_WIDTH columns that are
# added in float64: a bound that grows with the width would have their norms recomputed at every step.
_WIDE, _BLOCK_WIDTH = 2**12, 2**7
# Squares of numbers below 1e-19 underflow in float32. The loss is at most this, times the other factor.
FLOOR = 1e-30
SHARE = 1e-3  # of a squared norm that rounding errors may reach before it is recomputed from the gradient


class Figures(NamedTuple):
    """Figures of sum_t s_t o_t^T for each unit, where s is the factor that is scaled before the sum is formed.

    `size` is tr(S S^T) times a bound on the largest eigenvalue of O O^T, `span` is sum_t |s_t| |o_t|. `error` bounds
    the rounding error of `squares`.
    """

    squares: Tensor
    size: Tensor
    span: Tensor
    error: Tensor


def capturing(like: Tensor) -> bool:
    """Return whether a CUDA graph is being captured, so that nothing may be read back from the device."""
    return like.is_cuda and torch.cuda.is_current_stream_capturing()


def gram(rows: Tensor) -> Tensor:
    """Return the inner products of the rows of each unit, (units, time, time), in float64.

    Half precision on a GPU is multiplied on tensor cores and summed in float32, unless it is differentiated.
    """
    if _on_tensor_cores(rows):
        return batched(rows, rows.mT)
    if rows.dtype == torch.float64:
        return torch.bmm(rows, rows.mT)
    step = max(1, _CHUNK_BYTES // max(8 * rows.shape[1] * rows.shape[2], 1))
    if rows.shape[0] <= step:
        wide = rows.double()
        return torch.bmm(wide, wide.mT)
    return torch.cat([gram(part) for part in torch.split(rows, step)])


def block_gram(rows: Tensor) -> Tensor:
    """Return the inner products of the rows of each unit in float64, from blocks of columns summed in float32.

    By the Cauchy-Schwarz inequality the errors of all blocks of an inner product add up to at most that of one block,
    relative to the product of the two norms. So the bound does not grow with the width.

    >>> rows = torch.randn(2, 3, 300, generator=torch.Generator().manual_seed(0))
    >>> bool((block_gram(rows) - gram(rows)).abs().max() < 1e-6 * rows.square().sum((1, 2)).max())
    True
    """
    length, width = rows.shape[1:]
    padded = torch.nn.functional.pad(rows, (0, -width % _BLOCK_WIDTH)) if width % _BLOCK_WIDTH else rows.contiguous()
    # (units, blocks, time, columns)
    blocks = padded.view(*padded.shape[:2], padded.shape[2] // _BLOCK_WIDTH, _BLOCK_WIDTH).transpose(1, 2)
    count = blocks.shape[1]
    step = max(1, _CHUNK_BYTES // (count * length * max(4 * length, _BLOCK_WIDTH * rows.element_size())))
    parts = []
    for some in torch.split(blocks, step):
        flat = some.flatten(0, 1)
        products = batched(flat, flat.mT).view(some.shape[0], count, length, length)
        parts.append(products.sum(1, dtype=torch.float64))
    return torch.cat(parts)


def _on_tensor_cores(rows: Tensor) -> bool:
    return rows.is_cuda and rows.element_size() == 2 and not (torch.is_grad_enabled() and rows.requires_grad)


def is_wide(one: Tensor, two: Tensor) -> bool:
    """Return whether a factor is so wide that Gram matrices are computed in blocks of columns."""
    return _on_tensor_cores(one) and _on_tensor_cores(two) and max(one.shape[2], two.shape[2]) > _WIDE


def block_sizes(scaled: Tensor, other: Tensor) -> Figures:
    """Return the figures of `pair_sizes` from Gram matrices that are computed in blocks of columns."""
    return from_grams(block_gram(scaled), block_gram(other), None)


def same(ids: Tensor, ignored: int | None) -> Tensor:
    """Return which pairs of positions of each unit have the same id: the Gram matrix of one-hot rows."""
    equal = ids[:, :, None] == ids[:, None, :]
    if ignored is not None:
        equal &= (ids != ignored)[:, :, None]
    return equal


def pair_sizes(scaled: Tensor, other: Tensor) -> Figures:
    """Return the figures of sum_t s_t o_t^T from its factors (units, time, width)."""
    units, length = scaled.shape[:2]
    widths = scaled.shape[2], other.shape[2]
    if length == 1:
        squares = scaled[:, 0].double().square().sum(1) * other[:, 0].double().square().sum(1)
        return Figures(squares, squares, squares.sqrt(), squares * gamma(sum(widths) + 4, FLOAT64_UNIT))
    step = _rows_at_once(length)
    if is_wide(scaled, other):
        parts = zip(torch.split(scaled, step), torch.split(other, step), strict=True)
        return _joined([block_sizes(one, two) for one, two in parts])
    if units <= step:
        return from_grams(gram(scaled), gram(other), widths)
    pairs = zip(torch.split(scaled, step), torch.split(other, step), strict=True)
    return _joined([from_grams(gram(s), gram(o), widths) for s, o in pairs])


def shared_sizes(
    inputs: Tensor,
    grads: Tensor,
    scales_inputs: bool,
    key: tuple[object, ...],
    shared: dict[tuple[object, ...], Tensor],
) -> Figures:
    """Return the figures of `pair_sizes`, with the Gram matrix of the inputs from `shared` if it is there."""
    length = inputs.shape[1]
    if inputs.shape[0] > _rows_at_once(length) or is_wide(inputs, grads):
        return pair_sizes(inputs, grads) if scales_inputs else pair_sizes(grads, inputs)
    if key not in shared:
        shared.clear()  # only consecutive layers share an input, as query, key and value do
        shared[key] = gram(inputs)
    first, second = shared[key], gram(grads)
    widths = inputs.shape[2], grads.shape[2]
    return from_grams(first, second, widths) if scales_inputs else from_grams(second, first, widths[::-1])


def from_grams(scaled: Tensor, other: Tensor, widths: tuple[int, int] | None) -> Figures:
    """Return the figures of `pair_sizes` from the two Gram matrices and the widths of the factors.

    `widths` is None for matrices that `block_gram` computed.
    """
    diagonals = scaled.diagonal(dim1=1, dim2=2), other.diagonal(dim1=1, dim2=2)
    span = (diagonals[0].detach() * diagonals[1].detach()).clamp_min(0).sqrt().sum(1)
    squares = (scaled * other).sum(2).sum(1)  # in two steps, so that each sum has 2 * time terms and not time^2
    traces = diagonals[0].sum(1), diagonals[1].sum(1)
    if widths is None:
        # Sums in float64, of blocks and of entries, err by less than one unit roundoff of a tensor core in all.
        block = _BLOCK_WIDTH + 1
        return bounded(squares, traces, _widest(other), span, (block, block, 1), wide=False)
    wide = scaled.dtype == torch.float64
    return bounded(squares, traces, _widest(other), span, (*widths, scaled.shape[1]), wide)


def bounded(
    squares: Tensor,
    traces: tuple[Tensor, Tensor],
    widest: Tensor,
    span: Tensor,
    shape: tuple[int, int, int],
    wide: bool,
) -> Figures:
    """Return squared norms with bounds on their rounding errors; `shape` is (width, width, time).

    Each entry (t, s) of a Gram matrix is a sum of `width` products with an error of at most gamma_width |l_t| |l_s|.
    Nothing is assumed about the correlation of the errors, so their sum, times the entries of the other matrix, is
    bounded by gamma_width span^2; the sum over all entries adds its own gamma.
    """
    unit = FLOAT64_UNIT if wide else TENSOR_CORE_UNIT
    first, second = traces
    size = first * (widest + gamma(shape[1], unit) * second) * SLACK
    error = span.square() * (gamma(shape[0] + shape[1] + 2 * shape[2] + 8, unit) * SLACK)
    return Figures(squares, size, span * SLACK, error if wide else error + FLOOR * (first + second))


def id_sizes(ids: Tensor, grads: Tensor, ignored: int | None) -> Figures:
    """Return the same figures for an embedding, whose gradient sums the rows that share an id."""
    step = _rows_at_once(ids.shape[1])
    parts = []
    for part_ids, part_grads in zip(torch.split(ids, step), torch.split(grads, step), strict=True):
        inner, equal = gram(part_grads), same(part_ids, ignored)
        size = inner.diagonal(dim1=1, dim2=2).sum(1) * equal.sum(2).amax(1) * SLACK
        unit = FLOAT64_UNIT if inner.dtype == torch.float64 else TENSOR_CORE_UNIT
        error = size * gamma(grads.shape[-1] + 2 * ids.shape[1] + 8, unit)
        parts.append(Figures(torch.where(equal, inner, 0).sum(2).sum(1), size, size.sqrt(), error))
    return _joined(parts)


def exact_pair(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return one unit's squared norm from its gradient, formed in float64, and a bound on its error.

    The factors are (time, width). The error of each number of the gradient is at most gamma_time of its absolute terms,
    so the error of the norm is at most gamma_time span, where that of Gram matrices is relative to span^2.
    """
    left, right = left.double(), right.double()
    span = (left.square().sum(1) * right.square().sum(1)).sqrt().sum()
    return _formed(left.mT @ right, span, left.shape[0])


def exact_lookup(ids: Tensor, grads: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
    """Return the same for an embedding, from ids of shape (time,) and gradients of shape (time, width)."""
    grads = grads.double()
    if ignored is not None:
        grads = grads * (ids != ignored)[:, None]
    distinct, place = torch.unique(ids, return_inverse=True)
    table = grads.new_zeros(distinct.shape[0], grads.shape[1]).index_add(0, place, grads)
    return _formed(table, grads.square().sum(1).sqrt().sum(), ids.shape[0])


def cross_sizes(left: Tensor, right: Tensor, ids: Tensor, grads: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
    """Return <sum_t l_t r_t^T, sum_s e_(id_s) g_s^T> for each unit, and a bound on its error.

    It is sum_ts l_t[id_s] <r_t, g_s>: the products of r and g are a matrix (time, lookups), as is what is read of l.
    """
    if left.shape[0] > (step := _rows_at_once(max(left.shape[1], ids.shape[1]))):
        parts = zip(*(torch.split(t, step) for t in (left, right, ids, grads)), strict=True)
        results = [cross_sizes(a, b, c, d, ignored) for a, b, c, d in parts]
        return torch.cat([cross for cross, _ in results]), torch.cat([error for _, error in results])
    picked = left.gather(2, ids[:, None, :].expand(-1, left.shape[1], -1)).double()
    if ignored is not None:
        picked = picked.masked_fill((ids == ignored)[:, None, :], 0)
    right, grads = right.double(), grads.double()
    cross = (picked * torch.bmm(right, grads.mT)).sum(2).sum(1)
    lengths = torch.linalg.vector_norm(right, dim=2), torch.linalg.vector_norm(grads, dim=2)
    span = (torch.bmm(picked.abs().mT, lengths[0][:, :, None])[..., 0] * lengths[1]).sum(1)
    return cross, span.detach() * (gamma(right.shape[2] + sum(picked.shape[1:]) + 8, FLOAT64_UNIT) * SLACK)


def exact_tied(left: Tensor, right: Tensor, ids: Tensor, grads: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
    """Return the same for the sum of a pair's and an embedding's gradient: sum_t l_t r_t^T + sum_s e_(id_s) g_s^T."""
    left, right, grads = left.double(), right.double(), grads.double()
    if ignored is not None:
        grads = grads * (ids != ignored)[:, None]
    span = (left.square().sum(1) * right.square().sum(1)).sqrt().sum() + grads.square().sum(1).sqrt().sum()
    return _formed((left.mT @ right).index_add_(0, ids, grads), span, left.shape[0] + ids.shape[0])


def _formed(gradient: Tensor, span: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    square = gradient.square().sum(1).sum()
    drift = span * (gamma(terms + 4, FLOAT64_UNIT) * SLACK)
    summed = gamma(sum(gradient.shape) + 4, FLOAT64_UNIT) * SLACK
    return square, square * summed + drift * (2 * (square * SLACK).sqrt() + drift)


def _rows_at_once(length: int) -> int:
    return max(1, _CHUNK_BYTES // max(16 * length * length, 1))


def _joined(parts: list[Figures]) -> Figures:
    return Figures(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _widest(gram: Tensor) -> Tensor:
    # The largest absolute row sum bounds the largest eigenvalue, without squares that could overflow.
    return torch.amax(torch.linalg.vector_norm(gram.detach(), 1, dim=2), 1)


_HALF = (torch.bfloat16, torch.float16)
_HALF_ROUNDING = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
_TRUNCATION = {"tf32": 2.0**-10, "bf16": 2.0**-8}  # of a float32 number to the type in which a device multiplies
FLOAT64_UNIT, FLOAT32_UNIT = 2.0**-53, 2.0**-24
TENSOR_CORE_UNIT = 2.0**-23  # a sum in a tensor core is truncated, not rounded
# A sum over the rows of a batch is computed in blocks of this many terms, and the blocks are added. The bound on the
# rounding of one term then depends neither on the batch size nor on other units, up to _ADDED_BLOCKS blocks.
_BLOCKS = {"cuda": 2**13, "cpu": 2**9}
# Each block of a scatter allocates a table, so large tables have longer blocks. An id rarely occurs often in them.
_SCATTER, _SCATTER_LARGE, _LARGE_TABLE = 2**9, 2**12, 2**20
_ADDED_BLOCKS = 2**8
SLACK = 1.02  # for products of rounding errors, and for the rounding of the bounds themselves


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which sums are accumulated: float64 for float64, float32 for everything else.

    >>> accumulator(torch.bfloat16)
    torch.float32
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def promoted(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return two tensors in the wider of their two types."""
    if a.dtype == b.dtype:
        return a, b
    wide = torch.promote_types(a.dtype, b.dtype)
    return a.to(wide), b.to(wide)


def batched(a: Tensor, b: Tensor) -> Tensor:
    """Return the batched matrix product of two tensors of one type, accumulated and returned in float32 or wider."""
    if a.dtype not in _HALF:
        return torch.bmm(a, b)
    if a.is_cuda and not (torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)):
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def product(left: Tensor, right: Tensor) -> Tensor:
    """Return left^T right for two matrices (terms, width) of one type, in float32 or wider, in blocks of terms."""
    step = _block(left.device)
    if left.shape[0] <= step:
        return _product(left, right)
    total = _product(left[:step], right[:step])
    for start in range(step, left.shape[0], step):
        total += _product(left[start : start + step], right[start : start + step])
    return total


def _product(left: Tensor, right: Tensor) -> Tensor:
    if left.dtype not in _HALF:
        return torch.mm(left.t(), right)
    if left.is_cuda:
        return torch.mm(left.t(), right, out_dtype=torch.float32)
    return torch.mm(left.t().float(), right.float())


def batched_product(left: Tensor, right: Tensor) -> Tensor:
    """Return `product` for each of several pairs of matrices, stacked, (pairs, terms, width).

    >>> rng = torch.Generator().manual_seed(0)
    >>> left, right = torch.randn(2, 5, 3, generator=rng), torch.randn(2, 5, 4, generator=rng)
    >>> torch.allclose(batched_product(left, right)[1], product(left[1], right[1]), atol=1e-5)
    True
    """
    step = _block(left.device)
    total = batched(left[:, :step].mT, right[:, :step])
    for start in range(step, left.shape[1], step):
        total += batched(left[:, start : start + step].mT, right[:, start : start + step])
    return total


def weighted_rows(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the weighted sum of the rows of a matrix, in float32 or wider, in blocks of rows.

    Half-precision rows are not converted in memory: the weights are split into two half-precision parts with 16 bits
    in total, and the two sums are added.
    """
    step = _block(rows.device)
    total = _weighted_rows(weights[:step], rows[:step])
    for start in range(step, rows.shape[0], step):
        total = total + _weighted_rows(weights[start : start + step], rows[start : start + step])
    return total


def _weighted_rows(weights: Tensor, rows: Tensor) -> Tensor:
    if rows.dtype not in _HALF or not rows.is_cuda:
        return weights.to(accumulator(rows.dtype)) @ rows.to(accumulator(rows.dtype))
    high = weights.to(rows.dtype)
    low = (weights - high.float()).to(rows.dtype)
    return torch.mm(torch.stack((high, low)), rows, out_dtype=torch.float32).sum(0)


def scattered(grads: Tensor, ids: Tensor, rows: int, padding: int) -> Tensor:
    """Return a table of zeros with the gradients added to the rows of their ids, in blocks of terms."""
    grads, ids = grads.flatten(0, -2), ids.flatten()
    step = _scatter_block(rows * grads.shape[-1])
    scatter = torch.ops.aten.embedding_dense_backward
    total: Tensor = scatter(grads[:step], ids[:step], rows, padding, False)
    for start in range(step, ids.shape[0], step):
        total += scatter(grads[start : start + step], ids[start : start + step], rows, padding, False)
    return total


def _scatter_block(numbers: int) -> int:
    return _SCATTER if numbers <= _LARGE_TABLE else _SCATTER_LARGE


def gamma(terms: int, unit: float) -> float:
    """Return a bound on the rounding error of a sum of products, relative to the sum of their absolute values.

    Whatever the order of the additions, and with or without fused multiply-adds, a computed sum of n products is the
    exact sum of the products each times 1 + d, |d| <= gamma_n = n u / (1 - n u), as long as nothing underflows.

    >>> gamma(1000, 2.0**-24) < 6e-5
    True
    """
    return terms * unit / (1 - terms * unit) if terms * unit < 1 else math.inf


def drift_of_pair(size: Tensor, span: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the square of how far rounding may move sum_t l_t r_t^T when l is scaled and the product is summed.

    `span` is sum_t |l_t| |r_t|, which bounds the norm of the matrix of absolute values; `size` is tr(L L^T) times a
    bound on the largest eigenvalue of R R^T. Scaling rounds each number of l by a relative e; that moves the product by
    at most e times the smaller of span and root(size). TF32 truncates r too, and each term is rounded by `gamma`.
    """
    scaling, truncation = _scaling(dtype, device)
    return (scaling * torch.minimum(size.sqrt(), span) + (truncation + _summing(dtype, device)) * span).square() * SLACK


def drift_of_rows(squares: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the square of how far rounding may move stored gradients when they are summed."""
    wide = accumulator(dtype)
    scaling, truncation = _scaling(wide, device)
    if dtype in _HALF and device.type == "cuda":
        scaling = max(scaling, 2.0**-17 if dtype == torch.bfloat16 else 2.0**-21)
    return squares * ((scaling + truncation + _summing(wide, device)) ** 2 * SLACK)


def drift_of_lookup(size: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
    """Return the square of how far rounding may move the gradient of a table of `numbers` numbers in a sum."""
    unit = FLOAT64_UNIT if dtype == torch.float64 else FLOAT32_UNIT
    return size * ((4 * unit + gamma(_scatter_block(numbers) + _ADDED_BLOCKS, unit)) ** 2 * SLACK)


def _scaling(dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Return the relative rounding of the scaled operand of a product and of the other operand."""
    if dtype in _HALF_ROUNDING:
        return 1.01 * _HALF_ROUNDING[dtype], 0.0
    if dtype == torch.float64:
        return 4 * FLOAT64_UNIT, 0.0
    truncation = _TRUNCATION.get(product_precision(device), 0.0)
    return 1.01 * truncation + 4 * FLOAT32_UNIT, 1.01 * truncation


def _summing(dtype: torch.dtype, device: torch.device) -> float:
    unit = FLOAT64_UNIT if dtype == torch.float64 else FLOAT32_UNIT
    if (
        device.type == "cuda"
        and dtype != torch.float64
        and (dtype in _HALF or product_precision(device) in _TRUNCATION)
    ):
        unit = TENSOR_CORE_UNIT
    return gamma(_block(device) + _ADDED_BLOCKS, unit)


def _block(device: torch.device) -> int:
    return _BLOCKS.get(device.type, _BLOCKS["cpu"])


def operand_truncation(dtype: torch.dtype, device: torch.device) -> float:
    """Return the relative truncation of a number of this type before a device multiplies it."""
    return 1.01 * _TRUNCATION.get(product_precision(device), 0.0) if dtype == torch.float32 else 0.0


def product_precision(device: torch.device) -> str:
    """Return the precision of float32 matrix products on a device: "ieee" or "none" for full precision, or its name."""
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    chosen = str(backend.matmul.fp32_precision)
    return str(getattr(torch.backends, "fp32_precision", chosen)) if chosen == "none" else chosen
