"""Whether an example's loss depends on that example alone, tested on several batches.

Whether a unit's gradient is the same, bit for bit, whoever else is in its batch and wherever it stands in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError

_TOLERANCE = 1e-3
_LEAST, _MOST = 4, 8  # rows of a batch that is tried: three rows may mix where two do not

Losses = Callable[[Tensor], Tensor]


def check_independent(tape: Tape, losses_of: Losses, rows: int) -> None:
    """Reject a model in which one example's loss depends on another example of the batch.

    `losses_of` runs the model on some rows of a batch, given by their indices, and returns their losses. Two batches
    are tried, each of 4 to 8 rows: different rows, and an arrangement in which some rows repeat. In both, the gradient
    of every row's loss must be zero in every other row, and every row's loss and gradient must be the same when the
    others are left out and when the order is reversed (unless the losses are random even without dropout). It takes
    about 50 small passes: call it once, before training.

    Guarantee: none; it looks at the rows it is given and says only yes or no.
    """
    if rows < 2:
        raise UnsupportedError(f"Expected rows to be >= 2, got {rows}. One example alone depends on no other.")
    for batch in _batches(rows):
        _check_gradients(tape, losses_of, batch)
        with _repeatable(tape, losses_of, batch) as repeatable:
            if repeatable:
                _check_values(tape, losses_of, batch)


def _batches(rows: int) -> list[Tensor]:
    """Return the indices of the batches to try: rows spread over all of them, and repeated rows in another order."""
    spread = torch.linspace(0, rows - 1, min(rows, _MOST)).round().long()
    size = max(_LEAST, min(rows, _MOST))
    repeated = spread[torch.randint(len(spread), (size,), generator=torch.Generator().manual_seed(0))]
    repeated[-2:] = spread[:2]  # two rows that differ, and at least one that stands there twice
    repeated[0] = repeated[-1]
    return [spread, repeated] if len(spread) >= _LEAST else [spread, spread.repeat(_LEAST)[:_LEAST], repeated]


def _check_gradients(tape: Tape, losses_of: Losses, batch: Tensor) -> None:
    for row in range(len(batch)):
        with tape:
            losses = losses_of(batch)
        seeds = torch.zeros_like(losses)
        seeds[row] = 1
        norms = tape.backward(losses, seeds=seeds).norms().cpu()
        norms[row] = 0
        if bool((norms != 0).any()):
            other = int((norms != 0).nonzero()[0])
            raise UnsupportedError(
                f"Expected the loss of row {row} to depend on that row alone, found a gradient in row {other}. The "
                "model or its loss mixes the examples of a batch; put the batch first and normalise within a row."
            )


def _check_values(tape: Tape, losses_of: Losses, batch: Tensor) -> None:
    losses, norms = _measured(tape, losses_of, batch)
    reversed_losses, reversed_norms = (values.flip(0) for values in _measured(tape, losses_of, batch.flip(0)))
    _refuse_changed("in another order", losses, reversed_losses, "loss")
    _refuse_changed("in another order", norms, reversed_norms, "gradient norm")
    alone = [_measured(tape, losses_of, batch[row : row + 1]) for row in range(len(batch))]
    _refuse_changed("without the other rows", losses, torch.cat([loss for loss, _ in alone]), "loss")
    _refuse_changed("without the other rows", norms, torch.cat([norm for _, norm in alone]), "gradient norm")


def _measured(tape: Tape, losses_of: Losses, batch: Tensor) -> tuple[Tensor, Tensor]:
    with tape:
        losses = losses_of(batch)
    return losses.detach().double().cpu(), tape.backward(losses).norms().double().cpu()


def _refuse_changed(how: str, together: Tensor, apart: Tensor, what: str) -> None:
    scale = _TOLERANCE * (1 + together.abs()) if what == "loss" else _TOLERANCE * (together + together.max() + 1e-6)
    off = (together - apart).abs() > scale
    if bool(off.any()):
        row = int(off.nonzero()[0])
        raise UnsupportedError(
            f"Expected the {what} of row {row} the same {how}, found {apart[row].item():.6g} and "
            f"{together[row].item():.6g} as it was. The model or its loss mixes the examples of a batch."
        )


@contextmanager
def _repeatable(tape: Tape, losses_of: Losses, batch: Tensor) -> Iterator[bool]:
    """Switch dropout off if a model needs that to give the same losses twice, and say whether it then does."""

    def same() -> bool:
        with torch.no_grad():
            return torch.equal(losses_of(batch), losses_of(batch))

    if same():
        yield True
        return
    training: list[nn.Module] = [module for module in tape.model.modules() if module.training]
    tape.model.eval()
    try:
        yield same()
    finally:
        for module in training:
            module.training = True


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
    values = [tensor for slot in record.slots for tensor in slot.tensors()]
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


def _alike(base: Tensor, other: Tensor, order: Tensor) -> bool:
    places = (order < base.shape[1]).nonzero().flatten()
    return torch.equal(base[:, order[places]], other[:, places])
