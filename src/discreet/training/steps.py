"""Steps: what the loop asks of one, and the ordinary one, eager anywhere and replayed as a CUDA graph on a GPU.

Small encoders spend most of a GPU step launching kernels. A graph of the whole step (forward, backward, optimizer) is
captured once per batch shape and replayed: docs/decisions/training.md has the measurement.

What the loop tells whoever watches it, a few times a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from discreet.core.guarantee import Guarantee
from discreet.data.batches import Batch, Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.models.base import TextModel
from discreet.training.parts import autocast
from discreet.training.plan import TrainingPlan


class Step(Protocol):
    """One step of training, private or not."""

    run: str  # the identity of the training, part of the name under which a private step is counted

    @property
    def rows(self) -> Tokens | Vectors:
        """The rows it draws from."""
        ...

    @property
    def protection(self) -> str | None:
        """The name of the protection, or None; under one, nothing else computed from the rows may be kept."""
        ...

    @property
    def per_epoch(self) -> int:
        """How many steps read the corpus once."""
        ...

    @property
    def steps(self) -> int:
        """How many steps the training takes."""
        ...

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Take a step and return its mean loss, still on the device (None for an empty batch), and its rows."""
        ...

    def describe(self) -> object:
        """Return what decides the outcome of the step, for the identity of a training."""
        ...

    def check(self, steps: int) -> None:
        """Refuse to resume after so many steps if they were not accounted for."""
        ...

    def layout(self) -> dict[str, Any] | None:
        """Return in what parts batches are read if that is chosen by the machine, to be kept for a resume."""
        ...

    def restore(self, layout: dict[str, Any]) -> None:
        """Read batches in the parts in which a stopped training read them."""
        ...

    def epsilon(self) -> float | None:
        """Return a bound on what was spent so far, or None if nothing is guaranteed."""
        ...

    def guarantee(self) -> Guarantee | None:
        """Return what all steps so far guarantee, or None if nothing is."""
        ...


@dataclass(frozen=True)
class Parts:
    """What every step is made of; `start` is the hash of the weights that training starts from."""

    model: TextModel
    optimizer: torch.optim.Optimizer
    plan: TrainingPlan
    rows: Tokens | Vectors
    corpus: Corpus
    start: str = ""


@dataclass
class OpenStep:
    """A step without protection.

    Guarantee: none, ordinary training memorises its data.
    """

    model: TextModel
    optimizer: torch.optim.Optimizer
    rows: Tokens | Vectors
    plan: TrainingPlan
    run: str = ""
    protection: ClassVar[None] = None

    @classmethod
    def of(cls, parts: Parts) -> OpenStep:
        """Return the step of a training without protection."""
        return cls(parts.model, parts.optimizer, parts.rows, parts.plan)

    def __post_init__(self) -> None:
        """Choose between eager and captured steps."""
        asked = self.plan.settings
        plain = PlainStep(self.model, self.optimizer, asked.gradient_norm, asked.accumulate, asked.precision)
        self.take: PlainStep | GraphedStep = GraphedStep(plain) if self.model.device.type == "cuda" else plain

    @property
    def per_epoch(self) -> int:
        """How many steps read the corpus once."""
        return self.plan.sampler.steps_per_epoch(len(self.rows))

    @property
    def steps(self) -> int:
        """How many steps the training takes."""
        return self.plan.steps

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Draw a batch and learn from it; an empty one teaches nothing."""
        drawn = self.plan.sampler.draw(step, len(self.rows), self.plan.rng.fork("sampler"))
        if not len(drawn):
            return None, 0
        self.plan.rng.fork("dropout", step).seed_torch(self.model.device)
        return self.take(self.rows.batch(drawn)), len(drawn)

    def describe(self) -> object:
        """Return the sampler."""
        return self.plan.sampler

    def check(self, steps: int) -> None:
        """Accept: nothing is accounted for."""

    def layout(self) -> None:
        """Return nothing: a batch is read as the settings say."""
        return

    def restore(self, layout: dict[str, Any]) -> None:
        """Accept: there is nothing to take up."""

    def epsilon(self) -> None:
        """Return nothing: nothing is guaranteed."""
        return

    def guarantee(self) -> None:
        """Return nothing: nothing is guaranteed."""
        return


@dataclass
class PlainStep:
    """Forward, backward, shorten the gradient, and let the optimizer move the weights.

    Guarantee: none, ordinary training memorises its data.
    """

    model: TextModel
    optimizer: torch.optim.Optimizer
    gradient_norm: float
    accumulate: int
    precision: str
    losses: Callable[[Mapping[str, Tensor], Tensor], Tensor] | None = None  # the model's own, if not given

    def __call__(self, batch: Batch) -> Tensor:
        """Take one step and return the mean loss, still on the device."""
        losses = self.losses or self.model.losses
        self.optimizer.zero_grad(set_to_none=True)
        size = len(batch)
        part = -(-size // self.accumulate)
        total = torch.zeros((), device=batch.targets.device)
        for start in range(0, size, part):
            piece = batch if part >= size else batch.slice(start, min(start + part, size))
            with autocast(batch.targets.device, self.precision):
                loss = losses(piece.inputs, piece.targets).sum() / size
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
        shape = (*batch.targets.shape, *(size for value in batch.inputs.values() for size in value.shape))
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


_REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Report:
    """Where a training stands; `epsilon` bounds what private training has spent so far.

    There is no rate where the steps have read nothing, as those of a head that was solved at once. In the stage
    "encoding" a step is a text that the frozen encoder has read.
    """

    step: int
    steps: int
    loss: float | None
    rows_per_second: float | None
    seconds_left: float
    epsilon: float | None = None
    stage: Literal["training", "encoding"] = "training"


def encoding_watch(watch: Callable[[Report], None] | None) -> Callable[[int, int], None] | None:
    """Return what to call with the number of texts encoded so far and of all, so that `watch` hears of it."""
    if watch is None:
        return None
    began = time.monotonic()

    def encoded(done: int, total: int) -> None:
        rate = done / max(time.monotonic() - began, 1e-9)
        watch(Report(done, total, None, rate, (total - done) / max(rate, 1e-9), stage="encoding"))

    return encoded


class Meter:
    """Counts rows and losses, and reports a few times a second without making the device wait at every step.

    Where nobody watches, nothing is worked out: an epsilon may take as long as many steps.
    """

    def __init__(
        self, steps: int, first: int, watch: Callable[[Report], None] | None, epsilon: Callable[[], float | None]
    ) -> None:
        """Begin to count at step `first` of `steps`."""
        self.steps, self.first, self.watch, self.epsilon = steps, first, watch, epsilon
        self.begun = self.reported = time.monotonic()
        self.rows = 0
        self.losses: list[torch.Tensor] = []

    def add(self, step: int, loss: torch.Tensor | None, rows: int) -> None:
        """Count a step; an empty batch has no loss."""
        self.rows += rows
        if loss is not None:
            self.losses.append(loss)
        if self.watch is None:
            return
        now = time.monotonic()
        if now - self.reported > _REPORT_SECONDS or step == self.steps:
            self.reported = now
            spent = max(now - self.begun, 1e-9)
            left = spent / max(1, step - self.first) * (self.steps - step)
            recent = torch.stack(self.losses[-20:]).mean().item() if self.losses else None
            rate = self.rows / spent if self.rows else None
            self.watch(Report(step, self.steps, recent, rate, left, self.epsilon()))

    def mean(self) -> float | None:
        """Return the mean loss since the last call, or None if every batch was empty."""
        losses, self.losses = self.losses, []
        return torch.stack(losses).mean().item() if losses else None
