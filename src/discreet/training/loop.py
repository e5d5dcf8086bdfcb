"""The one training loop: draw a batch, take a step, report, and keep what a stopped run needs to resume.

Optimizers by name, with their weights in two groups, and the learning rate of a step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from discreet.core.errors import BudgetError, UnsupportedError, setting
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng, weights_digest
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.metrics.utility import MAIN, is_better
from discreet.models.base import TextModel
from discreet.models.classifier import classifier_of
from discreet.protections.base import GradientProtection, RepresentationProtection, TextProtection
from discreet.training import checkpoint
from discreet.training.checkpoint import Progress, blend, copy_weights, identity, restore_weights, trained
from discreet.training.encode import ready
from discreet.training.evaluate import evaluate
from discreet.training.hidden import HiddenStep
from discreet.training.plan import TrainingPlan, matched_split
from discreet.training.private import PrivateStep, check_ledger
from discreet.training.run_folder import secret_of
from discreet.training.settings import TrainSettings
from discreet.training.steps import Meter, OpenStep, Parts, Report, Step
from discreet.training.stored import StoredStep, rewrite_once

if TYPE_CHECKING:
    from discreet.accounting.ledger import Ledger


@dataclass(frozen=True)
class Trained:
    """How a training ended.

    `finished` is false if it was asked to stop before its last step; `out_of_budget` is true if its ledger allowed no
    further one, which is an end like any other.
    """

    finished: bool
    steps: int
    seconds: float
    truncated: int
    history: tuple[dict[str, Any], ...]
    guarantee: Guarantee | None = None
    out_of_budget: bool = False


@dataclass(frozen=True)
class Job:
    """Where a training keeps its progress, and who is told of it.

    With a `workspace` folder, what is needed to resume is written there every `checkpoint_seconds` and at a stop. With
    a `cache` folder, the outputs of a frozen encoder are kept there for other trainings.
    """

    workspace: Path | None = None
    cache: Path | None = None
    checkpoint_seconds: float = 30.0
    watch: Callable[[Report], None] | None = None
    should_stop: Callable[[], bool] = lambda: False


def train(
    model: TextModel,
    corpus: Corpus,
    plan: TrainingPlan | None = None,
    *,
    ledger: Ledger | None = None,
    secret: Rng | None = None,
    job: Job | None = None,
) -> Trained:
    """Train a model on the train split of a corpus by a plan; the model is changed in place.

    Without a plan it is trained with the default settings and without protection. Under a protection, the texts, the
    vectors or every step's gradient pass through it, and are counted in the ledger (one in memory if none is given, in
    the workspace if there is one) before the noise is drawn. Batches and noise come from `secret`, if one is given, or
    as the plan says. A user-provided seed that others may know makes the figure an estimate: see `Rng.secret`.

    Called again with the same arguments and workspace, a stopped training resumes, and ends with the same weights as an
    undisturbed one.

    Guarantee: that of the protection over all steps, for the train split's units, in the result; none without one.
    """
    plan, job = plan or TrainingPlan.make(model, corpus), job or Job()
    split, settings, protect, rng = matched_split(corpus, model, "train"), plan.settings, plan.protect, plan.rng
    plan.check(split)
    # The outputs of a frozen encoder are hashed with the rows.
    start = weights_digest(model, leave_out="encoder" if model.settings.frozen else None)
    with ExitStack() as opened:
        if protect is not None:
            secret = secret or plan.secret(job.workspace)
            if ledger is None:
                ledger = opened.enter_context(plan.open_ledger(job.workspace and job.workspace / checkpoint.LEDGER))
            check_ledger(plan, ledger)
            if job.workspace is not None and not secret.is_secret:
                # A resumed run must find its spends by their names.
                ledger.key = secret_of(job.workspace).fork("names").bytes(32)
        held_out = matched_split(corpus, model, "validation") if settings.patience is not None else None
        if isinstance(protect, TextProtection):
            assert secret is not None and ledger is not None
            split = rewrite_once(split, plan, ledger, secret)
            held_out = None if held_out is None else plan.queries(held_out, secret)
        elif isinstance(protect, RepresentationProtection):
            assert secret is not None
            protect.fit(classifier_of(model, protect.name), rng.fork("fit"))
            protect.begin(classifier_of(model, protect.name), secret)
        rows = ready(model, split, job.cache, settings.precision, job.watch)
        validation = None if held_out is None else ready(model, held_out, job.cache, settings.precision)
        parts = Parts(model, optimizer_for(model, settings), plan, rows, split, start)
        step: Step = OpenStep.of(parts)
        if secret is not None and ledger is not None:
            step = _protected_step(parts, ledger, secret)
        opened.callback(torch.set_num_threads, torch.get_num_threads())  # resuming sets those of the beginning
        opened.enter_context(torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []))
        name = identity(model, step.rows, settings, step.describe(), rng, start)
        if secret is not None and ledger is not None:
            step.run = checkpoint.spend_name(name, secret, ledger)
        return _Run(model, parts.optimizer, step, validation, plan, job, name).go()


def _protected_step(parts: Parts, ledger: Ledger, secret: Rng) -> Step:
    """Return the step of a protected training, by the place at which it is protected."""
    protect = parts.plan.protect
    if isinstance(protect, GradientProtection):
        return PrivateStep.of(parts, ledger, secret)
    if isinstance(protect, RepresentationProtection) and not protect.stored:
        return HiddenStep.of(parts, ledger, secret)
    return StoredStep.of(parts, ledger, secret)


@dataclass
class _Run:
    """The moving parts of one training, so that the loop below reads as a story."""

    model: TextModel
    optimizer: torch.optim.Optimizer
    step: Step
    validation: Tokens | Vectors | None
    plan: TrainingPlan
    job: Job
    identity: str

    def __post_init__(self) -> None:
        self.settings, self.workspace = self.plan.settings, self.job.workspace
        assert self.settings.learning_rate is not None
        self.peak = self.settings.learning_rate
        self.steps = self.step.steps

    def go(self) -> Trained:
        at = Progress()
        if self.workspace is not None:
            at = checkpoint.load(self.workspace, self.identity, self.model, self.optimizer)
            self.step.check(at.step)
            if at.layout is not None:
                self.step.restore(at.layout)
            if at.step == 0 and self.step.protection is not None:
                # Before anything is spent: whoever resumes must have the same corpus, settings and secret.
                at = self.save(at)
        begun, saved = time.monotonic() - at.seconds, time.monotonic()
        meter = Meter(self.steps, at.step, self.job.watch, self.step.epsilon)
        if self.settings.averaging and not at.averaged:
            at = replace(at, averaged=copy_weights(self.model))
        self.model.train()
        step, over, poor = at.step, at.stale >= (self.settings.patience or self.steps), False
        while step < self.steps and not over:
            set_rate(self.optimizer, self.settings.rate_at(step, self.steps, self.peak))
            try:
                loss, count = self.step(step)
            except BudgetError:
                poor = True
                break
            if self.settings.averaging:
                blend(at.averaged, self.model, step, self.settings.averaging)
            step += 1
            meter.add(step, loss, count)
            if step % self.step.per_epoch == 0 or step == self.steps:
                at = self.end_of_epoch(replace(at, step=step, epoch=at.epoch + 1), meter)
                over = self.settings.patience is not None and at.stale >= self.settings.patience
            stop = self.job.should_stop() and step < self.steps and not over
            if self.workspace is not None and (
                stop or time.monotonic() - saved > self.job.checkpoint_seconds or self.step.layout() != at.layout
            ):
                at = self.save(replace(at, step=step, seconds=time.monotonic() - begun))
                saved = time.monotonic()
            if stop:
                return self.result(at, False, step, time.monotonic() - begun)
        if at.best_weights or at.averaged:
            restore_weights(self.model, at.best_weights or at.averaged)
        self.model.eval()
        return self.result(at, True, step, time.monotonic() - begun, poor)

    def save(self, at: Progress) -> Progress:
        assert self.workspace is not None
        at = replace(at, layout=self.step.layout())
        checkpoint.save(self.workspace, self.identity, self.model, self.optimizer, at)
        return at

    def result(self, at: Progress, finished: bool, steps: int, seconds: float, poor: bool = False) -> Trained:
        return Trained(finished, steps, seconds, self.step.rows.truncated, at.history, self.step.guarantee(), poor)

    def end_of_epoch(self, at: Progress, meter: Meter) -> Progress:
        entry: dict[str, Any] = {"epoch": at.epoch, "step": at.step}
        loss = meter.mean()
        if self.step.protection is None:
            entry["loss"] = loss  # the loss on private rows is itself private: a protected run keeps none of it
        if self.validation is None:
            return replace(at, history=(*at.history, entry))
        scores = evaluate(self.model, self.validation, self.settings.precision)
        self.model.train()
        entry |= scores
        score = scores[MAIN[self.model.task]]
        at = replace(at, history=(*at.history, entry))
        if at.best is None or is_better(MAIN[self.model.task], score, at.best):
            return replace(at, best=score, stale=0, best_weights=copy_weights(self.model))
        return replace(at, stale=at.stale + 1)


def optimizer_for(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Return the optimizer that the settings name, over the weights that are trained."""
    weights = trained(model)
    if not weights:
        raise UnsupportedError(
            "Expected a model with at least one trainable parameter, got none. Set requires_grad of the head, or build "
            f"the model with {setting('train', 'head')}."
        )
    device = next(iter(weights.values())).device
    parts = groups(model, settings.weight_decay or 0.0, settings.head_rate)
    for part in parts:
        # A rate that lives on the device can change between replays of a captured step.
        part["lr"] = torch.tensor(1.0, device=device) if device.type == "cuda" else 1.0
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parts, momentum=settings.momentum, fused=True)
    return torch.optim.AdamW(parts, betas=(settings.momentum, 0.999), fused=True, capturable=device.type == "cuda")


def groups(model: nn.Module, weight_decay: float, head_rate: float = 1.0) -> list[dict[str, Any]]:
    """Return the trained weights in groups: matrices decay, biases and norms do not; a head may learn faster."""
    found: list[dict[str, Any]] = []
    for fast in (False, True) if head_rate != 1 else (None,):
        parameters = [p for name, p in trained(model).items() if fast is None or fast is _is_new(name)]
        pace = head_rate if fast else 1.0
        found += [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay, "pace": pace},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, "pace": pace},
        ]
    return found


def _is_new(name: str) -> bool:
    """Return whether a weight belongs to what stands behind the encoder."""
    return name.startswith(("head.", "pooler."))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * group["pace"])
        else:
            group["lr"] = rate * group["pace"]
