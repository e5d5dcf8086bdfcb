"""What the loop tells whoever watches it, a few times a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

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
