"""Local privacy as a protection of training: vectors leave the user once, or a few of them at every step.

Paper: anonymous, Local Differential Privacy for Privacy-Preserving NLP Tasks (LDP-NLP).
Differs: the default sends every vector once and trains on the stored release; where vectors are sent again at every
step, a fixed number of them is drawn and the figure is the curve of sampling without replacement; drawn by coins, as in
the paper, it is the mean of those curves. With an encoder that is trained along, as in the paper, it is no bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from discreet.accounting.local_layer import LocalLayerCost, Sending
from discreet.core.checks import refuse
from discreet.core.guarantee import Adjacency, Caveat, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.protections.ldp_layer import LDPLayer, layer_cost
from discreet.protections.ldp_projection import Projection
from discreet.protections.ldp_query import LocalQuery, TokenQuery
from discreet.protections.ldp_sent import SentAgain, SentOnce
from discreet.protections.representation import Place, Rows, most_rows

if TYPE_CHECKING:
    from discreet.models.classifier import Classifier

_PUBLIC = "the projection was learned from public text"
_LABELS_OPEN = "labels are public and not protected"
_LABELS_HIDDEN = "labels were reported by randomized response, counted in the same figure"
_LENGTH = "the number of tokens of a text is public"
_HIDDEN = "the server does not learn which sentences were drawn, nor in what order"


@dataclass(frozen=True)
class LocalLayer:
    """A layer for training, one for queries, and the projection before both.

    `sending` says how often a sentence's vector leaves: once, or drawn at every step. With `label_epsilon` labels are
    reported by randomized response, at that epsilon every time. Where `inference` is narrower than `training`, a query
    is turned to the axes that the head has learned (`discreet.protections.ldp_axes`). `typical` is the mean and the
    covariance of bounded public vectors.

    Guarantee: for each unit, replace-one, the cost of all its sentences' releases; certified for a frozen encoder, a
        public projection and calibration="sound". Where sentences are drawn again, only with labels by randomized
        response: a label sent as it is shows among whom its sentence was drawn, and the draw no longer hides it.
    """

    training: LDPLayer
    inference: LDPLayer
    projection: Projection
    sending: Sending
    delta: float = 1e-6
    label_epsilon: float | None = None
    claimed: Guarantee | None = field(default=None, repr=False)
    retrain: bool = True
    position: Literal["sentence", "token"] = "sentence"
    pairs: bool = False
    typical: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)
    dynamic: bool = False  # noise grows with the number of vectors that a step happens to send, as in the paper
    epsilon: float | None = field(default=None, repr=False, compare=False)  # the budget of a sentence
    calibration: str = field(default="sound", repr=False, compare=False)  # whether by a proof or as in the paper
    name: ClassVar[str] = "ldp"
    place: ClassVar[Place] = "representation"
    priced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse layers that do not fit together."""
        widths = (self.projection.width, self.training.dimension, self.inference.dimension)
        if not widths[0] == widths[1] >= widths[2]:
            raise refuse("dimension", widths, "that of the projection in training, and no more in queries", "")
        if widths[2] < widths[1] and self.typical is None:
            raise refuse("typical", None, "given for queries narrower than training", "Measure public vectors.")
        if self.stored and self.position == "token":
            raise refuse("sampling", "once", "fixed for tokens", "Stored are sentence vectors alone.")
        if not self.stored and self.training.mechanism != "gaussian":
            remedy = "Directions are sent once; a gradient does not pass through their noise."
            raise refuse("mechanism", self.training.mechanism, "gaussian where steps draw again", remedy)

    @property
    def facts(self) -> dict[str, float | str | bool | None]:
        """What may be said of it: the mechanism, the budget of a sentence and its rule, and what is sent how often."""
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
    def stored(self) -> bool:
        """Whether every vector is sent once."""
        return self.sending.sampling == "once"

    @property
    def sampling(self) -> Literal["shuffled", "fixed", "coins"]:
        """How the batches of a training that sends again are drawn."""
        return "coins" if self.sending.sampling == "coins" else "fixed"

    @property
    def needs_public(self) -> bool:
        """No public rows stand in a batch."""
        return False

    @property
    def adjacency(self) -> Adjacency:
        """A sentence is exchanged for any other."""
        return Adjacency.REPLACE_ONE

    def fit(self, model: Classifier, rng: Rng) -> None:
        """Give the model a head as wide as a release, and the user's side to pass queries through."""
        if not (isinstance(model.query, LocalQuery) and model.query.layer == self.inference):
            shape_model(model, self.training, self.inference, rng, self.projection, self.typical, self.position)

    def begin(self, model: Classifier, secret: Rng) -> None:
        """Draw the noise of queries from the run's own secret."""
        assert isinstance(model.query, LocalQuery)
        model.query.source = secret.fork("queries")

    def end(self, model: Classifier) -> None:
        """Forget the run's secret: whoever asks later draws noise of their own."""
        assert isinstance(model.query, LocalQuery)
        model.query.source = Rng.secret()

    def views(self, width: int, secret: Rng) -> None:
        """A query is seen in one way."""

    def check(self, batch_size: int, rows: int) -> None:
        """Refuse a training whose draws are not the ones that are counted."""
        if not self.stored and (batch_size, rows) != (self.sending.drawn, self.sending.population):
            counted = f"{self.sending.drawn} of {self.sending.population} sentences"
            raise refuse("batch_size", batch_size, f"{counted}, as counted", "Build the protection for this corpus.")

    def once(self, owners: Rows, width: int, classes: int, secret: Rng) -> SentOnce:
        """Return the one release of all vectors."""
        return SentOnce(self, most_rows(owners), self._response(classes), secret)

    def live(self, rows: int, width: int, classes: int, secret: Rng, device: torch.device) -> SentAgain:
        """Return what hides the vectors that are sent at every step."""
        return SentAgain(self, self._response(classes), secret, device)

    def _response(self, classes: int) -> RandomizedResponse | None:
        if self.label_epsilon is None:
            return None
        if not classes:
            raise refuse("label_epsilon", self.label_epsilon, "left out for scores", "It hides one of a few classes.")
        return RandomizedResponse(self.label_epsilon, classes)

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee with what it rests on, or the paper's claim with why it is none."""
        said: tuple[str, ...] = (_PUBLIC, _LABELS_OPEN if self.label_epsilon is None else _LABELS_HIDDEN)
        if not self.stored:
            said = (*said, _HIDDEN)
        if self.position == "token":  # the mean over more tokens has less noise
            said = (*said, _LENGTH)
        doubts = set()
        if not self.projection.public:
            doubts.add(Caveat.PRIVATE_PROJECTION)
        if self.label_epsilon is None and not self.stored and self.sending.drawn < self.sending.pool:
            doubts.add(Caveat.VISIBLE_LABELS)
        if self.claimed is not None:
            proven = f"{self.claimed.reason}; the proven figure at the same delta is {in_digits(found.epsilon)}"
            stated = replace(self.claimed, unit=found.unit, delta=found.delta, reason=proven)
            return stated.with_caveats(found.caveats | doubts)
        found = replace(found, assumptions=tuple(dict.fromkeys((*found.assumptions, *said))))
        return found.with_caveats(doubts) if found.exists else found


