"""Norms of per-example gradients from their factors, without forming the gradients.

The gradient of a weight is a sum over time of outer products, g = sum_t l_t r_t^T, so its squared norm is the inner
product of two Gram matrices, <L L^T, R R^T>, each of the size of the sequence and not of the weight.

Paper: Goodfellow 2015, Efficient per-example gradient computations; Li et al. 2022, Large language models can be strong
differentially private learners (the form for sequences); Bu et al. 2023, Differentially private optimization on large
model at small cost (norms and sums from one backward pass).
Differs: the error that rounding may cause is carried along with each norm, so that a clip can leave room for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from discreet.clipping.precision import batched

_CHUNK_BYTES = 2**26
# Squares of numbers below 1e-19 vanish in float32. What they may have hidden is at most this, times the other factor.
FLOOR = 1e-30

Figures = tuple[Tensor, Tensor, Tensor]


def gram(rows: Tensor) -> Tensor:
    """Return the inner products of the rows of each unit, (units, time, time), in float32 or wider."""
    return batched(rows, rows.mT)


def same(ids: Tensor, ignored: int | None) -> Tensor:
    """Return, for each unit, which pairs of places hold the same id: the Gram matrix of one-hot rows."""
    equal = ids[:, :, None] == ids[:, None, :]
    if ignored is not None:
        equal &= (ids != ignored)[:, :, None]
    return equal


def pair_sizes(scaled: Tensor, other: Tensor) -> Figures:
    """Return the squared norms of sum_t s_t o_t^T, and the figures that bound what rounding does to them.

    The second figure is tr(S S^T) times a bound on the largest eigenvalue of O O^T: rounding each entry of S by a
    relative e moves the gradient by at most e times the root of it, and rounding in the Gram matrices moves the squared
    norm by a small multiple of it. The third is what may have vanished below the range of float32.
    """
    units, length = scaled.shape[:2]
    if length == 1:
        first, second = _row_squares(scaled[:, 0]), _row_squares(other[:, 0])
        return first * second, first * second, FLOOR * (first + second)
    step = _rows_at_once(length)
    if units <= step:
        return from_grams(gram(scaled), gram(other))
    pairs = zip(torch.split(scaled, step), torch.split(other, step), strict=True)
    return _joined([from_grams(gram(s), gram(o)) for s, o in pairs])


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
    return from_grams(first, second) if scales_inputs else from_grams(second, first)


def from_grams(scaled: Tensor, other: Tensor) -> Figures:
    """Return the figures of `pair_sizes` from the two Gram matrices."""
    first, second = _trace(scaled), _trace(other)
    return (scaled * other).sum((1, 2)), first * _widest(other), FLOOR * (first + second)


def id_sizes(ids: Tensor, grads: Tensor, ignored: int | None) -> Figures:
    """Return the same figures for an embedding, whose gradient sums the rows that share an id."""
    step = _rows_at_once(ids.shape[1])
    parts = []
    for some_ids, some_grads in zip(torch.split(ids, step), torch.split(grads, step), strict=True):
        inner, equal = gram(some_grads), same(some_ids, ignored)
        size = _trace(inner) * equal.sum(2).amax(1)
        parts.append((torch.where(equal, inner, 0).sum((1, 2)), size, torch.zeros_like(size)))
    return _joined(parts)


def _rows_at_once(length: int) -> int:
    return max(1, _CHUNK_BYTES // max(8 * length * length, 1))


def _joined(parts: list[Figures]) -> Figures:
    squares, sizes, floors = (torch.cat(column) for column in zip(*parts, strict=True))
    return squares, sizes, floors


def _trace(gram: Tensor) -> Tensor:
    return gram.diagonal(dim1=1, dim2=2).sum(1)


def _widest(gram: Tensor) -> Tensor:
    # The largest sum of absolute values in a row bounds the largest eigenvalue, and squares nothing.
    return torch.amax(torch.linalg.vector_norm(gram, 1, dim=2), 1)


def _row_squares(rows: Tensor) -> Tensor:
    wide = rows if rows.dtype == torch.float64 else rows.float()
    return wide.square().sum(1)
