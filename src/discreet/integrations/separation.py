"""Whether a unit's gradient depends on that unit alone, for a loss and a collate function that are the user's.

Two things can mix the units of a batch. A loss may use several rows (a contrastive loss, a normalization over the
batch); then clipping a unit's gradient does not bound what the unit changes. And kernels choose the order of their
sums by the shape of their input, so that a row's gradient is rounded by the rows beside it and by the width to which
it is padded with them; in bf16 that is several percent of the clip norm. Both are tried on made-up or public rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from discreet.clipping.independence import bitwise_invariant, check_independent, recorded
from discreet.clipping.tape import Tape
from discreet.core.errors import DataError
from discreet.training.parts import fixed_kernels

Shape = tuple[Any, ...]
_LEAST_ROWS = 4  # of made-up rows: three rows may mix where two do not
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

    def __post_init__(self) -> None:
        """Reject too few rows, and a loss in which one row depends on another."""
        if len(self.rows) < _LEAST_ROWS:
            raise DataError(
                f"Expected at least {_LEAST_ROWS} made-up rows, got {len(self.rows)}. Give rows of different lengths, "
                "as the collate function takes them."
            )
        with self._quiet():
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

    @property
    def _device(self) -> torch.device:
        return next(self.tape.model.parameters()).device

    def _losses(self, numbers: Sequence[int]) -> Tensor:
        return self.losses_of(self.collate([self.rows[number % len(self.rows)] for number in numbers]))

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
                    self._losses([number] * (units * rows_each))
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
    """Yield a list that receives the shapes and types of all tensors given to the model inside."""
    seen: list[Any] = []

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():  # and not an evaluation beside the training
            seen.extend((tuple(t.shape), t.dtype) for t in tensors_in([*args, *kwargs.values()]))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested mappings, lists, tuples and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            yield from tensors_in(getattr(value, each.name))
