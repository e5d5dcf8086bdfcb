"""Norms of per-example gradients from their factors, without forming the gradients.

The gradient of a weight is a sum over time of outer products, g = sum_t l_t r_t^T, so its squared norm is the inner
product of two Gram matrices, <L L^T, R R^T>, each of the size of the sequence and not of the weight.

Where steps cancel, that inner product is a small difference of large terms. So the Gram matrices are formed in float64,
except from half precision on a GPU (and from TF32 in `kernels`), where they are formed in float32 on tensor cores; and
a proven bound on what rounding did is carried along with each squared norm.

Paper: Goodfellow 2015, Efficient per-example gradient computations; Li et al. 2022, Large language models can be strong
differentially private learners (the form for sequences); Bu et al. 2023, Differentially private optimization on large
model at small cost (norms and sums from one backward pass).
Differs: the error that rounding may cause is carried along with each norm, so that a clip can leave room for it.

The sizes and sums of many slots at once, one kernel launch for each shape, where the kernels can be used.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from discreet.clipping import kernels
from discreet.clipping.precision import (
    FLOAT32_UNIT,
    FLOAT64_UNIT,
    SLACK,
    TENSOR_CORE_UNIT,
    alike,
    batched,
    drift_of_pair,
    drift_of_rows,
    gamma,
    operand_cut,
    product_precision,
)
from discreet.clipping.slots import Pair, Sizes, Slot, Vectors

_CHUNK_BYTES = 2**26
# Squares of numbers below 1e-19 vanish in float32. What they may have hidden is at most this, times the other factor.
FLOOR = 1e-30


class Figures(NamedTuple):
    """What is known of sum_t s_t o_t^T for each unit, s being the factor that is scaled before the sum is formed.

    `size` is tr(S S^T) times a bound on the largest eigenvalue of O O^T, `span` is sum_t |s_t| |o_t|. `error` bounds
    what rounding did to `squares`.
    """

    squares: Tensor
    size: Tensor
    span: Tensor
    error: Tensor


def gram(rows: Tensor) -> Tensor:
    """Return the inner products of the rows of each unit, (units, time, time), in float64.

    Half precision on a GPU is multiplied on tensor cores and summed in float32, unless a graph is kept.
    """
    if rows.is_cuda and rows.element_size() == 2 and not (torch.is_grad_enabled() and rows.requires_grad):
        return batched(rows, rows.mT)
    if rows.dtype == torch.float64:
        return torch.bmm(rows, rows.mT)
    step = max(1, _CHUNK_BYTES // max(8 * rows.shape[1] * rows.shape[2], 1))
    if rows.shape[0] <= step:
        wide = rows.double()
        return torch.bmm(wide, wide.mT)
    return torch.cat([gram(some) for some in torch.split(rows, step)])


def same(ids: Tensor, ignored: int | None) -> Tensor:
    """Return, for each unit, which pairs of places hold the same id: the Gram matrix of one-hot rows."""
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
    """Return the figures of `pair_sizes`, taking the Gram matrix of the inputs from `shared` if it is there."""
    length = inputs.shape[1]
    if inputs.shape[0] > _rows_at_once(length):
        return pair_sizes(inputs, grads) if scales_inputs else pair_sizes(grads, inputs)
    if key not in shared:
        shared.clear()  # only neighbours share: attention's query, key and value
        shared[key] = gram(inputs)
    first, second = shared[key], gram(grads)
    widths = inputs.shape[2], grads.shape[2]
    return from_grams(first, second, widths) if scales_inputs else from_grams(second, first, widths[::-1])


def from_grams(scaled: Tensor, other: Tensor, widths: tuple[int, int]) -> Figures:
    """Return the figures of `pair_sizes` from the two Gram matrices, and the widths they were summed over."""
    diagonals = scaled.diagonal(dim1=1, dim2=2), other.diagonal(dim1=1, dim2=2)
    span = (diagonals[0].detach() * diagonals[1].detach()).clamp_min(0).sqrt().sum(1)
    squares = (scaled * other).sum(2).sum(1)  # one after the other, so that a sum has 2 * time terms and not time^2
    wide = scaled.dtype == torch.float64
    traces = diagonals[0].sum(1), diagonals[1].sum(1)
    return bounded(squares, traces, _widest(other), span, (*widths, scaled.shape[1]), wide)


def bounded(
    squares: Tensor,
    traces: tuple[Tensor, Tensor],
    widest: Tensor,
    span: Tensor,
    shape: tuple[int, int, int],
    wide: bool,
) -> Figures:
    """Return squared norms with the figures that bound what rounding did to them; `shape` is (width, width, time).

    Each entry (t, s) of a Gram matrix is a sum of `width` products and errs by at most gamma_width |l_t| |l_s|. Nothing
    is assumed of how errors of different entries go together, so their sum, times the entries of the other matrix, is
    bounded by gamma_width span^2; the sum over all entries adds gamma of its own.
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
    for some_ids, some_grads in zip(torch.split(ids, step), torch.split(grads, step), strict=True):
        inner, equal = gram(some_grads), same(some_ids, ignored)
        size = inner.diagonal(dim1=1, dim2=2).sum(1) * equal.sum(2).amax(1) * SLACK
        unit = FLOAT64_UNIT if inner.dtype == torch.float64 else TENSOR_CORE_UNIT
        error = size * gamma(grads.shape[-1] + 2 * ids.shape[1] + 8, unit)
        parts.append(Figures(torch.where(equal, inner, 0).sum(2).sum(1), size, size.sqrt(), error))
    return _joined(parts)


