"""The parts in which a private batch is read: their shapes, their memory, and whether units change each other there."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.clipping.clip import Flat, clipped_sum
from discreet.clipping.invariance import bitwise_invariant, recorded
from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.errors import ModelError
from discreet.core.randomness import Rng
from discreet.data.batches import Batch, Tokens, Vectors
from discreet.models.classifier import Classifier
from discreet.training.precision import autocast, fixed_kernels
from discreet.training.shapes import Part, Shapes

UNPADDED = 4  # one in so many of the made-up units has no padding
_SHARE_OF_MEMORY = 0.8  # of what is free, for one part; the rest is for what the allocator cannot use
# Bytes for each trained weight that come on top of a part: its sum, the optimizer's two moments, noise in float64.
_BYTES_A_WEIGHT = 24
_TRIED_TOKENS = 2048  # of the smaller of two made-up parts whose peaks of memory are compared


@dataclass
class PrivateParts:
    """How the units of a batch are read in parts of fixed shapes.

    Before a shape is used for the first time, made-up rows show whether the kernels at hand compute every unit by
    itself, bit for bit. If not, attention is computed by ordinary products from then on; if that does not help either,
    `unsteady` is true, and the guarantee an estimate.

    Guarantee: none of its own. What it does depends on public facts, and on each unit's own length and rows.
    """

    model: Classifier
    tape: Tape
    rows: Tokens | Vectors
    precision: str
    shapes: Shapes
    plain_attention: bool = False
    unsteady: bool = False
    _steady: dict[tuple[int, int, int], bool] = field(default_factory=dict)

    @classmethod
    def of(
        cls, model: Classifier, tape: Tape, rows: Tokens | Vectors, precision: str, expected_units: int
    ) -> PrivateParts:
        """Return the parts for a model, from the expected number of units and the memory that a made-up step takes."""
        tokens = isinstance(rows, Tokens)
        device = model.device.type if tokens else "cuda"  # vectors are cheap: few large parts on any device
        parts = cls(model, tape, rows, precision, Shapes.of(device, model.max_length if tokens else 1, expected_units))
        return parts.fitted() if tokens else parts

    def fitted(self) -> PrivateParts:
        """Return the same with no larger parts than fit the memory, as made-up rows show."""
        weights = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        if self.model.device.type == "cuda":
            rows = rows_on_cuda(self.shapes, self._try, self.model.device, weights * _BYTES_A_WEIGHT)
        else:
            rows = rows_on_cpu(self.shapes, self.tape, weights * _BYTES_A_WEIGHT)
        return replace(self, shapes=self.shapes.at_most(rows))

    def layout(self) -> dict[str, Any]:
        """Return what was chosen, so that a resumed training rounds as an undisturbed one."""
        return {"rows": [list(pair) for pair in self.shapes.rows], "plain_attention": self.plain_attention}

    def restore(self, layout: dict[str, Any]) -> None:
        """Take up what a training had chosen before it was stopped."""
        self.shapes = replace(self.shapes, rows=tuple((int(w), int(r)) for w, r in layout["rows"]))
        self.plain_attention = bool(layout["plain_attention"])
        self._steady.clear()

    def shrink(self) -> None:
        """Take half as many rows at a time from now on, after memory ran out."""
        smaller = self.shapes.halved()
        if smaller is None:
            raise ModelError(
                "Expected memory for the rows of one unit at a time, and there is not enough. Use a smaller max_length "
                "or encoder, train the head alone, or give each unit fewer rows."
            )
        self.shapes = smaller
        gc.collect()
        if self.model.device.type == "cuda":
            torch.cuda.empty_cache()

    def of_units(self, rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> list[Part]:
        """Return the parts of a batch in which unit u owns `rows[starts[u] : starts[u + 1]]`, each shape tried out."""
        lengths = self.rows.lengths if isinstance(self.rows, Tokens) else np.ones(len(self.rows), dtype=np.int64)
        parts = list(self.shapes.parts(rows, starts, lengths))
        self._try_out({part.shape for part in parts})
        return parts

    def record(self, part: Part) -> tuple[Record, Tensor]:
        """Return the record of a part's units, and the losses of its rows with zero for those of padding."""
        seeds = torch.from_numpy((part.rows >= 0).astype(np.float32)).to(self.model.device)
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

    def _try_out(self, shapes: set[tuple[int, int, int]]) -> None:
        for shape in sorted(shapes - self._steady.keys()):
            self._steady[shape] = self._is_steady(shape)
        if all(self._steady[shape] for shape in shapes) or self.unsteady:
            return
        if self.model.device.type == "cuda" and not self.plain_attention:
            self.plain_attention = True
            self._steady.clear()
            self._try_out(shapes)
            return
        self.unsteady = True

    def _is_steady(self, shape: tuple[int, int, int]) -> bool:
        units, each, width = shape
        pool = pool_of(self.model, self.rows, 2 * units, each, width)

        def values_of(chosen: Tensor) -> list[Tensor]:
            at = (chosen[:, None] * each + torch.arange(each)).flatten().to(self.model.device)
            batch = Batch({name: value[at] for name, value in pool.inputs.items()}, pool.targets[at])
            return recorded(self._record(batch, units, each, None)[0])

        training = [module for module in self.model.modules() if module.training]
        with torch.random.fork_rng(devices=[self.model.device] if self.model.device.type == "cuda" else []):
            self.model.eval()  # dropout would tell places apart, and is the same whoever stands there
            try:
                return bitwise_invariant(values_of, units, UNPADDED)
            finally:
                for module in training:
                    module.training = True

    def _try(self, rows: int, width: int) -> None:
        """Take the part of a step that needs the memory, on made-up rows."""
        batch = self.rows.made_up(rows, width, len(self.model.tokenizer), self.model.classes, Rng(0), padded=False)
        clipped_sum(self._record(batch, rows, 1, None)[0], Flat(1.0))


