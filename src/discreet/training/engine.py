"""The private step of a model: parts of a batch → record → clip → sum → noise → optimizer.

`discreet train`, own loops, the Trainer, tuning and federated clients take their steps here. What differs between them
is decided by them: which units are in a batch and how their rows are read, when a step is counted, and whether the
losses are computed by a function or by somebody's loop.

A unit's contribution to a sum must be a function of that unit alone. So parts have public shapes, and what is missing
in one is filled up with rows whose losses have weight zero (`discreet.data.shapes`); `independence` tries on made-up
units whether the kernels compute each of them by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.clipping.independence import fixed_kernels
from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.randomness import Rng
from discreet.data.shapes import Part
from discreet.protections.base import GradientProtection
from discreet.protections.private_sum import PrivateSum, Sums, set_gradients, step_optimizer
from discreet.training.capture import Capture, Captured, PartGraphs, StepEnd, side_stream
from discreet.training.processes import Processes

Losses = Callable[[Any], Tensor]  # of a collated part, one for each row


class Engine:
    """The private steps of one model, one after the other: `begin`, then the parts of a batch, then `finish`.

    `size` is the public expected size of a batch, by which a sum is divided. With `processes`, each adds its own parts
    of one batch, and rank 0 draws the noise; without, this process takes whole steps alone, whatever others do.

    Guarantee: that of the protection for each step, if its cost is counted before `begin`, its parts hold independent
        units, and every part of its batch is added before `finish`.
    """

    def __init__(
        self, tape: Tape, protect: GradientProtection, size: float, processes: Processes | None = None
    ) -> None:
        """Take the model of a tape; `check_parameters` says whether the protection fits it."""
        self.tape, self.protect, self.size = tape, protect, size
        self.parameters: dict[str, nn.Parameter] = {
            name: p for name, p in tape.model.named_parameters() if p.requires_grad
        }
        self.graphs: PartGraphs | None = None
        self._end: StepEnd | None = None
        self._processes = processes or Processes(alone=True)
        self._sum = PrivateSum(protect, tape)
        self._source, self._step, self._run = Rng(0), 0, ""

    def check_parameters(self) -> None:
        """Reject a model whose trainable parameters are not those that the protection was resolved for."""
        self.protect.check_parameters({name: p.numel() for name, p in self.parameters.items()})

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(iter(self.parameters.values())).device

    @property
    def parts(self) -> int:
        """How many parts of the current step were added."""
        return self._sum.parts

    # Graphs

    def capture(self, losses_of: Losses, how: Capture[Any] | None = None, *, most_lanes: int = 1) -> bool:
        """Compute parts as CUDA graphs from now on, if the device and the protection allow it; return whether.

        `how` captures; without it, nothing is captured but on a GPU. Parts of up to `most_lanes` shapes are computed at
        the same time.
        """
        if (self.device.type == "cuda" or how is not None) and not self.protect.draws_to_gather:
            self.graphs = PartGraphs(self.tape, self.protect, losses_of, how, most_lanes)
            self._end = StepEnd(self.graphs, self.size, how)
        return self.graphs is not None

    # One step

    def begin(self, source: Rng, step: int, run: str = "") -> None:
        """Start a step, or start it again from its first part; `run` says which run `source` belongs to."""
        self._source, self._step, self._run = source, step, run
        self.abandon()

    def abandon(self) -> None:
        """Forget what was added of a step, which releases nothing."""
        self._sum.clear()
        if self.graphs is not None:
            self.graphs.clear()

    def add(self, losses: Tensor, number: int, part: Part | None = None, owners: Tensor | None = None) -> None:
        """Add the units whose losses the tape has recorded, as part number `number` of the batch.

        `part` says which rows are whose, or else `owners`; without either, each row is a unit.
        """
        self._add(self._recorded(losses, part, owners)[0], number, part)

    def record(
        self,
        losses_of: Losses,
        batch: Any,
        part: Part,
        plain_attention: bool,
        weights: npt.NDArray[np.float32] | None = None,
    ) -> tuple[Record, Tensor]:
        """Return the record of a part's units, and the losses of its rows, which are zero for padding rows.

        `weights` multiply the losses; by default they are 1.
        """
        with fixed_kernels(plain_attention):
            with self.tape:
                losses = losses_of(batch)
            return self._recorded(losses, part, None, weights)

    def take(self, losses_of: Losses, batch: Any, part: Part, number: int, plain_attention: bool) -> Tensor:
        """Record a part and add its units; return the losses of its rows."""
        with self.stream():
            record, losses = self.record(losses_of, batch, part, plain_attention)
            self._add(record, number, part)
        return losses

    def sums_of(self, record: Record) -> Sums:
        """Return the sums of one part as the first of a step, without adding it to the current one."""
        alone = PrivateSum(self.protect, self.tape)
        alone.add(record, self._directions(0))
        return alone.sums

    def replay(self, captured: Captured, batch: Any, part: Part) -> None:
        """Add a part by its graph; after the last one, `is_finite` says whether the sums can be used."""
        captured.lane.run(captured, batch, weights_of(part))

    @property
    def is_finite(self) -> bool:
        """Whether all units that graphs have added since `begin` had finite gradients; if not, begin again eagerly."""
        return self.graphs is None or self.graphs.finite()

    def merge(self) -> bool:
        """Add what graphs have added to the sums of eager parts, if it is finite; return whether."""
        assert self.graphs is not None
        if finite := self.is_finite:
            self._sum.add_sums(self.graphs.sums())
        self.graphs.clear()
        return finite

    def sums(self) -> Sums:
        """Return the sums of the whole batch, by parameter: zeros if it has no unit."""
        if self.graphs is not None and self.graphs.parts:
            if not self._sum.parts:
                return self.graphs.sums()
            if not self.merge():
                raise RuntimeError("Expected is_finite to be read before the sums: units of a graph are not finite.")
        return dict(self._sum.complete(self._source.fork("directions", self._step)))

    def released(self, sums: Sums) -> Sums:
        """Return the protected sums of the step; noise is drawn in the order of the sums, on rank 0."""
        with torch.no_grad():
            self._processes.sum_to_first(sums)
            if self._processes.is_first:
                sums = self._sum.release(sums, self._source, self._step, self._run)
            return self._processes.share(sums)

    def set_gradients(self, released: Sums) -> None:
        """Set the gradients of the parameters to the protected mean over the expected size of a batch."""
        set_gradients(self.parameters, released, self.size)
        self.abandon()

    def step_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Step the optimizer with the protected gradients."""
        step_optimizer(optimizer)

    def finish(self, optimizer: torch.optim.Optimizer) -> None:
        """Release the sums of the step and step the optimizer: as one graph where all parts were captured."""
        graphs = self.graphs
        by_graphs = graphs is not None and graphs.parts > 0 and not self._sum.parts and self._processes.size == 1
        if by_graphs and self._end is not None and self._end.run(self.parameters, optimizer, self._source, self._step):
            self.abandon()
            return
        with self.stream():
            self.set_gradients(self.released(self.sums()))
            self.step_optimizer(optimizer)

    def _recorded(
        self,
        losses: Tensor,
        part: Part | None,
        owners: Tensor | None,
        weights: npt.NDArray[np.float32] | None = None,
    ) -> tuple[Record, Tensor]:
        """Return the record of what the tape has recorded, and the weighted losses."""
        seeds: Tensor | None = None
        if part is not None:
            seeds = weights_of(part, weights).to(losses.device, losses.dtype)
            if part.rows_each > 1:
                owners = torch.arange(part.units).repeat_interleave(part.rows_each)
        owners = None if owners is None else owners.to(losses.device)
        record = self.tape.backward(losses, owners, seeds=seeds)
        if part is not None:
            record.padding = part.units - part.real
        return record, losses.detach() if seeds is None else losses.detach() * seeds

    def _add(self, record: Record, number: int, part: Part | None) -> None:
        empty = part is not None and part.real == 0
        self._sum.add(self.tape.empty() if empty else record, self._directions(number))

    def stream(self) -> AbstractContextManager[None]:
        """Return the context of work that warms up what is captured later."""
        return nullcontext() if self.graphs is None else side_stream(self.device)

    def _directions(self, number: int) -> Rng:
        return self._source.fork("directions", self._step, number)


def weights_of(part: Part, weights: npt.NDArray[np.float32] | None = None) -> Tensor:
    """Return the weights of the losses of a part's rows: zero for padding rows, and otherwise 1 or those given."""
    real = (part.rows >= 0).astype(np.float32)
    return torch.from_numpy(real if weights is None else real * weights)
