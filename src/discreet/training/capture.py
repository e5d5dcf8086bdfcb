"""Work on a GPU as CUDA graphs: the part of a batch, and the end of a step, captured once for a shape and replayed.

A step of a small model takes as long as the host needs to launch its kernels. A graph launches all of them at once. The
first part of a shape is computed eagerly, which also warms up the libraries; then it is captured.

A graph may use other kernels than an eager part. So the check that units do not affect each other is repeated, bit for
bit, on made-up rows in a graph of their own.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from discreet.clipping.independence import recorded
from discreet.clipping.tape import Tape
from discreet.core.device import constants_in, mapped, tensors_in
from discreet.core.randomness import Rng
from discreet.data.batches import Part
from discreet.mechanisms.normals import RepeatedNormals
from discreet.protections.base import GradientProtection, PrivateSum, Sums, set_gradients, step_optimizer
from discreet.training.independence import ConstantDraws
from discreet.training.recording import Modes, Shape, modes_of, shapes_seen

T = TypeVar("T")
# Records a function of static tensors; returns its results, and a function that computes them again in place.
Capture = Callable[[Callable[[], T]], tuple[T, Callable[[], None]]]
Losses = Callable[[Any], Tensor]

_MOST_SHAPES = 16  # a graph keeps its memory, so shapes beyond these are computed eagerly
_BYTES_OF_LANES = 1 << 31  # of the copies of all sums that are kept
_CONSTANTS = (int, float, str, bool, bytes, type(None))


class Trial(Protocol):
    """Made-up units on which a graph of a part is tried."""

    def is_independent_in(self, part: Part, values_of: Callable[[Any], Sequence[Tensor]]) -> bool:
        """Return whether made-up units have the same bits whatever others are in their part.

        `values_of` returns tensors with one entry for each unit of a collated part; it replaces random draws itself.
        """
        ...


class Lane:
    """Memory and a stream of some graphs: the sums that they add to, the sum of losses, and whether units are finite.

    Graphs of different lanes run at the same time; those of one share the memory that they compute in. The results lie
    outside of that memory.
    """

    def __init__(self, tape: Tape, protect: GradientProtection, device: torch.device, capture: Capture[Any] | None):
        """Start with sums of zero; by default CUDA graphs are captured, on a stream of the lane's own."""
        self.stream = torch.cuda.Stream(device) if capture is None else None  # type: ignore[no-untyped-call]
        self.capture = cuda_graphs(self.stream) if capture is None else capture
        self.sum = PrivateSum(protect, tape)
        self.sum.complete(Rng(0))
        self.total, self.finite = torch.zeros((), device=device), torch.ones((), dtype=torch.bool, device=device)

    def clear(self) -> None:
        """Start another sum, in the same memory."""
        if self.sum.parts:
            torch._foreach_zero_(list(self.sum.sums.values()))
            self.sum.parts = 0
            self.total.zero_()
            self.finite.fill_(True)

    def run(self, captured: Captured, batch: Any, weights: Tensor) -> None:
        """Add a part to the sums."""
        self.join()
        fill(captured.inputs, batch)
        captured.weights.copy_(weights, non_blocking=True)
        self.sum.parts += 1  # first: after an error, the sums are cleared
        if self.stream is None:
            captured.replay()
        else:
            self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
            with torch.cuda.stream(self.stream):
                captured.replay()

    def join(self) -> None:
        """Let what follows on the current stream wait for the lane."""
        if self.stream is not None and self.sum.parts:
            torch.cuda.current_stream(self.stream.device).wait_stream(self.stream)


@dataclass(frozen=True)
class Captured:
    """A captured part: where its rows and their weights go."""

    lane: Lane
    inputs: tuple[Tensor, ...]
    weights: Tensor
    replay: Callable[[], None]
    shape: Shape
    modes: set[Modes]
    independent: bool  # whether units did not change each other in graphs of this shape


