"""The contract of every protection: what may be asked of it, wherever it acts.

A protection is a frozen dataclass of public settings. You ask for it with a budget, `DPSGD(epsilon=3)`, or with a
strength, `DPSGD(noise_multiplier=1.1)`; `resolve` returns the one that runs, once it is known what is trained and for
how long. What it draws (masks, partners, noise) comes from a secret source and lives in short-lived objects whose repr
shows none of it.

Small operations on vectors and labels that several protections share.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.core.errors import UnsupportedError, open_probability, positive
from discreet.core.guarantee import Adjacency, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.core.settings import as_dict, option

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.clipping.record import Record
    from discreet.models.classifier import Classifier


Place = Literal["text", "representation", "gradient"]
Visible = Literal["sum", "each"]
Sampling = Literal["shuffled", "fixed", "coins"]
Position = Literal["sentence", "token"]
Rows = npt.NDArray[np.int64]
C = TypeVar("C")

FEW_UNITS = 5000  # below, a protected training of all layers mostly learns nothing
FROZEN = ("head", "pooler+head")  # what is trained where the encoder keeps its weights
RESOLVED = {"resolved": True}  # the metadata of a field that is set when a protection is resolved, and not asked for
DELTA = option(
    "Delta of the guarantee; far below one over the number of units.", "Budget", "a tenth of one over that number"
)
_ACTS_ON: dict[str, str] = {
    "text": "text (SanText, SanTextPlus, NoisyWords)",
    "representation": "sentence vectors (TextHide, InstanceEncoding, LocalPrivacy)",
    "gradient": "gradients (DPSGD, DirDPSGD)",
}
_DIGITS = 6
_PRICES = ("epsilon", "delta")


@dataclass(frozen=True)
class Conditions:
    """The public facts that a protection is resolved against: the model, the amount of text, the length of training.

    `model` is a `TextModel`; a protection of gradients takes any `nn.Module`. `public` gives the vectors of a public
    corpus by the model's frozen encoder, and its labels if it has any. `most_rows` is the number of rows of the unit
    that has most.
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

    @property
    def sampling_rate(self) -> float:
        """The share of the units in a batch."""
        return self.batch_size / self.units


@dataclass(frozen=True)
class TrainDefaults:
    """Settings of a training where nothing was asked for; docs/decisions has the measurements."""

    epochs: float
    batch_size: int
    learning_rate: float
    weight_decay: float
    dropout: float | None
    embeddings: bool


def plain_defaults(part: str, units: int, width: int) -> TrainDefaults:
    """Return the default settings of a training whose steps are ordinary ones.

    >>> plain_defaults("all", 2000, 384).batch_size
    32
    """
    rate = 2e-3 if part in FROZEN else 5e-4 if part.startswith("lora") else 5e-5 if width <= 512 else 3e-5
    return TrainDefaults(20.0 if part in FROZEN else 3.0, 32, rate, 0.01, None, True)


