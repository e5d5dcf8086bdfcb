"""Training that protects vectors at every step, between encoder and head; `stored` trains on a stored release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from discreet.accounting.ledger import Ledger
from discreet.core.errors import invalid
from discreet.core.randomness import Rng, digest
from discreet.data.batches import Batch, Tokens, Vectors
from discreet.models.classifier import Classifier, classifier_of
from discreet.protections.base import Live, RepresentationProtection, Rows
from discreet.releases.hidden import check_units, draw_hidden, hidden_batch, hidden_losses, public_rows
from discreet.runs.checkpoint import identity
from discreet.training.account import Account
from discreet.training.plan import PrivatePlan
from discreet.training.steps import GraphedStep, Parts, PlainStep, Step

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass
class HiddenStep(Step):
    """A step in which vectors pass through a protection between encoder and head.

    Guarantee: that of the ledger, which records every cost before its noise is sampled. Batches, partners, masks and
        noise come from `source`, which must stay secret.
    """

    model: Classifier
    optimizer: torch.optim.Optimizer
    protect: RepresentationProtection
    rows: Tokens | Vectors
    public: Tokens | Vectors | None
    plan: PrivatePlan
    live: Live
    account: Account
    source: Rng

    @classmethod
    def of(cls, parts: Parts, ledger: Ledger, secret: Rng) -> HiddenStep:
        """Return the step of a training run whose vectors are protected at every step."""
        rows, plan, corpus = parts.rows, parts.private, parts.corpus
        protect = plan.protect
        assert isinstance(protect, RepresentationProtection)
        model = classifier_of(parts.model, protect.name)
        if protect.position == "token" and isinstance(rows, Vectors):
            raise invalid("train", model.settings.train, "all or top-N for tokens", "Sentence vectors have no tokens.")
        public = public_rows(model, plan.public, corpus, protect, plan.settings.precision)
        source = secret
        if protect.priced:
            check_units(corpus, protect)
            if secret.is_secret:  # another training run with the same secret must not use the same noise
                described = (protect.identity(), plan.sampler, secret, digest(public))
                name = identity(model, rows, plan.settings, described, plan.rng, parts.start)
                source = secret.fork("training", name)
        live = protect.live(len(rows), model.width, model.classes, source, model.device)
        account = Account(plan, ledger, secret, release=live, paid=model.settings.frozen)
        return cls(model, parts.optimizer, protect, rows, public, plan, live, account, source)

    def __post_init__(self) -> None:
        """Choose between eager and captured steps."""
        settings = self.plan.settings
        eager = PlainStep(self.model, self.optimizer, settings.gradient_norm, 1, settings.precision, self.losses)
        # Poisson batches differ in size, so that a captured graph could not be replayed.
        graphed = self.model.device.type == "cuda" and self.protect.sampling != "coins"
        self.take: PlainStep | GraphedStep = GraphedStep(eager) if graphed else eager

    def describe(self) -> object:
        """Return the sampler, the protection, the public text and the secret, all of which are hashed."""
        return self.plan.sampler, self.protect.identity(), self.public, self.account.secret

    def check(self, steps: int) -> None:
        """Reject resuming from a checkpoint whose steps are not in the ledger."""
        self.account.check(self.live.cost(step, step // self.per_epoch) for step in range(steps))

    def reserve(self, first: int) -> int:
        """Count all planned steps from `first` on, before the first of them; return how many are allowed."""
        return self.account.reserve(self.cost(step, len(self.draw(step))) for step in range(first, self.steps))

    def cost(self, step: int, size: int) -> tuple[DpEvent, str]:
        """Return the event of a step that samples `size` rows, and the name under which it is recorded."""
        return self.live.cost(step, step // self.per_epoch, size)

    def draw(self, step: int) -> Rows:
        """Return the rows of a step."""
        return draw_hidden(self.plan.sampler, step, len(self.rows), self.source)

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Sample a batch, record its cost, protect its vectors and train on them."""
        rows = self.draw(step)
        self.account.spend(self.cost(step, len(rows)))
        if not len(rows):  # recorded all the same: its cost includes that a step may send nothing
            return None, 0
        self.source.fork("dropout", step).seed_torch(self.model.device)
        return self.take(self.batch(rows, step)), len(rows)

    def batch(self, rows: Rows, step: int) -> Batch:
        """Return a batch with its public rows and its secret random values."""
        secret, epoch = self.source, step // self.per_epoch
        return hidden_batch(self.model, self.rows, self.public, self.protect, self.live, secret, rows, step, epoch)

    def losses(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Return one loss per protected vector."""
        return hidden_losses(self.model, self.protect, self.live, inputs, targets)
