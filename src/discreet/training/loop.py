"""A training that is ready to take steps, and the loop that takes them, reports progress and writes checkpoints.

The loop and a federated client begin with `open_job`, which puts plan, rows, secret, ledger, account and identity
together. A search for settings runs the loop for each of its trials.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from discreet.core.errors import BudgetError, DataError, UnsupportedError, setting
from discreet.core.files import load_tensors, save_tensors
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import Rng, digest, weights_digest
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus, check_held_out
from discreet.metrics.utility import is_better
from discreet.models.base import HEAD_NAMES, TextModel
from discreet.models.build import matched_split, ready
from discreet.models.classifier import Classifier
from discreet.models.lora import is_adapter
from discreet.models.settings import SEPARATE, TrainSettings
from discreet.protections.base import StepKind
from discreet.runs import checkpoint
from discreet.runs.checkpoint import Progress, blend, copy_weights, identity, restore_weights, trained
from discreet.runs.folder import secret_of
from discreet.runs.people import Entry, NotRecorded, Spent, detach, place_of
from discreet.training.account import attach, ledger_for
from discreet.training.engine import PrivateStep
from discreet.training.evaluation import evaluate
from discreet.training.hidden import HiddenStep, StoredStep, rewrite_once
from discreet.training.plan import PrivatePlan, TrainingPlan
from discreet.training.steps import Meter, OpenStep, Parts, Report, Step, StepCanaries, encoding_watch

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.accounting.ledger import Ledger


def optimizer_for(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Return the optimizer of the settings, over the trainable weights."""
    weights = trained(model)
    if not weights:
        raise UnsupportedError(
            "Expected a model with at least one trainable parameter, got none. Set requires_grad of the head, or build "
            f"the model with {setting('train', 'head')}."
        )
    device = next(iter(weights.values())).device
    parts = groups(model, settings.weight_decay or 0.0, settings.head_rate or 1.0)
    for part in parts:
        # A learning rate on the device can change between replays of a captured step.
        part["lr"] = torch.tensor(1.0, device=device) if device.type == "cuda" else 1.0
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parts, momentum=settings.momentum, fused=True)
    return torch.optim.AdamW(parts, betas=(settings.momentum, 0.999), fused=True, capturable=device.type == "cuda")


def groups(model: nn.Module, weight_decay: float, head_rate: float = 1.0) -> list[dict[str, Any]]:
    """Return the trainable weights in groups: matrices decay, biases and norms do not; `head_rate` scales the head."""
    parts: list[dict[str, Any]] = []
    for is_head in (False, True) if head_rate != 1 else (None,):
        named = trained(model).items()
        parameters = [p for name, p in named if is_head is None or is_head is name.startswith(HEAD_NAMES)]
        pace = head_rate if is_head else 1.0
        parts += [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay, "pace": pace},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, "pace": pace},
        ]
    return parts


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * group["pace"])
        else:
            group["lr"] = rate * group["pace"]


ENCODER = "encoder"  # the submodule that a frozen model never changes


@dataclass(frozen=True)
class Job:
    """Folders and callbacks of a training run.

    A checkpoint is written to `workspace` every `checkpoint_seconds` and at a stop. Outputs of a frozen encoder are
    stored in `cache` for other training runs. `encoded` are those of the train split, if they were computed before.
    `canaries` take part in every private step, for an audit. A training that is not `recorded` is not in this machine's
    record of the people whose rows it reads: its model is not released, or the caller counts it.
    """

    workspace: Path | None = None
    cache: Path | None = None
    checkpoint_seconds: float = 30.0
    watch: Callable[[Report], None] | None = None
    should_stop: Callable[[], bool] = lambda: False
    encoded: Tokens | Vectors | None = None
    canaries: StepCanaries | None = None
    recorded: bool = True


@dataclass
class OpenJob:
    """A training whose next act is a step.

    `identity` is a hash of everything that determines its result. `split` has the texts that it reads: rewritten ones
    under a protection of text. Set `ended` when the training is complete, for the record of people.
    """

    model: TextModel
    split: Corpus
    plan: TrainingPlan
    step: Step
    optimizer: torch.optim.Optimizer
    identity: str
    secret: Rng | None = None
    ledger: Ledger | None = None
    ended: bool = False


