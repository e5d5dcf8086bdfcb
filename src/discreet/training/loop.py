"""The one training loop: draw a batch, take a step, report, and keep what a stopped run needs to go on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.core.errors import DataError
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.data.samplers import Sampler, Shuffled
from discreet.metrics.utility import MAIN
from discreet.models.classifier import Classifier
from discreet.training import checkpoint
from discreet.training.checkpoint import Progress, copy_weights, restore_weights, trained
from discreet.training.encode import ready
from discreet.training.evaluate import evaluate
from discreet.training.settings import TrainSettings, default_rate
from discreet.training.steps import GraphedStep, PlainStep

_REPORT_SECONDS = 0.2


@dataclass(frozen=True)
class Report:
    """What the loop tells whoever watches it."""

    step: int
    steps: int
    loss: float
    rows_per_second: float
    seconds_left: float
    epsilon: float | None = None


@dataclass(frozen=True)
class Trained:
    """How a training ended; `finished` is false if it was asked to stop before its last step."""

    finished: bool
    steps: int
    seconds: float
    truncated: int
    history: tuple[dict[str, Any], ...]


def train(
    model: Classifier,
    corpus: Corpus,
    settings: TrainSettings | None = None,
    *,
    rng: Rng,
    sampler: Sampler | None = None,
    workspace: Path | None = None,
    cache: Path | None = None,
    checkpoint_seconds: float = 30.0,
    watch: Callable[[Report], None] = lambda report: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train a classifier on the train split of a corpus and say how it went; the model is changed in place.

    With a `workspace` folder, what is needed to go on is written there every `checkpoint_seconds` and at a stop; called
    again with the same arguments, training goes on from it and ends with the same weights as an undisturbed one.

    Guarantee: none, ordinary training memorises its data.
    """
    settings = settings or TrainSettings()
    rows = ready(model, matched_split(corpus, model, "train"), cache, settings.precision)
    sampler = sampler or Shuffled(min(settings.batch_size, len(rows)))
    validation = None
    if settings.patience is not None:
        validation = ready(model, matched_split(corpus, model, "validation"), cache, settings.precision)
    steps = max(1, round(settings.epochs * sampler.steps_per_epoch(len(rows))))
    run = _Run(model, rows, validation, settings, sampler, rng, steps, workspace)
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        return run.go(checkpoint_seconds, watch, should_stop)


def matched_split(corpus: Corpus, model: Classifier, name: str) -> Corpus:
    """Return one split of a corpus, refused if it is not there or empty."""
    if corpus.task != model.task:
        raise DataError(f"Expected data for {model.task}, found {corpus.task}. Name the label column.")
    if name not in corpus.split_names:
        raise DataError(
            f"Expected a {name!r} split in corpus {corpus.name!r}. Add one, for example a file {name}.csv beside it."
        )
    return corpus.split(name)


