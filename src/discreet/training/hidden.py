"""Training on released values instead of texts: vectors that are protected at every step, or texts and vectors once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from discreet.accounting.ledger import Ledger
from discreet.core.errors import invalid
from discreet.core.randomness import NOISE_FORMAT, Rng, digest
from discreet.data.batches import Batch, Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier, classifier_of
from discreet.models.closed_form import fit_classes, fit_score
from discreet.protections.base import Live, Once, RepresentationProtection, Rows, TextProtection
from discreet.releases.hidden import check_units, draw_hidden, hidden_batch, hidden_losses, public_rows
from discreet.runs.checkpoint import identity, spend_name
from discreet.training.account import Account
from discreet.training.plan import PrivatePlan
from discreet.training.steps import GraphedStep, OpenStep, Parts, PlainStep, Step

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


def release_vectors(rows: Vectors, once: Once, account: Account) -> Vectors:
    """Return the released vectors; the cost is written to the ledger before the noise is used."""
    account.spend((once.event, "release"))
    vectors, targets = once(rows.vectors, rows.targets)
    return Vectors(vectors, targets, rows.truncated, rows.steady)


def rewrite_once(corpus: Corpus, plan: PrivatePlan, ledger: Ledger, secret: Rng) -> Corpus:
    """Return the rewritten corpus; the cost is written to the ledger before any randomness is used.

    The name of the spend is a hash of everything that determines the result: texts, units, settings and secret.
    """
    protect = plan.protect
    assert isinstance(protect, TextProtection)
    run = digest(NOISE_FORMAT, protect.identity(), secret, corpus.texts, corpus.second, corpus.unit_index)
    account = Account(plan, ledger, secret, release=protect, run=spend_name(run, secret, ledger))
    account.spend((protect.cost(corpus), "rewrite"))
    return protect.rewrite(corpus, secret.fork("rewrite", run[:16]))


def solve_head(model: Classifier, rows: Vectors, once: Once) -> bool:
    """Fit a linear head to noisy vectors in closed form, and return whether that was possible.

    The known variance of the noise is subtracted from the covariance of the vectors, and an allowance for the error of
    that estimate is added. Stochastic steps would have to average the same noise out.
    """
    noise = once.noise_variance
    layer = model.head
    if noise is None or model.pooler is not None or not isinstance(layer, torch.nn.Linear):
        return False
    count, width = rows.vectors.shape
    allowance = 2 * noise * math.sqrt(width / max(1, count))
    vectors, targets = rows.vectors, rows.targets
    if model.task.has_scores:
        weights, bias = fit_score(vectors, targets, noise=noise, query_noise=allowance)
    elif targets.ndim == 1:
        weights, bias = fit_classes(
            vectors, targets, len(model.label_names), noise=noise, query_noise=allowance, truth=once.label_truth
        )
    else:  # mixtures have no single class
        return False
    with torch.no_grad():
        layer.weight.copy_(weights)
        layer.bias.copy_(bias)
    return True


@dataclass
class StoredStep(OpenStep):
    """An ordinary step on vectors or texts that are already protected: it is post-processing and costs nothing.

    Guarantee: that of the release it is trained on.
    """

    solved: bool = False  # whether the head was fitted in closed form, so that the steps have nothing to do

    @classmethod
    def of(cls, parts: Parts, ledger: Ledger, secret: Rng) -> StoredStep:  # type: ignore[override]
        """Return the step of a training run on vectors that are released now and stored."""
        model, rows, plan = parts.model, parts.rows, parts.private
        protect = plan.protect
        assert isinstance(protect, RepresentationProtection)
        if not isinstance(rows, Vectors):
            remedy = "Vectors are released once, so the encoder must be frozen."
            raise invalid("train", model.settings.train, f"head or pooler+head for a stored {protect.name}", remedy)
        owners = parts.corpus.unit_index
        described = (protect.identity(), secret, owners)
        run = identity(model, rows, plan.settings, described, plan.rng, parts.start)
        # Other data under one secret gets other noise. A fixed seed is for repeating, on any processor: there the
        # last bits of the vectors, which decide `run`, must not decide the noise.
        source = secret.fork("release", run[:16]) if secret.is_secret else secret.fork("release")
        once = protect.once(owners, model.width, model.classes, source)
        account = Account(plan, ledger, secret, release=once, run=spend_name(run, secret, ledger))
        rows = release_vectors(rows, once, account)
        solved = solve_head(classifier_of(model, protect.name), rows, once)
        return cls(model, parts.optimizer, rows, plan, account=account, solved=solved)

    @classmethod
    def rewritten(cls, parts: Parts, ledger: Ledger, secret: Rng) -> StoredStep:
        """Return the step of a training run on texts that `rewrite_once` has rewritten."""
        plan = parts.private
        assert isinstance(plan.protect, TextProtection)
        account = Account(plan, ledger, secret, release=plan.protect)
        return cls(parts.model, parts.optimizer, parts.rows, plan, account=account)

    @property
    def per_epoch(self) -> int:
        """Number of steps that read the release once; 1 for a solved head."""
        return 1 if self.solved else super().per_epoch

    @property
    def steps(self) -> int:
        """Number of steps of all epochs; the release may have fewer rows than the corpus."""
        return max(1, round(self.plan.settings.passes * self.per_epoch))

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Take an ordinary step, or none if the head is solved."""
        return (None, 0) if self.solved else super().__call__(step)

    def describe(self) -> object:
        """Return the sampler, the protection and a fingerprint of the secret."""
        assert self.account is not None
        return self.plan.sampler, self.protection, self.account.secret