def shape_model(
    model: Classifier,
    training: LDPLayer,
    inference: LDPLayer,
    rng: Rng,
    projection: Projection | None = None,
    typical: tuple[Tensor, Tensor] | None = None,
    position: str = "sentence",
) -> None:
    """Put the user's side between encoder and head, and a head as wide as what leaves it."""
    if model.pooler is not None:
        raise refuse("pooler", True, "left out for ldp", "It would be trained on the user's side; use the head alone.")
    if inference.dimension < training.dimension and model.settings.head != "linear":
        raise refuse("head", model.settings.head, "linear", "The axes of queries are those of a linear head.")
    kind = TokenQuery if position == "token" else LocalQuery
    query = kind(model.width, training, inference, projection, typical).to(model.device)
    query.follow(model)
    model.query = query
    if isinstance(query, TokenQuery):
        # The states are the model's own business: it is asked for pooled vectors and must give randomised ones.
        object.__setattr__(model, "represent", query.represent)
        return
    model.replace_head(training.dimension, rng.fork("ldp head"))


def paper_claim(clip_norm: float, sending: Sending, noise_std: float, delta: float, calibration: str) -> Guarantee:
    """Return what the paper would say of this noise, which is no bound."""
    cost: LocalLayerCost = layer_cost(clip_norm, sending, calibration)
    return cost.guarantee(noise_std, delta=delta)