@contextmanager
def open_job(
    model: TextModel,
    split: Corpus,
    plan: TrainingPlan,
    job: Job,
    *,
    ledger: Ledger | None = None,
    secret: Rng | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    start: str | None = None,
    command: str = "discreet.training.train",
) -> Iterator[OpenJob]:
    """Open a training: its secret and ledger, the model's protected parts, its rows and the step for its protection.

    `split` are the training rows, `start` a hash of the first weights and `optimizer` what steps them; by default that
    of the plan. A ledger that is opened here is closed at the end.

    Guarantee: a release of texts or of stored vectors is in the ledger before it is made; steps are counted by the
        step. Every spend is in the record of the people of the split too, unless the job is not recorded.
    """
    # A frozen encoder is left out, because its outputs are hashed with the rows.
    start = start or weights_digest(model, leave_out=ENCODER if model.settings.frozen else None)
    with ExitStack() as opened:
        private = plan if isinstance(plan, PrivatePlan) else None
        if private is not None:
            secret = ready_secret(private, secret, job.workspace)
            ledger = ready_ledger(private, ledger, secret, job.workspace, opened, split, command, recorded=job.recorded)
            if private.protect.step_kind == "rewritten":
                split = rewrite_once(split, private, ledger, secret)
            private.protect.fit(model, plan.rng.fork("fit"))
            private.protect.begin(model, secret)
        rows = job.encoded
        if rows is None or (private is not None and private.protect.step_kind == "rewritten"):
            rows = ready(model, split, job.cache, plan.settings.precision, encoding_watch(job.watch))
        optimizer = optimizer or optimizer_for(model, plan.settings)
        parts = Parts(model, optimizer, plan, rows, split, start, job.canaries)
        step: Step
        if private is None or secret is None or ledger is None:
            step, secret, ledger = OpenStep.of(parts), None, None
        else:
            step = _STEPS[private.protect.step_kind](parts, ledger, secret)
        name = identity(model, step.rows, plan.settings, step.describe(), plan.rng, start)
        if step.account is not None:
            step.account.run = checkpoint.spend_name(name, step.account.secret, step.account.ledger)
        one = OpenJob(model, split, plan, step, optimizer, name, secret, ledger)
        yield one
        if ledger is not None and isinstance(ledger.also, Entry):
            ledger.also.ended = one.ended


# The step of a training, for each way in which a protection is applied.
_STEPS: dict[StepKind, Callable[[Parts, Ledger, Rng], Step]] = {
    "sum": PrivateStep.of,
    "live": HiddenStep.of,
    "stored": StoredStep.of,
    "rewritten": StoredStep.rewritten,
}


def ready_secret(plan: TrainingPlan, secret: Rng | None = None, workspace: Path | None = None) -> Rng:
    """Return the source of batches and noise of a training: the one given, or that of its plan."""
    return secret or plan.secret(workspace)


def ready_ledger(
    plan: PrivatePlan,
    ledger: Ledger | None,
    secret: Rng,
    workspace: Path | None,
    opened: ExitStack,
    split: Corpus,
    command: str = "discreet.training.train",
    planned: Spent | None = None,
    recorded: bool = True,
) -> Ledger:
    """Return the ledger of a plan after checking it; without one, open that of the workspace until `opened` ends.

    What it spends until then is in the record of the people of the split too, unless it is not `recorded` or the caller
    counts it already.
    """
    if ledger is None:
        ledger = opened.enter_context(ledger_for(plan, workspace and workspace / checkpoint.LEDGER))
    else:
        ledger_for(plan, ledger)
    if not recorded:
        NotRecorded.on(ledger)
    out = place_of(ledger, workspace)
    entry = attach(plan, split, ledger, out=out, secret=secret.is_secret, command=command, planned=planned)
    if entry is not None:
        opened.callback(detach, entry, ledger)
    if workspace is not None and not secret.is_secret:
        # A resumed run must find its spends by their names.
        ledger.key = secret_of(workspace).fork("names").bytes(32)
    return ledger


@dataclass(frozen=True)
class Trained:
    """Result of a training run.

    `finished` is False if it was stopped before its last step; it has no `guarantee` before it is resumed and finished.
    `out_of_budget` is True if its budget allowed no further step, which also finishes a training run. `untaken` is the
    number of planned steps that it did not take because its results stopped improving, and that the guarantee counts
    all the same.
    """

    finished: bool
    steps: int
    seconds: float
    truncated: int
    history: tuple[dict[str, Any], ...]
    guarantee: Guarantee | None = None
    out_of_budget: bool = False
    untaken: int = 0
    event: DpEvent | None = None  # of everything in its ledger, if it is protected

    @property
    def counted(self) -> int:
        """The number of steps that the guarantee covers."""
        return self.steps + self.untaken


