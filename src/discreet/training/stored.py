"""Training on what was protected before it began: texts rewritten once, or vectors released once and stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from discreet.accounting.ledger import Ledger
from discreet.core.errors import invalid
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import NOISE_FORMAT, Rng, digest
from discreet.data.batches import Vectors
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier, classifier_of
from discreet.protections.base import Once, RepresentationProtection, TextProtection
from discreet.training.account import Account
from discreet.training.checkpoint import identity, spend_name
from discreet.training.local_server import fit_classes, fit_score
from discreet.training.plan import TrainingPlan
from discreet.training.steps import OpenStep, Parts


def release_once(rows: Vectors, once: Once, account: Account, run: str) -> Vectors:
    """Return the vectors as they leave; the cost is in the ledger before the noise is used."""
    account.spend(once.event, f"{run} release")
    vectors, targets = once(rows.vectors, rows.targets)
    return Vectors(vectors, targets, rows.truncated, rows.steady)


def rewrite_once(corpus: Corpus, plan: TrainingPlan, ledger: Ledger, secret: Rng) -> Corpus:
    """Return a corpus as it is rewritten; the cost is in the ledger before anything random is drawn.

    The name of the spend holds what decides the draw: the texts, who owns them, the settings and the secret.
    """
    protect = plan.protect
    assert isinstance(protect, TextProtection)
    run = digest(NOISE_FORMAT, protect.identity(), secret, corpus.texts, corpus.second, corpus.unit_index)
    account = Account.of(ledger, secret, plan, corpus, protect)
    account.spend(protect.cost(corpus), f"{spend_name(run, secret, ledger)} rewrite")
    return protect.rewrite(corpus, secret.fork("rewrite", run[:16]))


def solve_head(model: Classifier, rows: Vectors, once: Once) -> bool:
    """Fit a linear head to noisy vectors in closed form, and say whether that was possible.

    What is known of the noise is used: it is taken off the spread of the vectors, and as much is added as a spread that
    was estimated from so many noisy vectors can be wrong. Random steps would need to average the same noise away.
    """
    noise = once.noise_variance
    layer = model.head
    if noise is None or model.pooler is not None or not isinstance(layer, torch.nn.Linear):
        return False
    count, width = rows.vectors.shape
    doubt = 2 * noise * math.sqrt(width / max(1, count))
    vectors, targets = rows.vectors, rows.targets
    if model.task == "regression":
        weights, bias = fit_score(vectors, targets, noise=noise, query_noise=doubt)
    elif targets.ndim == 1:
        weights, bias = fit_classes(
            vectors, targets, len(model.label_names), noise=noise, query_noise=doubt, truth=once.label_truth
        )
    else:  # mixtures have no class of their own
        return False
    with torch.no_grad():
        layer.weight.copy_(weights)
        layer.bias.copy_(bias)
    return True


@dataclass
class StoredStep(OpenStep):
    """An ordinary step on vectors or texts that were protected before: it is post-processing and costs nothing.

    Guarantee: that of the release it learns from.
    """

    account: Account | None = None
    solved: bool = False  # whether the head was fitted in closed form, so that no step has anything to do

    @classmethod
    def of(cls, parts: Parts, ledger: Ledger, secret: Rng) -> StoredStep:  # type: ignore[override]
        """Return the step of a training whose texts were rewritten, or whose vectors are released now and stored."""
        model, rows, plan = parts.model, parts.rows, parts.plan
        protect, solved = plan.protect, False
        if isinstance(protect, TextProtection):
            account = Account.of(ledger, secret, plan, parts.corpus, protect)
        else:
            assert isinstance(protect, RepresentationProtection)
            if not isinstance(rows, Vectors):
                remedy = "Vectors are released once, so the encoder keeps its weights."
                raise invalid("train", model.settings.train, f"head or pooler+head for a stored {protect.name}", remedy)
            owners = parts.corpus.unit_index
            said = (protect.identity(), secret, owners)
            run = identity(model, rows, plan.settings, said, plan.rng, parts.start)
            once = protect.once(owners, model.width, model.classes, secret.fork("release", run[:16]))
            account = Account.of(ledger, secret, plan, parts.corpus, once)
            rows = release_once(rows, once, account, spend_name(run, secret, ledger))
            solved = solve_head(classifier_of(model, protect.name), rows, once)
        return cls(model, parts.optimizer, rows, plan, account=account, solved=solved)

    @property
    def per_epoch(self) -> int:
        """How many steps read the release once; a solved head has looked at all of it."""
        return 1 if self.solved else super().per_epoch

    @property
    def steps(self) -> int:
        """How many steps read the release so many times; it may hold fewer rows than the corpus, or a solved head."""
        return max(1, round(self.plan.settings.passes * self.per_epoch))

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Take an ordinary step, or none where the head is solved: it then reads no row."""
        return (None, 0) if self.solved else super().__call__(step)

    @property
    def protection(self) -> str | None:  # type: ignore[override]
        """The name of the protection."""
        return None if self.plan.protect is None else self.plan.protect.name

    def describe(self) -> object:
        """Return the sampler, the protection and a fingerprint of the secret."""
        assert self.account is not None
        return self.plan.sampler, self.protection, self.account.secret

    def epsilon(self) -> float | None:  # type: ignore[override]
        """Return a bound on what was spent, infinite if nothing is guaranteed."""
        return self.account.epsilon() if self.account else None

    def guarantee(self) -> Guarantee | None:  # type: ignore[override]
        """Return what the release guarantees."""
        return self.account.guarantee() if self.account else None
