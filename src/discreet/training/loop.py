"""The one training loop: draw a batch, take a step, report, and keep what a stopped run needs to go on."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from discreet.core.checks import refuse
from discreet.core.digest import weights
from discreet.core.errors import BudgetError, DataError, UnsupportedError
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.data.samplers import Sampler
from discreet.metrics.utility import MAIN
from discreet.models.classifier import Classifier
from discreet.protections.contract import check_protection
from discreet.protections.representation import at_text, at_vectors
from discreet.training import checkpoint
from discreet.training.checkpoint import Progress, blend, copy_weights, identity, restore_weights
from discreet.training.defaults import defaults_for
from discreet.training.encode import ready
from discreet.training.evaluate import evaluate
from discreet.training.meter import Meter, Report
from discreet.training.optimizer import optimizer_for, set_rate
from discreet.training.settings import TrainSettings
from discreet.training.steps import OpenStep, Parts, Step

if TYPE_CHECKING:
    from discreet.accounting.ledger import Ledger
    from discreet.protections.gradient import GradientProtection
    from discreet.protections.representation import RepresentationProtection, TextProtection

    Protection = GradientProtection | RepresentationProtection | TextProtection


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


def train(
    model: Classifier,
    corpus: Corpus,
    settings: TrainSettings | None = None,
    *,
    rng: Rng,
    protect: Protection | None = None,
    public: Corpus | None = None,
    ledger: Ledger | None = None,
    delta: float | None = None,
    secret: Rng | None = None,
    sampler: Sampler | None = None,
    population: int | None = None,
    workspace: Path | None = None,
    cache: Path | None = None,
    checkpoint_seconds: float = 30.0,
    watch: Callable[[Report], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Trained:
    """Train a classifier on the train split of a corpus and say how it went; the model is changed in place.

    Without `settings`, good ones are chosen by what is trained and how it is protected.

    With `protect`, the texts, the vectors or every step's gradient pass through it, and are counted in the ledger (one
    in memory if none is given, in the workspace if there is one) before the noise is drawn. Batches and noise come from
    `secret`; without it from a seed of the operating system. With a secret of your own choosing the figure is an
    estimate: see `Rng.secret`. `public` is text that a protection may mix with, and that nobody needs to hide.

    With a `workspace` folder, what is needed to go on is written there every `checkpoint_seconds` and at a stop; called
    again with the same arguments, training goes on from it and ends with the same weights as an undisturbed one.

    The number of units is public, and DP-SGD is certified under zero-out: rate, divisor, delta and the number of steps
    are functions of it. With a `population`, a public number that was given beforehand, they are functions of that, and
    the certificate is add/remove.

    Guarantee: that of the protection over all steps, for the train split's units, in the result; none without one.
    """
    if isinstance(protect, list | tuple):
        raise UnsupportedError(
            f"Expected one protection, found {len(protect)}. Their costs do not simply add: a mixed record enters many "
            "mixtures, so that its clipped gradients weigh k times as much. Choose one."
        )
    if protect is not None:
        check_protection(protect)
    split = matched_split(corpus, model, "train")
    if population is not None and protect is None:
        raise refuse("population", population, "together with protect", "Without a protection nothing is certified.")
    settings = complete(settings, model, protect, split.unit_count if population is None else population)
    # The outputs of a frozen encoder are hashed with the rows.
    start = weights(model, leave_out="encoder" if model.settings.frozen else None)
    with ExitStack() as opened:
        if protect is not None:
            secret, ledger = _opened(protect, settings, split, secret, ledger, workspace, opened, population)
        held_out = matched_split(corpus, model, "validation") if settings.patience is not None else None
        if at_text(protect):
            from discreet.training.stored import rewrite_once

            assert secret is not None and ledger is not None
            split = rewrite_once(split, protect, ledger, secret, delta)
            if held_out is not None and protect.rewrites_queries:
                held_out = protect.rewrite(held_out, secret.fork("held out"))
        elif at_vectors(protect):
            assert secret is not None
            protect.fit(model, rng.fork("fit"))
            protect.begin(model, secret)
        rows = ready(model, split, cache, settings.precision, watch)
        validation = None if held_out is None else ready(model, held_out, cache, settings.precision)
        parts = Parts(model, optimizer_for(model, settings), settings, rng, sampler, start)
        step: Step
        if secret is None or ledger is None or protect is None:
            step = OpenStep(model, parts.optimizer, rows, parts.shuffled(len(rows)), rng, settings)
        elif at_text(protect) or at_vectors(protect):
            from discreet.training.hidden import step_for

            step = step_for(parts, protect, rows, split, public, ledger, secret, delta)
        else:
            from discreet.training.private import PrivateStep

            at_gradient = cast("GradientProtection", protect)
            step = PrivateStep.of(
                model, parts.optimizer, at_gradient, rows, split, sampler, settings, ledger, secret, delta, population
            )
        opened.callback(torch.set_num_threads, torch.get_num_threads())  # going on sets those of the beginning
        opened.enter_context(torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []))
        name = identity(model, step.rows, settings, step.describe(), rng, start)
        if secret is not None and ledger is not None:
            step.run = checkpoint.spend_name(name, secret, ledger)
        run = _Run(model, parts.optimizer, step, validation, settings, workspace, name)
        return run.go(checkpoint_seconds, watch, should_stop)


def _opened(
    protect: Protection,
    settings: TrainSettings,
    split: Corpus,
    secret: Rng | None,
    ledger: Ledger | None,
    workspace: Path | None,
    opened: ExitStack,
    population: int | None = None,
) -> tuple[Rng, Ledger]:
    """Return the secret and the ledger of a protected training, made where none was given."""
    from discreet.training.private import adjacency_of, ledger_for
    from discreet.training.run_folder import secret_of

    adjacency_of(protect, population)
    if settings.accumulate > 1:
        remedy = "A protected batch is read in parts that fit by itself; leave --accumulate out."
        raise refuse("accumulate", settings.accumulate, f"1 with {protect.name}", remedy)
    if secret is None:
        secret = Rng.secret() if workspace is None else secret_of(workspace)
    if ledger is None:
        ledger = opened.enter_context(ledger_for(protect, split, workspace, population))
    if workspace is not None and not secret.is_secret:
        ledger.key = secret_of(workspace).fork("names").bytes(32)  # a resumed run must find its spends by their names
    return secret, ledger


def complete(
    settings: TrainSettings | None, model: Classifier, protect: Protection | None, units: int
) -> TrainSettings:
    """Return settings with what is usual for a public number of units where nothing was said."""
    usual = defaults_for(model.settings.train, protect.name if protect else None, units, model.width)
    if settings is None:
        settings = TrainSettings(epochs=usual.epochs, batch_size=usual.batch_size, weight_decay=usual.weight_decay)
    if settings.learning_rate is None:
        settings = replace(settings, learning_rate=usual.learning_rate)
    return settings


def matched_split(corpus: Corpus, model: Classifier, name: str) -> Corpus:
    """Return one split of a corpus, refused if it is not there or is for another task."""
    if not isinstance(model, Classifier):
        raise UnsupportedError(
            f"Expected model to be a discreet.Classifier, got {type(model).__name__}. Put a head on an encoder with "
            "Classifier.build(corpus, encoder=folder, rng=rng)."
        )
    if not isinstance(corpus, Corpus):
        raise DataError(
            f"Expected corpus to be a discreet.Corpus, got {type(corpus).__name__}. Make one with "
            "Corpus(name, texts, labels=labels), or read a file with discreet.load(path)."
        )
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
    optimizer: torch.optim.Optimizer
    step: Step
    validation: Tokens | Vectors | None
    settings: TrainSettings
    workspace: Path | None
    identity: str

    def __post_init__(self) -> None:
        assert self.settings.learning_rate is not None
        self.peak = self.settings.learning_rate
        self.steps = max(1, round(self.settings.epochs * self.step.per_epoch))

    def go(
        self, checkpoint_seconds: float, watch: Callable[[Report], None] | None, should_stop: Callable[[], bool]
    ) -> Trained:
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
        meter = Meter(self.steps, at.step, watch, self.step.epsilon)
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
            stop = should_stop() and step < self.steps and not over
            if self.workspace is not None and (
                stop or time.monotonic() - saved > checkpoint_seconds or self.step.layout() != at.layout
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
        if at.best is None or score > at.best:
            return replace(at, best=score, stale=0, best_weights=copy_weights(self.model))
        return replace(at, stale=at.stale + 1)
