"""Products that accumulate in float32, and how much rounding a clip must leave room for."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)
_HALF_ROUNDING = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12}
_FLOAT32_UNIT = 2.0**-24
_FLOAT32_PRODUCT = {"tf32": 2.0**-9, "bf16": 2.0**-7}


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


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product of two tensors of one type, accumulated and returned in float32 or wider."""
    if a.dtype not in _HALF:
        return torch.mm(a, b)
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32)
    return torch.mm(a.float(), b.float())


def weighted_rows(weights: Tensor, rows: Tensor) -> Tensor:
    """Return the weighted sum of the rows of a matrix, in float32 or wider.

    Half-precision rows are not widened in memory: the weights are split into two half-precision parts that together
    carry 16 bits, and the two sums are added.
    """
    if rows.dtype not in _HALF or not rows.is_cuda:
        return weights.to(accumulator(rows.dtype)) @ rows.to(accumulator(rows.dtype))
    high = weights.to(rows.dtype)
    low = (weights - high.float()).to(rows.dtype)
    return torch.mm(torch.stack((high, low)), rows, out_dtype=torch.float32).sum(0)


def scaling_roundoff(dtype: torch.dtype, device: torch.device) -> float:
    """Return a bound on the relative rounding of one operand when it is scaled and enters a matrix product.

    Half precision is rounded once, when it is scaled, by at most half a unit in the last place; one part in a hundred
    is added. With TF32 the scaled and the unscaled operand are each cut to eleven bits inside their products, by at
    most a unit. In float32 and float64 the figure is two units.
    """
    if dtype in _HALF_ROUNDING:
        return 1.01 * _HALF_ROUNDING[dtype]
    if dtype == torch.float64:
        return 2.0**-52
    return _FLOAT32_PRODUCT.get(product_precision(device), 2.0**-22)


def product_precision(device: torch.device) -> str:
    """Return the precision in which a device multiplies float32 matrices: "ieee" or "none" in full, else its name."""
    backend = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    chosen = str(backend.matmul.fp32_precision)
    return str(getattr(torch.backends, "fp32_precision", chosen)) if chosen == "none" else chosen


def gram_error(dtype: torch.dtype, width: int, length: int) -> float:
    """Return the error of a squared norm taken from two Gram matrices, relative to the product of their sizes.

    Each entry is a sum of `width` products rounded in the accumulator, so its error grows like the root of the width;
    errors of different entries are independent, so in their sum they shrink with the length.
    """
    unit = 2.0**-53 if dtype == torch.float64 else _FLOAT32_UNIT
    return unit * (1 + 2 * math.sqrt(width) / max(length, 1))
