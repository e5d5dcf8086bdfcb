"""The parts into which a private batch is divided: their memory, and the independence of their units.

`data/shapes.py` says why a part has one of a few public shapes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.clipping.clip import Flat, clipped_sum
from discreet.clipping.independence import bitwise_invariant, fixed_kernels, recorded
from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.device import autocast, available_memory, free_on_cuda
from discreet.core.errors import ModelError
from discreet.core.randomness import Rng
from discreet.data.batches import Batch, Tokens, Vectors
from discreet.data.shapes import Part, Shapes
from discreet.models.base import TextModel
from discreet.models.encode import UNPADDED, pool_of

_SMALL = 0.05  # standard deviation of the numbers in place of zeros
_SHARE_OF_MEMORY = 0.8  # share of the free memory for one part; the allocator cannot use all of it
# Bytes per trained weight in addition to a part: its sum, the optimizer's two moments, noise in float64.
BYTES_A_WEIGHT = 24
_TEST_TOKENS = 2048  # tokens in the smaller of two synthetic parts whose peak memory is compared


@dataclass
class PrivateParts:
    """Divide the units of a batch into parts of fixed shapes.

    Synthetic rows of each shape show whether the kernels compute every unit independently, bit for bit. On a GPU all
    shapes of the public grid are tested before the first private row is read: if one fails, attention is computed by
    ordinary matrix products for all of them, whatever shapes the private units have. If that does not help either,
    `unsteady` is True, and the guarantee is an estimate. On a CPU there are no other kernels to change to, and a shape
    is tested when it is used for the first time. `most_rows` is the largest number of rows of a unit if that is public.

    Guarantee: none of its own. The parts depend on public facts, and on the lengths and rows of each unit alone; if
        memory runs out in a private step, all parts are halved, and `unsteady` says so.
    """

    model: TextModel
    tape: Tape
    rows: Tokens | Vectors
    precision: str
    shapes: Shapes
    plain_attention: bool = False
    unsteady: bool = False
    most_rows: int | None = None
    _prepared: bool = False
    _steady: dict[tuple[int, int, int], bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        model: TextModel,
        tape: Tape,
        rows: Tokens | Vectors,
        precision: str,
        expected_units: int,
        most_rows: int | None = None,
    ) -> PrivateParts:
        """Return the parts for a model, from the expected number of units and the memory of a synthetic step."""
        tokens = isinstance(rows, Tokens)
        device = model.device.type if tokens else "cuda"  # vectors are cheap: few large parts on any device
        shapes = Shapes.of(device, model.max_length if tokens else 1, expected_units)
        parts = cls(model, tape, rows, precision, shapes, most_rows=most_rows)
        return parts.fitted() if tokens else parts

    def fitted(self) -> PrivateParts:
        """Return the same with parts that fit into memory, as measured on synthetic rows."""
        weights = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        if self.model.device.type == "cuda":
            rows = rows_on_cuda(self.shapes, self._measure, self.model.device, weights * BYTES_A_WEIGHT)
        else:
            rows = rows_on_cpu(self.shapes, self.tape, weights * BYTES_A_WEIGHT)
        return replace(self, shapes=self.shapes.at_most(rows))

    def layout(self) -> dict[str, Any]:
        """Return the chosen shapes, so that a resumed training rounds as an uninterrupted one."""
        return {"rows": [list(pair) for pair in self.shapes.rows], "plain_attention": self.plain_attention}

    def restore(self, layout: dict[str, Any]) -> None:
        """Restore the shapes of a stopped training run."""
        self.shapes = replace(self.shapes, rows=tuple((int(w), int(r)) for w, r in layout["rows"]))
        self.plain_attention = bool(layout["plain_attention"])
        self._steady.clear()
        self._prepared = False

    @property
    def has_other_kernels(self) -> bool:
        """Whether attention can be computed by other kernels, if those of a shape let one unit change another."""
        return self.model.device.type == "cuda"

    def prepare(self) -> None:
        """Choose the kernels by a test of all shapes of the public grid, before a private row is read.

        If one unit's shape decided about the kernels, that unit would change how the gradients of all others are
        rounded. The sizes of the parts are chosen here too: made-up rows that exhaust the memory halve them.
        """
        while self.has_other_kernels and not self._prepared:
            try:
                self._test(self.shapes.grid(self.most_rows), change=True)
                self._prepared = True
            except torch.OutOfMemoryError:
                self._halve()

    def shrink(self) -> None:
        """Halve the number of rows of each part, after memory ran out in a private step.

        That it did may be due to one unit, and smaller parts round the gradients of all units otherwise.
        """
        self._halve()
        self.unsteady = True

    def _halve(self) -> None:
        smaller = self.shapes.halved()
        if smaller is None:
            raise ModelError(
                "Expected enough memory for the rows of one unit. Use a smaller max_length or encoder, train the head "
                "alone, or limit the rows of each unit."
            )
        self.shapes = smaller
        self._steady.clear()
        self._prepared = False
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def of_units(self, rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> list[Part]:
        """Return the parts of a batch in which unit u owns `rows[starts[u] : starts[u + 1]]`; test new shapes."""
        self.prepare()
        lengths = self.rows.lengths if isinstance(self.rows, Tokens) else np.ones(len(self.rows), dtype=np.int64)
        parts = list(self.shapes.parts(rows, starts, lengths))
        self._test({part.shape for part in parts}, change=False)
        return parts

    def record(self, part: Part, weights: npt.NDArray[np.float32] | None = None) -> tuple[Record, Tensor]:
        """Return the record of a part's units, and the losses of its rows, which are zero for padding rows.

        `weights` multiply the losses of the rows; by default they are 1.
        """
        real = (part.rows >= 0).astype(np.float32)
        seeds = torch.from_numpy(real if weights is None else real * weights).to(self.model.device)
        record, losses = self._record(self.rows.part(part.rows, part.width), part.units, part.rows_each, seeds)
        record.padding = part.units - part.real
        return record, losses.detach() * seeds

    def _record(self, batch: Batch, units: int, rows_each: int, seeds: Tensor | None) -> tuple[Record, Tensor]:
        with fixed_kernels(self.plain_attention):
            with self.tape, autocast(self.model.device, self.precision):
                losses = self.model.losses(batch.inputs, batch.targets)
            owners = None
            if rows_each > 1:
                owners = torch.arange(units, device=self.model.device).repeat_interleave(rows_each)
            return self.tape.backward(losses, owners, seeds=seeds), losses

    def _test(self, shapes: set[tuple[int, int, int]], *, change: bool) -> None:
        """Test shapes; if one fails, change the kernels for all where that is allowed, else set `unsteady`."""
        if self.unsteady:
            return
        for shape in sorted(shapes):
            if shape not in self._steady:
                self._steady[shape] = self._is_steady(shape)
            if self._steady[shape]:
                continue
            if change and not self.plain_attention:
                self.plain_attention = True
                self._steady.clear()
                self._test(shapes, change=change)
            else:
                self.unsteady = True
            return

    def _is_steady(self, shape: tuple[int, int, int]) -> bool:
        units, each, width = shape
        pool = pool_of(self.model, self.rows, 2 * units, each, width)

        def values_of(chosen: Tensor) -> list[Tensor]:
            at = (chosen[:, None] * each + torch.arange(each)).flatten().to(self.model.device)
            batch = Batch({name: value[at] for name, value in pool.inputs.items()}, pool.targets[at])
            return recorded(self._record(batch, units, each, None)[0])

        training = [module for module in self.model.modules() if module.training]
        with torch.random.fork_rng(devices=[self.model.device] if self.model.device.type == "cuda" else []):
            self.model.eval()  # dropout depends on the position in a batch, not on the unit there
            try:
                with without_zeros(self.model):
                    return bitwise_invariant(values_of, units, UNPADDED)
            finally:
                for module in training:
                    module.training = True

    def _measure(self, rows: int, width: int) -> None:
        """Run the memory-intensive part of a step on synthetic rows."""
        batch = self.rows.made_up(rows, width, len(self.model.tokenizer), self.model.classes, Rng(0), padded=False)
        clipped_sum(self._record(batch, rows, 1, None)[0], Flat(1.0))


@contextmanager
def without_zeros(model: nn.Module) -> Iterator[None]:
    """Fill trainable weights that are mostly zero with small random numbers, as long as the context lasts.

    A head that starts from a rule, or an adapter that starts as zero, hides how products are rounded once trained.
    """
    weights = [p for p in model.parameters() if p.requires_grad and p.ndim > 1]
    sparse = [(p, p.detach().clone()) for p in weights if bool((p.detach() == 0).sum() * 2 > p.numel())]
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight, before in sparse:
            weight.add_(torch.randn(before.shape, generator=source).to(before.device, before.dtype) * _SMALL)
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, before in sparse:
                weight.copy_(before)


def rows_on_cuda(
    shapes: Shapes, take: Callable[[int, int], None], device: torch.device, reserved: int
) -> dict[int, int]:
    """Return how many rows of each width fit the memory of a GPU, from the peak memory of two synthetic parts."""

    def peak(rows: int, width: int) -> int:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        take(rows, width)
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before

    fitting: dict[int, int] = {}
    for width, _ in shapes.rows:
        few = max(2, _TEST_TOKENS // width)
        try:
            take(few, width)  # the first time, libraries allocate memory of their own
            small, large = peak(few, width), peak(2 * few, width)
        except torch.OutOfMemoryError:
            fitting[width] = 1
            torch.cuda.empty_cache()
            continue
        each = max(1.0, (large - small) / few)
        free = _SHARE_OF_MEMORY * free_on_cuda(device) - reserved - max(0.0, small - few * each)
        rows = int(free / each)
        fitting[width] = rows // 8 * 8 if rows >= 8 else max(1, rows)
    torch.cuda.empty_cache()
    return fitting


def rows_on_cpu(shapes: Shapes, tape: Tape, reserved: int) -> dict[int, int]:
    """Return how many rows of each width fit half of the available memory, from the bytes a layer stores per token."""
    free = available_memory()
    if free is None:
        return {}
    weights = [p for layer in tape.layers for p in layer.module.parameters(recurse=False)]
    # Inputs and outputs of a layer and their gradients, in float32, twice: stored by autograd, and scaled.
    each = 16 * sum(sum(p.shape) for p in weights if p.dim() == 2 and p.shape[0] < 2**14)
    tokens = int(max(0, free / 2 - reserved) / max(each, 1))
    return {width: max(1, tokens // width) for width, _ in shapes.rows}