class Protection(ABC):
    """Something private is altered before it leaves, at one place; asked for, or resolved.

    `budget` is whether its epsilon is a limit that the ledger holds a training to.
    """

    place: ClassVar[Place]
    default_part: ClassVar[str] = "all"  # what is trained where nothing is said: head, or all
    default_head: ClassVar[str] = "linear"
    has_sides: ClassVar[bool] = False  # whether a finished model is split into a client's and a server's side
    learns_little: ClassVar[bool] = False  # whether all layers learn nothing from few units, so that the head does

    @property
    @abstractmethod
    def name(self) -> str:
        """The name in the catalog."""

    @property
    @abstractmethod
    def adjacency(self) -> Adjacency:
        """The adjacency under which it is accounted for."""

    @property
    def epsilon(self) -> float | None:
        """The budget of the whole release for one unit, if it was asked for with one."""
        return None

    @property
    def delta(self) -> float | None:
        """The delta of the guarantee; None is chosen by the number of units."""
        return None

    @property
    def limits(self) -> bool:
        """Whether the ledger holds a training to the epsilon."""
        return self.epsilon is not None

    @property
    def public(self) -> str | None:
        """The public text that it mixes with or learns from, by name or path."""
        return None

    @property
    def visible(self) -> Visible:
        """Whether the noise hides the sum of a batch, or already each text or vector in it."""
        return "each"

    @property
    def rewrites_queries(self) -> bool:
        """Whether held-out text, too, is rewritten before the model reads it, as a careful user would."""
        return False

    @property
    def stored(self) -> bool:
        """Whether everything is released once, and training reads the stored release."""
        return False

    @property
    def needs_public(self) -> bool:
        """Whether rows of a public corpus are encoded with every batch."""
        return False

    @property
    def mixes(self) -> int:
        """How many private vectors a released one is a mean of."""
        return 1

    @property
    def mask_count(self) -> int:
        """How many secret masks of signs there are to choose from; 0 is none."""
        return 0

    @property
    def masked(self) -> bool:
        """Whether released vectors are multiplied by secret signs."""
        return False

    @property
    def noise_scale(self) -> float:
        """The standard deviation of the noise on each coordinate of a sum; 0 where there is none of that kind."""
        return 0.0

    @property
    def signal_norm(self) -> float | None:
        """How long what is left of a unit's gradient is on average, at most; None where gradients are not altered."""
        return None

    def resolve(self, conditions: Conditions) -> Protection:
        """Return the protection that runs: its noise solved for the budget, its parts learned from public text."""
        return self

    def notice(self, conditions: Conditions, unit: str) -> str | None:
        """Return what the owner should know of how the budget is used for these conditions; most have nothing."""
        return None

    def defaults(self, part: str, units: int, width: int) -> TrainDefaults:
        """Return the default settings of a training of this part under this protection."""
        return plain_defaults(part, units, width)

    def shape(self, model: Classifier) -> None:  # noqa: B027
        """Put between encoder and head what a finished run has there, for its weights to be read into."""

    def facts(self) -> dict[str, Any]:
        """Return the plain public settings that are set, with the name first; never a secret.

        >>> from discreet.protections.dp_sgd import DPSGD
        >>> DPSGD(noise_multiplier=1.0, clip_norm=0.5).facts()
        {'name': 'dp-sgd', 'noise_multiplier': 1.0, 'clip_norm': 0.5, 'clipping': 'flat'}
        """
        plain = {k: v for k, v in self.public_settings().items() if isinstance(v, int | float | str) and v != ""}
        return {"name": self.name, **plain}

    def public_settings(self) -> dict[str, Any]:
        """Return what may be said of it in public: by default the fields of its repr."""
        return {field.name: getattr(self, field.name) for field in fields_of(self) if field.repr}

    def identity(self) -> object:
        """Return what decides its draws, to be hashed into their names: a name and fields that never change."""
        return self

    def as_table(self) -> dict[str, Any]:
        """Return the settings it was asked for as plain values, the name first, for a settings file."""
        asked = {field.name for field in asked_fields(type(self))}
        return {"name": self.name, **{key: value for key, value in as_dict(self).items() if key in asked}}