class PartGraphs:
    """The graphs of a training's parts, by the shape of what the loss function is given.

    A graph cannot drop a unit with a non-finite gradient: then the sums are discarded, and all parts must be computed
    eagerly, where such a unit adds nothing. Small models may have a lane for each shape, so that the parts of a
    batch are computed at the same time; larger ones have one lane, because each holds a copy of all sums.

    Guarantee: none of its own. The sums are those of `PrivateSum`, and private until noise is added.
    """

    def __init__(
        self,
        tape: Tape,
        protect: GradientProtection,
        losses_of: Losses,
        capture: Capture[Any] | None = None,
        most_lanes: int = 1,
    ) -> None:
        """Start without graphs; `capture` is `cuda_graphs()` by default, and `most_lanes` limits the lanes."""
        self.tape, self.protect, self.losses_of = tape, protect, losses_of
        self.device = next(tape.model.parameters()).device
        self.lanes: list[Lane] = []
        self._how = capture
        trained = sum(p.numel() for p in tape.model.parameters() if p.requires_grad)
        self.most_lanes = max(1, min(most_lanes, _BYTES_OF_LANES // max(1, 4 * trained)))
        self._known: dict[object, Captured | None] = {}  # None: to be computed eagerly
        self._seen: set[object] = set()
        self._shared = 0  # shapes without a lane of their own

    @property
    def parts(self) -> int:
        """How many parts were added since `clear`."""
        return sum(lane.sum.parts for lane in self.lanes)

    def clear(self) -> None:
        """Start another sum."""
        for lane in self.lanes:
            lane.join()
            lane.clear()

    def finite(self) -> bool:
        """Return whether the gradients of all units since `clear` are finite; this waits for the device."""
        active = self._joined()
        return not active or bool(torch.stack([lane.finite for lane in active]).all())

    def total(self) -> Tensor:
        """Return the sum of the losses since `clear`."""
        active = self._joined()
        return torch.stack([lane.total for lane in active]).sum() if active else torch.zeros((), device=self.device)

    def sums(self) -> Sums:
        """Return the sums of all parts since `clear`, always in the same memory."""
        first = self.lanes[0]
        for lane in self._joined():
            if lane is not first:
                torch._foreach_add_(list(first.sum.sums.values()), [lane.sum.sums[name] for name in first.sum.sums])
                first.sum.parts += lane.sum.parts
                lane.clear()
        return dict(first.sum.sums)

    def find(self, batch: Any, part: Part, plain_attention: bool, trial: Trial | None) -> Captured | None:
        """Return the graph of a part if its shape occurs for the second time; None if it must be computed eagerly."""
        key = self._key(batch, part, plain_attention)
        if key is None or self._known.get(key, self) is None:
            return None
        if key not in self._known and key not in self._seen:
            if len(self._seen) < _MOST_SHAPES:
                self._seen.add(key)
            return None
        if key not in self._known:
            try:
                self._known[key] = self._captured(batch, part, trial)
            except torch.OutOfMemoryError:
                self._known[key] = None
        return self._known[key]

    def prepare(self, batch: Any, part: Part, trial: Trial) -> Captured | None:
        """Return the graph of a part with one row a unit, captured from made-up rows, if they are independent."""
        captured = self._captured(batch, part, trial, warn=False)
        return captured if captured is not None and captured.independent else None

    def forget(self) -> None:
        """Drop all graphs, and the memory that they use."""
        self.clear()
        self._known, self._seen, self.lanes = {}, set(), []

    def _joined(self) -> list[Lane]:
        active = [lane for lane in self.lanes if lane.sum.parts]
        for lane in active:
            lane.join()
        return active

    def _key(self, batch: Any, part: Part, plain_attention: bool) -> object | None:
        """Return what decides the kernels of a part, or None if it cannot be captured."""
        if part.rows_each > 1:
            return None  # how rows are grouped into units is read from the device
        constants = tuple(constants_in(batch))
        if not all(isinstance(constant, _CONSTANTS) for constant in constants):
            return None
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors_in(batch))
        return shapes, constants, part.units, plain_attention, modes_of(self.tape.model)

    def _lane(self) -> Lane:
        """Return a lane for another shape."""
        if len(self.lanes) < self.most_lanes:
            self.lanes.append(Lane(self.tape, self.protect, self.device, self._how))
            return self.lanes[-1]
        self._shared += 1
        return self.lanes[self._shared % len(self.lanes)]

    def _captured(self, batch: Any, part: Part, trial: Trial | None, *, warn: bool = True) -> Captured | None:
        device, lane = self.device, self._lane()
        static = mapped(batch, lambda value: value.to(device, copy=True) if isinstance(value, Tensor) else value)
        inputs, weights = tuple(tensors_in(static)), torch.ones(part.units, device=device)
        parts = lane.sum.parts
        try:
            independent = trial is not None and self._is_independent(trial, static, inputs, part, lane)
            with shapes_seen(self.tape.model) as seen:
                _, again = lane.capture(lambda: self._add(static, weights, lane))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if warn:
                warnings.warn(
                    f"Expected a step that can be captured as a CUDA graph, got {type(error).__name__}: {error}. It is "
                    "computed eagerly. The loss function must not read values from the device (item, tolist, cpu).",
                    stacklevel=4,
                )
            return None
        finally:
            lane.sum.parts = parts  # capturing computes nothing
        return Captured(lane, inputs, weights, again, seen.shape, seen.modes, independent)

    def _add(self, batch: Any, weights: Tensor, lane: Lane) -> None:
        """Add a part to the results of a lane."""
        with self.tape:
            losses = self.losses_of(batch)
        seeds = weights.to(losses.dtype)
        record = self.tape.backward(losses, seeds=seeds)
        lane.finite.logical_and_(torch.isfinite(record.norms()).all())
        lane.total.add_((losses.detach() * seeds).sum())
        lane.sum.add(record, Rng(0))

    def _is_independent(self, trial: Trial, static: Any, inputs: Sequence[Tensor], part: Part, lane: Lane) -> bool:
        """Return whether a graph of made-up units computes each of them by itself, bit for bit."""
        if part.units == 1:
            return True
        graph: list[tuple[list[Tensor], Callable[[], None]]] = []
        others = itertools.count()

        def values() -> list[Tensor]:
            with self.tape, ConstantDraws():
                losses = self.losses_of(static)
            return recorded(self.tape.backward(losses))

        def values_of(batch: Any) -> list[Tensor]:
            if not graph:
                graph.append(lane.capture(values))
            if not fits(inputs, batch):
                return [torch.full((part.units,), float(next(others)))]  # of another shape: never the same bits
            fill(inputs, batch)
            graph[0][1]()
            return graph[0][0]

        return trial.is_independent_in(part, values_of)


class StepEnd:
    """The end of a step as one graph: noise for the sums, gradients, and the optimizer.

    It reads and writes the memory that it was captured with: the sums, the weights, the state of the optimizer. If any
    of these is another tensor now, steps end eagerly until nothing changes, and then the graph is captured again.

    Guarantee: that of `PrivateSum.release`: the same noise, from the same seeds.
    """

    def __init__(self, graphs: PartGraphs, size: float, capture: Capture[Any] | None = None) -> None:
        """Take the graphs of the parts, whose sums are released, and the expected size of a batch."""
        self.graphs, self.size = graphs, size
        self._capture = cuda_graphs() if capture is None else capture
        self._noise: RepeatedNormals | None = None
        self._memory: list[Tensor] = []  # of the last step
        self._gradients: list[Tensor] = []
        self._again: Callable[[], None] | None = None

    def run(
        self, parameters: Mapping[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, source: Rng, step: int
    ) -> bool:
        """End a step by the graph; return False, and do nothing, if it must be ended eagerly."""
        std, sums = self.graphs.protect.step_noise, self.graphs.sums()
        memory = [*sums.values(), *parameters.values(), *_state_of(optimizer)]
        if len(memory) != len(self._memory) or any(a is not b for a, b in zip(memory, self._memory, strict=True)):
            self._memory, self._again, self._gradients = memory, None, []
            return False
        if std is None or not (self._again or all(map(RepeatedNormals.fits, sums.values()))):
            return False
        noise = self._noise = self._noise or RepeatedNormals(std, next(iter(sums.values())).device)
        noise.use(source.fork("noise", step))
        if self._again is None:

            def end() -> list[Tensor]:
                set_gradients(parameters, noise.add(sums), self.size)
                step_optimizer(optimizer)
                return [parameter.grad for parameter in parameters.values() if parameter.grad is not None]

            self._gradients, self._again = self._capture(end)
        self._again()
        for parameter, gradient in zip(parameters.values(), self._gradients, strict=True):
            parameter.grad = gradient
        return True


def _state_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors that an optimizer reads besides weights and gradients."""
    rates = [value for group in optimizer.param_groups for value in group.values() if isinstance(value, Tensor)]
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [*rates, *states]


@contextmanager
def side_stream(device: torch.device) -> Iterator[None]:
    """Compute on another stream of a GPU, as is required of what is captured afterwards; elsewhere do nothing."""
    if device.type != "cuda":
        yield
        return
    stream, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        yield
    current.wait_stream(stream)


def cuda_graphs(stream: torch.cuda.Stream | None = None) -> Capture[Any]:
    """Return a function that captures CUDA graphs on a stream; they share one pool of memory.

    Graphs that were captured on one stream share its workspaces too, so they must not run at the same time.

    The pool is kept with the last graph: the allocator fails if a graph is captured into a pool whose graphs are gone.
    """
    pool: list[Any] = []
    kept: list[torch.cuda.CUDAGraph] = []

    def capture(function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        pool.extend([] if pool else [torch.cuda.graph_pool_handle()])
        graph = torch.cuda.CUDAGraph()
        kept.append(graph)
        # A weight that autocast has converted before would be read from where it lies now, and never converted again.
        torch.clear_autocast_cache()
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            with torch.cuda.graph(graph, pool=pool[0], stream=stream):
                results = function()
        finally:
            torch.set_autocast_cache_enabled(cached)
        return results, graph.replay

    return capture


def fits(inputs: Sequence[Tensor], batch: Any) -> bool:
    """Return whether the tensors of a batch have the shapes and types of static ones."""
    return [(value.shape, value.dtype) for value in tensors_in(batch)] == [(one.shape, one.dtype) for one in inputs]


def fill(inputs: Sequence[Tensor], batch: Any) -> None:
    """Copy the tensors of a batch into static ones, which a graph reads; raise if they do not fit."""
    if not fits(inputs, batch):
        raise RuntimeError("Expected a batch of the shapes and types that were captured. Its graph cannot compute it.")
    for one, value in zip(inputs, tensors_in(batch), strict=True):
        one.copy_(value, non_blocking=True)
