"""What a protection can do at the places `text` and `representation`, whichever it is.

A protection is a frozen dataclass of public settings. What it draws (masks, partners, noise) comes from a secret source
and lives in the short-lived objects that `once` and `live` return; those have no fields in their repr.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.models.classifier import Classifier

Place = Literal["text", "representation", "gradient"]
Rows = npt.NDArray[np.int64]
C = TypeVar("C")

_AT_ONCE, _NUMBERS = 64, 1 << 24  # steps, and numbers, that are drawn together at most


@runtime_checkable
class TextProtection(Protocol):
    """A protection at the place `text`: the train split is rewritten before anything else is done with it.

    What follows is ordinary training, which is post-processing.
    """

    name: ClassVar[str]
    place: ClassVar[Place]

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency under which it is accounted for."""
        ...

    @property
    def rewrites_queries(self) -> bool:
        """Whether held-out text, too, is rewritten before the model reads it, as a careful user would."""
        ...

    def cost(self, corpus: Any) -> DpEvent:
        """Return what rewriting this corpus costs its dearest unit; `NoGuaranteeDpEvent(reason)` where nothing is."""
        ...

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it should be said: with assumptions, as an estimate, or as none with the reason."""
        ...

    def rewrite(self, corpus: C, rng: Rng) -> C:
        """Return the corpus with every text rewritten; labels, units and splits stay."""
        ...


class Once(Protocol):
    """One release of all vectors, drawn but not yet made: its cost is known before its noise is used."""

    @property
    def event(self) -> DpEvent:
        """What it costs the dearest unit; `NoGuaranteeDpEvent(reason)` where nothing is guaranteed."""
        ...

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it should be said."""
        ...

    def __call__(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what leaves: vectors, and labels (numbers, or probabilities of classes) or scores."""
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
        """Return the guarantee as it should be said."""
        ...

    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the secret draws for a batch of these rows whose vectors have this shape, on the device."""
        ...

    def hide(
        self, vectors: Tensor, targets: Tensor, drawn: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the head sees and should say; gradients flow through. No random numbers are drawn here."""
        ...


@runtime_checkable
class RepresentationProtection(Protocol):
    """A protection at the place `representation`: vectors leave, one by one, instead of text."""

    name: ClassVar[str]
    place: ClassVar[Place]

    @property
    def stored(self) -> bool:
        """Whether all vectors are released once and training runs on the stored release (`once`), or not (`live`)."""
        ...

    @property
    def position(self) -> Literal["sentence", "token"]:
        """Whether sentence vectors pass through it, or the states of all tokens before they are pooled (live only)."""
        ...

    @property
    def sampling(self) -> Literal["shuffled", "fixed", "coins"]:
        """How live training draws: every row once an epoch, a fixed number at every step, or each row by a coin."""
        ...

    @property
    def needs_public(self) -> bool:
        """Whether rows of a public corpus are encoded with every batch (live only)."""
        ...

    @property
    def priced(self) -> bool:
        """Whether what passes through is counted at a price, and not as without any guarantee."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency under which it is accounted for."""
        ...

    def fit(self, model: Classifier, rng: Rng) -> None:
        """Make a model fit what leaves, before it is trained; a model that fits already is left alone.

        Replace `model.head` where the release is narrower than the encoder, and set `model.query`: an `nn.Module` (its
        buffers are saved with the weights, so nothing secret may be among them) or a function from a sentence's vectors
        (rows, width) to what the head sees, (rows, width) or (views, rows, width) to average predictions over.
        """
        ...

    def begin(self, model: Classifier, secret: Rng) -> None:
        """Set the parts of `model.query` that are secret, at the start of training; most need nothing."""
        ...

    def end(self, model: Classifier) -> None:
        """Fold what is secret into the weights before the model is written; afterwards `model.query` may be None."""
        ...

    def views(self, width: int, secret: Rng) -> nn.Module | None:
        """Return what gives several views of a query, to average predictions over, or None where there is only one."""
        ...

    def check(self, batch_size: int, rows: int) -> None:
        """Refuse settings that do not go with this training."""
        ...

    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> Once:
        """Return the release of one vector for each row; `owners` is the number of each row's unit.

        `width` is the encoder's; `classes` is 0 for regression.
        """
        ...

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> Live:
        """Return what hides the vectors of every step."""
        ...


def place_of(protect: object) -> Place:
    """Return where a protection acts."""
    place: Place = getattr(protect, "place", "gradient")
    return place


def at_text(protect: object) -> TypeGuard[TextProtection]:
    """Return whether a protection rewrites text."""
    return place_of(protect) == "text"


def at_vectors(protect: object) -> TypeGuard[RepresentationProtection]:
    """Return whether a protection alters vectors."""
    return place_of(protect) == "representation"


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
