"""Whether a unit's gradient depends on that unit alone, for a loss and a collate function that are the user's.

Two things can mix the units of a batch. A loss may use several rows (a contrastive loss, a normalization over the
batch); then clipping a unit's gradient does not bound what the unit changes. And kernels choose the order of their
sums by the shape of their input, so a row's gradient is rounded by the rows next to it and by the width to which it is
padded with them; in bf16 that is several percent of the clip norm. Both are tried on made-up or public rows, in the
mode in which the model is trained: what a model does in train mode only is part of the training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from discreet.clipping.clip import Flat, clipped_sum
from discreet.clipping.independence import (
    bitwise_invariant,
    check_independent,
    check_others,
    fingerprints,
    fixed_kernels,
    recorded,
)
from discreet.clipping.tape import Tape, tensors_in
from discreet.core.device import free_on_cuda
from discreet.core.errors import DataError, UnsupportedError
from discreet.integrations.draws import LEVELS, ConstantDraws
from discreet.integrations.handed import mapped
from discreet.integrations.watch import changed_by_rows, persistent_buffers, sums_of, tensors_of
from discreet.training.parts import BYTES_A_WEIGHT

Shape = tuple[Any, ...]
Modes = tuple[bool, ...]  # whether each module of the model is in train mode
Size = tuple[int, int]  # units of a part, and rows of each
_LEAST_ROWS = 4  # of made-up rows: three rows may mix where two do not
_FEW_ROWS = 8  # of the smaller of two made-up parts whose peaks of memory are compared
_SHARE_OF_MEMORY = 0.5  # of what is free, for one part: the user's own rows may be longer than those made up
# One made-up row is tried with these in place of, or times, its numbers: what a training row may hold.
_EXTREMES = {"a row with very large numbers": 1e6, "a row that is not a number": float("nan")}
_ABORTING = frozenset(
    {
        "binary_cross_entropy",
        "multinomial",
        "embedding",
        "index",
        "index_select",
        "gather",
        "scatter",
        "nll_loss_forward",
    }
)
_MOST_FILLED = 8  # made-up rows with which a whole part is filled, to see that its shape stays the same


@dataclass
class Separation:
    """A loss function and made-up rows on which it is tried, for each size of part and each mode of training.

    `writes` is whether the forward pass writes values of rows into the model: into tensors, numbers, other attributes.
    Writing into buffers that are saved with the model is rejected.

    Guarantee: none; it reads made-up rows. It shows that the kernels in use do not let one made-up unit change another,
    and not that no input could make them do so.
    """

    tape: Tape
    losses_of: Callable[[Any], Tensor]
    rows: Sequence[Any]
    collate: Callable[[list[Any]], Any]
    plain_attention: bool = False
    writes: bool = False
    _shapes: dict[tuple[Size, Modes], Shape | None] = field(default_factory=dict)  # None where units are not apart
    _independent: set[Modes] = field(default_factory=set)
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
        self._check_mode(modes_of(self.tape.model))

    def prepare(self, sizes: Sequence[Size]) -> None:
        """Try parts of all sizes that can occur, and on a GPU switch fused attention off if one of them needs it.

        Call it before private rows are read: the kernels of all units must not depend on which units came. Elsewhere
        nothing is switched, and sizes are tried when they occur.
        """
        if not self._can_switch or self.plain_attention:
            return
        model = self.tape.model
        for modes in dict.fromkeys((modes_of(model), tuple(True for _ in model.modules()))):
            with suppress(UnsupportedError):  # a mode in which the model cannot be trained
                if not all(self._is_steady(size, modes) for size in sizes):
                    self.plain_attention = True
                    self._shapes.clear()
                    return

    def units_apart(self, size: Size, shape: Shape, modes: set[Modes]) -> bool:
        """Return whether units did not change each other in a part of this size, whose tensors had this shape.

        `modes` are those in which the part was computed. A mode in which rows are mixed is rejected, also where a part
        holds one unit: what mixes rows may also carry them from one part to the next.
        """
        for mode in modes:
            self._check_mode(mode)
        if size[0] == 1:
            return True
        return len(modes) == 1 and all(self._is_steady(size, one) and self._shapes[size, one] == shape for one in modes)

    def units_apart_in(self, units: int, values_of: Callable[[Any], Sequence[Tensor]]) -> bool:
        """Return whether made-up units have the same bits whatever others are in their part, one row each.

        `values_of` returns tensors with one entry for each unit of a collated part; it replaces random draws itself.
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

    def _collated(self, numbers: Sequence[int], factors: Mapping[int, float] | None = None) -> Any:
        chosen = [self.rows[number % len(self.rows)] for number in numbers]
        for place, factor in (factors or {}).items():
            chosen[place] = _times(chosen[place], factor)
        return self.collate(chosen)

    def _drawn_once(self) -> Mapping[str, Tensor] | None:
        """Return the collated rows if collating them again gives other values, as random masks of words are."""
        numbers = range(len(self.rows))
        batch, again = self._collated(numbers), self._collated(numbers)
        pairs = list(zip(tensors_in(batch), tensors_in(again), strict=False))
        if not isinstance(batch, Mapping) or all(a.shape == b.shape and torch.equal(a, b) for a, b in pairs):
            return None
        rows = all(isinstance(value, Tensor) and value.shape[:1] == (len(self.rows),) for value in batch.values())
        return batch if rows else None

    def _batch(self, numbers: Sequence[int], factors: Mapping[int, float] | None = None) -> Any:
        """Return made-up rows, collated; the numbers in the rows at some places are multiplied by factors."""
        if self._pool is None:
            return self._collated(numbers, factors)
        at = torch.tensor([number % len(self.rows) for number in numbers])
        batch = {name: value[at.to(value.device)] for name, value in self._pool.items()}
        for place, factor in (factors or {}).items():
            for value in batch.values():
                value[place] = _times(value[place], factor)
        return batch

    def _losses(self, numbers: Sequence[int]) -> Tensor:
        return self.losses_of(self._batch(numbers))

    def _check_mode(self, modes: Modes) -> None:
        """Reject a loss in which one row depends on another in this mode, unless it was checked."""
        if modes in self._independent:
            return
        with self._quiet(modes):
            self._check_writes()
            if self._check_levels():
                self._check_independent(None)
            self._check_extremes()
        self._independent.add(modes)

    def _check_levels(self) -> bool:
        """Check with constants in place of random numbers, once for each way to compute; return whether any are drawn.

        A level that gives the losses and gradients of another one runs the same code, and is not checked again.
        """
        batch = torch.linspace(0, len(self.rows) - 1, min(len(self.rows), _MOST_FILLED)).round().int().tolist()
        tried: list[Tensor] = []
        drew = False
        for level in LEVELS:
            draws = ConstantDraws(level)
            with self.tape, draws:
                losses = self._losses(batch)
            values = [losses.detach(), *recorded(self.tape.backward(losses))]
            drew = drew or draws.drew
            if tried and not (draws.drew and bool(torch.isfinite(losses).all())):
                continue
            found = fingerprints(values, len(batch))
            if not any(torch.equal(found, other) for other in tried):
                self._check_independent(level)
                tried.append(found)
        return drew

    def _check_extremes(self) -> None:
        """Reject a loss in which rows change if one row next to them is extreme, as a training row may be."""
        batch = range(min(len(self.rows), _MOST_FILLED))
        row = next((number for number in batch if self._has_numbers(number)), None)
        if row is None:
            return

        def losses() -> Tensor:
            with ConstantDraws():
                return self._losses(batch)

        for what, factor in _EXTREMES.items():

            def changed(factor: float = factor) -> Tensor:
                with FirstOnCpu() if self._device.type == "cuda" else nullcontext(), ConstantDraws():  # type: ignore[no-untyped-call]
                    return self.losses_of(self._batch(batch, {row: factor}))

            check_others(self.tape, losses, changed, row, what)

    def _has_numbers(self, row: int) -> bool:
        """Return whether a made-up row has numbers that extreme ones can take the place of."""
        found: list[bool] = []
        one = self.rows[row] if self._pool is None else {name: value[row] for name, value in self._pool.items()}
        mapped(one, lambda value: found.append(_is_real(value)))
        return any(found)

    def _check_independent(self, level: float | None) -> None:
        def losses(chosen: Tensor) -> Tensor:
            if level is None:
                return self._losses(chosen.tolist())
            with ConstantDraws(level):
                return self._losses(chosen.tolist())

        check_independent(self.tape, losses, rows=len(self.rows))

    def _check_writes(self) -> None:
        """Reject a forward pass that writes rows into saved buffers; note one that writes them elsewhere."""
        model, half = self.tape.model, len(self.rows) // 2
        sums: list[dict[str, Any]] = []

        def forward(number: int) -> None:
            with self.tape, ConstantDraws():
                self._losses(range(number * half, (number + 1) * half))
            if len(sums) < 2:
                sums.append(sums_of(dict(tensors_of(model))))

        forward(0)  # which may make what all others only read
        kept = changed_by_rows(model, forward)
        changed = {name for name in sums[0].keys() | sums[1].keys() if sums[0].get(name) != sums[1].get(name)}
        for name, _ in persistent_buffers(model):
            if name in {one.lstrip(".") for one in changed}:
                raise learning_buffer(name)
        self.writes = self.writes or bool(changed) or kept

    def _is_steady(self, size: Size, modes: Modes) -> bool:
        if size[0] > 1 and (size, modes) not in self._shapes:
            with self._quiet(modes):
                self._shapes[size, modes] = self._try(*size)
        return size[0] == 1 or self._shapes[size, modes] is not None

    def _try(self, units: int, rows_each: int) -> Shape | None:
        """Return the one shape of all parts of this size in which units do not change each other, or None."""
        shapes: set[Shape] = set()
        owners = torch.arange(units, device=self._device).repeat_interleave(rows_each) if rows_each > 1 else None

        def values_of(chosen: Tensor) -> list[Tensor]:
            numbers = (chosen[:, None] * rows_each + torch.arange(rows_each)).flatten().tolist()
            with shapes_seen(self.tape.model) as seen, self.tape, ConstantDraws():
                losses = self._losses(numbers)
            shapes.add(seen.shape)
            return recorded(self.tape.backward(losses, owners))

        steady = bitwise_invariant(values_of, units, 1)
        for number in range(min(len(self.rows), _MOST_FILLED)):  # a part of short rows alone, of long rows alone
            with shapes_seen(self.tape.model) as seen, ConstantDraws():
                self.losses_of(self._collated([number] * (units * rows_each)))
            shapes.add(seen.shape)
        return next(iter(shapes)) if steady and len(shapes) == 1 and all(shapes) else None

    @property
    def _can_switch(self) -> bool:
        return self._device.type == "cuda"

    @contextmanager
    def _quiet(self, modes: Modes | None = None) -> Iterator[None]:
        """Leave torch's random numbers and the modes of all modules as they were; inside, use these modes."""
        modules = list(self.tape.model.modules())
        before = [module.training for module in modules]
        with ExitStack() as stack:
            devices = [self._device] if self._device.type == "cuda" else []
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.enter_context(fixed_kernels(self.plain_attention))
            try:
                for module, training in zip(modules, modes or before, strict=True):
                    module.training = training
                yield
            finally:
                for module, training in zip(modules, before, strict=True):
                    module.training = training


class FirstOnCpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Compute operations that a GPU aborts for bad values on the CPU first, where they raise an error instead.

    After such an abort no other operation of the process runs on the GPU.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, after a trial on the CPU."""
        if func._schema.name.partition("::")[2].rstrip("_") in _ABORTING:
            func(*mapped(args, _on_cpu), **mapped(kwargs or {}, _on_cpu))
        return func(*args, **(kwargs or {}))


def _on_cpu(value: Any) -> Any:
    return value.cpu() if isinstance(value, Tensor) else value


def _is_real(value: Any) -> bool:
    """Return whether a value holds numbers that are not whole: those that are may be classes, or places in a table."""
    if isinstance(value, Tensor | np.ndarray | np.floating | float):
        numbers = torch.as_tensor(value)
        return numbers.is_floating_point() and bool((numbers != numbers.round()).any())
    return False


def _times(row: Any, factor: float) -> Any:
    """Return a row with all of its numbers multiplied, but those that are whole."""
    return mapped(row, lambda value: value * factor if _is_real(value) else value)


def learning_buffer(name: str) -> UnsupportedError:
    """Return the error about a buffer that the forward pass changes."""
    return UnsupportedError(
        f"Expected buffer {name!r} unchanged by the forward pass. It is saved with the model, and what it learns from "
        "private rows is not protected; switch its updates off."
    )


def modes_of(model: torch.nn.Module) -> Modes:
    """Return whether each module of a model is in train mode."""
    return tuple(module.training for module in model.modules())


@dataclass
class Seen:
    """What the forward passes of a model were given, and the modes in which they ran."""

    entries: list[Any] = field(default_factory=list)
    modes: set[Modes] = field(default_factory=set)

    @property
    def shape(self) -> Shape:
        """What decides the kernels besides the modes."""
        return tuple(self.entries)


@contextmanager
def shapes_seen(model: torch.nn.Module) -> Iterator[Seen]:
    """Yield an object that receives what decides the kernels of the model's forward passes inside.

    These are the shapes and types of all tensors given to the model, the precision in which it computes, and the modes
    of its modules.
    """
    seen = Seen()

    def note(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled():  # and not an evaluation next to the training
            seen.modes.add(modes_of(module))
            tensors = list(tensors_in([*args, *kwargs.values()]))
            seen.entries.extend((tuple(tensor.shape), tensor.dtype) for tensor in tensors)
            for kind in sorted({tensor.device.type for tensor in tensors}):
                cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
                seen.entries.append((kind, cast, torch.get_float32_matmul_precision()))

    handle = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()
