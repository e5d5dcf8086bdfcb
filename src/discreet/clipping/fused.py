"""The figures of many pairs at once, one kernel launch each, where the kernels can be used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch

from discreet.clipping import kernels
from discreet.clipping.ghost import FLOOR
from discreet.clipping.precision import alike, gram_error, product_precision, scaling_roundoff
from discreet.clipping.slots import Pair, Sizes, Slot


def fused_sizes(slots: Sequence[Slot]) -> dict[str, Sizes]:
    """Return the sizes of those slots that the kernels can take, by parameter name."""
    groups: dict[tuple[torch.Size, torch.dtype], list[Pair]] = defaultdict(list)
    for slot in slots:
        if isinstance(slot, Pair) and slot.units.index is None and slot.inputs.shape[1] > 1 and _usable(slot):
            dtype = torch.promote_types(slot.inputs.dtype, slot.grads.dtype)
            groups[slot.inputs.shape[:2], dtype].append(slot)
    found: dict[str, Sizes] = {}
    for (shape, dtype), pairs in groups.items():
        device = pairs[0].inputs.device
        buffer = kernels.PairBuffer(len(pairs), shape[0], shape[1], device)
        for pair in pairs:
            inputs, grads = alike(pair.inputs, pair.grads)
            scaled, other = (inputs, grads) if pair.scales_inputs else (grads, inputs)
            buffer.launch(scaled, other, "tf32")  # half precision ignores the word
        squares, size, traces = buffer.figures()
        width = max(max(pair.shape) for pair in pairs)
        errors = size * gram_error(dtype, width, shape[1]) + FLOOR * traces
        drifts = size * scaling_roundoff(dtype, device) ** 2
        columns = zip(pairs, squares.unbind(), errors.unbind(), drifts.unbind(), strict=True)
        found |= {pair.name: Sizes(square, error, drift) for pair, square, error, drift in columns}
    return found


def _usable(slot: Pair) -> bool:
    if not kernels.usable(slot.inputs, slot.grads):
        return False
    half = slot.inputs.element_size() == 2 and slot.grads.element_size() == 2
    return half or product_precision(slot.inputs.device) == "tf32"
