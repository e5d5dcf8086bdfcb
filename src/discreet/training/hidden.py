"""Training where vectors are protected before they leave: released once and stored, or hidden at every step."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from discreet.accounting.events import NoGuaranteeDpEvent
from discreet.accounting.ledger import Ledger
from discreet.core.checks import open_probability, refuse
from discreet.core.errors import DataError, LedgerError
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.data.batches import Batch, Tokens, Vectors, tokenise
from discreet.data.corpus import Corpus
from discreet.data.samplers import FixedSize, Poisson, Sampler, Shuffled
from discreet.models.classifier import Classifier, losses, pool
from discreet.protections.representation import (
    TRAINED_ENCODER,
    Live,
    Once,
    RepresentationProtection,
    Rows,
    TextProtection,
    at_text,
    at_vectors,
    most_rows,
)
from discreet.training.checkpoint import identity
from discreet.training.encode import encode
from discreet.training.local_head import fit_classes, fit_score
from discreet.training.private import as_drawn, delta_for
from discreet.training.settings import TrainSettings
from discreet.training.steps import GraphedStep, OpenStep, Parts, PlainStep, Step

ASSUMPTIONS = (
    "noise and partners come from a secret seed, drawn by the operating system and deleted afterwards",
    "the number of rows of every unit, the settings and the encoder's first weights are public",
    "held-out rows are not protected: utility figures are computed on them",
)
_PUBLIC, _DRAWN = "public.", "drawn."


@dataclass
class Account:
    """What a protection that is not at the gradient has spent, and what that guarantees."""

    ledger: Ledger
    secret: Rng
    delta: float
    about: Once | Live | TextProtection
    paid: bool = True  # whether all that depends on private text is in the ledger

    @classmethod
    def of(
        cls,
        ledger: Ledger,
        secret: Rng,
        delta: float | None,
        corpus: Corpus,
        about: Once | Live | TextProtection,
        paid: bool = True,
    ) -> Account:
        """Return the account of a training."""
        if ledger.statement.unit != corpus.unit_name:
            remedy = f"The corpus's unit of privacy is the {corpus.unit_name}; open the ledger for it."
            raise refuse("unit", ledger.statement.unit, f"{corpus.unit_name!r} in the ledger", remedy)
        at = delta_for(corpus.unit_count) if delta is None else open_probability("delta", delta)
        return cls(ledger, secret, at, about, paid)

    def epsilon(self) -> float:
        """Return a bound on what was spent so far, infinite if nothing is guaranteed."""
        return self.ledger.epsilon(self.delta) if self.paid else math.inf

    def guarantee(self) -> Guarantee:
        """Return what was spent so far guarantees: a bound only for a frozen encoder and a secret seed."""
        found = as_drawn(self.ledger.guarantee(self.delta, assumptions=ASSUMPTIONS), self.secret)
        if found.exists and not self.paid:
            found = replace(found, certified=False, reason=TRAINED_ENCODER)
        return self.about.stated(found)


def release_once(rows: Vectors, once: Once, ledger: Ledger, run: str) -> Vectors:
    """Return the vectors as they leave; the cost is in the ledger before the noise is used."""
    ledger.spend(once.event, f"{run} release")
    vectors, targets = once(rows.vectors, rows.targets)
    return Vectors(vectors, targets, rows.truncated)


def rewrite_once(corpus: Corpus, protect: TextProtection, ledger: Ledger, secret: Rng) -> Corpus:
    """Return a corpus as it is rewritten; the cost is in the ledger before anything random is drawn.

    The name of the spend holds what decides the draw: the texts, the settings and the secret.
    """
    found = hashlib.sha256(repr((protect, secret.fork("identity").words(2).tolist())).encode())
    for text in (*corpus.texts, *(corpus.second or ())):
        found.update(text.encode() + b"\0")
    run = found.hexdigest()[:16]
    ledger.spend(protect.cost(corpus), f"{run} rewrite")
    return protect.rewrite(corpus, secret.fork("rewrite", run))


def step_for(
    parts: Parts,
    protect: RepresentationProtection | TextProtection,
    rows: Tokens | Vectors,
    corpus: Corpus,
    public: Corpus | None,
    ledger: Ledger,
    secret: Rng,
    delta: float | None,
) -> Step:
    """Return the step of a training whose texts were rewritten, or whose vectors are released once or at every step."""
    model, settings = parts.model, parts.settings
    solved = False
    if at_text(protect):
        account = Account.of(ledger, secret, delta, corpus, protect)
    elif at_vectors(protect) and protect.stored:
        if not isinstance(rows, Vectors):
            remedy = "Vectors are released once, so the encoder keeps its weights."
            raise refuse("train", model.settings.train, f"head or pooler+head for a stored {protect.name}", remedy)
        protect.check(settings.batch_size, len(rows))
        said = (protect, secret.fork("identity").words(2).tolist(), corpus.unit_index.tobytes())
        run = identity(model, rows, settings, said, parts.rng)[:16]
        once = protect.once(corpus.unit_index, model.width, classes_of(model), secret.fork("release", run))
        account = Account.of(ledger, secret, delta, corpus, once)
        rows = release_once(rows, once, ledger, run)
        solved = solve_head(model, rows, once)
    else:
        assert at_vectors(protect)
        beside_it = public_rows(model, public, corpus, protect, settings.precision)
        return HiddenStep.of(parts, protect, rows, corpus, beside_it, ledger, secret, delta)
    sampler = parts.shuffled(len(rows))
    return StoredStep(
        model, parts.optimizer, rows, sampler, parts.rng, settings, account=account, name=protect.name, solved=solved
    )


def solve_head(model: Classifier, rows: Vectors, once: Once) -> bool:
    """Fit a linear head to noisy vectors in closed form, and say whether that was possible.

    What is known of the noise is used: it is taken off the spread of the vectors, and as much is added as a spread that
    was estimated from so many noisy vectors can be wrong. Random steps would need to average the same noise away.
    """
    noise = getattr(once, "noise_variance", None)
    layer = model.head
    if noise is None or model.pooler is not None or not isinstance(layer, torch.nn.Linear):
        return False
    count, width = rows.vectors.shape
    doubt = 2 * noise * math.sqrt(width / max(1, count))
    vectors, targets = rows.vectors, rows.targets
    if model.task == "regression":
        weights, bias = fit_score(vectors, targets, noise=noise, query_noise=doubt)
    elif targets.ndim == 1:
        truth = getattr(once, "label_truth", 1.0)
        weights, bias = fit_classes(
            vectors, targets, len(model.label_names), noise=noise, query_noise=doubt, truth=truth
        )
    else:  # mixtures have no class of their own
        return False
    with torch.no_grad():
        layer.weight.copy_(weights)
        layer.bias.copy_(bias)
    return True


def classes_of(model: Classifier) -> int:
    """Return the number of classes, 0 for regression."""
    return len(model.label_names) if model.task == "classification" else 0


@dataclass
class StoredStep(OpenStep):
    """An ordinary step on vectors or texts that were protected before: it is post-processing and costs nothing.

    Guarantee: that of the release it learns from.
    """

    account: Account | None = None
    name: str = ""
    solved: bool = False  # whether the head was fitted in closed form, so that no step has anything to do

    @property
    def per_epoch(self) -> int:
        """How many steps read the release once; a solved head has looked at all of it."""
        return 1 if self.solved else super().per_epoch

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Take an ordinary step, or none where the head is solved."""
        return (None, len(self.rows)) if self.solved else super().__call__(step)

    @property
    def protection(self) -> str | None:  # type: ignore[override]
        """The name of the protection."""
        return self.name

    def describe(self) -> object:
        """Return the sampler, the protection and a fingerprint of the secret."""
        assert self.account is not None
        return self.sampler, self.name, self.account.secret.fork("identity").words(2).tolist()

    def epsilon(self) -> float | None:  # type: ignore[override]
        """Return a bound on what was spent, infinite if nothing is guaranteed."""
        return self.account.epsilon() if self.account else None

    def guarantee(self) -> Guarantee | None:  # type: ignore[override]
        """Return what the release guarantees."""
        return self.account.guarantee() if self.account else None


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
    sampler: Sampler
    live: Live
    account: Account
    settings: TrainSettings
    source: Rng
    run: str = ""

    @classmethod
    def of(
        cls,
        parts: Parts,
        protect: RepresentationProtection,
        rows: Tokens | Vectors,
        corpus: Corpus,
        public: Tokens | Vectors | None,
        ledger: Ledger,
        secret: Rng,
        delta: float | None,
    ) -> HiddenStep:
        """Return the step for a corpus; batches are all rows in turn, or a fixed number drawn at every step."""
        model, settings = parts.model, parts.settings
        protect.check(settings.batch_size, len(rows))
        if protect.position == "token" and isinstance(rows, Vectors):
            raise refuse("train", model.settings.train, "all or top-N for tokens", "Sentence vectors have no tokens.")
        size = min(settings.batch_size, len(rows))
        counted = sampler_of(protect, size, len(rows))
        sampler, source = parts.sampler or counted, secret
        live = protect.live(len(rows), model.width, classes_of(model), secret, model.device)
        if costs(live):
            refuse_units(corpus, protect)
            if sampler != counted:
                raise refuse("sampler", sampler, f"{counted}, as counted", "Leave it out.")
            if secret.is_secret:  # another training with the same secret must not draw the same noise
                said = (protect, sampler, secret.fork("identity").words(2).tolist())
                source = secret.fork("training", identity(model, rows, settings, said, parts.rng))
                live = protect.live(len(rows), model.width, classes_of(model), source, model.device)
        account = Account.of(ledger, secret, delta, corpus, live, model.settings.frozen)
        return cls(model, parts.optimizer, protect, rows, public, sampler, live, account, settings, source)

    def __post_init__(self) -> None:
        """Choose between eager and captured steps."""
        asked = self.settings
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
        return self.sampler.steps_per_epoch(len(self.rows))

    def describe(self) -> object:
        """Return the sampler, the protection, the amount of public text and a fingerprint of the secret."""
        public = None if self.public is None else len(self.public)
        return self.sampler, self.protect, public, self.account.secret.fork("identity").words(2).tolist()

    def check(self, steps: int) -> None:
        """Refuse to go on from a checkpoint whose steps the ledger does not hold."""
        for step in range(steps):
            if not self.account.ledger.holds(f"{self.run} {self.live.cost(step, step // self.per_epoch)[1]}"):
                raise LedgerError(
                    f"Expected step {step} of this training in its ledger, as the checkpoint is at step {steps}. The "
                    "ledger is another one, or was lost; without it nothing is guaranteed. Begin again."
                )

    def epsilon(self) -> float:
        """Return a bound on what was spent so far, infinite if nothing is guaranteed."""
        return self.account.epsilon()

    def guarantee(self) -> Guarantee:
        """Return what all steps so far guarantee."""
        return self.account.guarantee()

    def __call__(self, step: int) -> tuple[Tensor | None, int]:
        """Draw a batch, count it, hide its vectors and learn from them."""
        drawn = draw_hidden(self.sampler, step, len(self.rows), self.source)
        event, name = self.live.cost(step, step // self.per_epoch, len(drawn))
        self.account.ledger.spend(event, f"{self.run} {name}".strip())
        if not len(drawn):  # counted all the same: that a step may send nothing is part of its price
            return None, 0
        torch.manual_seed(self.source.fork("dropout", step).seed())
        return self.take(self.batch(drawn, step)), len(drawn)

    def batch(self, drawn: Rows, step: int) -> Batch:
        """Return a batch with public rows beside it and its secret draws."""
        secret, epoch = self.source, step // self.per_epoch
        return hidden_batch(self.model, self.rows, self.public, self.protect, self.live, secret, drawn, step, epoch)

    def losses(self, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """Return one loss per hidden vector."""
        return hidden_losses(self.model, self.protect, self.live, inputs, targets)


def sampler_of(protect: RepresentationProtection, size: int, rows: int) -> Sampler:
    """Return the sampler that a live protection is counted with."""
    if protect.sampling == "coins":
        return Poisson.expecting(size, rows)
    return FixedSize(size) if protect.sampling == "fixed" else Shuffled(size)


def draw_hidden(sampler: Sampler, step: int, rows: int, secret: Rng) -> Rows:
    """Return the rows of a step in an order that says nothing of which they are.

    A receiver who sees every vector must not learn from its place whose it is: a draw in increasing order would say so.
    """
    drawn = sampler.draw(step, rows, secret.fork("sampler"))
    if isinstance(sampler, Shuffled):  # its order is random already
        return drawn
    return drawn[secret.fork("shuffle", step).permutation(len(drawn))]


def costs(live: Live) -> bool:
    """Return whether what passes through is counted at a price, and not as without any guarantee."""
    return not isinstance(live.cost(0, 0)[0], NoGuaranteeDpEvent)


def refuse_units(corpus: Corpus, protect: RepresentationProtection) -> None:
    """Refuse units of several rows where the price is that of one row."""
    if most_rows(corpus.unit_index) > 1:
        remedy = "What is counted at every step is a row, and some units own several; release all vectors once."
        raise refuse("unit", corpus.unit_name, f"of one row each for a live {protect.name}", remedy)


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
        raise DataError(f"Expected a public corpus for {protect.name} with public partners. Give one with --public.")
    if public.is_pairs != private.is_pairs:
        kinds = ("pairs of texts", "single texts")
        raise DataError(
            f"Expected {kinds[not private.is_pairs]} in the public corpus {public.name!r}, found "
            f"{kinds[not public.is_pairs]}. Mix like with like."
        )
    return public
