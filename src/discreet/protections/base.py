"""Base classes of all protections, and small operations on vectors and labels that several of them share.

A protection is a frozen dataclass of public settings. Users create it with a budget, `DPSGD(epsilon=3)`, or with a
strength, `DPSGD(noise_multiplier=1.1)`; `resolve` returns the protection that runs, given the model, the number of
units and the number of steps. Its random values (masks, partners, noise) come from a secret source and live in
short-lived objects that do not show them in their repr.

`PrivateSum` forms and releases the sum of a step for training, own loops, federated clients, the releases that attacks
read, and audits: the protection bounds what each unit adds, and adds the noise.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.clipping.record import Record
from discreet.clipping.tape import Tape
from discreet.core.errors import UnsupportedError, invalid, whole
from discreet.core.guarantee import DEFAULT_DELTA, Adjacency, Caveat, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.core.rules import OpenProbability, Positive
from discreet.core.settings import as_dict, option
from discreet.data.samplers import FixedSize, Poisson, Sampler, Shuffled
from discreet.models.pairs import PAIR_WIDTH
from discreet.models.settings import TrainDefaults
from discreet.plugins import is_of_package, name_of

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.clipping.record import Record
    from discreet.models.classifier import Classifier

Place = Literal["text", "representation", "gradient"]
# A noisy sum of gradients, vectors at every step, one release of vectors before, or one of texts.
StepKind = Literal["sum", "live", "stored", "rewritten"]
Visible = Literal["sum", "each"]
Sampling = Literal["shuffled", "fixed", "coins"]
Position = Literal["sentence", "token"]
Rows = npt.NDArray[np.int64]
C = TypeVar("C")
Release = Callable[[dict[str, Tensor], int], dict[str, Tensor]]  # the sums and the number of a step

FEW_UNITS = 5000  # with fewer units, protected training of all layers mostly learns nothing
_FEW_PAIRS, _SMALL_WIDTH = 5000, 512  # pairs that are few, and the width of a small encoder
FROZEN = ("head", "pooler+head")  # values of `train` that leave the encoder frozen
RESOLVED = {"resolved": True}  # metadata of a field that `resolve` sets and users do not
DELTA = option(
    "Delta of the guarantee; well below 1 / number of units.",
    "Budget",
    DEFAULT_DELTA,
    OpenProbability("It should be well below 1 / number of units."),
)
BUDGET = Positive("It is the budget of the whole training; smaller is more private.")
_ACTS_ON: dict[str, str] = {
    "text": "text (SanText, SanTextPlus, NoisyWords)",
    "representation": "sentence vectors (TextHide, InstanceEncoding, LocalPrivacy)",
    "gradient": "gradients (DPSGD, DirDPSGD)",
}
_DIGITS = 6
_PRICES = ("epsilon", "delta")


class Planned(Protocol):
    """What the spends of a training run depend on besides its protection, its model and its texts."""

    @property
    def sampler(self) -> Sampler:
        """The sampler of its batches."""

    @property
    def steps(self) -> int:
        """The number of steps."""

    @property
    def units(self) -> int:
        """The public number of units."""

    @property
    def rows(self) -> int:
        """The number of training rows."""


@dataclass(frozen=True)
class Conditions:
    """Public facts that a protection is resolved against: the model, the amount of text, the length of training.

    `model` is a `TextModel`; a protection of gradients takes any `nn.Module`. `public` returns the vectors of a public
    corpus under the frozen encoder, and its labels if it has any. `most_rows` is the largest number of rows of one
    unit. `sampler` is the one of the training, if it is not the one that the protection chooses.
    """

    model: Any
    units: int
    rows: int
    batch_size: int
    steps: int
    epochs: float
    delta: float
    public: Callable[[], tuple[Tensor, Tensor | None]] | None = None
    pairs: bool = False
    most_rows: int = 1
    sampler: Sampler | None = None


def plain_defaults(part: str, units: int, width: int, *, pairs: bool = False) -> TrainDefaults:
    """Return the default settings of a training run with ordinary, unprotected steps; `pairs` are read together.

    >>> plain_defaults("all", 2000, 384).epochs, plain_defaults("all", 2000, 384, pairs=True).epochs
    (3.0, 8.0)
    """
    if pairs and part == "all" and units < _FEW_PAIRS and width <= _SMALL_WIDTH:
        # A small encoder must learn to compare; three epochs are not enough (docs/decisions/small_corpora.md).
        return TrainDefaults(8.0, 32, 1e-4, 0.01, None, True, head_rate=10.0)
    if part in FROZEN and width == PAIR_WIDTH:
        return TrainDefaults(20.0, 32, 1e-2, 0.0, None, True)
    rate = 2e-3 if part in FROZEN else 5e-4 if part.startswith("lora") else 5e-5 if width <= _SMALL_WIDTH else 3e-5
    return TrainDefaults(20.0 if part in FROZEN else 3.0, 32, rate, 0.01, None, True)


class Protection(ABC):
    """Alter private data before it leaves, at one declared place."""

    place: ClassVar[Place]
    default_part: ClassVar[str] = "all"  # what is trained by default: head, or all
    default_head: ClassVar[str] = "linear"
    default_pair_head: ClassVar[str] = "linear"  # for pairs that are read separately
    learns_little: ClassVar[bool] = False  # whether only the head is trained by default when there are few units
    needs_classifier: ClassVar[bool] = False  # whether it protects the sentence vectors of a classifier
    has_sides: ClassVar[bool] = False  # whether a finished model is split into a client and a server side
    computes_noise_from_rows: ClassVar[bool] = False  # whether its noise depends on the rows of a release
    samples_units: ClassVar[bool] = False  # whether batches are samples of units, not of rows
    epsilon: float | None = None  # budget of the whole release for one unit, if it is set instead of the strength
    delta: float | None = None  # delta of the guarantee; None means a default that depends on the number of units
    public: str | None = None  # name or path of the public text that it mixes with or learns from
    rewrites_queries: bool = False  # whether held-out text is rewritten too before the model reads it
    label: ClassVar[str] = ""  # of a plug-in, in sentences; by default its name
    visible: ClassVar[Visible] = "each"  # the noisy sum of a batch, or each noisy text or vector in it
    priced: ClassVar[bool] = True  # whether it has a finite privacy cost; if not, nothing is guaranteed

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in the catalog, or of the entry point of a plug-in."""

    @property
    @abstractmethod
    def adjacency(self) -> Adjacency:
        """Adjacency that the accounting uses."""

    @property
    def limits(self) -> bool:
        """Whether the ledger enforces `epsilon` as a limit on the training."""
        return self.epsilon is not None

    @property
    def starts_from_public(self) -> bool:
        """Whether the model is first trained on the public text, without noise."""
        return False

    @property
    def protects_labels(self) -> bool:
        """Whether its guarantee covers the labels too; if not, they are declared public."""
        return True

    @property
    def stored(self) -> bool:
        """Whether everything private is released once, and training reads the stored release."""
        return False

    @property
    def step_kind(self) -> StepKind:
        """Which step of training it is applied in."""
        return "stored" if self.stored else "live"

    @property
    def trains_parts(self) -> bool:
        """Whether some of the parameters can be trained first, at the same cost."""
        return False

    @property
    def needs_public(self) -> bool:
        """Whether every batch needs rows of a public corpus."""
        return False

    @property
    def mixes(self) -> int:
        """Number of private vectors in each released mixture."""
        return 1

    @property
    def mask_count(self) -> int:
        """Number of secret sign masks in the pool; 0 means no pool."""
        return 0

    @property
    def masked(self) -> bool:
        """Whether released vectors are multiplied by secret signs."""
        return False

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on each coordinate of a sum; 0 if no such noise is added."""
        return 0.0

    @property
    def signal_norm(self) -> float | None:
        """Upper bound on the mean norm of a unit's protected gradient; None if gradients are not altered."""
        return None

    def resolve(self, conditions: Conditions) -> Protection:
        """Return the protection that runs, with its noise calibrated and its public parts learned."""
        return self

    def adjacency_for(self, population: int | None = None) -> Adjacency:
        """Return the adjacency that a training run is certified under: its own, or add/remove with a population.

        Only a noisy sum hides the absence of a unit; if each text or vector is visible, a population is rejected.
        """
        if population is None:
            return self.adjacency
        whole("population", population, 1, "It is the assumed number of units in the data.")
        if self.visible != "sum" or self.adjacency is not Adjacency.ZERO_OUT:
            remedy = "The absence of a unit is visible there, so the number of units is public; leave it out."
            raise invalid("population", population, f"left out for {self.name}", remedy)
        return Adjacency.ADD_REMOVE

    def sampler_for(self, size: int, units: int, rows: int | None = None) -> Sampler:
        """Return the sampler that the accounting of a training run assumes, for so many units and rows.

        Protections of gradients sample units, others rows, of which there are as many as units by default.
        """
        return Shuffled(min(size, units if rows is None else rows))

    def notice(self, conditions: Conditions, unit: str) -> str | None:
        """Return a notice for the user about how the budget is used under these conditions, or None."""
        return None

    def spends(self, plan: Planned, model: Any, split: Any) -> dict[str, int]:
        """Return how often a training run spends each event; empty if only its release determines the cost."""
        raise UnsupportedError(f"Expected a resolved {self.name}. Make a training plan, or call resolve(conditions).")

    def figures(self, steps: int) -> dict[str, float]:
        """Return further public figures of so many steps, for the results of a run."""
        return {}

    def for_release(self, model: nn.Module) -> Protection:
        """Return the protection of a single release, of the model of an attack."""
        return self

    def at_client(self, clients: int) -> Protection:
        """Return the protection of one of the clients of a federation."""
        return self

    def check_at_client(self) -> None:
        """Reject what a federated client cannot repeat safely when the server asks for a round twice.

        The noise of gradients is renewed with the weights that the server sends; stored or priced vectors are not.
        """
        if self.priced:
            raise UnsupportedError(
                f"Expected a protection of gradients (dp-sgd, dir-dp-sgd) or texthide at a client, got {self.name}. It "
                "releases texts or vectors, not updates; train centrally on that release."
            )

    def seen(self, vectors: Tensor) -> Tensor:
        """Return vectors in the coordinates of the release, before mixing and noise."""
        return vectors

    def defaults(self, part: str, units: int, width: int) -> TrainDefaults:
        """Return the default settings for training `part` under this protection."""
        return plain_defaults(part, units, width)

    def shape(self, model: Classifier) -> None:  # noqa: B027
        """Add the modules between encoder and head that a finished run has, so that its weights can be loaded."""

    def fit(self, model: Any, rng: Rng) -> None:  # noqa: B027
        """Adapt a model to the release before training; a model that is already adapted stays as it is.

        A protection of vectors replaces `model.head` if the release is narrower than the encoder, and sets
        `model.query`: an `nn.Module` (its buffers are saved with the weights, so they must not be secret) or a function
        from sentence vectors (rows, width) to the input of the head, (rows, width) or (views, rows, width) to average
        predictions over.
        """

    def begin(self, model: Any, secret: Rng) -> None:  # noqa: B027
        """Set the secret parts of a model at the start of training, if there are any."""

    def end(self, model: Any) -> None:  # noqa: B027
        """Remove secret parts from a model, or fold them into the weights, before it is written."""

    def views(self, width: int, secret: Rng) -> nn.Module | None:
        """Return a module that maps a query to several views, to average predictions over, or None."""
        return None

    def check(self, batch_size: int, rows: int) -> None:  # noqa: B027
        """Reject settings that are not valid for this training run."""

    def check_sampler(self, sampler: Sampler, counted: Sampler) -> None:  # noqa: B027
        """Reject a sampler under which the cost of a training run is not proven; `counted` is `sampler_for`'s."""

    def held_out(self, corpus: C, rng: Rng) -> C:
        """Return held-out text as the model reads it: rewritten, if the protection rewrites queries too."""
        return corpus

    def facts(self) -> dict[str, Any]:
        """Return the name and the scalar public settings that are set; never a secret.

        >>> from discreet.protections.dp_sgd import DPSGD
        >>> DPSGD(noise_multiplier=1.0, clip_norm=0.5).facts()
        {'name': 'dp-sgd', 'noise_multiplier': 1.0, 'clip_norm': 0.5, 'clipping': 'flat'}
        """
        settings = self.public_settings().items()
        return {"name": self.found_by, **{k: v for k, v in settings if isinstance(v, int | float | str) and v != ""}}

    def public_settings(self) -> dict[str, Any]:
        """Return the settings that may be published: by default the fields in its repr."""
        return {field.name: getattr(self, field.name) for field in fields_of(self) if field.repr}

    def identity(self) -> object:
        """Return a stable description of the settings that determine its random values; spend names hash it."""
        return self

    def as_table(self) -> dict[str, Any]:
        """Return the name and the user's settings as plain values, for a settings file."""
        names = {field.name for field in user_fields(type(self))}
        return {"name": self.found_by, **{key: value for key, value in as_dict(self).items() if key in names}}

    @property
    def found_by(self) -> str:
        """The name by which its class is found again: `name`, or `module:Name` if no installed package declares it."""
        return name_of(type(self), "protection", self.name)


