"""Resolved local privacy: the layers of training and queries, and the releases they make during training.

Paper: anonymous, Local Differential Privacy for Privacy-Preserving NLP Tasks (LDP-NLP).
Differs: the default sends every vector once and trains on the stored release. If vectors are sent again at every step,
a fixed number of them is sampled and the figure is the curve of sampling without replacement; with Poisson sampling
("coins"), as in the paper, it is the mean of those curves. If the encoder is trained too, as in the paper, the figure
is not a bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from discreet.accounting.events import ComposedDpEvent, DpEvent, NoOpDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.accounting.local_layer import LABELS_PUBLIC, Sending
from discreet.core.errors import invalid
from discreet.core.guarantee import Adjacency, Caveat, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.normals import release
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.protections.base import Live, Once, Position, RepresentationProtection, Rows, Sampling, most_rows
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.projection import Projection
from discreet.protections.local.query import LocalQuery, TokenQuery, clip_states

if TYPE_CHECKING:
    from discreet.models.classifier import Classifier


_PUBLIC = "the projection was learned from public text"
_LABELS_HIDDEN = "labels were reported by randomized response, counted in the same figure"
_LENGTH = "the number of tokens of a text is public"
_HIDDEN = "the server does not learn which sentences were drawn, nor in what order"


@dataclass(frozen=True)
class LocalLayer(RepresentationProtection):
    """A layer for training, a layer for queries, and the projection before both.

    `sending` says how often the vector of a sentence is sent: once, or sampled at every step. With `label_epsilon`
    labels are reported by randomized response, at that epsilon for each report. If `inference` is narrower than
    `training`, queries are projected to the axes that the head has learned (`local.projection`). `typical` is the mean
    and the covariance of bounded public vectors.

    Guarantee: for each unit, replace-one, the cost of all releases of its sentences; certified for a frozen encoder, a
        public projection and calibration="sound". If sentences are sampled at every step, only with labels by
        randomized response: a true label shows among which sentences its own was sampled, and removes the
        amplification.
    """

    training: LDPLayer
    inference: LDPLayer
    projection: Projection
    sending: Sending
    delta: float = 1e-6
    label_epsilon: float | None = None
    claimed: Guarantee | None = field(default=None, repr=False)
    retrain: bool = True
    position: Position = "sentence"
    pairs: bool = False
    typical: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)
    dynamic: bool = False  # whether noise grows with the number of vectors that a step sends, as in the paper
    epsilon: float | None = field(default=None, repr=False, compare=False)  # the user's budget
    calibration: str = field(default="sound", repr=False, compare=False)
    name: ClassVar[str] = "ldp"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    limits: ClassVar[bool] = False  # epsilon may be that of a sentence, of which a unit may own several

    def __post_init__(self) -> None:
        """Reject layers that do not fit together."""
        widths = (self.projection.width, self.training.dimension, self.inference.dimension)
        if not widths[0] == widths[1] >= widths[2]:
            raise invalid("dimension", widths, "the width of the projection in training, and no more in queries", "")
        if widths[2] < widths[1] and self.typical is None:
            raise invalid("typical", None, "set for queries narrower than training", "Measure public vectors.")
        if self.stored and self.position == "token":
            raise invalid("sampling", "once", "fixed for tokens", "Only sentence vectors can be stored.")
        if not self.stored and self.training.mechanism != "gaussian":
            remedy = "Other mechanisms send directions once; gradients do not pass through their noise."
            raise invalid("mechanism", self.training.mechanism, "gaussian where each step samples noise again", remedy)

    @property
    def projected_to(self) -> int | None:
        """Number of released coordinates."""
        return self.projection.width

    def public_settings(self) -> dict[str, Any]:
        """Return the settings that may be published: the mechanism, the budget, what is sent and how often."""
        return {
            "mechanism": self.training.mechanism,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "calibration": self.calibration,
            "dimension": self.training.dimension,
            "label_epsilon": self.label_epsilon,
            "position": self.position,
            "sampling": self.sending.sampling,
            "retrain": self.retrain,
            "pairs": self.pairs,
        }

    @property
    def protects_labels(self) -> bool:
        """Whether labels are reported by randomized response."""
        return self.label_epsilon is not None

    @property
    def stored(self) -> bool:
        """Whether every vector is sent once."""
        return self.sending.sampling == "once"

    @property
    def sampling(self) -> Sampling:
        """How batches are sampled if vectors are sent at every step."""
        return "coins" if self.sending.sampling == "coins" else "fixed"

    def seen(self, vectors: Tensor) -> Tensor:
        """Return vectors in the coordinates of the projection, before they are bounded and randomized."""
        return self.projection(vectors)

    def fit(self, model: Classifier, rng: Rng) -> None:
        """Set a head as wide as the release, and the user's side that queries pass through."""
        if not (isinstance(model.query, LocalQuery) and model.query.layer == self.inference):
            shape_model(model, self.training, self.inference, rng, self.projection, self.typical, self.position)

    def begin(self, model: Classifier, secret: Rng) -> None:
        """Take the noise of queries from the run's own secret."""
        assert isinstance(model.query, LocalQuery)
        model.query.source = secret.fork("queries")

    def end(self, model: Classifier) -> None:
        """Replace the run's secret: later queries sample their own noise."""
        assert isinstance(model.query, LocalQuery)
        model.query.source = Rng.secret()

    def check(self, batch_size: int, rows: int) -> None:
        """Reject a training run whose sampling differs from the one that is accounted for."""
        if not self.stored and (batch_size, rows) != (self.sending.drawn, self.sending.population):
            counted = f"{self.sending.drawn} of {self.sending.population} sentences"
            raise invalid("batch_size", batch_size, f"{counted}, as counted", "Resolve the protection for this corpus.")

    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> SentOnce:
        """Return the single release of all vectors."""
        return SentOnce(self, most_rows(owners), self._response(classes), secret)

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> SentAgain:
        """Return the object that randomizes the vectors sent at every step."""
        return SentAgain(self, self._response(classes), secret, device)

    def _response(self, classes: int) -> RandomizedResponse | None:
        if self.label_epsilon is None:
            return None
        if not classes:
            raise invalid("label_epsilon", self.label_epsilon, "left out for scores", "It needs classes.")
        return RandomizedResponse(self.label_epsilon, classes)

    def stated(self, guarantee: Guarantee, sentences: int = 1) -> Guarantee:
        """Return the guarantee with its assumptions, or the paper's claim, summed over sentences, with the reason."""
        assumptions: tuple[str, ...] = (_PUBLIC, LABELS_PUBLIC if self.label_epsilon is None else _LABELS_HIDDEN)
        if not self.stored:
            assumptions += (_HIDDEN,)
        if self.position == "token":  # the mean over more tokens has less noise
            assumptions += (_LENGTH,)
        caveats = set()
        if not self.projection.public:
            caveats.add(Caveat.PRIVATE_PROJECTION)
        if self.label_epsilon is None and not self.stored and self.sending.drawn < self.sending.pool:
            caveats.add(Caveat.VISIBLE_LABELS)
        if self.claimed is not None:
            proven = f"{self.claimed.reason}; the proven figure at the same delta is {in_digits(guarantee.epsilon)}"
            epsilon = self.claimed.epsilon * sentences
            claim = replace(self.claimed, epsilon=epsilon, unit=guarantee.unit, delta=guarantee.delta, reason=proven)
            return claim.with_caveats(guarantee.caveats | caveats)
        guarantee = replace(guarantee, assumptions=tuple(dict.fromkeys((*guarantee.assumptions, *assumptions))))
        return guarantee.with_caveats(caveats) if guarantee.exists else guarantee


