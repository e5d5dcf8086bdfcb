"""Training where vectors are hidden at every step, between encoder and head; what is stored once is in `stored`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from discreet.accounting.ledger import Ledger
from discreet.core.errors import DataError, invalid, setting
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng, digest
from discreet.data.batches import Batch, Tokens, Vectors, tokenise
from discreet.data.corpus import Corpus
from discreet.data.samplers import Sampler, Shuffled
from discreet.models.classifier import Classifier, classifier_of, losses, pool
from discreet.protections.base import Live, RepresentationProtection, Rows, most_rows
from discreet.training.account import Account
from discreet.training.checkpoint import identity
from discreet.training.encode import encode
from discreet.training.plan import TrainingPlan
from discreet.training.private import refuse_unbilled
from discreet.training.steps import GraphedStep, Parts, PlainStep

_PUBLIC, _DRAWN = "public.", "drawn."


@dataclass
class HiddenStep:
    """A step in which vectors pass through a protection between encoder and head.

    Guarantee: that of the ledger, which holds every cost before its noise is drawn. Batches, partners, masks and noise
        come from `secret`, which nobody else may know.
    """

    model: Classifier
    optimizer: torch.optim.Optimizer
    protect: RepresentationProtection
    rows: Tokens | Vectors
    public: Tokens | Vectors | None
    plan: TrainingPlan
    live: Live
    account: Account
    source: Rng
    run: str = ""

    @classmethod
    def of(cls, parts: Parts, ledger: Ledger, secret: Rng) -> HiddenStep:
        """Return the step for a corpus; batches are all rows in turn, or a fixed number drawn at every step."""
        rows, plan, corpus = parts.rows, parts.plan, parts.corpus
        protect = plan.protect
        assert isinstance(protect, RepresentationProtection)
        model = classifier_of(parts.model, protect.name)
        if protect.position == "token" and isinstance(rows, Vectors):
            raise invalid("train", model.settings.train, "all or top-N for tokens", "Sentence vectors have no tokens.")
        public = public_rows(model, plan.public, corpus, protect, plan.settings.precision)
        source = secret
        if protect.priced:
            refuse_units(corpus, protect)
            if secret.is_secret:  # another training with the same secret must not draw the same noise
                said = (protect.identity(), plan.sampler, secret, digest(public))
                source = secret.fork("training", identity(model, rows, plan.settings, said, plan.rng, parts.start))
        live = protect.live(len(rows), model.width, model.classes, source, model.device)
        account = Account.of(ledger, secret, plan, corpus, live, model.settings.frozen)
        return cls(model, parts.optimizer, protect, rows, public, plan, live, account, source)

    def __post_init__(self) -> None:
        """Choose between eager and captured steps."""
        asked = self.plan.settings
        plain = PlainStep(self.model, self.optimizer, asked.gradient_norm, 1, asked.precision, self.losses)
        graphed = self.model.device.type == "cuda" and self.protect.sampling != "coins"  # by coins no two are alike
        self.take: PlainStep | GraphedStep = GraphedStep(plain) if graphed else plain

    @property
    def protection(self) -> str:
        """The name of the protection."""
        return self.protect.name

    @property
    def per_epoch(self) -> int:
        """How many steps read the corpus once."""
        return self.plan.sampler.steps_per_epoch(len(self.rows))

    @property
    def steps(self) -> int:
        """How many steps the training takes."""
        return self.plan.steps

    def describe(self) -> object:
        """Return the sampler, the protection, the public text and the secret, all of which are hashed."""
        return self.plan.sampler, self.protect.identity(), self.public, self.account.secret

    def check(self, steps: int) -> None:
        """Refuse to resume from a checkpoint whose steps the ledger does not hold."""
        spent = [self.live.cost(step, step // self.per_epoch) for step in range(steps)]
        refuse_unbilled(self.account.ledger, self.run, spent, self.account.limit)

    def layout(self) -> None:
        """Return nothing: a batch is read as the settings say."""
        return

    def restore(self, layout: dict[str, Any]) -> None:
        """Accept: there is nothing to take up."""

    def epsilon(self) -> float:
        """Return a bound on what was spent so far, infinite if nothing is guaranteed."""
        return self.account.epsilon()

    def guarantee(self) -> Guarantee:
        """Return what all steps so far guarantee."""
        return self.account.guarantee()

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Draw a batch, count it, hide its vectors and learn from them."""
        drawn = draw_hidden(self.plan.sampler, step, len(self.rows), self.source)
        event, name = self.live.cost(step, step // self.per_epoch, len(drawn))
        self.account.spend(event, f"{self.run} {name}".strip())
        if not len(drawn):  # counted all the same: that a step may send nothing is part of its price
            return None, 0
        self.source.fork("dropout", step).seed_torch(self.model.device)
        return self.take(self.batch(drawn, step)), len(drawn)

    def batch(self, drawn: Rows, step: int) -> Batch:
        """Return a batch with public rows beside it and its secret draws."""
        secret, epoch = self.source, step // self.per_epoch
        return hidden_batch(self.model, self.rows, self.public, self.protect, self.live, secret, drawn, step, epoch)

    def losses(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Return one loss per hidden vector."""
        return hidden_losses(self.model, self.protect, self.live, inputs, targets)


def draw_hidden(sampler: Sampler, step: int, rows: int, secret: Rng) -> Rows:
    """Return the rows of a step in an order that says nothing of which they are.

    A receiver who sees every vector must not learn from its place whose it is: a draw in increasing order would say so.
    """
    drawn = sampler.draw(step, rows, secret.fork("sampler"))
    if isinstance(sampler, Shuffled):  # its order is random already
        return drawn
    return drawn[secret.fork("shuffle", step).permutation(len(drawn))]


def refuse_units(corpus: Corpus, protect: RepresentationProtection) -> None:
    """Refuse units of several rows where the price is that of one row."""
    if most_rows(corpus.unit_index) > 1:
        remedy = "What is counted at every step is a row, and some units own several; release all vectors once."
        raise invalid("unit", corpus.unit_name, f"of one row each for a live {protect.name}", remedy)


def hidden_batch(
    model: Classifier,
    rows: Tokens | Vectors,
    public: Tokens | Vectors | None,
    protect: RepresentationProtection,
    live: Live,
    secret: Rng,
    drawn: Rows,
    step: int,
    epoch: int,
) -> Batch:
    """Return a batch with public rows beside it and its secret draws, all of fixed shapes."""
    batch = rows.batch(drawn)
    inputs = dict(batch.inputs)
    tokens = next(iter(inputs.values())).shape[1]
    shape: tuple[int, ...] = (len(drawn), model.width)
    if protect.position == "token":
        shape = (len(drawn), tokens, model.width)
    if public is not None and protect.needs_public:
        chosen = secret.fork("public", step).numpy("hidden_batch").integers(0, len(public), len(drawn))
        inputs |= {f"{_PUBLIC}{name}": value for name, value in beside(public, chosen, tokens).items()}
    secrets = live.draw(drawn, shape, step, epoch)
    return Batch(inputs | {f"{_DRAWN}{name}": value for name, value in secrets.items()}, batch.targets)


def hidden_losses(
    model: Classifier,
    protect: RepresentationProtection,
    live: Live,
    inputs: Mapping[str, Tensor],
    targets: Tensor,
) -> Tensor:
    """Return one loss per hidden vector; gradients flow through to the encoder."""
    drawn = {name.removeprefix(_DRAWN): value for name, value in inputs.items() if name.startswith(_DRAWN)}
    other = {name.removeprefix(_PUBLIC): value for name, value in inputs.items() if name.startswith(_PUBLIC)}
    own = {name: value for name, value in inputs.items() if not name.startswith((_DRAWN, _PUBLIC))}
    if protect.position == "token":
        states, goals = live.hide(model.states(own), targets, drawn)
        hidden = pool(states, own["attention_mask"], model.settings.pooling)
    else:
        together = {name: torch.cat([value, other[name]]) for name, value in own.items()} if other else own
        vectors = model.represent(together)
        public = vectors[len(targets) :] if other else None
        hidden, goals = live.hide(vectors[: len(targets)], targets, drawn, public)
    return losses(model.decide(hidden), goals, model.task)


def beside(public: Tokens | Vectors, rows: Rows, width: int) -> dict[str, Tensor]:
    """Return public rows as wide as the private ones beside them; longer texts are cut, shorter ones padded."""
    if isinstance(public, Vectors):
        return dict(public.batch(rows).inputs)
    where = torch.from_numpy(rows).to(public.targets.device, non_blocking=True)
    found = {name: column[where, :width].long() for name, column in public.columns.items()}
    missing = width - next(iter(found.values())).shape[1]
    if missing > 0:  # behind the mask nothing is read, so any token will do
        found = {name: torch.nn.functional.pad(value, (0, missing)) for name, value in found.items()}
    return found


def public_rows(
    model: Classifier, public: Corpus | None, private: Corpus, protect: RepresentationProtection, precision: str
) -> Tokens | Vectors | None:
    """Return a public corpus as the loop reads it, refused if it is of another kind or missing."""
    if not protect.needs_public:
        return None
    public = same_kind(public, private, protect)
    if model.settings.frozen:
        return encode(model, public, None, precision)
    return tokenise(public, model.tokenizer, model.max_length, model.device)


def same_kind(public: Corpus | None, private: Corpus, protect: RepresentationProtection) -> Corpus:
    """Return a public corpus, refused if it is missing or of another kind than the private one."""
    if public is None:
        raise DataError(
            f"Expected a public corpus for {protect.name} with public partners. Give one ({setting('public')})."
        )
    if public.is_pairs != private.is_pairs:
        kinds = ("pairs of texts", "single texts")
        raise DataError(
            f"Expected {kinds[not private.is_pairs]} in the public corpus {public.name!r}, found "
            f"{kinds[not public.is_pairs]}. Mix like with like."
        )
    return public
