"""The parts into which a private batch of a corpus is divided: their sizes, and the independence of their units.

`data/shapes.py` says why a part has one of a few public shapes.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.clipping.independence import bitwise_invariant, fixed_kernels, recorded
from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.device import autocast, available_memory
from discreet.core.errors import ModelError
from discreet.core.randomness import Rng
from discreet.data.batches import Batch, Tokens, Vectors
from discreet.data.shapes import Part, Shapes
from discreet.models.base import TextModel
from discreet.models.encode import UNPADDED, pool_of
from discreet.training.capture import Captured
from discreet.training.engine import Engine
from discreet.training.independence import BYTES_A_WEIGHT, Kernels, rows_that_fit, without_zeros

_SHARE_OF_MEMORY = 0.8  # share of the free memory for one part; the allocator cannot use all of it
_TEST_TOKENS = 2048  # tokens in the smaller of two synthetic parts whose peak memory is compared
_MOST_LANES = 8  # widths whose parts are computed at the same time
_MOST_GRAPHS = 16  # a graph keeps its memory: parts of other shapes are computed eagerly
Kind = tuple[int, int, int]  # units of a part, rows of each, and padded width


@dataclass
class PrivateParts:
    """Divide the units of a batch of a corpus into parts of fixed shapes.

    Synthetic rows of each shape show whether the kernels compute every unit independently, bit for bit. On a GPU all
    shapes of the public grid are tested before the first private row is read, and parts are captured as CUDA graphs. If
    a shape fails, attention is computed by ordinary matrix products for all of them, whatever shapes the private units
    have. If that does not help either, `unsteady` is True, and the guarantee is an estimate. On a CPU there are no
    other kernels to change to, and a shape is tested when it is used for the first time. `most_rows` is the largest
    number of rows of a unit if that is public.

    Guarantee: none of its own. The parts depend on public facts, and on the lengths and rows of each unit alone; if
        memory runs out in a private step, all parts are halved, and `unsteady` says so.
    """

    model: TextModel
    engine: Engine
    rows: Tokens | Vectors
    precision: str
    shapes: Shapes
    unsteady: bool = False
    most_rows: int | None = None
    _prepared: bool = False

    def __post_init__(self) -> None:
        """Start without any shape that was tested."""
        self.kernels: Kernels[Kind, bool] = Kernels(self.model.device, self._is_independent)
        self._captured: dict[Kind, Captured | None] = {}

    @classmethod
    def of(
        cls,
        model: TextModel,
        engine: Engine,
        rows: Tokens | Vectors,
        precision: str,
        expected_units: int,
        most_rows: int | None = None,
    ) -> PrivateParts:
        """Return the parts for a model, from the expected number of units and the memory of a synthetic step."""
        tokens = isinstance(rows, Tokens)
        device = model.device.type if tokens else "cuda"  # vectors are cheap: few large parts on any device
        captured = tokens and device == "cuda" and most_rows == 1 and not engine.protect.draws_to_gather
        shapes = Shapes.of(device, model.max_length if tokens else 1, expected_units, captured=captured)
        parts = cls(model, engine, rows, precision, shapes, most_rows=most_rows)
        return parts.fitted() if tokens else parts

    def fitted(self) -> PrivateParts:
        """Return the same with parts that fit into memory, as measured on synthetic rows."""
        trained = sum(p.numel() for p in self.engine.parameters.values())
        if self.model.device.type == "cuda":
            rows = {}
            for width, _ in self.shapes.rows:
                few = max(2, _TEST_TOKENS // width)
                fit = rows_that_fit(self._made_up_of(width), few, self.model.device, trained, _SHARE_OF_MEMORY)
                rows[width] = fit // 8 * 8 if fit >= 8 else fit
            torch.cuda.empty_cache()
        else:
            rows = rows_on_cpu(self.shapes, self.engine.tape, trained * BYTES_A_WEIGHT)
        return replace(self, shapes=self.shapes.at_most(rows))

    def layout(self) -> dict[str, Any]:
        """Return the chosen shapes, so that a resumed training rounds as an uninterrupted one."""
        rows = [list(pair) for pair in self.shapes.rows]
        return {"rows": rows, "plain_attention": self.kernels.plain_attention}

    def restore(self, layout: dict[str, Any]) -> None:
        """Restore the shapes of a stopped training run."""
        self.shapes = replace(self.shapes, rows=tuple((int(w), int(r)) for w, r in layout["rows"]))
        self._forget(bool(layout["plain_attention"]))

    def prepare(self) -> None:
        """Choose kernels and sizes by a test of all shapes of the public grid, before a private row is read.

        If one unit's shape decided about the kernels, that unit would change how the gradients of all others are
        rounded. Made-up rows that exhaust the memory halve the parts.
        """
        while self.kernels.can_change and not self._prepared:
            try:
                grid = sorted(self.shapes.grid(self.most_rows))
                self.unsteady = self.unsteady or not self.kernels.choose(grid)
                self._capture(grid)
                self._prepared = True
            except torch.OutOfMemoryError:
                self._save_memory()

    def shrink(self) -> None:
        """Halve the number of rows of each part, after memory ran out in a private step.

        That it did may be due to one unit, and smaller parts round the gradients of all units otherwise.
        """
        self._halve()
        self.unsteady = True

    def of_units(self, rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> list[Part]:
        """Return the parts of a batch in which unit u owns `rows[starts[u] : starts[u + 1]]`; test new shapes."""
        self.prepare()
        lengths = self.rows.lengths if isinstance(self.rows, Tokens) else np.ones(len(self.rows), dtype=np.int64)
        parts = list(self.shapes.parts(rows, starts, lengths))
        for shape in sorted({part.shape for part in parts}):
            self.unsteady = self.unsteady or self.kernels.outcome(shape) is None
        return parts

    def losses_of(self, batch: Batch) -> Tensor:
        """Return one loss for each row of a part."""
        with autocast(self.model.device, self.precision):
            return self.model.losses(batch.inputs, batch.targets)

    def batch(self, part: Part) -> Batch:
        """Return the rows of a part."""
        return self.rows.part(part.rows, part.width)

    def add(self, part: Part, number: int, *, batch: Batch | None = None, eager: bool = False) -> Tensor | None:
        """Add a part of a batch to the engine's step; return its losses if it was computed eagerly.

        `batch` are the rows of the part, if they were read before.
        """
        rows, captured = batch or self.batch(part), self._captured.get(part.shape)
        if captured is not None and not eager:
            self.engine.replay(captured, rows, part)
            return None
        return self.engine.take(self.losses_of, rows, part, number, self.kernels.plain_attention)

    def is_independent_in(self, part: Part, values_of: Callable[[Any], Sequence[Tensor]]) -> bool:
        """Return whether synthetic units have the same bits whatever others are in a part of this shape.

        Dropout is off: it depends on the position in a batch, not on the unit there.
        """
        units, each, width = part.shape
        pool = pool_of(self.model, self.rows, 2 * units, each, width)

        def values_of_units(chosen: Tensor) -> Sequence[Tensor]:
            at = (chosen[:, None] * each + torch.arange(each)).flatten().to(self.model.device)
            return values_of(Batch({name: value[at] for name, value in pool.inputs.items()}, pool.targets[at]))

        with self._without_dropout(), without_zeros(self.model):
            return bitwise_invariant(values_of_units, units, UNPADDED)

    def _is_independent(self, kind: Kind) -> bool | None:
        part = _made_up(kind)
        return self.is_independent_in(part, lambda batch: recorded(self._recorded(batch, part))) or None

    def _recorded(self, batch: Batch, part: Part) -> Record:
        """Return the record of synthetic units."""
        return self.engine.record(self.losses_of, batch, part, self.kernels.plain_attention)[0]

    def _capture(self, grid: Sequence[Kind]) -> None:
        """Capture parts of one row a unit as graphs, where the device allows it."""
        # Graphs that run at the same time may share the state of the generator that dropout draws from.
        lanes = _MOST_LANES if self.model.settings.dropout == 0 else 1
        if self.engine.graphs is None and not self.engine.capture(self.losses_of, most_lanes=lanes):
            return
        assert self.engine.graphs is not None
        for kind in [kind for kind in grid if kind[1] == 1][:_MOST_GRAPHS]:
            part = _made_up(kind)
            batch = self._made_up_batch(part.units, part.width)
            with fixed_kernels(self.kernels.plain_attention):
                self._captured[kind] = self.engine.graphs.prepare(batch, part, self)

    def _made_up_batch(self, rows: int, width: int) -> Batch:
        return self.rows.made_up(rows, width, len(self.model.tokenizer), self.model.classes, Rng(0), padded=False)

    def _made_up_of(self, width: int) -> Callable[[int], Record]:
        return lambda rows: self._recorded(self._made_up_batch(rows, width), _made_up((rows, 1, width)))

    def _save_memory(self) -> None:
        """Let graphs share their memory if they do not, and otherwise halve the parts; try all shapes again."""
        graphs = self.engine.graphs
        if graphs is not None and graphs.most_lanes > 1:
            graphs.most_lanes = 1
            self._forget()
            gc.collect()
            torch.cuda.empty_cache()
        else:
            self._halve()

    def _halve(self) -> None:
        smaller = self.shapes.halved()
        if smaller is None:
            raise ModelError(
                "Expected enough memory for the rows of one unit. Use a smaller max_length or encoder, train the head "
                "alone, or limit the rows of each unit."
            )
        self.shapes = smaller
        self._forget()
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def _forget(self, plain_attention: bool | None = None) -> None:
        self.kernels.forget(plain_attention)
        self._captured, self._prepared = {}, False
        if self.engine.graphs is not None:
            self.engine.graphs.forget()

    @contextmanager
    def _without_dropout(self) -> Iterator[None]:
        training = [module for module in self.model.modules() if module.training]
        with torch.random.fork_rng(devices=[self.model.device] if self.model.device.type == "cuda" else []):
            self.model.eval()
            try:
                yield
            finally:
                for module in training:
                    module.training = True


def _made_up(kind: Kind) -> Part:
    """Return a part of a shape without padding rows."""
    units, each, width = kind
    return Part(np.arange(units * each, dtype=np.int64), units, each, width, units)


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
