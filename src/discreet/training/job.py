"""A training that is ready to take steps: plan, rows, secret, ledger, account and identity, put together once.

The training loop, a search for settings and a federated client open their trainings here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from discreet.core.errors import UnsupportedError, setting
from discreet.core.randomness import Rng, weights_digest
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.models.base import HEAD_NAMES, TextModel
from discreet.models.encode import ready
from discreet.models.settings import TrainSettings
from discreet.protections.base import StepKind
from discreet.runs import checkpoint
from discreet.runs.checkpoint import identity, trained
from discreet.runs.folder import secret_of
from discreet.runs.people import Entry, NotRecorded, Spent, detach, place_of
from discreet.training.account import attach, ledger_for
from discreet.training.hidden import HiddenStep, StoredStep, rewrite_once
from discreet.training.plan import PrivatePlan, TrainingPlan
from discreet.training.private import PrivateStep
from discreet.training.steps import OpenStep, Parts, Report, Step, StepCanaries, encoding_watch

if TYPE_CHECKING:
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
    command: str = "discreet.train",
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
    command: str = "discreet.train",
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
