"""Whether a unit's gradient is the same, bit for bit, whoever else is in its batch and wherever it stands in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from discreet.clipping.record import Record
from discreet.clipping.slots import Lookup, Pair, Slot, Vectors

_SEED = 0
_NUMBERS_AT_ONCE = 1 << 24


def bitwise_invariant(values_of: Callable[[Tensor], Sequence[Tensor]], units: int, full: int) -> bool:
    """Whether all that is computed of a unit stays the same when the others are exchanged and all change places.

    `values_of` returns what is computed for a batch of `units` units, given by their numbers in a pool of twice as
    many, as tensors with one entry for each unit: `recorded(record)` for gradients. Units whose number is a multiple of
    `full` have no padding. Three batches of one shape are compared: the first units, an arrangement of half of them
    among others, and one of unpadded units alone, for which a model may leave out its mask.

    Guarantee: none; give it units that are made up. It shows that the kernels in use on this device do not let one unit
    change another for one shape, and not that no input could make them do so.
    """
    if units < 2:
        return True
    generator = torch.Generator().manual_seed(_SEED)
    first = torch.arange(units)
    kept = torch.randperm(units, generator=generator)[: (units + 1) // 2]
    others = units + torch.randperm(units, generator=generator)[: units - len(kept)]
    mixed = torch.cat((kept, others))[torch.randperm(units, generator=generator)]
    unpadded = torch.arange(0, units, full).roll(1).repeat(units)[:units]
    base = _fingerprints(values_of(first), units)
    return all(_alike(base, _fingerprints(values_of(order), units), order) for order in (mixed, unpadded))


def recorded(record: Record) -> list[Tensor]:
    """Return what decides how much each unit adds to a sum: the factors of its gradients, and its norm."""
    values = [tensor for slot in record.slots for tensor in _tensors(slot)]
    return [*values, record.upper_norms(), record.norms()]


def _fingerprints(values: Sequence[Tensor], units: int) -> Tensor:
    """Return 64 bits for each tensor and unit, (tensors, units)."""
    return torch.stack([_fingerprint(value.reshape(units, -1)).cpu() for value in values])


def _fingerprint(values: Tensor) -> Tensor:
    """Return the bits of each row as one integer: their sum with random weights, modulo 2^64.

    Whole numbers add up the same in any order. A record takes most of a GPU's memory, so no second one is kept.
    """
    bits = values.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.itemsize])
    generator = torch.Generator().manual_seed(_SEED)
    total = torch.zeros(len(bits), dtype=torch.int64, device=bits.device)
    step = max(1, _NUMBERS_AT_ONCE // max(1, len(bits)))
    for some in torch.split(bits, step, dim=1):
        weights = torch.randint(-(2**62), 2**62, (some.shape[1],), generator=generator).to(bits.device)
        total += (some.long() * (2 * weights + 1)).sum(1)
    return total


def _tensors(slot: Slot) -> tuple[Tensor, ...]:
    if isinstance(slot, Pair):
        return slot.inputs, slot.grads
    if isinstance(slot, Lookup):
        return slot.ids, slot.grads
    assert isinstance(slot, Vectors)
    return (slot.values,)


def _alike(base: Tensor, other: Tensor, order: Tensor) -> bool:
    places = (order < base.shape[1]).nonzero().flatten()
    return torch.equal(base[:, order[places]], other[:, places])
