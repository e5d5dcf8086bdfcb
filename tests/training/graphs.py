"""A stand-in for CUDA graphs on a CPU: capturing computes nothing, and replaying computes again in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.core.device import tensors_in
from discreet.mechanisms import normals
from discreet.training.capture import StepEnd
from discreet.training.engine import Engine
from discreet.training.independence import Kernels


class Graphs:
    """Captures for `Engine.capture`; each replay changes the results by a share of `change` more."""

    def __init__(self, change: float = 0.0) -> None:
        self.captured, self.replayed, self.change = 0, 0, change
        self.engine: Engine | None = None
        self.optimizer: torch.optim.Optimizer | None = None

    def __call__(self, function: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        with torch.random.fork_rng(), self.unchanged():
            results = function()
        self.captured += 1

        def replay() -> None:
            self.replayed += 1
            for old, new in zip(tensors_in(results), tensors_in(function()), strict=True):
                old.copy_(new * (1 + self.change * self.replayed) if new.is_floating_point() else new)

        return results, replay

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Put back what a graph writes besides its results: sums, weights, and what the optimizer knows."""
        written = self.written()
        before = [tensor.detach().clone() for tensor in written]
        yield
        for tensor, value in zip(written, before, strict=True):
            tensor.detach().copy_(value)

    def written(self) -> list[Tensor]:
        if self.engine is None or self.engine.graphs is None:
            return []
        graphs, kept = self.engine.graphs, list(self.engine.parameters.values())
        states = [] if self.optimizer is None else self.optimizer.state.values()
        known = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        lanes = [tensor for lane in graphs.lanes for tensor in (*lane.sum.sums.values(), lane.total, lane.finite)]
        return [*lanes, *kept, *known]


def captured_on_the_cpu(patch: Any, graphs: Graphs | None) -> None:
    """Let parts and the end of steps be captured by a stand-in, or only be tested as they are on a GPU, for None."""
    patch.setattr(Kernels, "can_change", property(lambda self: True))
    if graphs is None:
        return
    capture, run = Engine.capture, StepEnd.run

    def captured(self: Engine, losses_of: Any, most_lanes: int = 1) -> bool:
        graphs.engine = self
        return capture(self, losses_of, graphs, most_lanes=most_lanes)

    def ended(self: StepEnd, parameters: Any, optimizer: Any, *rest: Any) -> bool:
        graphs.optimizer = optimizer
        return run(self, parameters, optimizer, *rest)

    patch.setattr(Engine, "capture", captured)
    patch.setattr(StepEnd, "run", ended)


def noise_on_the_cpu(monkeypatch: Any) -> None:
    """Let the noise of a captured step be computed as the kernel of a GPU would."""

    def add(values: Tensor, key: Tensor, number: int, out: Tensor | None = None) -> Tensor:
        std, shift = (float(np.int64(word).view(np.float64)) for word in key[3:].tolist())
        noise = torch.from_numpy(normals.reference(key.tolist(), values.numel(), number)).view(values.shape)
        return noise.mul_(std).add_(values).add_(shift).sub_(shift).to(values.dtype)

    monkeypatch.setattr(normals, "kernel_add", add)
    monkeypatch.setattr(normals.RepeatedNormals, "fits", staticmethod(lambda values: True))