def trust_in(protect: object) -> frozenset[Caveat]:
    """Return the caveat of a protection or aggregation of another package, whose noise may not match what it states."""
    return frozenset() if is_of_package(type(protect)) else frozenset({Caveat.THIRD_PARTY_PROTECTION})


def of_one_origin(asked: Protection, resolved: C) -> C:
    """Return a resolved protection; reject one of this package that stands for a protection of another package.

    A single release names the resolved protection alone, and its figure would be certified. A plan keeps both.
    """
    if trust_in(asked) and not trust_in(resolved):
        raise UnsupportedError(
            f"Expected the protection {asked.found_by} to resolve to a class of its own for a single release, got "
            f"{type(resolved).__name__} of discreet. Return a subclass, or train with it and attack the run."
        )
    return resolved


def trusted(protect: Protection, stated: Guarantee) -> Guarantee:
    """Return the guarantee of a protection, as an estimate if it is one of another package."""
    return stated.with_caveats(trust_in(protect)) if stated.exists else stated


def defaults_of(protect: Protection | None, part: str, units: int, width: int, *, pairs: bool = False) -> TrainDefaults:
    """Return the default settings of a training run, with a protection or without; `pairs` are read together."""
    if protect is None:
        return plain_defaults(part, units, width, pairs=pairs)
    return protect.defaults(part, units, width)


