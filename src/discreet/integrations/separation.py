"""Whether a unit's gradient depends on that unit alone, for a loss and a collate function that are the user's.

Two things can mix the units of a batch. A loss may use several rows (a contrastive loss, a normalization over the
batch); then clipping a unit's gradient does not bound what the unit changes. And kernels choose the order of their
sums by the shape of their input, so that a row's gradient is rounded by the rows beside it and by the width to which
it is padded with them; in bf16 that is several percent of the clip norm. Both are tried on made-up or public rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from discreet.clipping.clip import Flat, clipped_sum
from discreet.clipping.independence import bitwise_invariant, check_independent, recorded
from discreet.clipping.tape import Tape, tensors_in
from discreet.core.errors import DataError
from discreet.training.parts import BYTES_A_WEIGHT, fixed_kernels, free_on_cuda

Shape = tuple[Any, ...]
_LEAST_ROWS = 4  # of made-up rows: three rows may mix where two do not
_FEW_ROWS = 8  # of the smaller of two made-up parts whose peaks of memory are compared
_SHARE_OF_MEMORY = 0.5  # of what is free, for one part: the user's own rows may be longer than those made up
_MOST_FILLED = 8  # made-up rows with which a whole part is filled, to see that its shape stays the same


@dataclass
class Separation:
    """A loss function and made-up rows on which it is tried, for each size of part that a training uses.

    Parts of some units with some rows each are tried once (`prepare`), before the first of them is used.

    Guarantee: none; it reads made-up rows. It shows that the kernels in use do not let one made-up unit change another,
    and not that no input could make them do so.
    """

    tape: Tape
    losses_of: Callable[[Any], Tensor]
    rows: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    plain_attention: bool = False
    _shapes: dict[tuple[int, int], Shape | None] = field(default_factory=dict)  # None where units are not apart
    _pool: Mapping[str, Tensor] | None = None  # the rows, collated once, where the collate function draws at random

    def __post_init__(self) -> None:
        """Reject too few rows, and a loss in which one row depends on another."""
        if len(self.rows) < _LEAST_ROWS:
            raise DataError(
                f"Expected at least {_LEAST_ROWS} made-up rows, got {len(self.rows)}. Give rows of different lengths, "
                "as the collate function takes them."
            )
        with self._quiet():
            self._pool = self._drawn_once()
            check_independent(self.tape, lambda chosen: self._losses(chosen.tolist()), rows=len(self.rows))

    def prepare(self, units: int, rows_each: int) -> None:
        """Try parts of this size, unless they were tried; on a GPU this may switch fused attention off."""
        size = units, rows_each
        if units == 1 or size in self._shapes:
            return
        self._shapes[size] = self._try(units, rows_each)
        if self._shapes[size] is None and self._device.type == "cuda" and not self.plain_attention:
            self.plain_attention = True
            self._shapes = {size: self._try(units, rows_each)}

    def units_apart(self, units: int, rows_each: int, shape: Shape) -> bool:
        """Return whether units did not change each other in a part of this size, whose tensors had this shape."""
        return units == 1 or self._shapes.get((units, rows_each)) == shape

    def units_apart_in(self, units: int, values_of: Callable[[Any], Sequence[Tensor]]) -> bool:
        """Return whether made-up units have the same bits whatever others are in their part, one row each.

        `values_of` returns tensors with one entry for each unit of a collated part.
        """
        with self._quiet():
            return bitwise_invariant(lambda chosen: values_of(self._batch(chosen.tolist())), units, 1)

    def rows_that_fit(self) -> int | None:
        """Return how many rows of a part fit a GPU's memory, from the peaks of two made-up parts; None elsewhere."""
        device = self._device
        if device.type != "cuda":
            return None

        def peak(count: int) -> int:
            torch.cuda.synchronize(device)
            torch.cuda.reset_peak_memory_stats(device)
            before = torch.cuda.memory_allocated(device)
            with self.tape:
                losses = self._losses(range(count))
            clipped_sum(self.tape.backward(losses), Flat(1.0))
            torch.cuda.synchronize(device)
            return int(torch.cuda.max_memory_allocated(device)) - before

        with self._quiet():
            peak(_FEW_ROWS)  # the first time, libraries take memory of their own
            small, large = peak(_FEW_ROWS), peak(2 * _FEW_ROWS)
        each = max(1.0, (large - small) / _FEW_ROWS)
        weights = sum(p.numel() for p in self.tape.model.parameters() if p.requires_grad)
        room = _SHARE_OF_MEMORY * free_on_cuda(device) - weights * BYTES_A_WEIGHT - max(0.0, small - _FEW_ROWS * each)
        return max(1, int(room / each))

    @property
    def _device(self) -> torch.device:
        return next(self.tape.model.parameters()).device

    def _collated(self, numbers: Sequence[int]) -> Any:
        return self.collate([self.rows[number % len(self.rows)] for number in numbers])

    def _drawn_once(self) -> Mapping[str, Tensor] | None:
        """Return the collated rows if collating them again gives other values, as random masks of words are."""
        numbers = range(len(self.rows))
        batch, again = self._collated(numbers), self._collated(numbers)
        pairs = list(zip(tensors_in(batch), tensors_in(again), strict=False))
        if not isinstance(batch, Mapping) or all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
            return None
        rows = all(isinstance(value, Tensor) and value.shape[:1] == (len(self.rows),) for value in batch.values())
        return batch if rows else None

    def _batch(self, numbers: Sequence[int]) -> Any:
        if self._pool is None:
            return self._collated(numbers)
        at = torch.tensor([number % len(self.rows) for number in numbers])
        return {name: value[at.to(value.device)] for name, value in self._pool.items()}

    def _losses(self, numbers: Sequence[int]) -> Tensor:
        return self.losses_of(self._batch(numbers))

    def _try(self, units: int, rows_each: int) -> Shape | None:
        """Return the one shape of all parts of this size in which units do not change each other, or None."""
        shapes: set[Shape] = set()
        owners = torch.arange(units, device=self._device).repeat_interleave(rows_each) if rows_each > 1 else None

        def values_of(chosen: Tensor) -> list[Tensor]:
            numbers = (chosen[:, None] * rows_each + torch.arange(rows_each)).flatten().tolist()
            with fixed_kernels(self.plain_attention):
                with shapes_seen(self.tape.model) as seen, self.tape:
                    losses = self._losses(numbers)
                shapes.add(tuple(seen))
                return recorded(self.tape.backward(losses, owners))

        with self._quiet():
            steady = bitwise_invariant(values_of, units, 1)
            for number in range(min(len(self.rows), _MOST_FILLED)):  # a part of short rows alone, of long rows alone
                with shapes_seen(self.tape.model) as seen:
                    self.losses_of(self._collated([number] * (units * rows_each)))
                shapes.add(tuple(seen))
        return next(iter(shapes)) if steady and len(shapes) == 1 and all(shapes) else None

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Switch dropout off, and leave torch's random numbers and the modes of all modules as they were."""
        training = [module for module in self.tape.model.modules() if module.training]
        with ExitStack() as stack:
            devices = [self._device] if self._device.type == "cuda" else []
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.enter_context(fixed_kernels(self.plain_attention))
            self.tape.model.eval()
            try:
                yield
            finally:
                for module in training:
                    module.training = True


@contextmanager
def shapes_seen(model: torch.nn.Module) -> Iterator[list[Any]]:
    """Yield a list that receives what decides the kernels of the model's forward passes inside.

    These are the shapes and types of all tensors given to the model, and the precision in which it computes.
    """
    seen: list[Any] = []

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():  # and not an evaluation beside the training
            tensors = list(tensors_in([*args, *kwargs.values()]))
            seen.extend((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
            for kind in sorted({tensor.device.type for tensor in tensors}):
                cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
                seen.append((kind, cast, torch.get_float32_matmul_precision()))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
