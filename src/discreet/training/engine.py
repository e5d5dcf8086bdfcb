"""The private step of a model: parts of a batch → record → clip → sum → noise → optimizer.

`discreet train`, own loops, the Trainer, tuning and federated clients take their steps here. What differs between them
is decided by them: which units are in a batch and how their rows are read, when a step is counted, and whether the
losses are computed by a function or by somebody's loop.

A unit's contribution to a sum must be a function of that unit alone. So parts have public shapes, and what is missing
in one is filled up with rows whose losses have weight zero (`discreet.data.batches`); `independence` tries on made-up
units whether the kernels compute each of them by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from discreet.clipping.independence import fixed_kernels
from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core import errors
from discreet.core.errors import DiscreetError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.batches import Part
from discreet.protections.base import GradientProtection
from discreet.protections.private_sum import PrivateSum, Sums, set_gradients, step_optimizer
from discreet.training.capture import Capture, Captured, PartGraphs, StepEnd, side_stream

if dist.is_available():
    # Its functions have the process group of the time of their import as a default argument. torch imports it with the
    # first optimizer; a group that exists by then is kept past destroy_process_group, and its threads abort the process
    # if they still hold a tensor when the interpreter ends. Imported here, before a group exists, it keeps none.
    import torch.distributed.nn.functional

T = TypeVar("T")


class Processes:
    """The ranks of `torch.distributed` if it is initialized, and this process alone otherwise.

    Values travel between ranks as JSON and tensors, never as pickles.
    """

    def __init__(self, *, alone: bool = False) -> None:
        """Read rank and world size; `alone` is this process without the others, whether or not there are any."""
        active = not alone and dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if active else 0
        self.size = dist.get_world_size() if active else 1

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which holds the ledger and draws the noise."""
        return self.rank == 0

    def from_first(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0 and return its result, which is plain JSON, or raise its error, on all ranks."""
        if self.size == 1:
            return function()
        error: Exception | None = None
        answer: dict[str, object] = {}
        if self.is_first:
            try:
                answer = {"value": function()}
            except Exception as raised:
                error = raised
                message = raised.message.marked if isinstance(raised, DiscreetError) else str(raised)
                answer = {"error": type(raised).__name__, "message": message}
        answer = json.loads(self._text(json.dumps(answer)))
        if error is not None:
            raise error
        if "error" in answer:
            kind = getattr(errors, str(answer["error"]), RuntimeError)
            raise kind(answer["message"])
        return answer["value"]  # type: ignore[return-value]

    def check_equal(self, name: str, value: str) -> None:
        """Reject, on all ranks, a text that is not the same on every rank."""
        if self.size == 1:
            return
        if self.any_of([self.from_first(lambda: value) != value])[0]:
            raise UnsupportedError(
                f"Expected {name} to be the same on all {self.size} ranks, got different ones. Every rank runs the "
                "same script on the same data, and takes its share of each batch by itself."
            )

    def any_of(self, flags: list[bool]) -> list[bool]:
        """Return, on all ranks, which flags are set on at least one rank."""
        if self.size == 1:
            return flags
        values = torch.tensor([int(flag) for flag in flags], device=self._device)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        return [bool(value) for value in values.tolist()]

    def start_equal(self, tensors: list[Tensor]) -> None:
        """Overwrite tensors on all ranks with those of rank 0."""
        if self.size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), src=0)

    def sum_to_first(self, sums: dict[str, Tensor]) -> None:
        """Add the tensors of all ranks into those of rank 0."""
        if self.size > 1:
            for name in sorted(sums):
                dist.reduce(sums[name], dst=0)

    def share(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of rank 0 on all ranks; each rank passes tensors of the same shapes and types."""
        if self.size > 1:
            for name in sorted(tensors):
                tensors[name] = tensors[name].contiguous()
                dist.broadcast(tensors[name], src=0)
        return tensors

    def _text(self, text: str) -> str:
        """Return the text of rank 0."""
        data = text.encode() if self.is_first else b""
        length = torch.tensor(len(data), device=self._device)
        dist.broadcast(length, src=0)
        values = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first:
            values = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        values = values.to(self._device)
        dist.broadcast(values, src=0)
        return bytes(values.cpu().tolist()).decode()

    @property
    def _device(self) -> torch.device:
        return (
            torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")
        )


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
