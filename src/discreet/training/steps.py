"""Training steps: the base class, the unprotected step, and progress reports.

The unprotected step runs eagerly on a CPU and is replayed as a CUDA graph on a GPU. Small encoders spend most of a GPU
step launching kernels, so the step (forward, backward, optimizer) is captured once per batch shape:
docs/decisions/training.md has the measurement.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.device import autocast, tensors_in
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.data.batches import Batch, Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.models.base import TextModel
from discreet.training.account import Account
from discreet.training.capture import Capture, cuda_graphs, fill, side_stream
from discreet.training.plan import PrivatePlan, TrainingPlan


@dataclass(frozen=True)
class Taken:
    """What a private step did, for the audit of its owner.

    `units` are the units that it drew, of `count` in all; `rows` are the number of their rows, and the number of rows
    that entered the sum. `measure(scales)` computes a part of the batch again, by the same code or graph, with the loss
    of one of its units multiplied by each of these numbers. It returns the protected sums and the number of units in
    the part.

    Guarantee: none. It is private: a step is amplified only if nobody learns which units it drew.
    """

    step: int
    units: npt.NDArray[np.int64]
    count: int
    rows: tuple[int, int]
    measure: Callable[[tuple[float, ...]], tuple[list[dict[str, Tensor]], int]]


class StepCanaries(ABC):
    """Canary units of an audited training run: the step lets them take part, and `discreet.audit` judges what it read.

    `zeroed` are rows of the train split whose units are replaced by empty records: they are sampled and counted, and
    contribute nothing.
    """

    zeroed: tuple[int, ...] = ()

    @abstractmethod
    def plant(self, sums: dict[str, Tensor], step: int, rng: Rng) -> None:
        """Add what the canaries contribute to the sums of a step, before noise."""

    @abstractmethod
    def read(self, released: dict[str, Tensor], sums: dict[str, Tensor]) -> None:
        """Read the released sums of a step and those before noise, and remove what is not a parameter of the model."""

    @abstractmethod
    def watch(self, taken: Taken) -> None:
        """Record what a step did, for the checks of an audit."""

    @abstractmethod
    def describe(self) -> object:
        """Return everything that determines what the canaries contribute."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Return what was read so far, for a checkpoint."""

    @abstractmethod
    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from what a stopped training run had read."""


class Step(ABC):
    """One step of training, protected or not.

    A protected one has the account of its run, in which it is counted.
    """

    rows: Tokens | Vectors
    plan: TrainingPlan
    account: Account | None

    @property
    def protection(self) -> str | None:
        """Name of the protection, or None; with one, nothing else computed from the rows may be stored."""
        return None if self.plan.protect is None else self.plan.protect.name

    @property
    def per_epoch(self) -> int:
        """Number of steps that read the corpus once."""
        return self.plan.sampler.steps_per_epoch(len(self.rows))

    @property
    def steps(self) -> int:
        """Number of steps of the training."""
        return self.plan.steps

    @abstractmethod
    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Take a step; return its mean loss, still on the device (None for an empty batch), and its number of rows."""

    @abstractmethod
    def describe(self) -> object:
        """Return everything that determines the outcome of the step, for the identity of a training run."""

    def check(self, steps: int) -> None:  # noqa: B027
        """Reject resuming after this many steps if they were not accounted for."""

    def reserve(self, first: int) -> int:
        """Count all planned steps from `first` on, before the first of them; return how many the budget allows.

        It is 0 where a step costs nothing: without protection, or if everything private was released before training.
        """
        return 0

    def layout(self) -> dict[str, Any] | None:
        """Return how batches are divided into parts, if that depends on the machine; a checkpoint stores it."""
        return None

    def restore(self, layout: dict[str, Any]) -> None:  # noqa: B027
        """Divide batches into parts as a stopped training run did."""

    def canary_state(self) -> dict[str, Tensor]:
        """Return what an audit has read so far; a checkpoint stores it."""
        return {}

    def restore_canaries(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Continue an audit from what a stopped training run had read."""

    def epsilon(self) -> float | None:
        """Return an upper bound on the epsilon of all that is in the ledger, or None without a protection."""
        return None if self.account is None else self.account.epsilon()

    def guarantee(self) -> Guarantee | None:
        """Return the guarantee of all planned steps, or None without a protection."""
        return None if self.account is None else self.account.guarantee()


@dataclass(frozen=True)
class Parts:
    """Inputs of every step; `start` is the hash of the weights that training starts from."""

    model: TextModel
    optimizer: torch.optim.Optimizer
    plan: TrainingPlan
    rows: Tokens | Vectors
    corpus: Corpus
    start: str = ""
    canaries: StepCanaries | None = None

    @property
    def private(self) -> PrivatePlan:
        """The plan, of a protected training."""
        assert isinstance(self.plan, PrivatePlan)
        return self.plan


@dataclass
class OpenStep(Step):
    """A step without protection.

    Guarantee: none; ordinary training memorizes its data.
    """

    model: TextModel
    optimizer: torch.optim.Optimizer
    rows: Tokens | Vectors
    plan: TrainingPlan
    account: Account | None = None

    @classmethod
    def of(cls, parts: Parts) -> OpenStep:
        """Return the step of a training run without protection."""
        return cls(parts.model, parts.optimizer, parts.rows, parts.plan)

    def __post_init__(self) -> None:
        """Choose between eager and captured steps."""
        settings = self.plan.settings
        eager = PlainStep(self.model, self.optimizer, settings.gradient_norm, settings.accumulate, settings.precision)
        self.take: PlainStep | GraphedStep = GraphedStep(eager) if self.model.device.type == "cuda" else eager

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Sample a batch and train on it; an empty batch changes nothing."""
        batch = self.plan.sampler.draw(step, len(self.rows), self.plan.rng.fork("sampler"))
        if not len(batch):
            return None, 0
        self.plan.rng.fork("dropout", step).seed_torch(self.model.device)
        return self.take(self.rows.batch(batch)), len(batch)

    def describe(self) -> object:
        """Return the sampler."""
        return self.plan.sampler


@dataclass
class PlainStep:
    """Forward, backward, clip the gradient norm, and step the optimizer.

    Guarantee: none; ordinary training memorizes its data.
    """

    model: TextModel
    optimizer: torch.optim.Optimizer
    gradient_norm: float
    accumulate: int
    precision: str
    losses: Callable[[Mapping[str, Tensor], Tensor], Tensor] | None = None  # by default those of the model

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


@dataclass
class GraphedStep:
    """A step that is captured the second time a batch shape occurs, and replayed from then on."""

    step: PlainStep
    capture: Capture[Tensor] = field(default_factory=cuda_graphs)
    captured: dict[tuple[int, ...], tuple[Batch, Tensor, Callable[[], None]] | None] = field(default_factory=dict)

    def __call__(self, batch: Batch) -> Tensor:
        """Take one step and return the mean loss, still on the device."""
        shape = (*batch.targets.shape, *(size for value in batch.inputs.values() for size in value.shape))
        if shape not in self.captured:
            self.captured[shape] = None  # the first time is a real step that also warms up the libraries
            with side_stream(batch.targets.device):
                return self.step(batch)
        captured = self.captured[shape]
        if captured is None:
            static = Batch({name: value.clone() for name, value in batch.inputs.items()}, batch.targets.clone())
            captured = self.captured[shape] = (static, *self.capture(lambda: self.step(static)))
        static, loss, again = captured
        fill(tuple(tensors_in(static)), batch)
        again()
        return loss.clone()


_REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Report:
    """Progress of a training run; `epsilon` bounds what all planned steps of protected training cost.

    `rows_per_second` is None if the steps read no rows, as for a head that is solved in closed form. In the stage
    "encoding" a step is one text read by the frozen encoder, and in "rounds" one round of a federated run. The stage
    "public text" comes before private training that starts from public text. `seconds_left` is None if the time of a
    step is private.
    """

    step: int
    steps: int
    loss: float | None
    rows_per_second: float | None
    seconds_left: float | None
    epsilon: float | None = None
    stage: Literal["training", "encoding", "rounds", "public text"] = "training"


def encoding_watch(watch: Callable[[Report], None] | None) -> Callable[[int, int], None] | None:
    """Return a callback that takes the number of texts encoded so far and in all, and reports them to `watch`."""
    if watch is None:
        return None
    start = time.monotonic()

    def report(count: int, total: int) -> None:
        rate = count / max(time.monotonic() - start, 1e-9)
        watch(Report(count, total, None, rate, (total - count) / max(rate, 1e-9), stage="encoding"))

    return report


class Meter:
    """Count rows and losses, and report a few times a second without synchronizing the device at every step.

    Without `watch` nothing is computed: an epsilon may take as long as many steps.
    """

    def __init__(
        self, steps: int, first: int, watch: Callable[[Report], None] | None, epsilon: Callable[[], float | None]
    ) -> None:
        """Start counting at step `first` of `steps`."""
        self.steps, self.first, self.watch, self.epsilon = steps, first, watch, epsilon
        self.start = self.reported = time.monotonic()
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
            elapsed = max(now - self.start, 1e-9)
            left = elapsed / max(1, step - self.first) * (self.steps - step)
            recent = torch.stack(self.losses[-20:]).mean().item() if self.losses else None
            rate = self.rows / elapsed if self.rows else None
            self.watch(Report(step, self.steps, recent, rate, left, self.epsilon()))

    def mean(self) -> float | None:
        """Return the mean loss since the last call, or None if every batch was empty."""
        losses, self.losses = self.losses, []
        return torch.stack(losses).mean().item() if losses else None