def exact_pair(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return one unit's squared norm from its gradient, formed in float64, and a bound on its error.

    The factors are (time, width). Each number of the gradient errs by gamma_time of its absolute terms, so the norm
    errs by gamma_time span: relative to the terms, and not, as with Gram matrices, relative to their squares.
    """
    left, right = left.double(), right.double()
    span = (left.square().sum(1) * right.square().sum(1)).sqrt().sum()
    return _formed(left.mT @ right, span, left.shape[0])


def exact_lookup(ids: Tensor, grads: Tensor, ignored: int | None) -> tuple[Tensor, Tensor]:
    """Return the same for an embedding, from ids of shape (time,) and gradients of shape (time, width)."""
    grads = grads.double()
    if ignored is not None:
        grads = grads * (ids != ignored)[:, None]
    found, place = torch.unique(ids, return_inverse=True)
    table = grads.new_zeros(found.shape[0], grads.shape[1]).index_add(0, place, grads)
    return _formed(table, grads.square().sum(1).sqrt().sum(), ids.shape[0])


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
    # The largest sum of absolute values in a row bounds the largest eigenvalue, and squares nothing.
    return torch.amax(torch.linalg.vector_norm(gram.detach(), 1, dim=2), 1)


# Sums over kept gradients are formed for this many bytes at a time, and what they were formed from is freed.
_SUM_BYTES = 2**28


def fused_sizes(slots: Sequence[Slot]) -> dict[str, Sizes]:
    """Return the sizes of those slots that the kernels can take, by parameter name."""
    pairs: dict[tuple[torch.Size, torch.dtype], list[Pair]] = defaultdict(list)
    kept: dict[tuple[torch.Size, torch.dtype], list[Vectors]] = defaultdict(list)
    for slot in slots:
        if isinstance(slot, Pair) and _takes_pair(slot):
            dtype = torch.promote_types(slot.inputs.dtype, slot.grads.dtype)
            pairs[slot.inputs.shape[:2], dtype].append(slot)
        elif takes_vectors(slot):
            assert isinstance(slot, Vectors)
            kept[slot.values.shape, slot.values.dtype].append(slot)
    found: dict[str, Sizes] = {}
    for (shape, dtype), group in pairs.items():
        found |= _pair_sizes(group, shape[1], dtype)
    for vectors in kept.values():
        squares = kernels.row_squares([slot.values for slot in vectors])
        errors = squares * gamma(kernels.SQUARES_TERMS, FLOAT32_UNIT)
        drifts = drift_of_rows(squares, torch.float32, squares.device)
        columns = zip(vectors, squares.unbind(), errors.unbind(), drifts.unbind(), strict=True)
        found |= {slot.name: Sizes(square, error, drift) for slot, square, error, drift in columns}
    return found


def fused_sums(slots: list[Vectors], weights: Tensor) -> dict[str, Tensor]:
    """Return the weighted sums of kept gradients by parameter name, and empty the list as they are formed."""
    found: dict[str, Tensor] = {}
    while slots:
        shape, dtype = slots[-1].values.shape, slots[-1].values.dtype
        some: list[Vectors] = []
        room = max(1, _SUM_BYTES // (shape.numel() * dtype.itemsize))
        while slots and len(some) < room and slots[-1].values.shape == shape and slots[-1].values.dtype == dtype:
            some.append(slots.pop())
        sums = kernels.weighted_rows([slot.values for slot in some], weights)
        found |= {slot.name: total.view(slot.shape) for slot, total in zip(some, sums.unbind(), strict=True)}
    return found


def takes_vectors(slot: Slot) -> bool:
    """Whether the kernels take a slot: a matrix whose gradients were kept."""
    return isinstance(slot, Vectors) and len(slot.shape) > 1 and slot.values.numel() > 0 and kernels.usable(slot.values)


def _takes_pair(slot: Pair) -> bool:
    if slot.units.index is not None or slot.inputs.shape[1] == 1 or not kernels.usable(slot.inputs, slot.grads):
        return False
    half = slot.inputs.element_size() == 2 and slot.grads.element_size() == 2
    return half or product_precision(slot.inputs.device) == "tf32"


def _pair_sizes(pairs: list[Pair], length: int, dtype: torch.dtype) -> dict[str, Sizes]:
    factors = []
    for pair in pairs:
        inputs, grads = alike(pair.inputs, pair.grads)
        factors.append((inputs, grads) if pair.scales_inputs else (grads, inputs))
    order, squares, first, second, widest, span = kernels.pair_figures(factors)
    width = max(max(pair.shape) for pair in pairs)
    figures = bounded(squares, (first, second), widest, span, (width, width, max(length, kernels.TILE)), wide=False)
    # TF32 cuts the factors before it multiplies them: the squares are those of factors each off by a relative cut.
    moved = figures.span * (2 * operand_cut(dtype, span.device))
    errors = figures.error + moved * (2 * (squares.clamp_min(0) + figures.error).sqrt() + moved)
    drifts = drift_of_pair(figures.size, figures.span, dtype, span.device)
    columns = zip(order, squares.unbind(), errors.unbind(), drifts.unbind(), strict=True)
    return {pairs[k].name: Sizes(square, error, drift) for k, square, error, drift in columns}
