"""The forward pass, backward pass and clipped sum of a part as a CUDA graph, replayed for all parts of one shape.

A step of a small model on a GPU takes as long as the host needs to launch its kernels. A graph launches all of them at
once. The first part of a shape is computed eagerly, which also warms up the libraries; the second one is captured.

A graph computes with other kernels than an eager part may, so that units do not change each other is tried again, bit
for bit, on made-up rows in a graph of their own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from discreet.clipping.independence import recorded
from discreet.clipping.tape import Tape, tensors_in
from discreet.core.randomness import Rng
from discreet.data.shapes import Part
from discreet.integrations.draws import ConstantDraws
from discreet.integrations.handed import mapped
from discreet.integrations.recording import Recording
from discreet.integrations.separation import Modes, Separation, Shape, modes_of, shapes_seen
from discreet.protections.base import GradientProtection

T = TypeVar("T")
# Records a function of static tensors; returns its results, and a function that computes them again in place.
Capture = Callable[[Callable[[], T]], tuple[T, Callable[[], None]]]

_MOST_SHAPES = 16  # a graph keeps its memory, so shapes beyond these are computed eagerly
_CONSTANTS = (int, float, str, bool, bytes, type(None))


@dataclass(frozen=True)
class Captured:
    """A captured part: where its rows and their weights go, and where its sums come out."""

    inputs: tuple[Tensor, ...]
    weights: Tensor
    sums: dict[str, Tensor]
    finite: Tensor  # whether all sums are
    replay: Callable[[], None]
    shape: Shape
    modes: set[Modes]
    apart: bool  # whether units did not change each other in graphs of this shape


class PartGraphs:
    """The graphs of a training's parts, by the shape of what the loss function is given.

    Guarantee: none of its own. The sums are those of `GradientProtection.gather`, and private until noise is added.
    """

    def __init__(
        self,
        tape: Tape,
        protect: GradientProtection,
        losses_of: Callable[[Any], Tensor],
        capture: Capture[Any] | None = None,
    ) -> None:
        """Start without graphs; `capture` is `cuda_graphs()` by default."""
        self.tape, self.protect, self.losses_of = tape, protect, losses_of
        self._capture = cuda_graphs() if capture is None else capture
        self._known: dict[object, Captured | None] = {}  # None: to be computed eagerly
        self._seen: set[object] = set()

    def take(
        self, recording: Recording, batch: Any, part: Part, weights: Tensor, separation: Separation | None
    ) -> Captured | None:
        """Return the sums of a part by a graph, or None if the part must be computed eagerly.

        The recording stays open, so that it can be used then. A graph does not treat a unit apart whose gradient is not
        finite; such a part is computed eagerly, where the unit adds nothing.
        """
        key = self._key(batch, part, separation)
        if key is None or key not in self._seen:
            if key is not None and len(self._seen) < _MOST_SHAPES:
                self._seen.add(key)
            return None
        recording.stop()
        if key not in self._known:
            self._known[key] = self._captured(batch, part, separation)
        captured = self._known[key]
        if captured is not None:
            _fill(captured.inputs, batch)
            captured.weights.copy_(weights)
            captured.replay()
            if bool(captured.finite):
                return captured
        recording.start()
        return None

    def _key(self, batch: Any, part: Part, separation: Separation | None) -> object | None:
        """Return what decides the kernels of a part, or None if it cannot be captured."""
        if part.rows_each > 1:
            return None  # how rows are grouped into units is read from the device
        constants = tuple(_constants(batch))
        if not all(isinstance(constant, _CONSTANTS) for constant in constants):
            return None
        shapes = tuple((tuple(tensor.shape), tensor.dtype) for tensor in tensors_in(batch))
        plain = separation is not None and separation.plain_attention
        return shapes, constants, part.units, plain, modes_of(self.tape.model)

    def _captured(self, batch: Any, part: Part, separation: Separation | None) -> Captured | None:
        device = next(self.tape.model.parameters()).device
        static = mapped(batch, lambda value: value.to(device, copy=True) if isinstance(value, Tensor) else value)
        inputs, weights = tuple(tensors_in(static)), torch.ones(part.units, device=device)
        try:
            apart = separation is not None and self._is_apart(separation, static, inputs, part.units)
            with shapes_seen(self.tape.model) as seen:
                (sums, finite), again = self._capture(lambda: self._sums(static, weights))
        except RuntimeError as error:
            warnings.warn(
                f"Expected a step that can be captured as a CUDA graph, got {type(error).__name__}: {error}. It is "
                "computed eagerly. The loss function must not read values from the device (item, tolist, cpu).",
                stacklevel=4,
            )
            return None
        return Captured(inputs, weights, sums, finite, again, seen.shape, seen.modes, apart)

    def _sums(self, batch: Any, weights: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        with self.tape:
            losses = self.losses_of(batch)
        record = self.tape.backward(losses, seeds=weights.to(losses.dtype))
        sums: dict[str, Tensor] = {}
        self.protect.gather(record, sums, Rng(0))
        return sums, torch.isfinite(torch.stack(torch._foreach_norm(list(sums.values())))).all()

    def _is_apart(self, separation: Separation, static: Any, inputs: Sequence[Tensor], units: int) -> bool:
        """Return whether a graph of made-up units computes each of them by itself, bit for bit."""
        if units == 1:
            return True

        def values() -> list[Tensor]:
            with self.tape, ConstantDraws():
                losses = self.losses_of(static)
            return recorded(self.tape.backward(losses))

        graph: list[tuple[list[Tensor], Callable[[], None]]] = []

        def values_of(batch: Any) -> list[Tensor]:
            if not graph:
                graph.append(self._capture(values))
            if not _fill(inputs, batch):
                return [torch.rand(units, device=inputs[0].device)]  # of another shape: never the same bits
            graph[0][1]()
            return graph[0][0]

        return separation.units_apart_in(units, values_of)


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


def cuda_graphs() -> Capture[Any]:
    """Return a function that captures CUDA graphs, which share one pool of memory."""
    pool: list[Any] = []

    def capture(function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        pool.extend([] if pool else [torch.cuda.graph_pool_handle()])
        graph = torch.cuda.CUDAGraph()
        # A weight that autocast has converted before would be read from where it lies now, and never converted again.
        torch.clear_autocast_cache()
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(False)
        try:
            with torch.cuda.graph(graph, pool=pool[0]):
                results = function()
        finally:
            torch.set_autocast_cache_enabled(cached)
        return results, graph.replay

    return capture


def _fill(inputs: Sequence[Tensor], batch: Any) -> bool:
    """Copy the tensors of a batch into static ones, if they have the same shapes and types; return whether."""
    values = list(tensors_in(batch))
    if [(value.shape, value.dtype) for value in values] != [(one.shape, one.dtype) for one in inputs]:
        return False
    for one, value in zip(inputs, values, strict=True):
        one.copy_(value, non_blocking=True)
    return True


def _constants(value: Any) -> list[Any]:
    """Return what a batch holds besides tensors."""
    if isinstance(value, Tensor):
        return []
    if isinstance(value, Mapping):
        return [part for item in value.items() for part in (item[0], *_constants(item[1]))]
    if isinstance(value, list | tuple):
        return [part for item in value for part in _constants(item)]
    if is_dataclass(value) and not isinstance(value, type):
        return [part for field in fields(value) for part in _constants(getattr(value, field.name))]
    return [value]
