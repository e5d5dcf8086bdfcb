"""The private step of a model: parts of a batch → record → clip → sum → noise → optimizer.

`discreet train`, own loops, the Trainer, tuning and federated clients take their steps here. What differs between them
is decided by them: which units are in a batch and how their rows are read, when a step is counted, and whether the
losses are computed by a function or by somebody's loop.

A unit's contribution to a sum must be a function of that unit alone. So parts have public shapes, and what is missing
in one is filled up with rows whose losses have weight zero (`discreet.data.batches`); `independence` tries on made-up
units whether the kernels compute each of them by itself.

`PrivateStep` is the step of a corpus: it samples units, counts the cost, and lets the engine take the step.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from discreet.accounting.ledger import Ledger
from discreet.clipping.independence import bitwise_invariant, check_independent, fixed_kernels, recorded
from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core import errors
from discreet.core.device import autocast, available_memory
from discreet.core.errors import DiscreetError, ModelError, UnsupportedError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.data.batches import Batch, Part, Shapes, Tokens, Vectors
from discreet.data.corpus import Corpus, Grouped, unit_numbers
from discreet.data.sources import EACH_ROW
from discreet.models.base import HEAD_NAMES, TextModel
from discreet.models.build import UNPADDED, encode, pool_of
from discreet.protections.base import GradientProtection, PrivateSum, Sums, set_gradients, step_optimizer
from discreet.training.account import Account, of_gradients
from discreet.training.capture import Capture, Captured, PartGraphs, StepEnd, side_stream
from discreet.training.independence import BYTES_A_WEIGHT, Kernels, rows_that_fit, without_zeros
from discreet.training.plan import PrivatePlan
from discreet.training.steps import Parts, Step, StepCanaries, Taken

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
        self._losses_of: Losses | None = None  # that was captured
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
        the same time. The graphs of a model compute one loss function: another one is rejected, on any device.
        """
        if self._losses_of not in (None, losses_of):
            raise UnsupportedError(
                "Expected the loss function of the first capture, got another one. Graphs compute the function that "
                "they were captured with; take parts with another one by private.step(losses_of, optimizer)."
            )
        self._losses_of = losses_of
        if self.graphs is None and (self.device.type == "cuda" or how is not None) and not self.protect.draws_to_gather:
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

    def replay(
        self, captured: Captured, batch: Any, part: Part, weights: npt.NDArray[np.float32] | None = None
    ) -> None:
        """Add a part by its graph; after the last one, `is_finite` says whether the sums can be used."""
        captured.lane.run(captured, batch, weights_of(part, weights))

    def replayed(self, captured: Captured, batch: Any, part: Part, weights: npt.NDArray[np.float32]) -> Sums | None:
        """Return the sums of one part alone by its graph, or None if a unit is not finite; abandon the current step."""
        assert self.graphs is not None
        self.abandon()
        self.replay(captured, batch, part, weights)
        sums = {name: value.clone() for name, value in self.graphs.sums().items()} if self.is_finite else None
        self.abandon()
        return sums

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

    def finish(self, optimizer: torch.optim.Optimizer) -> None:
        """Release the sums of the step and step the optimizer: as one graph where all parts were captured."""
        graphs = self.graphs
        by_graphs = graphs is not None and graphs.parts > 0 and not self._sum.parts and self._processes.size == 1
        if by_graphs and self._end is not None and self._end.run(self.parameters, optimizer, self._source, self._step):
            self.abandon()
            return
        with self.stream():
            self.set_gradients(self.released(self.sums()))
            step_optimizer(optimizer)

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