class GradientProtection(Protection):
    """A protection at the place `gradient`: it adds up what each unit may contribute, then releases the sum."""

    place: ClassVar[Place] = "gradient"

    @property
    @abstractmethod
    def event(self) -> DpEvent:
        """What one use costs a unit that is certainly in the batch."""

    def check_parameters(self, sizes: Mapping[str, int]) -> None:
        """Reject a model whose trainable parameters, by name and size, are not those it was resolved for."""

    @abstractmethod
    def gather(self, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        """Add the contributions of some units to the sums, and free their record."""

    @abstractmethod
    def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
        """Return the sums as they may leave."""


class TextProtection(Protection):
    """A protection at the place `text`: the train split is rewritten before anything else is done with it.

    What follows is ordinary training, which is post-processing.
    """

    place: ClassVar[Place] = "text"

    @abstractmethod
    def cost(self, corpus: Any) -> DpEvent:
        """Return what rewriting this corpus costs the unit with the largest epsilon."""

    @abstractmethod
    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it should be stated: with assumptions, as an estimate, or as none with the reason."""

    @abstractmethod
    def rewrite(self, corpus: C, rng: Rng) -> C:
        """Return the corpus with every text rewritten; labels, units and splits stay."""


class Once(Protocol):
    """One release of all vectors, drawn but not yet made: its cost is known before its noise is used."""

    @property
    def event(self) -> DpEvent:
        """What it costs the unit with the largest epsilon; `NoGuaranteeDpEvent(reason)` where nothing is guaranteed."""
        ...

    @property
    def noise_variance(self) -> float | None:
        """The variance of the noise in one coordinate, which is public; None where a head is not fitted with it."""
        ...

    @property
    def label_truth(self) -> float:
        """The probability that a label is the true one, which is public."""
        ...

    @property
    def partners(self) -> Rows | None:
        """The rows mixed into each released vector, for the truth of an attack; None where nothing is mixed."""
        ...

    @property
    def weights(self) -> npt.NDArray[np.float64] | None:
        """The weight of each partner; None where nothing is mixed."""
        ...

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it should be stated."""
        ...

    def send(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what leaves: vectors, and labels (numbers, or probabilities of classes) or scores."""
        ...

    def __call__(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the head is trained on: what leaves, or what its receiver makes of it."""
        ...


class Live(Protocol):
    """Vectors pass through it at every step, inside the loss, while the encoder may be trained.

    Random draws are made outside (`draw`) and come in as tensors whose shapes depend on the number of rows alone, so
    that a step can be captured as a CUDA graph.
    """

    def cost(self, step: int, epoch: int, size: int | None = None) -> tuple[DpEvent, str]:
        """Return what is counted before a step, and the name it is counted by: the same name is counted once.

        `size` is how many rows were drawn, where noise may depend on it.
        """
        ...

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it should be stated."""
        ...

    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the secret draws for a batch of these rows whose vectors have this shape, on the device."""
        ...

    def hide(
        self, vectors: Tensor, targets: Tensor, drawn: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the head sees and should say; gradients flow through. No random numbers are drawn here."""
        ...


class RepresentationProtection(Protection):
    """A protection at the place `representation`: vectors leave, one by one, instead of text."""

    place: ClassVar[Place] = "representation"

    @property
    def position(self) -> Position:
        """Whether sentence vectors pass through it, or the states of all tokens before they are pooled (live only)."""
        return "sentence"

    @property
    def sampling(self) -> Sampling:
        """How live training draws: every row once an epoch, a fixed number at every step, or each row by a coin."""
        return "shuffled"

    @property
    def priced(self) -> bool:
        """Whether what passes through is counted at a price, and not as without any guarantee."""
        return True

    @property
    def projected_to(self) -> int | None:
        """How many coordinates are released, where fewer than the encoder's."""
        return None

    def seen(self, vectors: Tensor) -> Tensor:
        """Return vectors in the coordinates of a release, before mixing and noise."""
        return vectors

    def fit(self, model: Classifier, rng: Rng) -> None:
        """Make a model fit what leaves, before it is trained; a model that fits already is left alone.

        Replace `model.head` where the release is narrower than the encoder, and set `model.query`: an `nn.Module` (its
        buffers are saved with the weights, so nothing secret may be among them) or a function from a sentence's vectors
        (rows, width) to what the head sees, (rows, width) or (views, rows, width) to average predictions over.
        """

    def begin(self, model: Classifier, secret: Rng) -> None:
        """Set the parts of `model.query` that are secret, at the start of training; most need nothing."""

    def end(self, model: Classifier) -> None:
        """Fold what is secret into the weights before the model is written; afterwards `model.query` may be None."""

    def views(self, width: int, secret: Rng) -> nn.Module | None:
        """Return what gives several views of a query, to average predictions over, or None where there is only one."""
        return None

    def check(self, batch_size: int, rows: int) -> None:
        """Reject settings that do not fit this training."""

    @abstractmethod
    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> Once:
        """Return the release of one vector for each row; `owners` is the number of each row's unit.

        `width` is the encoder's; `classes` is 0 for regression.
        """

    @abstractmethod
    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> Live:
        """Return what hides the vectors of every step."""


def fields_of(protect: Protection | type[Protection]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields of a protection, which is a dataclass."""
    return dataclasses.fields(protect)  # type: ignore[arg-type]


def asked_fields(kind: type[Protection]) -> tuple[dataclasses.Field[Any], ...]:
    """Return the fields that a user asks with; the others are set when it is resolved."""
    return tuple(field for field in fields_of(kind) if field.init and not field.metadata.get("resolved"))


def check_protection(protect: object, *places: str) -> None:
    """Reject what is not a protection at one of the places (at any, if none is given) by the name of its class.

    >>> check_protection("dp-sgd", "gradient")
    Traceback (most recent call last):
    ...
    discreet.core.errors.UnsupportedError: Expected protect to be a protection of gradients ... got str. ...
    """
    if isinstance(protect, Protection) and (not places or protect.place in places):
        return
    expected = " or ".join(_ACTS_ON[place] for place in places or _ACTS_ON)
    got = f"the class {protect.__name__}" if isinstance(protect, type) else type(protect).__name__
    raise UnsupportedError(
        f"Expected protect to be a protection of {expected}, got {got}. "
        "Pass an instance of a protection; a mechanism or a layer alone cannot be used for training."
    )


def check_budget(epsilon: float | None, delta: float | None) -> None:
    """Reject an epsilon or a delta outside its range."""
    if epsilon is not None:
        positive("epsilon", epsilon, "It is the budget of the whole training; smaller is more private.")
    if delta is not None:
        open_probability("delta", delta, "It should be far below one over the number of units.")


def in_words(facts: Mapping[str, Any]) -> str:
    """Return public facts in words; what is off is left out, and prices are rounded up.

    >>> in_words({"name": "ldp", "mechanism": "gaussian", "epsilon": 7.000002, "pairs": False})
    'ldp (mechanism gaussian, epsilon 7.00001)'
    """
    shown = {name: value for name, value in facts.items() if name != "name" and value is not False}
    settings = ", ".join(f"{name.replace('_', ' ')} {_plain(name, value)}" for name, value in shown.items())
    return f"{facts['name']} ({settings})" if settings else str(facts["name"])


def _plain(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return in_digits(value, _DIGITS) if any(price in name for price in _PRICES) else f"{value:g}"


_AT_ONCE, _NUMBERS = 64, 1 << 24  # steps, and numbers, that are drawn together at most


def most_rows(owners: Rows) -> int:
    """Return the number of rows of the unit that has most.

    >>> most_rows(np.array([0, 1, 1, 2]))
    2
    """
    return int(np.bincount(owners).max(initial=1)) if len(owners) else 1


def clip(vectors: Tensor, norm: float) -> Tensor:
    """Return vectors shortened to at most a norm; what is not finite becomes zero.

    >>> clip(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.30000001192092896, 0.4000000059604645]]
    """
    finite = torch.isfinite(vectors).all(dim=-1, keepdim=True)
    vectors = torch.where(finite, vectors, 0.0)
    lengths = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors * torch.clamp(norm / lengths.clamp_min(1e-30), max=1.0)


def steps_at_once(numbers: int) -> int:
    """Return for how many steps randomness is drawn at once, if a step takes so many numbers: the same after a crash.

    One by one the draws take longer than a short step on a GPU does; large batches take fewer steps at once.

    >>> steps_at_once(1), steps_at_once(1 << 20), steps_at_once(1 << 30)
    (64, 16, 1)
    """
    return max(1, min(_AT_ONCE, _NUMBERS // numbers))


def soft_targets(targets: Tensor, classes: int) -> Tensor:
    """Return labels as probabilities of classes, (rows, classes), and scores as they are."""
    if classes and not targets.is_floating_point():
        return nn.functional.one_hot(targets, classes).float()
    return targets.float()