class GradientProtection(Protection):
    """A protection of gradients: add up the bounded contribution of each unit, then release the sum."""

    place: ClassVar[Place] = "gradient"
    samples_units: ClassVar[bool] = True
    step_kind: ClassVar[StepKind] = "sum"
    draws_to_gather: ClassVar[bool] = False  # whether `gather` draws random numbers, which a CUDA graph would repeat

    @property
    def starts_from_public(self) -> bool:
        """Whether the model is first trained on public text, as it is if there is some."""
        return self.public is not None

    @property
    @abstractmethod
    def event(self) -> DpEvent:
        """Privacy event of one use, for a unit that is in the batch with certainty."""

    def spends(self, plan: Planned, model: Any, split: Any) -> dict[str, int]:
        """Return how often a training run spends the event of each step; steps of the same name are counted once."""
        from discreet.accounting.events import event_to_json

        (first, _), (last, _) = (self.step_cost(plan.sampler, step, plan.units) for step in (0, plan.steps - 1))
        if first == last:
            return {event_to_json(first): plan.sampler.spends(plan.steps, plan.units)}
        costs = (self.step_cost(plan.sampler, step, plan.units) for step in range(plan.steps))
        return counted(costs)  # every cycle has a cost of its own

    def check_at_client(self) -> None:
        """Accept it: its noise is renewed with the weights that the server sends."""

    def check_own_loop(self) -> None:
        """Reject what only discreet's own training loop implements."""
        if self.public is not None:
            remedy = "Train the model on the public text before, and pass it with those weights."
            raise invalid("public", self.public, "left out in your own training loop", remedy)

    def check_parameters(self, sizes: Mapping[str, int]) -> None:
        """Reject a model whose trainable parameters (name: size) differ from those it was resolved for."""

    @abstractmethod
    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        """Add the contributions of the recorded units to the sums, and free the record."""

    @abstractmethod
    def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        """Return the protected sums."""

    def releaser(self, source: Rng) -> Release:
        """Return the function that protects the sums of each step of one training run; `source` is that of all steps.

        By default every step has noise of its own.
        """
        return lambda sums, step: self.release(sums, source.fork("noise", step))

    @property
    def step_noise(self) -> float | None:
        """Standard deviation of the independent normal noise of a step, if that is all that `release` adds."""
        return None

    def sampler_for(self, size: int, units: int, rows: int | None = None) -> Sampler:
        """Return the sampler that the accounting assumes: Poisson for sums, a fixed size for visible vectors."""
        size = min(size, units)
        return FixedSize(size) if self.visible == "each" else Poisson.expecting(size, units)

    def step_cost(self, sampler: Sampler, step: int, units: int) -> tuple[DpEvent, str]:
        """Return the event to record before a step, and its name; steps of the same name are counted once."""
        return sampler.spend(self.event, step, units, self.visible)

    def training_cost(self, sampler: Sampler, steps: int, units: int) -> DpEvent:
        """Return the event of so many steps together."""
        from discreet.accounting.events import SelfComposedDpEvent

        return SelfComposedDpEvent(self.step_cost(sampler, 0, units)[0], sampler.spends(steps, units))