def train(
    model: TextModel,
    corpus: Corpus,
    plan: TrainingPlan | None = None,
    *,
    ledger: Ledger | None = None,
    secret: Rng | None = None,
    job: Job | None = None,
) -> Trained:
    """Train a model on the train split of a corpus, as planned; the model is changed in place.

    Without a plan it is trained with default settings and without protection. A protection is applied to the texts, the
    vectors or the gradient of every step, and its cost is written to the ledger before the noise is sampled. By
    default the ledger is in the workspace, or in memory without one. The same cost is added to this machine's record of
    the people in the corpus (`people_totals`, `discreet ledger`). Batches and noise come from `secret`, by default
    that of the plan. A user-provided seed that others may know makes the figure an estimate: see `Rng.secret`.

    Called again with the same arguments and workspace, a stopped training run resumes, and ends with the same weights
    as an uninterrupted one.

    Args:
        model: The model, with its first weights.
        corpus: The text; its train split is trained on.
        plan: Settings, protection, batches and noise; by default a plan without a protection.
        ledger: An open ledger that every step is counted in; by default one in the workspace of the job, or in memory.
        secret: The source of batches and noise; by default that of the plan.
        job: Where checkpoints go, what is told to whom, and when to stop.

    Guarantee: that of the protection over all steps, for the units of the train split, in the result; none without one.
    """
    plan, job = plan or TrainingPlan.make(model, corpus), job or Job()
    split, settings, protect = matched_split(corpus, model, "train"), plan.settings, plan.protect
    plan.check(split)
    starts = plan.public is not None and protect is not None and protect.starts_from_public
    if starts and not start_from_public(model, plan, job):
        return Trained(False, 0, 0.0, 0, ())
    held_out = matched_split(corpus, model, "validation") if settings.patience is not None else None
    if protect is not None and held_out is not None:
        check_held_out(split, held_out)
    with open_job(model, split, plan, job, ledger=ledger, secret=secret) as ready_job, ExitStack() as opened:
        validation = None
        if held_out is not None:
            validation = ready(model, plan.queries(held_out, ready_job.secret), job.cache, settings.precision)
        opened.callback(torch.set_num_threads, torch.get_num_threads())  # a resume changes the number of threads
        opened.enter_context(torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []))
        step, state = ready_job.step, _untrained_state(model)
        result = _Run(model, ready_job.optimizer, step, validation, plan, job, ready_job.identity).train()
        if step.account is not None and result.guarantee is not None and _untrained_state(model) != state:
            step.account.caveats.add(Caveat.UNPROTECTED_STATE)
            step.account.state()
            result = replace(result, guarantee=result.guarantee.with_caveats({Caveat.UNPROTECTED_STATE}))
        if ready_job.ledger is None:
            return result
        ready_job.ended = result.finished
        return replace(result, event=ready_job.ledger.event)


def _untrained_state(model: TextModel) -> str:
    """Return a digest of the buffers and frozen weights of a model, which a private step must not change.

    A frozen encoder is left out: its outputs are computed before the first step.
    """
    parts = [("", model)] if not model.settings.frozen else [(n, m) for n, m in model.named_children() if n != ENCODER]
    fixed: dict[str, torch.Tensor] = {}
    for name, part in parts:
        weights = {key: p for key, p in part.named_parameters() if not p.requires_grad}
        fixed |= {f"{name}.{key}": value.detach() for key, value in {**weights, **dict(part.named_buffers())}.items()}
    return digest(fixed)


def start_from_public(model: TextModel, plan: TrainingPlan, job: Job) -> bool:
    """Train a model on the public text of a plan, as without protection; return whether that is finished.

    If it is stopped, it resumes from a checkpoint of its own. The weights at its end are stored, and a resumed run
    reads them: on a GPU they cannot be computed again bit by bit.

    Guarantee: none is needed; no private text is read.
    """
    assert plan.public is not None
    public = plan.public if not model.task.is_language else plan.public.unlabelled()
    _check_labels(public, model)
    stored = folder = None
    if job.workspace is not None:
        stored, folder = job.workspace / checkpoint.PUBLIC_START, job.workspace / checkpoint.PUBLIC
    with _trained_whole(model):
        first = plan.on_public(model, public)
        name = digest(model, model.settings, first.settings, first.seed, public)
        if stored is not None and stored.exists():
            weights, about = load_tensors(stored)
            if about.get("identity") != name:
                raise checkpoint.changed(stored.parent)
            model.load_weights(weights)
            finished = True
        else:
            if folder is not None:
                folder.mkdir(exist_ok=True, mode=0o700)
            watch = _public_watch(job.watch)
            own = replace(job, workspace=folder, cache=None, watch=watch, encoded=None, canaries=None)
            finished = train(model, public, first, job=own).finished
    if finished and stored is not None and folder is not None:
        if not stored.exists():
            save_tensors(model.weights(), stored, {"identity": name})
        shutil.rmtree(folder, ignore_errors=True)
    model.fingerprint = weights_digest(model)  # outputs of the encoder as it was may be in the cache
    return finished


