"""Products that accumulate in float32 or wider, and how much rounding a clip must leave room for.

The model of rounding: an elementary operation errs by at most a relative unit roundoff u (2^-53 in float64, 2^-24 in
float32, 2^-23 for each addition in a tensor core), nothing underflows, and a sum may be formed in any order. The bounds
here follow from it.

How long a unit's gradient may be, and the sum of gradients cut to that length.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from discreet.clipping.kernels import capturing
from discreet.clipping.record import Record
from discreet.core.errors import invalid, positive

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


# Relative room for what no slot counts: the sums of squares themselves and the division (measured below 2e-7).
_MARGIN = 2.0**-21
_LEAST = 1e-12


class Clip(Protocol):
    """A rule that gives every unit a factor, so that no unit adds more than `sensitivity` to the sum."""

    @property
    def sensitivity(self) -> float:
        """The most one unit adds to the sum, as a Euclidean norm."""
        ...

    def factors(self, record: Record) -> Tensor | dict[str, Tensor]:
        """Return each unit's factor, for all layers or layer by layer."""
        ...


@dataclass(frozen=True)
class Flat:
    """Cut the whole gradient of a unit to norm at most `norm`.

    >>> Flat(0.0)
    Traceback (most recent call last):
    ...
    discreet.core.errors.SettingError: Expected norm to be > 0 and finite, got 0.0. It bounds ...
    """

    norm: float

    def __post_init__(self) -> None:
        """Refuse a norm that is no bound."""
        _bound("norm", self.norm)

    @property
    def sensitivity(self) -> float:
        """The most one unit adds to the sum."""
        return self.norm

    def factors(self, record: Record) -> Tensor:
        """Return each unit's factor."""
        return _cut(record.upper_norms(), self.norm)


@dataclass(frozen=True)
class PerLayer:
    """Cut each layer's gradient of a unit on its own: all layers to norm/sqrt(layers), or each to its own bound.

    >>> PerLayer(bounds={"encoder": 3.0, "head": 4.0}).sensitivity
    5.0
    """

    norm: float | None = None
    bounds: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        """Refuse both, neither, or a bound that is none."""
        if (self.norm is None) == (self.bounds is None):
            raise invalid(
                "norm",
                self.norm,
                "given where bounds are not, and left out where they are",
                "One of the two says how long each layer may be.",
            )
        if self.norm is not None:
            _bound("norm", self.norm)
        for layer, bound in (self.bounds or {}).items():
            _bound(f"bounds[{layer!r}]", bound)

    @property
    def sensitivity(self) -> float:
        """The most one unit adds to the sum over all layers."""
        if self.norm is not None:
            return self.norm
        return math.sqrt(sum(bound**2 for bound in (self.bounds or {}).values()))

    def factors(self, record: Record) -> dict[str, Tensor]:
        """Return each unit's factor, layer by layer."""
        layers = record.layers
        if self.norm is not None:
            bounds: Mapping[str, float] = dict.fromkeys(layers, self.norm / math.sqrt(max(len(layers), 1)))
        else:
            bounds = self.bounds or {}
            odd = sorted(set(bounds) ^ set(layers))
            if odd:
                raise invalid(
                    "bounds", odd[0], "names of every trainable layer and no other", f"Layers: {', '.join(layers)}."
                )
        return {layer: _cut(record.upper_norms(layer), bounds[layer]) for layer in layers}


@dataclass(frozen=True)
class Automatic:
    """Normalise instead of clipping: every gradient is divided by its norm plus `stability`, then scaled to `norm`.

    Paper: Bu et al. 2023, Automatic clipping: differentially private deep learning made easier and stronger.
    """

    norm: float = 1.0
    stability: float = 0.01

    def __post_init__(self) -> None:
        """Refuse a norm or a stability that is none."""
        _bound("norm", self.norm)
        positive("stability", self.stability, "It keeps small gradients small; the paper takes 0.01.")

    @property
    def sensitivity(self) -> float:
        """The most one unit adds to the sum."""
        return self.norm

    def factors(self, record: Record) -> Tensor:
        """Return each unit's factor."""
        return self.norm / (record.upper_norms() * (1 + _MARGIN) + self.stability)


@dataclass(frozen=True)
class ClippedSum:
    """The sum of clipped gradients by parameter name, with each unit's norm before and the factor it was given.

    Guarantee: none by itself; no unit adds more than the clip's sensitivity to `gradients`, which is what noise needs.
    `norms` and `factors` are private, one number for each unit.
    """

    gradients: dict[str, Tensor]
    norms: Tensor
    factors: Tensor | dict[str, Tensor]

    def __len__(self) -> int:
        """Return the number of units."""
        return self.norms.shape[0]

    def __add__(self, other: ClippedSum) -> ClippedSum:
        """Return the sum of two parts of a large batch, as if it had been one; no unit may stand in both."""
        gradients = {
            name: g if g is other.gradients[name] else g + other.gradients[name] for name, g in self.gradients.items()
        }
        return ClippedSum(gradients, torch.cat((self.norms, other.norms)), _joined(self.factors, other.factors))


def clipped_sum(record: Record, clip: Clip, *, keep: bool = False, into: dict[str, Tensor] | None = None) -> ClippedSum:
    """Return the sum over units of their clipped gradients, and free the record unless told to keep it.

    A unit whose gradient is not finite adds nothing: that is a rule about this unit alone, as any clip is.
    With `into`, the sum is added to those tensors and they are returned: a large batch in parts.

    Guarantee: none by itself. No unit adds more than `clip.sensitivity` to the sum, rounding in the scaled products
    counted in; the sum itself is private until noise is added.
    """
    with torch.no_grad():
        norms = record.norms()
        if not capturing(norms):  # whoever replays a recorded graph reads the norms
            broken = ~torch.isfinite(norms)
            if bool(broken.any()):
                record.blank(broken)
        factors = clip.factors(record)
        gradients = record.weighted_sum(factors, keep=keep, into=into)
    return ClippedSum(gradients, norms, factors)


def _bound(name: str, value: float) -> None:
    positive(name, value, "It bounds what one unit adds to the sum.")
    if value < _LEAST:
        raise invalid(name, value, f">= {_LEAST}", "Squares of smaller norms fall below float32.")


def _cut(norms: Tensor, bound: float) -> Tensor:
    return (bound * (1 - _MARGIN) / norms).clamp_max(1.0)


def _joined(one: Tensor | dict[str, Tensor], other: Tensor | dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.cat((one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return {layer: torch.cat((f, other[layer])) for layer, f in one.items()}
    raise invalid("factors", "both kinds", "from one kind of clipping", "Add parts that were clipped alike.")