def shape_model(
    model: Classifier,
    training: LDPLayer,
    inference: LDPLayer,
    rng: Rng,
    projection: Projection | None = None,
    typical: tuple[Tensor, Tensor] | None = None,
    position: str = "sentence",
) -> None:
    """Put the user's side between encoder and head, and a head as wide as its output."""
    if model.pooler is not None:
        raise invalid("pooler", True, "left out for ldp", "It would be trained on the user's side; use the head alone.")
    if inference.dimension < training.dimension and model.settings.head != "linear":
        raise invalid("head", model.settings.head, "linear", "The axes of queries are those of a linear head.")
    kind = TokenQuery if position == "token" else LocalQuery
    query = kind(model.width, training, inference, projection, typical).to(model.device)
    query.follow(model)
    model.query = query
    if isinstance(query, TokenQuery):
        # Callers ask the model for pooled vectors, so the model itself must randomize its states before pooling.
        object.__setattr__(model, "represent", query.represent)
        return
    model.replace_head(training.dimension, rng.fork("ldp head"))


@dataclass(frozen=True, repr=False)
class SentOnce(Once):
    """All vectors, each sent once; the costs of the rows of one unit add up.

    It has no `noise_variance`: the head is fitted to the noise of queries instead.
    """

    protect: LocalLayer
    rows: int
    response: RandomizedResponse | None
    secret: Rng

    @property
    def event(self) -> DpEvent:
        """Cost of all sentences of the unit that owns most."""
        one = with_label(self.protect.training.event, self.response)
        return one if self.rows == 1 else SelfComposedDpEvent(one, self.rows)

    def stated(self, guarantee: Guarantee) -> Guarantee:
        """Return the guarantee with its assumptions, and the epsilon of one sentence if a unit owns several."""
        if self.rows > 1:
            event = with_label(self.protect.training.event, self.response)
            one = epsilon_of(event, guarantee.delta, Adjacency.REPLACE_ONE)
            per_sentence = (
                f"each sentence has epsilon {in_digits(one)}, and those of up to {self.rows} sentences of one "
                f"{guarantee.unit} are added up"
            )
            guarantee = replace(guarantee, assumptions=tuple(dict.fromkeys((per_sentence, *guarantee.assumptions))))
        return self.protect.stated(guarantee, self.rows)

    @property
    def label_truth(self) -> float:
        """Public probability that a label is the true one."""
        return 1.0 if self.response is None else self.response.truth

    def send(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what leaves the users: one vector for each row, in their order, and its label."""
        projected = self.protect.projection.on(vectors.device)(vectors.float())
        sent = self.protect.training(projected, self.secret.fork("vectors"))
        if self.response is not None:
            targets = self.response(targets, self.secret.fork("labels"))
        return sent, targets

    def __call__(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the server trains on: the release, adapted to the noise and the axes of queries."""
        layer, query = self.protect.training, self.protect.inference
        sent, targets = self.send(vectors, targets)
        missing = query.variance - layer.variance
        if self.protect.retrain and missing > 0 and query.dimension == layer.dimension:  # train at the noise of queries
            extra = torch.empty_like(sent).normal_(generator=self.secret.fork("retrain").torch(sent.device))
            sent = sent + extra * math.sqrt(missing)
        if query.dimension < layer.dimension and not targets.is_floating_point():
            rows = balanced(targets, self.secret.fork("balance"))
            sent, targets = sent[rows], targets[rows]
        return sent, targets


@dataclass(frozen=True, repr=False)
class SentAgain(Live):
    """Some vectors at every step, a fixed number or by Poisson sampling, with fresh noise each time."""

    protect: LocalLayer
    response: RandomizedResponse | None
    secret: Rng
    device: torch.device

    def cost(self, step: int, epoch: int, size: int | None = None) -> tuple[DpEvent, str]:
        """Return the cost of a step; if the noise depends on the batch size, which is public, that of this size."""
        layer, sending = self.protect.training, self.protect.sending
        if self.protect.dynamic and size is not None:
            if not size:
                return NoOpDpEvent(), f"step {step}"
            layer = replace(layer, strength=self.noise_std(size))
            sending = replace(sending, drawn=size, sampling="fixed")
        return sending.step(with_label(layer.event, self.response)), f"step {step}"

    def noise_std(self, size: int) -> float:
        """Return the standard deviation of the noise of a step that sends `size` vectors."""
        layer = self.protect.training
        return layer.strength * size / self.protect.sending.drawn if self.protect.dynamic else layer.strength

    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the noise of a step, and the shifts of the labels."""
        layer, secret = self.protect.training, self.secret.fork("noise", step)
        # In float64 until it is added: rounded noise would reveal what it was added to.
        noise = Gaussian(self.noise_std(len(rows))).sample((*shape[:-1], layer.dimension), secret, self.device)
        draws = {"noise": noise}
        if self.response is not None:
            truth = torch.zeros(len(rows), dtype=torch.int64)
            shift = self.response(truth, secret.fork("labels"))  # by how many classes each label is shifted
            draws["turn"] = shift.to(self.device)
        return draws

    def hide(
        self, vectors: Tensor, targets: Tensor, draws: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the clipped and noised vectors; gradients flow through."""
        if self.response is not None:
            targets = (targets + draws["turn"]) % self.response.categories
        projection, norm = self.protect.projection, self.protect.training.clip_norm
        std = self.noise_std(len(vectors))
        if self.protect.position == "token":
            return release(clip_states(vectors.float(), norm), draws["noise"], std), targets
        projected = projection.on(vectors.device)(vectors.float())
        length = torch.linalg.vector_norm(projected, dim=1, keepdim=True)
        bounded = projected * (norm * (1 - 1e-6) / length.clamp_min(norm))
        return release(bounded, draws["noise"], std), targets


def with_label(vector: DpEvent, response: RandomizedResponse | None) -> DpEvent:
    """Return the cost of a vector together with its label, if that is reported by randomized response."""
    return vector if response is None else ComposedDpEvent([vector, response.event])


def balanced(targets: Tensor, rng: Rng) -> Tensor:
    """Return a random sample of rows with equally many of every class.

    Under much noise a head mostly learns which class is more frequent; the axes of queries need what separates classes.

    >>> balanced(torch.tensor([0, 1, 1, 1]), Rng(0)).tolist()
    [0, 1]
    """
    labels = targets.cpu().numpy()
    classes = {int(c): np.flatnonzero(labels == c) for c in np.unique(labels)}
    fewest = min(map(len, classes.values()))
    rows = [members[rng.fork(c).permutation(len(members))[:fewest]] for c, members in classes.items()]
    return torch.from_numpy(np.sort(np.concatenate(rows))).to(targets.device)
