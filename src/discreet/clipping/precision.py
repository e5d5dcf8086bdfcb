"""Products that accumulate in float32 or wider, and how much rounding a clip must leave room for.

The model of rounding: an elementary operation errs by at most a relative unit roundoff u (2^-53 in float64, 2^-24 in
float32, 2^-23 for each addition in a tensor core), nothing underflows, and a sum may be formed in any order. The bounds
here follow from it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)
_HALF_ROUNDING = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
_CUTS = {"tf32": 2.0**-10, "bf16": 2.0**-8}  # one float32 number cut to the type in which a device multiplies
FLOAT64_UNIT, FLOAT32_UNIT = 2.0**-53, 2.0**-24
TENSOR_CORE_UNIT = 2.0**-23  # a sum in a tensor core is cut off, not rounded
# A sum over the rows of a batch is formed in blocks of so many terms, and the blocks are added. The bound on what
# rounding does to one term then depends neither on the size of the batch nor on other units, up to so many blocks.
_BLOCKS = {"cuda": 2**13, "cpu": 2**9}
# A block of a scatter costs a table, so a large table takes longer blocks. In it an id is rarely met often.
_SCATTER, _SCATTER_LARGE, _LARGE_TABLE = 2**9, 2**12, 2**20
_ADDED_BLOCKS = 2**8
SLACK = 1.02  # for products of roundings, and for figures that were themselves rounded


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type that sums are kept in: float64 for float64, float32 for everything else.

    >>> accumulator(torch.bfloat16)
    torch.float32
    """
    return torch.float64 if dtype == torch.float64 else torch.float32


def alike(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
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


def weighted_rows(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the weighted sum of the rows of a matrix, in float32 or wider, in blocks of rows.

    Half-precision rows are not widened in memory: the weights are split into two half-precision parts that together
    carry 16 bits, and the two sums are added.
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
    """Return a table of zeros to whose rows the gradients of their ids were added, in blocks of terms."""
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
    """Return what rounding may do to a sum of products, relative to the sum of their absolute values.

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
    at most e times the smaller of span and root(size). TF32 cuts r too, and each of the terms is rounded by `gamma`.
    """
    scaling, cut = _scaling(dtype, device)
    return (scaling * torch.minimum(size.sqrt(), span) + (cut + _summing(dtype, device)) * span).square() * SLACK


def drift_of_rows(squares: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the square of how far rounding may move gradients that were kept whole, when they are summed."""
    wide = accumulator(dtype)
    scaling, cut = _scaling(wide, device)
    if dtype in _HALF and device.type == "cuda":
        scaling = max(scaling, 2.0**-17 if dtype == torch.bfloat16 else 2.0**-21)
    return squares * ((scaling + cut + _summing(wide, device)) ** 2 * SLACK)


def drift_of_lookup(size: Tensor, numbers: int, dtype: torch.dtype) -> Tensor:
    """Return the square of how far rounding may move the gradient of a table of so many numbers, when it is summed."""
    unit = FLOAT64_UNIT if dtype == torch.float64 else FLOAT32_UNIT
    return size * ((4 * unit + gamma(_scatter_block(numbers) + _ADDED_BLOCKS, unit)) ** 2 * SLACK)


def _scaling(dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Return the relative rounding of the operand that is scaled, and of the other, on their way into a product."""
    if dtype in _HALF_ROUNDING:
        return 1.01 * _HALF_ROUNDING[dtype], 0.0
    if dtype == torch.float64:
        return 4 * FLOAT64_UNIT, 0.0
    cut = _CUTS.get(product_precision(device), 0.0)
    return 1.01 * cut + 4 * FLOAT32_UNIT, 1.01 * cut


def _summing(dtype: torch.dtype, device: torch.device) -> float:
    unit = FLOAT64_UNIT if dtype == torch.float64 else FLOAT32_UNIT
    if device.type == "cuda" and dtype != torch.float64 and (dtype in _HALF or product_precision(device) in _CUTS):
        unit = TENSOR_CORE_UNIT
    return gamma(_block(device) + _ADDED_BLOCKS, unit)


def _block(device: torch.device) -> int:
    return _BLOCKS.get(device.type, _BLOCKS["cpu"])


def operand_cut(dtype: torch.dtype, device: torch.device) -> float:
    """Return by how much, relatively, a device cuts a number of this type before it multiplies it."""
    return 1.01 * _CUTS.get(product_precision(device), 0.0) if dtype == torch.float32 else 0.0


def product_precision(device: torch.device) -> str:
    """Return the precision in which a device multiplies float32 matrices: "ieee" or "none" in full, else its name."""
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    chosen = str(backend.matmul.fp32_precision)
    return str(getattr(torch.backends, "fp32_precision", chosen)) if chosen == "none" else chosen