def pool_of(model: Classifier, rows: Tokens | Vectors, units: int, each: int, width: int) -> Batch:
    """Return made-up rows of some units, of which every fourth has no padding."""

    def made_up(padded: bool) -> Batch:
        return rows.made_up(units * each, width, len(model.tokenizer), model.classes, Rng(0), padded=padded)

    some, full = made_up(True), made_up(False)
    unpadded = (torch.arange(units) % UNPADDED == 0).repeat_interleave(each).to(some.targets.device)
    inputs = {
        name: torch.where(unpadded.view(-1, *(1 for _ in value.shape[1:])), full.inputs[name], value)
        for name, value in some.inputs.items()
    }
    return Batch(inputs, some.targets)


def rows_on_cuda(
    shapes: Shapes, take: Callable[[int, int], None], device: torch.device, reserved: int
) -> dict[int, int]:
    """Return how many rows of each width fit the memory of a GPU, from the peaks of two made-up parts."""

    def peak(rows: int, width: int) -> int:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        take(rows, width)
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device)) - before

    found: dict[int, int] = {}
    for width, _ in shapes.rows:
        few = max(2, _TRIED_TOKENS // width)
        try:
            take(few, width)  # the first time, libraries take memory of their own
            small, large = peak(few, width), peak(2 * few, width)
        except torch.OutOfMemoryError:
            found[width] = 1
            torch.cuda.empty_cache()
            continue
        each = max(1.0, (large - small) / few)
        room = _SHARE_OF_MEMORY * free_on_cuda(device) - reserved - max(0.0, small - few * each)
        rows = int(room / each)
        found[width] = rows // 8 * 8 if rows >= 8 else max(1, rows)
    torch.cuda.empty_cache()
    return found


def free_on_cuda(device: torch.device) -> int:
    """Return the bytes that this process may still take of a GPU's memory."""
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    unused = torch.cuda.memory_reserved(device) - allocated
    share = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    limit = total if share is None else int(total * share(device))
    return int(max(0, min(free + unused, limit - allocated)))


def rows_on_cpu(shapes: Shapes, tape: Tape, reserved: int) -> dict[int, int]:
    """Return how many rows of each width fit half of the available memory, by what the layers keep of a token."""
    free = available_memory()
    if free is None:
        return {}
    weights = [p for layer in tape.layers for p in layer.module.parameters(recurse=False)]
    # Input and output of a layer and their gradients, in float32, twice: as autograd keeps them and as they are scaled.
    each = 16 * sum(sum(p.shape) for p in weights if p.dim() == 2 and p.shape[0] < 2**14)
    tokens = int(max(0, free / 2 - reserved) / max(each, 1))
    return {width: max(1, tokens // width) for width, _ in shapes.rows}


def available_memory() -> int | None:
    """Return the bytes of main memory that can be taken without swapping, if the system says so."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return int(os.sysconf("SC_AVPHYS_PAGES")) * int(os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return None