class TextProtection(Protection):
    """A protection of text: rewrite the train split first; ordinary training on it is post-processing."""

    place: ClassVar[Place] = "text"
    stored: ClassVar[bool] = True  # texts are rewritten once
    protects_labels: ClassVar[bool] = False  # only texts are rewritten
    step_kind: ClassVar[StepKind] = "rewritten"

    def spends(self, plan: Planned, model: Any, split: Any) -> dict[str, int]:
        """Return the one spend of rewriting the texts."""
        return counted([(self.cost(split), "rewrite")])

    @abstractmethod
    def cost(self, corpus: Any) -> DpEvent:
        """Return the privacy event of rewriting this corpus, for the unit with the largest epsilon."""

    @abstractmethod
    def stated(self, guarantee: Guarantee) -> Guarantee:
        """Return the guarantee with the assumptions, caveats or reason of this protection added."""

    @abstractmethod
    def rewrite(self, corpus: C, rng: Rng) -> C:
        """Return the corpus with every text rewritten; labels, units and splits stay."""

    def held_out(self, corpus: C, rng: Rng) -> C:
        """Return held-out text, rewritten if queries are."""
        return self.rewrite(corpus, rng) if self.rewrites_queries else corpus


class _Applied(ABC):
    """A protection of vectors in one training run, with its secret values, which its repr does not show."""

    protect: RepresentationProtection

    def stated(self, guarantee: Guarantee) -> Guarantee:
        """Return the guarantee with the assumptions and caveats of the protection added."""
        return self.protect.stated(guarantee)

    def __repr__(self) -> str:
        """Return the settings without any secret."""
        return f"{type(self).__name__}({self.protect})"