_SHARE_OF_MEMORY = 0.8  # share of the free memory for one part; the allocator cannot use all of it
_SMALL_PART_TOKENS = 2048  # tokens in the smaller of two synthetic parts whose peak memory is compared
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
                few = max(2, _SMALL_PART_TOKENS // width)
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
        rows = self.batch(part) if batch is None else batch
        captured = self._captured.get(part.shape)
        if captured is not None and not eager:
            self.engine.replay(captured, rows, part)
            return None
        return self.engine.take(self.losses_of, rows, part, number, self.kernels.plain_attention)

    def is_captured(self, part: Part) -> bool:
        """Return whether a part is trained by a graph."""
        return self._captured.get(part.shape) is not None

    def sums_of(self, part: Part, weights: npt.NDArray[np.float32]) -> Sums:
        """Return the sums of one part alone, with weighted losses, by the code of `add`; abandon the current step."""
        batch, captured = self.batch(part), self._captured.get(part.shape)
        sums = None if captured is None else self.engine.replayed(captured, batch, part, weights)
        if sums is None:
            record, _ = self.engine.record(self.losses_of, batch, part, self.kernels.plain_attention, weights)
            sums = self.engine.sums_of(record)
        return sums

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


Rows = npt.NDArray[np.int64]

_TEST_ROWS, _TEST_TOKENS = 6, 6  # size of the synthetic batch that shows whether a model mixes its rows


@dataclass(frozen=True)
class Planned:
    """The batch of a step: the units that were drawn, those that are not empty records, and their parts."""

    drawn: Rows
    units: Rows
    parts: list[Part]
    batches: list[Batch] | None = None  # the rows of the parts, if they were read ahead


@dataclass
class PrivateStep(Step):
    """A step whose gradient passes through a protection before it is used.

    Guarantee: that of the ledger, which records every step before its noise is sampled. Batches, dropout and noise come
        from `secret`, which must stay secret.
    """

    model: TextModel
    optimizer: torch.optim.Optimizer
    protect: GradientProtection
    rows: Tokens | Vectors
    units: Grouped
    plan: PrivatePlan
    account: Account
    canaries: StepCanaries | None = None
    zeroed: npt.NDArray[np.bool_] | None = None  # units that are empty records, for an audit
    corpus: Corpus | None = None  # of the rows, if the head is trained first
    first: PrivateStep | None = None  # the step of the head alone, once it is made

    def __post_init__(self) -> None:
        """Find the layers to clip; a model with unsupported layers is rejected."""
        size = self.plan.sampler.expected_size(self.count)
        self.engine = Engine(Tape(self.model), self.protect, size)
        most_rows = 1 if self.plan.unit == EACH_ROW else self.plan.max_per_unit
        precision = self.plan.settings.precision
        expected = max(1, math.ceil(size))
        self._ahead: tuple[tuple[int, str], Planned] | None = None
        self.parts = PrivateParts.of(self.model, self.engine, self.rows, precision, expected, most_rows)

    @classmethod
    def of(cls, parts: Parts, ledger: Ledger, secret: Rng) -> PrivateStep:
        """Return the step of a training run that protects gradients; a model that mixes rows is rejected."""
        plan = parts.private
        units = Grouped.of(unit_numbers(parts.corpus))
        account = Account(plan, ledger, secret, of_gradients(plan))
        step = cls(parts.model, parts.optimizer, plan.gradients, parts.rows, units, plan, account)
        step.canaries, step.corpus = parts.canaries, parts.corpus if plan.head_steps else None
        if parts.canaries is not None and parts.canaries.zeroed:
            step.zeroed = np.zeros(len(units), dtype=bool)
            step.zeroed[unit_numbers(parts.corpus)[list(parts.canaries.zeroed)]] = True
        step.check_independent()
        step.engine.check_parameters()
        return step

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The parameters that are trained, by name."""
        return self.engine.parameters

    def check_independent(self) -> None:
        """Reject a model that mixes the rows of a batch, by a test on synthetic rows."""
        width = min(_TEST_TOKENS, self.model.max_length)
        batch = self.rows.made_up(_TEST_ROWS, width, len(self.model.tokenizer), self.model.classes, Rng(0))

        def losses_of(chosen: Tensor) -> Tensor:
            at = chosen.to(batch.targets.device)
            return self.model.losses({name: value[at] for name, value in batch.inputs.items()}, batch.targets[at])

        check_independent(self.engine.tape, losses_of, rows=_TEST_ROWS)

    @property
    def per_epoch(self) -> int:
        """Number of steps that sample every unit once, exactly or on average."""
        return self.plan.sampler.steps_per_epoch(self.count)

    @property
    def count(self) -> int:
        """Public number of units: the actual number, or the population."""
        return self.plan.units

    def describe(self) -> object:
        """Return the sampler, the protection, the units, the population and the secret, all of which are hashed."""
        described = self.plan.sampler, self.protect.identity(), self.units, self.plan.population, self.account.secret
        return described if self.canaries is None else (*described, self.canaries.describe())

    def canary_state(self) -> dict[str, Tensor]:
        """Return what an audit has read so far."""
        return {} if self.canaries is None else self.canaries.state()

    def restore_canaries(self, state: dict[str, Tensor]) -> None:
        """Continue an audit from what a stopped training run had read."""
        if self.canaries is not None:
            self.canaries.restore(state)

    def check(self, steps: int) -> None:
        """Reject resuming from a checkpoint whose steps are not in the ledger."""
        self.account.check(map(self.plan.step_cost, range(steps)))

    def reserve(self, first: int) -> int:
        """Count all planned steps from `first` on, before the first of them; return how many are allowed."""
        self._note_kernels()
        return self.account.reserve(map(self.plan.step_cost, range(first, self.steps)))

    def epsilon(self) -> float:
        """Return an upper bound on the epsilon of everything counted, which is that of all planned steps."""
        return self.account.epsilon()

    def guarantee(self) -> Guarantee:
        """Return the guarantee of all planned steps: a bound only if the seed of the noise is secret."""
        self._note_kernels()
        return self.account.guarantee()

    def _note_kernels(self) -> None:
        """Add the caveat of kernels in which one unit changes another."""
        if self.parts.unsteady or not (isinstance(self.rows, Tokens) or self.rows.steady):
            self.account.caveats.add(Caveat.UNSTEADY_KERNELS)

    @property
    def source(self) -> Rng:
        """Source of batches and noise."""
        return self.account.source

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Take one step; return its mean loss, still on the device, and its number of rows."""
        if step < self.plan.head_steps and self.corpus is not None:
            with only_head(self.model):
                return self.head_step()(step)
        self.first = None
        self.parts.prepare()  # an empty batch has no shapes to test
        gathered = None
        while gathered is None:
            with suppress(torch.OutOfMemoryError):
                planned = self.planned(step)  # tests new shapes, whose results are in the ledger's entry
                self._note_kernels()
                # The name is a hash of everything that determines the batch and the noise. Another secret, corpus or
                # setting is another spend; the same step in smaller parts, after memory ran out, is not.
                self.account.spend(self.plan.step_cost(step))
                gathered = self.gather(planned.parts, step, planned.batches)
            if gathered is None:
                self.parts.shrink()
                self._ahead = None
        loss, count = gathered
        if self.canaries is None:
            self.engine.finish(self.optimizer)
            return loss, count
        sums = self.engine.sums()  # an audited step ends eagerly: canaries are in sums, and not in a captured end
        self.canaries.plant(sums, step, self.source.fork("canaries"))
        released = self.engine.released(sums)
        self.canaries.read(released, sums)
        self.engine.set_gradients(released)
        units = planned.units
        rows = len(self.units.of_units(units)[0]), count
        self.canaries.watch(Taken(step, planned.drawn, len(self.units), rows, partial(self.measure, units, step)))
        step_optimizer(self.optimizer)
        return loss, count

    def head_step(self) -> PrivateStep:
        """Return the step that trains the head alone, on the outputs of the encoder, which is not trained yet."""
        assert self.corpus is not None
        if self.first is None:
            rows = encode(self.model, self.corpus, None, self.plan.settings.precision)
            self.model.train()
            self.first = replace(self, rows=rows, corpus=None, first=None)
            for parameter in self.model.parameters():
                parameter.grad = None
        return self.first

    def planned(self, step: int) -> Planned:
        """Return the batch of a step: drawn now, or while the device computed the step before."""
        if self._ahead is not None and self._ahead[0] == (step, self.account.run):
            return self._ahead[1]
        units = drawn = self.plan.sampler.draw(step, len(self.units), self.source.fork("sampler"))
        if self.zeroed is not None:
            units = units[~self.zeroed[units]]
        return Planned(drawn, units, self.parts_of(units))

    def gather(
        self, parts: Sequence[Part], step: int, batches: Sequence[Batch] | None = None
    ) -> tuple[Tensor | None, int]:
        """Add the parts of a batch to the sums of a step; return their mean loss and their number of rows.

        A unit with a non-finite gradient adds nothing, which only an eager part can do: then all parts are eager. That
        unit decides about the kernels of all others, so the guarantee is an estimate.
        """
        total = self._add(parts, step, batches)
        graphs = self.engine.graphs
        if graphs is not None and graphs.parts and step + 1 < self.steps:  # while the device computes
            ahead = self.planned(step + 1)
            ahead = replace(ahead, batches=[self.parts.batch(part) for part in ahead.parts])
            self._ahead = (step + 1, self.account.run), ahead
        if not self.engine.is_finite:
            self.parts.unsteady = True
            self._note_kernels()
            self.account.state()
            total = self._add(parts, step, batches, eager=True)
        count = sum(int((part.rows >= 0).sum()) for part in parts)
        return (total / count if count else None), count

    def _add(self, parts: Sequence[Part], step: int, batches: Sequence[Batch] | None, *, eager: bool = False) -> Tensor:
        """Begin a step and add all of its parts; return the sum of their losses."""
        self.engine.begin(self.source, step, self.account.run)
        total = torch.zeros((), device=self.model.device)
        self.source.fork("dropout", step).seed_torch(self.model.device)
        for number, part in enumerate(parts):
            batch = None if batches is None else batches[number]
            losses = self.parts.add(part, number, batch=batch, eager=eager)
            if losses is not None:
                total += losses.sum()
        graphs = self.engine.graphs
        return total if graphs is None else total + graphs.total()

    def measure(self, units: Rows, step: int, scales: tuple[float, ...]) -> tuple[list[dict[str, Tensor]], int]:
        """Return the protected sums of a part of a batch, with the loss of one unit times each of `scales`.

        Also return the number of units in that part: 0 if the batch is empty or memory ran out. A part that is trained
        by a CUDA graph is measured by the same graph. The sums of the step must have been used.

        Guarantee: none; it is for the audit of the owner.
        """
        part = part_to_measure(self.parts_of(units), self.parts.is_captured, step)
        if part is None:
            return [], 0
        unit, measured = step % part.real, []
        device = self.model.device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            for scale in scales:
                self.source.fork("dropout", step).seed_torch(device)
                weights = np.ones(len(part.rows), dtype=np.float32)
                weights[unit * part.rows_each : (unit + 1) * part.rows_each] = scale
                try:
                    measured.append(self.parts.sums_of(part, weights))
                except torch.OutOfMemoryError:
                    return [], 0
        return measured, part.real

    def parts_of(self, units: Rows) -> list[Part]:
        """Return the sampled units in parts whose shapes were tested."""
        return self.parts.of_units(*self.units.of_units(units)) if len(units) else []

    def layout(self) -> dict[str, Any]:
        """Return how batches are divided into parts."""
        return self.parts.layout()

    def restore(self, layout: dict[str, Any]) -> None:
        """Divide batches into parts as a stopped training run did."""
        self.parts.restore(layout)
        self._ahead = None


def part_to_measure(parts: Sequence[Part], is_captured: Callable[[Part], bool], step: int) -> Part | None:
    """Return the fullest part: of captured parts in even steps and of eager ones in odd steps, if there are both."""
    return max(parts, key=lambda part: (is_captured(part) == (step % 2 == 0), part.real), default=None)


@contextmanager
def only_head(model: TextModel) -> Iterator[None]:
    """Make the head and the pooler the only trainable parts of a model, as long as the context lasts."""
    others = [p for name, p in model.named_parameters() if p.requires_grad and not name.startswith(HEAD_NAMES)]
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(True)
