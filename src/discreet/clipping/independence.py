"""Tests of independence between the examples of a batch.

`check_independent` tests that the loss of an example depends on that example alone. `bitwise_invariant` tests that what
is computed for a unit has the same bits whatever the other units of the batch are, and whatever its position is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError

_TOLERANCE = 1e-3
_LEAST, _MOST = 4, 8  # rows of a test batch: a model may mix three rows but not two

Losses = Callable[[Tensor], Tensor]


def check_independent(tape: Tape, losses_of: Losses, rows: int) -> None:
    """Reject a model in which one example's loss depends on another example of the batch.

    `losses_of` runs the model on the rows of a batch with the given indices, and returns their losses. Two batches of 4
    to 8 rows are tested: one of different rows, and one in which rows repeat. In both, the gradient of every row's loss
    must be zero in every other row, and every row's loss and gradient norm must be the same without the other rows and
    in reversed order (unless the losses are random even without dropout). This takes about 50 small passes: call it
    once, before training.

    Args:
        tape: The recording of the model's layers.
        losses_of: Runs the model on the rows with the given indices, and returns their losses.
        rows: How many rows there are.

    Guarantee: none. It reads the rows and only reveals whether the test passes.
    """
    if rows < 2:
        raise UnsupportedError(f"Expected rows to be >= 2, got {rows}. One example alone depends on no other.")
    for batch in _batches(rows):
        _check_gradients(tape, losses_of, batch)
        with _repeatable(tape, losses_of, batch) as repeatable:
            if repeatable:
                _check_values(tape, losses_of, batch)


def check_others(tape: Tape, losses: Callable[[], Tensor], changed: Callable[[], Tensor], row: int, what: str) -> None:
    """Reject a model in which the losses or gradient norms of other rows change with one extreme row of a batch.

    `losses` computes a batch, and `changed` the same batch whose row number `row` is extreme, as `what` says. Nothing
    is compared if losses are random, or if the extreme row raises an error, which ends a training.

    Guarantee: none. It reads the rows and only reveals whether the test passes.
    """
    before = [_measured(tape, lambda _: losses(), torch.empty(0)) for _ in range(2)]
    if not all(torch.equal(one, other) for one, other in zip(*before, strict=True)):
        return
    try:
        after = _measured(tape, lambda _: changed(), torch.empty(0))
    except Exception:  # of the user's functions: nothing is released after one
        return
    for name, one, other in zip(("loss", "gradient norm"), before[0], after, strict=True):
        if len(one) != len(other):
            raise UnsupportedError(f"Expected {len(one)} losses next to {what}, got {len(other)}. Leave no row out.")
        others = torch.arange(len(one)) != row
        finite = others & torch.isfinite(one)
        if not bool(finite.any()):
            continue
        scale = _TOLERANCE * (1 + one.abs()) if name == "loss" else _TOLERANCE * (one + one[finite].max() + 1e-6)
        off = finite & ~((one - other).abs() <= scale)  # also where the other one is not a number
        if bool(off.any()):
            found = int(off.nonzero()[0])
            raise UnsupportedError(
                f"Expected the {name} of row {found} to be the same next to {what}, got {other[found].item():.6g} "
                f"instead of {one[found].item():.6g}. The model or its loss mixes the examples of a batch; treat a row "
                "by itself (torch.where, clamp), not the whole batch."
            )


def _batches(rows: int) -> list[Tensor]:
    """Return the indices of the test batches: rows spread over all of them, and repeated rows in another order."""
    spread = torch.linspace(0, rows - 1, min(rows, _MOST)).round().long()
    size = max(_LEAST, min(rows, _MOST))
    repeated = spread[torch.randint(len(spread), (size,), generator=torch.Generator().manual_seed(0))]
    repeated[-2:] = spread[:2]  # two different rows, and at least one that occurs twice
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
                f"Expected the loss of row {row} to depend on that row alone, got a gradient in row {other}. The model "
                "or its loss mixes the examples of a batch; put the batch first and normalize within a row."
            )


def _check_values(tape: Tape, losses_of: Losses, batch: Tensor) -> None:
    losses, norms = _measured(tape, losses_of, batch)
    reversed_losses, reversed_norms = (values.flip(0) for values in _measured(tape, losses_of, batch.flip(0)))
    _check_equal("in another order", losses, reversed_losses, "loss")
    _check_equal("in another order", norms, reversed_norms, "gradient norm")
    alone = [_measured(tape, losses_of, batch[row : row + 1]) for row in range(len(batch))]
    _check_equal("without the other rows", losses, torch.cat([loss for loss, _ in alone]), "loss")
    _check_equal("without the other rows", norms, torch.cat([norm for _, norm in alone]), "gradient norm")


def _measured(tape: Tape, losses_of: Losses, batch: Tensor) -> tuple[Tensor, Tensor]:
    with tape:
        losses = losses_of(batch)
    return losses.detach().double().cpu(), tape.backward(losses).norms().double().cpu()


def _check_equal(how: str, together: Tensor, apart: Tensor, what: str) -> None:
    scale = _TOLERANCE * (1 + together.abs()) if what == "loss" else _TOLERANCE * (together + together.max() + 1e-6)
    off = (together - apart).abs() > scale
    if bool(off.any()):
        row = int(off.nonzero()[0])
        raise UnsupportedError(
            f"Expected the {what} of row {row} to be the same {how}, got {apart[row].item():.6g} instead of "
            f"{together[row].item():.6g}. The model or its loss mixes the examples of a batch."
        )


@contextmanager
def _repeatable(tape: Tape, losses_of: Losses, batch: Tensor) -> Iterator[bool]:
    """Switch dropout off if the losses are random, and yield whether they are then repeatable."""

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
    """Return whether the values of a unit have the same bits when the other units and all positions change.

    `values_of` computes the values of a batch of `units` units, given by their indices in a pool of twice as many, as
    tensors with one entry per unit: `recorded(record)` for gradients. Units whose index is a multiple of `full` have no
    padding. Three batches of one shape are compared: the first units, half of them mixed with others in another order,
    and unpadded units only, for which a model may omit its mask.

    Guarantee: none. Use synthetic units. The test shows that the kernels on this device do not let one unit change
    another for these inputs of one shape. It is no proof for all inputs.
    """
    if units < 2:
        return True
    generator = torch.Generator().manual_seed(_SEED)
    first = torch.arange(units)
    retained = torch.randperm(units, generator=generator)[: (units + 1) // 2]
    others = units + torch.randperm(units, generator=generator)[: units - len(retained)]
    mixed = torch.cat((retained, others))[torch.randperm(units, generator=generator)]
    unpadded = torch.arange(0, units, full).roll(1).repeat(units)[:units]
    base = fingerprints(values_of(first), units)
    return all(_equal(base, fingerprints(values_of(order), units), order) for order in (mixed, unpadded))


def recorded(record: Record) -> list[Tensor]:
    """Return the tensors that determine each unit's contribution to a sum: its gradients' factors and its norm."""
    values = [tensor for slot in record.slots for tensor in slot.tensors()]
    return [*values, record.upper_norms(), record.norms()]


def fingerprints(values: Sequence[Tensor], units: int) -> Tensor:
    """Return a 64-bit fingerprint of each tensor and unit, (tensors, units)."""
    return torch.stack([_fingerprint(value.reshape(units, -1)).cpu() for value in values])


def _fingerprint(values: Tensor) -> Tensor:
    """Return a fingerprint of the bits of each row: their sum with random weights, modulo 2^64.

    Integer sums do not depend on the order. A record takes most of a GPU's memory, so no copy of it is stored.
    """
    bits = values.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.itemsize])
    generator = torch.Generator().manual_seed(_SEED)
    total = torch.zeros(len(bits), dtype=torch.int64, device=bits.device)
    step = max(1, _NUMBERS_AT_ONCE // max(1, len(bits)))
    for some in torch.split(bits, step, dim=1):
        weights = torch.randint(-(2**62), 2**62, (some.shape[1],), generator=generator).to(bits.device)
        total += (some.long() * (2 * weights + 1)).sum(1)
    return total


def _equal(base: Tensor, other: Tensor, order: Tensor) -> bool:
    places = (order < base.shape[1]).nonzero().flatten()
    return torch.equal(base[:, order[places]], other[:, places])


_SKIPS_MASKS = ("_ignore_bidirectional_mask_sdpa", "_ignore_causal_mask_sdpa")


@contextmanager
def fixed_kernels(plain_attention: bool = False) -> Iterator[None]:
    """Make a model choose its kernels by the shapes of its inputs, and not by their values.

    By default, transformers passes no attention mask if no row of a batch is padded, and another kernel then computes
    every row. With `plain_attention`, attention is computed by ordinary matrix products, because the fused kernels of a
    GPU may add in an order that changes from run to run.
    """
    masks = sys.modules.get("transformers.masking_utils")
    before = {name: getattr(masks, name) for name in _SKIPS_MASKS if hasattr(masks, name)}
    for name in before:
        setattr(masks, name, lambda *_, **__: False)
    try:
        with sdpa_kernel(SDPBackend.MATH) if plain_attention else nullcontext():
            yield
    finally:
        for name, skips in before.items():
            setattr(masks, name, skips)
