"""One step of ordinary training: eager anywhere, and replayed as a CUDA graph where the device allows it.

Small encoders spend most of a GPU step launching kernels. A graph of the whole step (forward, backward, optimizer) is
captured once per batch shape and replayed: docs/decisions/0004 has the measurement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from discreet.data.batches import Batch
from discreet.models.classifier import Classifier
from discreet.training.precision import autocast


@dataclass
class PlainStep:
    """Forward, backward, shorten the gradient, and let the optimizer move the weights.

    Guarantee: none, ordinary training memorises its data.
    """

    model: Classifier
    optimizer: torch.optim.Optimizer
    gradient_norm: float
    accumulate: int
    precision: str

    def __call__(self, batch: Batch) -> Tensor:
        """Take one step and return the mean loss, still on the device."""
        self.optimizer.zero_grad(set_to_none=True)
        size = len(batch)
        part = -(-size // self.accumulate)
        total = torch.zeros((), device=batch.targets.device)
        for start in range(0, size, part):
            piece = batch if part >= size else batch.slice(start, min(start + part, size))
            with autocast(batch.targets.device, self.precision):
                loss = self.model.losses(piece.inputs, piece.targets).sum() / size
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        torch.nn.utils.clip_grad_norm_(parameters, self.gradient_norm, foreach=True)
        self.optimizer.step()
        return total


@dataclass(frozen=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: dict[str, Tensor]
    targets: Tensor
    loss: Tensor


@dataclass
class GraphedStep:
    """A step that is captured the second time a batch shape is met, and replayed from then on."""

    step: PlainStep
    captured: dict[tuple[int, ...], _Captured | None] = field(default_factory=dict)
    pool: Any = None

    def __call__(self, batch: Batch) -> Tensor:
        """Take one step and return the mean loss, still on the device."""
        shape = (*batch.targets.shape, *next(iter(batch.inputs.values())).shape)
        if shape not in self.captured:
            self.captured[shape] = None  # the first time is a real step that also warms up the libraries
            return self._aside(batch)
        found = self.captured[shape] or self._capture(shape, batch)
        for name, value in batch.inputs.items():
            found.inputs[name].copy_(value, non_blocking=True)
        found.targets.copy_(batch.targets, non_blocking=True)
        found.graph.replay()
        return found.loss.clone()

    def _aside(self, batch: Batch) -> Tensor:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self.step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return loss

    def _capture(self, shape: tuple[int, ...], batch: Batch) -> _Captured:
        inputs = {name: value.clone() for name, value in batch.inputs.items()}
        targets = batch.targets.clone()
        graph = torch.cuda.CUDAGraph()
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self.pool):
            loss = self.step(Batch(inputs, targets))
        found = _Captured(graph, inputs, targets, loss)
        self.captured[shape] = found
        return found
