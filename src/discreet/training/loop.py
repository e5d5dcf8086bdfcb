"""The training loop: take steps, report progress, write checkpoints."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from discreet.core.errors import BudgetError, DataError
from discreet.core.files import load_tensors, save_tensors
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import Rng, digest, weights_digest
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.data.partition import check_held_out
from discreet.metrics.utility import is_better
from discreet.models.base import TextModel
from discreet.models.build import matched_split
from discreet.models.classifier import Classifier
from discreet.models.encode import ready
from discreet.models.lora import is_adapter
from discreet.models.settings import SEPARATE
from discreet.runs import checkpoint
from discreet.runs.checkpoint import Progress, blend, copy_weights, restore_weights
from discreet.training.evaluate import evaluate
from discreet.training.job import ENCODER, Job, open_job, set_rate
from discreet.training.plan import TrainingPlan
from discreet.training.steps import Meter, Report, Step

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.accounting.ledger import Ledger


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
