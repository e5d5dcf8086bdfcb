"""Training that protects vectors at every step, between encoder and head; `stored` trains on a stored release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from discreet.training.private import check_spent, spend_all
from discreet.training.steps import GraphedStep, Parts, PlainStep, Step

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

_PUBLIC, _DRAWS = "public.", "drawn."


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
    plan: TrainingPlan
    live: Live
    account: Account
    source: Rng
    run: str = ""

    @classmethod
    def of(cls, parts: Parts, ledger: Ledger, secret: Rng) -> HiddenStep:
        """Return the step of a training run whose vectors are protected at every step."""
        rows, plan, corpus = parts.rows, parts.plan, parts.corpus
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
        account = Account.of(ledger, secret, plan, live, model.settings.frozen)
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
        spends = [self.live.cost(step, step // self.per_epoch) for step in range(steps)]
        check_spent(self.account.ledger, self.run, spends, self.account.limit)

    def reserve(self, first: int) -> int:
        """Count all planned steps from `first` on, before the first of them; return how many are allowed."""
        costs = [self.cost(step, len(self.draw(step))) for step in range(first, self.steps)]
        return spend_all(self.account.ledger, self.run, costs, self.account.terms, self.account.limit)

    def cost(self, step: int, size: int) -> tuple[DpEvent, str]:
        """Return the event of a step that samples `size` rows, and the name under which it is recorded."""
        return self.live.cost(step, step // self.per_epoch, size)

    def draw(self, step: int) -> Rows:
        """Return the rows of a step."""
        return draw_hidden(self.plan.sampler, step, len(self.rows), self.source)

    def epsilon(self) -> float:
        """Return an upper bound on the epsilon spent so far, infinite if nothing is guaranteed."""
        return self.account.epsilon()

    def guarantee(self) -> Guarantee:
        """Return the guarantee of all planned steps."""
        return self.account.guarantee()

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Sample a batch, record its cost, protect its vectors and train on them."""
        rows = self.draw(step)
        event, name = self.cost(step, len(rows))
        self.account.spend(event, f"{self.run} {name}".strip())
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


def draw_hidden(sampler: Sampler, step: int, rows: int, secret: Rng) -> Rows:
    """Return the rows of a step in random order.

    A receiver who sees every vector must not learn from its position whose it is; sorted rows would reveal that.
    """
    sample = sampler.draw(step, rows, secret.fork("sampler"))
    if isinstance(sampler, Shuffled):  # its order is already random
        return sample
    return sample[secret.fork("shuffle", step).permutation(len(sample))]


def check_units(corpus: Corpus, protect: RepresentationProtection) -> None:
    """Reject units of several rows, because each step accounts for one row."""
    if most_rows(corpus.unit_index) > 1:
        remedy = "Each step accounts for single rows, and some units own several; release all vectors once."
        raise invalid("unit", corpus.unit_name, f"of one row each for a live {protect.name}", remedy)


def hidden_batch(
    model: Classifier,
    rows: Tokens | Vectors,
    public: Tokens | Vectors | None,
    protect: RepresentationProtection,
    live: Live,
    secret: Rng,
    sample: Rows,
    step: int,
    epoch: int,
) -> Batch:
    """Return the sampled rows with public rows and secret random values, all of fixed shapes."""
    batch = rows.batch(sample)
    inputs = dict(batch.inputs)
    tokens = next(iter(inputs.values())).shape[1]
    shape: tuple[int, ...] = (len(sample), model.width)
    if protect.position == "token":
        shape = (len(sample), tokens, model.width)
    if public is not None and protect.needs_public:
        chosen = secret.fork("public", step).numpy("hidden_batch").integers(0, len(public), len(sample))
        inputs |= {f"{_PUBLIC}{name}": value for name, value in public_inputs(public, chosen, tokens).items()}
    draws = live.draw(sample, shape, step, epoch)
    return Batch(inputs | {f"{_DRAWS}{name}": value for name, value in draws.items()}, batch.targets)


def hidden_losses(
    model: Classifier,
    protect: RepresentationProtection,
    live: Live,
    inputs: Mapping[str, Tensor],
    targets: Tensor,
) -> Tensor:
    """Return one loss per protected vector; gradients flow through to the encoder."""
    draws = {name.removeprefix(_DRAWS): value for name, value in inputs.items() if name.startswith(_DRAWS)}
    other = {name.removeprefix(_PUBLIC): value for name, value in inputs.items() if name.startswith(_PUBLIC)}
    own = {name: value for name, value in inputs.items() if not name.startswith((_DRAWS, _PUBLIC))}
    if protect.position == "token":
        states, targets = live.hide(model.states(own), targets, draws)
        hidden = pool(states, own["attention_mask"], model.settings.pooling)
    else:
        count = len(targets)
        vectors = model.represent(
            {name: torch.cat([value, other[name]]) for name, value in own.items()} if other else own
        )
        hidden, targets = live.hide(vectors[:count], targets, draws, vectors[count:] if other else None)
    return losses(model.decide(hidden), targets, model.task)


def public_inputs(public: Tokens | Vectors, rows: Rows, width: int) -> dict[str, Tensor]:
    """Return public rows, truncated or padded to the width of the private ones."""
    if isinstance(public, Vectors):
        return dict(public.batch(rows).inputs)
    where = torch.from_numpy(rows).to(public.targets.device, non_blocking=True)
    columns = {name: column[where, :width].long() for name, column in public.columns.items()}
    missing = width - next(iter(columns.values())).shape[1]
    if missing > 0:  # masked positions are not read, so any token will do
        columns = {name: torch.nn.functional.pad(value, (0, missing)) for name, value in columns.items()}
    return columns


def public_rows(
    model: Classifier, public: Corpus | None, private: Corpus, protect: RepresentationProtection, precision: str
) -> Tokens | Vectors | None:
    """Return the tokens or vectors of the public corpus, or None if the protection needs none."""
    if not protect.needs_public:
        return None
    public = check_public(public, private, protect)
    if model.settings.frozen:
        return encode(model, public, None, precision)
    return tokenise(public, model.tokenizer, model.max_length, model.device)


def check_public(public: Corpus | None, private: Corpus, protect: RepresentationProtection) -> Corpus:
    """Return a public corpus; reject one that is missing, or of pairs where the private one is not."""
    if public is None:
        raise DataError(f"Expected a public corpus for {protect.name} with public partners. Set {setting('public')}.")
    if public.is_pairs != private.is_pairs:
        kinds = ("pairs of texts", "single texts")
        raise DataError(
            f"Expected {kinds[not private.is_pairs]} in the public corpus {public.name!r}, got "
            f"{kinds[not public.is_pairs]}. Provide text of the same kind."
        )
    return public