class Once(_Applied):
    """One release of all vectors, whose cost is known before its noise is used.

    `partners` are the rows mixed into each released vector and `weights` their weights, as ground truth for attacks;
    both are None if vectors are not mixed.
    """

    partners: Rows | None = None
    weights: npt.NDArray[np.float64] | None = None

    @property
    @abstractmethod
    def event(self) -> DpEvent:
        """Privacy event for the unit with the largest epsilon; `NoGuaranteeDpEvent(reason)` if there is no bound."""

    @property
    def noise_variance(self) -> float | None:
        """Public variance of the noise in one coordinate; None if the head is not fitted with it."""
        return None

    @property
    @abstractmethod
    def label_truth(self) -> float:
        """Public probability that a label is the true one."""

    @abstractmethod
    def send(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what leaves: vectors, and labels (numbers, or class probabilities) or scores."""

    def __call__(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the head is trained on: the release, possibly post-processed by its receiver."""
        return self.send(vectors, targets)


class Live(_Applied):
    """Protection of the vectors of every step, inside the loss, while the encoder may be trained.

    Random values are sampled outside (`draw`) and passed in as tensors whose shapes depend on the number of rows alone,
    so that a step can be captured as a CUDA graph.
    """

    @abstractmethod
    def cost(self, step: int, epoch: int, size: int | None = None) -> tuple[DpEvent, str]:
        """Return the event to record before a step, and its name; events of the same name are counted once.

        `size` is the number of sampled rows, for noise that depends on it.
        """

    @abstractmethod
    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the secret random values for a batch of these rows, whose vectors have this shape, on the device."""

    @abstractmethod
    def hide(
        self, vectors: Tensor, targets: Tensor, draws: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return protected vectors and their targets; gradients flow through. No random numbers are sampled here."""


class RepresentationProtection(Protection):
    """A protection of representations: vectors leave, one by one, instead of text."""

    place: ClassVar[Place] = "representation"
    needs_classifier: ClassVar[bool] = True
    position: Position = "sentence"  # sentence vectors, or the states of all tokens before pooling (live only)

    @property
    def sampling(self) -> Sampling:
        """How live training samples rows: all once per epoch, a fixed number per step, or Poisson ("coins")."""
        return "shuffled"

    def sampler_for(self, size: int, units: int, rows: int | None = None) -> Sampler:
        """Return the sampler that the accounting assumes, which `sampling` names; a stored release is shuffled."""
        count = units if rows is None else rows
        if self.sampling == "coins" and not self.stored:
            return Poisson.expecting(min(size, count), count)
        if self.sampling == "fixed" and not self.stored:
            return FixedSize(min(size, count))
        return super().sampler_for(size, units, rows)

    def check_sampler(self, sampler: Sampler, counted: Sampler) -> None:
        """Reject another sampler than the one that the cost of every step assumes."""
        if self.priced and not self.stored and sampler != counted:
            raise invalid("sampler", sampler, f"{counted}, as counted", "Leave it out.")

    @property
    def projected_to(self) -> int | None:
        """Number of released coordinates, or None if it is the encoder's width."""
        return None

    def spends(self, plan: Planned, model: Any, split: Any) -> dict[str, int]:
        """Return how often live training spends the event of each step; the release determines that of a stored one."""
        if self.stored:
            return {}
        live = self.live(plan.rows, model.width, model.classes, Rng.secret(), model.device)
        per_epoch = plan.sampler.steps_per_epoch(plan.rows)
        return counted(live.cost(step, step // per_epoch) for step in range(plan.steps))

    def stated(self, guarantee: Guarantee) -> Guarantee:
        """Return the guarantee with the assumptions, caveats or reason of this protection added."""
        return guarantee

    @abstractmethod
    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> Once:
        """Return the release of one vector per row; `owners` holds the unit index of each row.

        `width` is the encoder's; `classes` is 0 for regression.
        """

    @abstractmethod
    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> Live:
        """Return the object that protects the vectors of every step."""


def counted(costs: Iterable[tuple[DpEvent, str]]) -> dict[str, int]:
    """Return how often each event, in its written form, is spent under different names."""
    from discreet.accounting.events import event_to_json

    return dict(Counter({name: event_to_json(event) for event, name in costs}.values()))


def fields_of(protect: Protection | type[Protection]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a protection, which is a dataclass."""
    return dataclasses.fields(protect)  # type: ignore[arg-type]


def user_fields(kind: type[Protection]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields that users set; `resolve` sets the others."""
    return tuple(field for field in fields_of(kind) if field.init and not field.metadata.get("resolved"))


def check_protection(protect: object, *places: str) -> None:
    """Reject any object that is not a protection at one of the places (at any place, if none is given).

    >>> check_protection("dp-sgd", "gradient")
    Traceback (most recent call last):
    ...
    discreet.core.errors.UnsupportedError: Expected protect to be a protection of gradients ... got str. ...
    """
    if isinstance(protect, Protection) and (not places or protect.place in places):
        return
    if isinstance(protect, list | tuple):
        raise UnsupportedError(
            f"Expected one protection, got {len(protect)}. Their costs do not simply add: a mixed record enters many "
            "mixtures, so that its clipped gradients weigh k times as much. Choose one."
        )
    expected = " or ".join(_ACTS_ON[place] for place in places or _ACTS_ON)
    got = f"the class {protect.__name__}" if isinstance(protect, type) else type(protect).__name__
    raise UnsupportedError(
        f"Expected protect to be a protection of {expected}, got {got}. "
        "Pass an instance of a protection; a mechanism or a layer alone cannot be used for training."
    )


def protection_of_gradients(protect: Protection) -> GradientProtection:
    """Return a protection of gradients as one, or reject any other."""
    check_protection(protect, "gradient")
    assert isinstance(protect, GradientProtection)
    return protect


def in_words(facts: Mapping[str, Any]) -> str:
    """Return public facts as text; False is left out, and epsilon and delta are rounded up.

    >>> in_words({"name": "ldp", "mechanism": "gaussian", "epsilon": 7.000002, "pairs": False})
    'ldp (mechanism gaussian, epsilon 7.00001)'
    """
    shown = {name: value for name, value in facts.items() if name != "name" and value is not False}
    settings = ", ".join(f"{name.replace('_', ' ')} {_formatted(name, value)}" for name, value in shown.items())
    return f"{facts['name']} ({settings})" if settings else str(facts["name"])


def _formatted(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return in_digits(value, _DIGITS) if any(price in name for price in _PRICES) else f"{value:g}"


_AT_ONCE, _NUMBERS = 64, 1 << 24  # most steps, and most numbers, that are sampled together


def most_rows(owners: Rows) -> int:
    """Return the largest number of rows that one unit owns.

    >>> most_rows(np.array([0, 1, 1, 2]))
    2
    """
    return int(np.bincount(owners).max(initial=1)) if len(owners) else 1


def clip(vectors: Tensor, norm: float) -> Tensor:
    """Return vectors clipped to a norm; vectors with NaN or infinity become zero.

    >>> clip(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.30000001192092896, 0.4000000059604645]]
    """
    finite = torch.isfinite(vectors).all(dim=-1, keepdim=True)
    vectors = torch.where(finite, vectors, 0.0)
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * torch.clamp(norm / lengths.clamp_min(1e-30), max=1.0)


def steps_at_once(numbers: int) -> int:
    """Return the number of steps whose random values are sampled together, if each step needs `numbers` of them.

    Sampled step by step they take longer than a short step on a GPU. The result is the same when a run is resumed.

    >>> steps_at_once(1), steps_at_once(1 << 20), steps_at_once(1 << 30)
    (64, 16, 1)
    """
    return max(1, min(_AT_ONCE, _NUMBERS // numbers))


def soft_targets(targets: Tensor, classes: int) -> Tensor:
    """Return labels as class probabilities, (rows, classes); scores are returned unchanged."""
    if classes and not targets.is_floating_point():
        return nn.functional.one_hot(targets, classes).float()
    return targets.float()


Sums = dict[str, Tensor]


def noise_of(protect: GradientProtection, source: Rng) -> Release:
    """Return the function that releases the sums of each step of one training run; `source` is that of all steps.

    Noise may depend on that of earlier steps of the same run, so one function serves a whole run.
    """
    return protect.releaser(source)


def release_once(protect: GradientProtection, sums: Mapping[str, Tensor], rng: Rng) -> Sums:
    """Return the protected sums of a single release, which is not a step of a training run.

    Guarantee: that of one use of the protection.
    """
    return protect.release(dict(sums), rng)


class PrivateSum:
    """The sum over the units of one batch, which may come in parts, until it is released.

    Guarantee: that of the protection for each step, if `release` is called once for it. `sums` is private before.
    """

    def __init__(self, protect: GradientProtection, tape: Tape) -> None:
        """Start an empty sum for the model of a tape."""
        self.protect, self.tape = protect, tape
        self.sums: Sums = {}
        self.parts = 0  # of the batch, that were added
        self._noise: tuple[object, Release] | None = None  # of a run

    def clear(self) -> None:
        """Forget what was added, for the next step or for the same one from its first part."""
        self.sums, self.parts = {}, 0

    def add(self, record: Record, rng: Rng) -> None:
        """Add the bounded contributions of the recorded units, and free the record."""
        self.protect.gather(record, self.sums, rng)
        self.parts += 1

    def add_sums(self, sums: Mapping[str, Tensor]) -> None:
        """Add the sums of units that were added elsewhere, in memory that may be used again."""
        if self.sums:
            torch._foreach_add_([self.sums[name] for name in sums], list(sums.values()))
        else:
            self.sums = {name: value.clone() for name, value in sums.items()}
        self.parts += 1

    def complete(self, rng: Rng) -> Sums:
        """Return the sums of the whole batch: zeros if it has no unit."""
        if not self.parts:
            self.protect.gather(self.tape.empty(), self.sums, rng)
        return self.sums

    def release(self, sums: Sums, source: Rng, step: int, run: object = None) -> Sums:
        """Return the protected sums of a step; `run` says which run `source` belongs to, for noise over several steps.

        Noise is drawn in the order of the sums.
        """
        if self._noise is None or self._noise[0] != run or run is None:
            self._noise = run, noise_of(self.protect, source)
        return self._noise[1](sums, step)


@torch.no_grad()
def set_gradients(parameters: Mapping[str, nn.Parameter], released: Mapping[str, Tensor], size: float) -> None:
    """Set the gradient of each parameter to its released sum over the expected size of a batch.

    The divisor is public: the number of units that were drawn would reveal who was.
    """
    means = torch._foreach_div([released[name] for name in parameters], size)
    for parameter, mean in zip(parameters.values(), means, strict=True):
        parameter.grad = mean.to(parameter.dtype)


def step_optimizer(optimizer: torch.optim.Optimizer) -> None:
    """Step an optimizer with the gradients that `set_gradients` has set."""
    optimizer.step()