def _check_labels(public: Corpus, model: TextModel) -> None:
    """Reject public text that does not have the labels of the model."""
    if public.label_names == model.label_names:
        return
    names, remedy = list(public.label_names), "Use the same names in a copy of it."
    if not names:
        remedy = "It needs the same columns as the private text, labels included."
    raise DataError(
        f"Expected the labels {list(model.label_names)} in the public text {public.name!r}, got {names or 'none'}. "
        f"{remedy}"
    )


def _public_watch(watch: Callable[[Report], None] | None) -> Callable[[Report], None] | None:
    """Return a callback that reports steps on public text as such."""
    if watch is None:
        return None
    return lambda report: watch(replace(report, stage="public text") if report.stage == "training" else report)


@contextmanager
def _trained_whole(model: TextModel) -> Iterator[None]:
    """Let training change all layers of a model, embeddings included and adapters not, until the end of the block.

    Public text needs no noise, so no part of the model has to be spared. The encoder stays as it is for pairs that are
    read separately, because the head starts from its cosines, and below the adapters of a language model.
    """
    settings, marks = model.settings, {name: p.requires_grad for name, p in model.named_parameters()}
    if settings.train == "all" or (isinstance(model, Classifier) and settings.pairs != SEPARATE):
        model.settings = replace(settings, train="all", embeddings=True, pooler=settings.has_pooler)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not is_adapter(name))
    try:
        yield
    finally:
        model.settings = settings
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(marks[name])


@dataclass
class _Run:
    """The state of one training run while its loop runs."""

    model: TextModel
    optimizer: torch.optim.Optimizer
    step: Step
    validation: Tokens | Vectors | None
    plan: TrainingPlan
    job: Job
    identity: str

    def __post_init__(self) -> None:
        self.settings, self.workspace = self.plan.settings, self.job.workspace
        self.steps = self.step.steps

    def resume(self) -> Progress:
        if self.workspace is None:
            return Progress()
        at = checkpoint.load(self.workspace, self.identity, self.model, self.optimizer)
        self.step.check(at.step)
        if at.layout is not None:
            self.step.restore(at.layout)
        if at.audit:
            self.step.restore_canaries(at.audit)
        # Before anything is spent: a resume must have the same corpus, settings and secret.
        return self.save(at) if at.step == 0 and self.step.protection is not None else at

    def train(self) -> Trained:
        at = self.resume()
        start, saved = time.monotonic() - at.seconds, time.monotonic()
        meter = Meter(self.steps, at.step, self.job.watch, self.step.epsilon)
        if self.settings.averaging and not at.averaged:
            at = replace(at, averaged=copy_weights(self.model))
        self.model.train()
        step, over, out_of_budget = at.step, at.stale >= (self.settings.patience or self.steps), False
        # Results may decide when to stop and which epoch is the best: the cost of all planned steps covers both.
        counted = step + self.step.reserve(step)
        while step < self.steps and not over:
            set_rate(self.optimizer, self.plan.rate_at(step))
            try:
                loss, count = self.step(step)
            except BudgetError:
                out_of_budget = True
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
                at = self.save(replace(at, step=step, seconds=time.monotonic() - start))
                saved = time.monotonic()
            if stop:
                return self.result(at, False, step, time.monotonic() - start)
        if at.best_weights or at.averaged:
            restore_weights(self.model, at.best_weights or at.averaged)
        self.model.eval()
        result = self.result(at, True, step, time.monotonic() - start, out_of_budget)
        return replace(result, untaken=max(0, counted - step))

    def save(self, at: Progress) -> Progress:
        assert self.workspace is not None
        at = replace(at, layout=self.step.layout(), audit=self.step.canary_state())
        checkpoint.save(self.workspace, self.identity, self.model, self.optimizer, at)
        return at

    def result(self, at: Progress, finished: bool, steps: int, seconds: float, out_of_budget: bool = False) -> Trained:
        # A figure of the steps so far would be proven only if their number had been fixed in advance.
        truncated, guarantee = self.step.rows.truncated, self.step.guarantee() if finished else None
        return Trained(finished, steps, seconds, truncated, at.history, guarantee, out_of_budget)

    def end_of_epoch(self, at: Progress, meter: Meter) -> Progress:
        entry: dict[str, Any] = {"epoch": at.epoch, "step": at.step}
        loss = meter.mean()
        if self.step.protection is None:
            entry["loss"] = loss  # the loss on private rows is private: a protected run does not store it
        if self.validation is None:
            return replace(at, history=(*at.history, entry))
        scores = evaluate(self.model, self.validation, self.settings.precision)
        self.model.train()
        entry |= scores
        score = scores[self.model.task.main]
        at = replace(at, history=(*at.history, entry))
        if at.best is None or is_better(self.model.task.main, score, at.best):
            return replace(at, best=score, stale=0, best_weights=copy_weights(self.model))
        return replace(at, stale=at.stale + 1)
