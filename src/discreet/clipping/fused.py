"""The sizes and sums of many slots at once, one kernel launch for each shape, where the kernels can be used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from discreet.clipping import kernels
from discreet.clipping.ghost import bounded
from discreet.clipping.precision import (
    FLOAT32_UNIT,
    alike,
    drift_of_pair,
    drift_of_rows,
    gamma,
    operand_cut,
    product_precision,
)
from discreet.clipping.slots import Pair, Sizes, Slot, Vectors

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