@dataclass
class _Run:
    """The moving parts of one training, so that the loop below reads as a story."""

    model: Classifier
    rows: Tokens | Vectors
    validation: Tokens | Vectors | None
    settings: TrainSettings
    sampler: Sampler
    rng: Rng
    steps: int
    workspace: Path | None

    def __post_init__(self) -> None:
        device = self.model.device
        self.peak = self.settings.learning_rate or default_rate(self.model.settings.train, self.model.width)
        on_gpu = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            groups(self.model, self.settings.weight_decay),
            lr=torch.tensor(self.peak, device=device) if on_gpu else self.peak,
            fused=True,
            capturable=on_gpu,
        )
        step = PlainStep(
            self.model, self.optimizer, self.settings.gradient_norm, self.settings.accumulate, self.settings.precision
        )
        self.take: PlainStep | GraphedStep = GraphedStep(step) if on_gpu else step
        self.per_epoch = self.sampler.steps_per_epoch(len(self.rows))
        self.identity = identity(self.model, self.rows, self.settings, self.sampler, self.steps, self.rng)

    def go(
        self, checkpoint_seconds: float, watch: Callable[[Report], None], should_stop: Callable[[], bool]
    ) -> Trained:
        at = Progress()
        if self.workspace is not None:
            at = checkpoint.load(self.workspace, self.identity, self.model, self.optimizer)
        begun, first, saved = time.monotonic() - at.seconds, at.step, time.monotonic()
        meter = _Meter(self.steps, first, watch)
        self.model.train()
        step, stopped_early = at.step, at.step >= self.steps
        while step < self.steps and not stopped_early:
            drawn = self.sampler.draw(step, len(self.rows), self.rng.fork("sampler"))
            if len(drawn):
                torch.manual_seed(self.rng.fork("dropout", step).seed())
                self.set_rate(self.settings.rate_at(step, self.steps, self.peak))
                loss = self.take(self.rows.batch(drawn))
                meter.add(step + 1, loss, len(drawn))
            step += 1
            if step % self.per_epoch == 0 or step == self.steps:
                at = self.end_of_epoch(replace(at, step=step, epoch=at.epoch + 1), meter)
                stopped_early = self.settings.patience is not None and at.stale >= self.settings.patience
            stop = should_stop() and step < self.steps and not stopped_early
            if self.workspace is not None and (stop or time.monotonic() - saved > checkpoint_seconds):
                at = replace(at, step=step, seconds=time.monotonic() - begun)
                checkpoint.save(self.workspace, self.identity, self.model, self.optimizer, at)
                saved = time.monotonic()
            if stop:
                return Trained(False, step, time.monotonic() - begun, self.rows.truncated, at.history)
        if at.best_weights:
            restore_weights(self.model, at.best_weights)
        self.model.eval()
        return Trained(True, step, time.monotonic() - begun, self.rows.truncated, at.history)

    def set_rate(self, rate: float) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def end_of_epoch(self, at: Progress, meter: _Meter) -> Progress:
        entry: dict[str, Any] = {"epoch": at.epoch, "step": at.step, "loss": meter.mean()}
        if self.validation is None:
            return replace(at, history=(*at.history, entry))
        scores = evaluate(self.model, self.validation, self.settings.precision)
        self.model.train()
        entry |= scores
        score = scores[MAIN[self.model.task]]
        at = replace(at, history=(*at.history, entry))
        if at.best is None or score > at.best:
            return replace(at, best=score, stale=0, best_weights=copy_weights(self.model))
        return replace(at, stale=at.stale + 1)


class _Meter:
    """Counts rows and losses, and reports a few times a second without making the device wait at every step."""

    def __init__(self, steps: int, first: int, watch: Callable[[Report], None]) -> None:
        self.steps, self.first, self.watch = steps, first, watch
        self.begun = self.reported = time.monotonic()
        self.rows = 0
        self.step = first
        self.losses: list[torch.Tensor] = []

    def add(self, step: int, loss: torch.Tensor, rows: int) -> None:
        self.step = step
        self.rows += rows
        self.losses.append(loss)
        now = time.monotonic()
        if now - self.reported > _REPORT_SECONDS or step == self.steps:
            self.reported = now
            spent = max(now - self.begun, 1e-9)
            left = spent / max(1, step - self.first) * (self.steps - step)
            recent = torch.stack(self.losses[-20:]).mean().item()
            self.watch(Report(step, self.steps, recent, self.rows / spent, left))

    def mean(self) -> float | None:
        """Return the mean loss since the last call, or None if every batch was empty."""
        losses, self.losses = self.losses, []
        return torch.stack(losses).mean().item() if losses else None


def groups(model: Classifier, weight_decay: float) -> list[dict[str, Any]]:
    """Return the trained weights in two groups: matrices decay, biases and norms do not."""
    parameters = trained(model).values()
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def identity(
    model: Classifier, rows: Tokens | Vectors, settings: TrainSettings, sampler: Sampler, steps: int, rng: Rng
) -> str:
    """Return a fingerprint of all that decides where a training ends, so that only the same one is resumed."""
    text = hashlib.sha256()
    key = rng.fork("identity").words(2).tolist()
    said = (settings, sampler, steps, model.settings, model.label_names, model.fingerprint, key)
    text.update(repr(said).encode())
    tensors = rows.columns.values() if isinstance(rows, Tokens) else [rows.vectors]
    for tensor in (*tensors, rows.targets):
        text.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return text.hexdigest()
