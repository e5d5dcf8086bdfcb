"""Local privacy as a protection of training: vectors leave the user once, or a few of them at every step.

Paper: anonymous, Local Differential Privacy for Privacy-Preserving NLP Tasks (LDP-NLP).
Differs: the default sends every vector once and trains on the stored release; where vectors are sent again at every
step, a fixed number of them is drawn and the figure is the curve of sampling without replacement; drawn by coins, as in
the paper, it is the mean of those curves. With an encoder that is trained along, as in the paper, it is no bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from discreet.accounting.calibrate import largest_rate, least_noise
from discreet.accounting.events import ComposedDpEvent, GaussianDpEvent, LocalDpEvent, NoOpDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon as price
from discreet.accounting.local_layer import CALIBRATIONS, SAMPLINGS, LocalLayerCost, Sending
from discreet.core.errors import (
    DataError,
    Message,
    SettingError,
    invalid,
    one_of,
    open_probability,
    positive,
    setting,
    whole,
)
from discreet.core.guarantee import Adjacency, Caveat, Guarantee, in_digits
from discreet.core.randomness import Rng
from discreet.core.settings import option
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.normals import release
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.models.classifier import classifier_of
from discreet.protections.base import (
    DELTA,
    Conditions,
    Place,
    Position,
    Protection,
    RepresentationProtection,
    Rows,
    Sampling,
    most_rows,
)
from discreet.protections.local.decoys import Decoys
from discreet.protections.local.layer import LEAST_DIMENSION, MECHANISMS, LDPLayer, layer_cost
from discreet.protections.local.projection import Projection, labelled, principal, whole_space
from discreet.protections.local.query import LocalQuery, TokenQuery, clip_states

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.models.classifier import Classifier


_PUBLIC = "the projection was learned from public text"
_LABELS_OPEN = "labels are public and not protected"
_LABELS_HIDDEN = "labels were reported by randomized response, counted in the same figure"
_LENGTH = "the number of tokens of a text is public"
_HIDDEN = "the server does not learn which sentences were drawn, nor in what order"


@dataclass(frozen=True)
class LocalLayer(RepresentationProtection):
    """A layer for training, one for queries, and the projection before both.

    `sending` says how often a sentence's vector leaves: once, or drawn at every step. With `label_epsilon` labels are
    reported by randomized response, at that epsilon every time. Where `inference` is narrower than `training`, a query
    is turned to the axes that the head has learned (`local.projection`). `typical` is the mean and the covariance of
    bounded public vectors.

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
    position: Position = "sentence"
    pairs: bool = False
    typical: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)
    dynamic: bool = False  # noise grows with the number of vectors that a step happens to send, as in the paper
    epsilon: float | None = field(default=None, repr=False, compare=False)  # the budget that was asked for
    calibration: str = field(default="sound", repr=False, compare=False)  # whether by a proof or as in the paper
    name: ClassVar[str] = "ldp"

    def __post_init__(self) -> None:
        """Reject layers that do not fit together."""
        widths = (self.projection.width, self.training.dimension, self.inference.dimension)
        if not widths[0] == widths[1] >= widths[2]:
            raise invalid("dimension", widths, "the width of the projection in training, and no more in queries", "")
        if widths[2] < widths[1] and self.typical is None:
            raise invalid("typical", None, "given for queries narrower than training", "Measure public vectors.")
        if self.stored and self.position == "token":
            raise invalid("sampling", "once", "fixed for tokens", "Stored are sentence vectors alone.")
        if not self.stored and self.training.mechanism != "gaussian":
            remedy = "Directions are sent once; a gradient does not pass through their noise."
            raise invalid("mechanism", self.training.mechanism, "gaussian where each step samples noise again", remedy)

    @property
    def limits(self) -> bool:
        """Epsilon is a sentence's, and a unit may own several of them: the ledger has no budget of its own."""
        return False

    @property
    def projected_to(self) -> int | None:
        """How many coordinates are released."""
        return self.projection.width

    def public_settings(self) -> dict[str, Any]:
        """Return what may be said of it: the mechanism, the budget of a sentence, and what is sent how often."""
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
    def sampling(self) -> Sampling:
        """How the batches of a training that sends again are drawn."""
        return "coins" if self.sending.sampling == "coins" else "fixed"

    @property
    def adjacency(self) -> Adjacency:
        """A sentence is exchanged for any other."""
        return Adjacency.REPLACE_ONE

    def seen(self, vectors: Tensor) -> Tensor:
        """Return vectors in the coordinates of the projection, before they are bounded and randomized."""
        return self.projection(vectors)

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

    def check(self, batch_size: int, rows: int) -> None:
        """Refuse a training whose draws are not the ones that are counted."""
        if not self.stored and (batch_size, rows) != (self.sending.drawn, self.sending.population):
            counted = f"{self.sending.drawn} of {self.sending.population} sentences"
            raise invalid("batch_size", batch_size, f"{counted}, as counted", "Build the protection for this corpus.")

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
            raise invalid("label_epsilon", self.label_epsilon, "left out for scores", "It hides one of a few classes.")
        return RandomizedResponse(self.label_epsilon, classes)

    def stated(self, found: Guarantee, sentences: int = 1) -> Guarantee:
        """Return the guarantee with what it rests on, or the paper's claim, added up over sentences, with why not."""
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
            claimed = self.claimed.epsilon * sentences
            stated = replace(self.claimed, epsilon=claimed, unit=found.unit, delta=found.delta, reason=proven)
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
        raise invalid("pooler", True, "left out for ldp", "It would be trained on the user's side; use the head alone.")
    if inference.dimension < training.dimension and model.settings.head != "linear":
        raise invalid("head", model.settings.head, "linear", "The axes of queries are those of a linear head.")
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


POSITIONS = ("sentence", "token")
PROJECTIONS = ("principal", "labels", "whole")
_MADE_UP = 2000
_MARGIN = 1e-9  # for rounding, so that noise solved for a budget keeps it
_BELOW = 1 - 1e-12  # the same for parts that add up to a budget


@dataclass(frozen=True)
class LocalPrivacy(Protection):
    """Budgets of training and of each query, the mechanism, and what is released.

    `epsilon` is the budget of one unit, all of whose sentences share it; `epsilon_per_message` is that of each sentence
    instead, so that a unit of several pays the sum. `inference_epsilon` is the budget of one query.

    `dimension` is the width of a release in training, and `query_dimension` that of a query: where it is smaller, a
    query is turned to the axes that the head has learned. The projection is learned from `public` text, or from made-up
    sentences where there is none; its labels are used only by projection="labels". `label_epsilon` is the part of the
    training budget that hides a label; without it labels are public. `queries` is how many queries, their costs simply
    added up, the user's ledger allows. `sampling` is once (every sentence is sent once), fixed (a batch is drawn at
    every step) or coins (at every step each sentence is sent with the same probability).
    """

    epsilon: float | None = field(
        default=None, metadata=option("Privacy budget of one unit; all of its training sentences share it.", "Budget")
    )
    epsilon_per_message: float | None = field(
        default=None,
        metadata=option(
            "Instead of epsilon: privacy budget of each training sentence; those of one unit add up.", "Budget"
        ),
    )
    inference_epsilon: float | None = field(
        default=None, metadata=option("Privacy budget of each query.", "Budget", "that of training")
    )
    delta: float | None = field(default=None, metadata=DELTA)
    mechanism: str = field(default="privunit", metadata=option("Noise: privunit, vmf or gaussian.", "Method"))
    position: str = field(
        default="sentence",
        metadata=option("What gets noise: the sentence vector, or every token (gaussian only).", "Method"),
    )
    dimension: int = field(
        default=32, metadata=option("Project vectors to this many dimensions in training.", "Method")
    )
    query_dimension: int = field(
        default=8, metadata=option("Numbers in a query, on the axes that the head has learned.", "Method")
    )
    clip_norm: float = field(default=1.0, metadata=option("Vectors are clipped to this norm.", "Method"))
    projection: str = field(
        default="principal",
        metadata=option("principal, labels (uses the labels of the public text), or whole (no projection).", "Method"),
    )
    public: str | None = field(
        default=None,
        metadata=option("Public data from which the projection is learned.", "Method", "built-in sentences"),
    )
    label_epsilon: float | None = field(
        default=None,
        metadata=option("The part of epsilon that hides the label; without it labels are public.", "Budget"),
    )
    sampling: str = field(
        default="once",
        metadata=option(
            "once (each sentence is sent once), fixed (a batch at each step) or coins (a Poisson batch at each step).",
            "Method",
        ),
    )
    calibration: str = field(
        default="sound",
        metadata=option("sound (proven), or paper (as published; then epsilon is an estimate).", "Method"),
    )
    queries: int = field(default=1000, metadata=option("Number of queries that the client's ledger allows.", "Budget"))
    name: ClassVar[str] = "ldp"
    place: ClassVar[Place] = "representation"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    default_part: ClassVar[str] = "head"
    has_sides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse settings outside their rules, and the ones that contradict each other."""
        if self.epsilon is None and self.epsilon_per_message is None:
            raise SettingError(
                f"Expected {setting('epsilon')} or {setting('epsilon_per_message')} for ldp. The first is the budget "
                "of one unit, the second that of each of its sentences; 8 is a start."
            )
        if self.epsilon is not None:
            positive("epsilon", self.epsilon, "It is the budget of all sentences of one unit.")
            if self.epsilon_per_message is not None:
                remedy = "Either a unit has a budget, or each of its sentences has one."
                raise invalid("epsilon_per_message", self.epsilon_per_message, "left out beside epsilon", remedy)
        if self.epsilon_per_message is not None:
            positive("epsilon_per_message", self.epsilon_per_message, "It is the budget of each training sentence.")
        if self.inference_epsilon is not None:
            positive("inference_epsilon", self.inference_epsilon, "It is the budget of each query.")
        if self.delta is not None:
            open_probability("delta", self.delta, "It should be far below one over the number of sentences.")
        one_of("mechanism", self.mechanism, MECHANISMS)
        one_of("position", self.position, POSITIONS)
        one_of("projection", self.projection, PROJECTIONS)
        one_of("sampling", self.sampling, SAMPLINGS)
        one_of("calibration", self.calibration, CALIBRATIONS)
        for name in ("dimension", "query_dimension"):
            whole(name, getattr(self, name), LEAST_DIMENSION, "With fewer, a release is little else than the label.")
        positive("clip_norm", self.clip_norm, "It bounds how far two vectors can be apart.")
        whole("queries", self.queries)
        if self.label_epsilon is not None and not 0 < self.label_epsilon < self.asked_for:
            raise invalid(
                "label_epsilon", self.label_epsilon, f"in (0, {self.asked_for:g})", "It is a part of epsilon."
            )
        if self.projection == "labels" and self.public is None:
            raise invalid(
                "projection", self.projection, f"principal without {setting('public')}", "Give labelled public text."
            )
        if self.mechanism != "gaussian":
            for name, value, usual in (
                ("calibration", self.calibration, "sound"),
                ("sampling", self.sampling, "once"),
                ("position", self.position, "sentence"),
            ):
                if value != usual:
                    raise invalid(name, value, f"{usual} unless gaussian", f"Add {setting('mechanism', 'gaussian')}.")
        if self.position == "token" and self.sampling == "once":
            raise invalid(
                "sampling",
                self.sampling,
                "fixed or coins for tokens",
                f"Add {setting('sampling', 'fixed')}, {setting('train', 'all')}.",
            )

    @property
    def limits(self) -> bool:
        """Whether the ledger holds training to the epsilon: not if it is each sentence's, nor to the paper's claim."""
        return self.epsilon is not None and self.calibration == "sound"

    @property
    def asked_for(self) -> float:
        """The budget that was asked for, of a unit or of each sentence."""
        budget = self.epsilon if self.epsilon is not None else self.epsilon_per_message
        assert budget is not None
        return budget

    def notice(self, conditions: Conditions, unit: str) -> str | None:
        """Return that the sentences of a unit share its budget, where some have several."""
        if self.epsilon is None or conditions.most_rows == 1:
            return None
        return Message(
            f"Epsilon {self.epsilon:g} is the budget of one {unit}, which its up to {conditions.most_rows} sentences "
            f"share. It was that of each sentence in earlier versions; {setting('epsilon_per_message')} sets that."
        )

    @property
    def per_query(self) -> float:
        """The epsilon of one query: the training's, unless said otherwise."""
        return self.asked_for if self.inference_epsilon is None else self.inference_epsilon

    def resolve(self, conditions: Conditions) -> LocalLayer:
        """Return the protection: projection learned, noise solved for training and for queries."""
        width = conditions.model.width
        dimension = self._width(width)
        shared = conditions.most_rows if self.epsilon is not None else 1  # sentences that share the budget
        sending = Sending(conditions.rows)
        if self.sampling != "once":
            if conditions.units != conditions.rows:
                remedy = "What is drawn is a sentence, and some units here own several; send each sentence once."
                raise invalid("sampling", self.sampling, "once for units of several rows", remedy)
            sending = Sending(
                conditions.rows, min(conditions.batch_size, conditions.rows), conditions.steps, sampling=self.sampling
            )
        projection, public = self._learned(conditions, dimension)
        label_epsilon = self.label_epsilon
        if shared > 1:
            label_epsilon = None if label_epsilon is None else label_epsilon / shared * _BELOW
            training = self._layer_of_unit(dimension, conditions.delta, shared, label_epsilon, sending)
        elif self.sampling == "once" or label_epsilon is None or self.calibration != "sound":
            training = self._layer(dimension, self.asked_for - (label_epsilon or 0.0), conditions.delta, sending)
        else:
            training, label_epsilon = self._with_labels(dimension, sending, conditions)
        inference = self._queries(dimension, classifier_of(conditions.model, self.name), conditions.delta)
        bounded = training.bounded(projection(public))
        return LocalLayer(
            training,
            inference,
            projection,
            sending,
            conditions.delta,
            label_epsilon,
            None if self.calibration == "sound" else self._claim(sending, training, conditions.delta),
            position=self._position,
            pairs=conditions.pairs,
            typical=(bounded.mean(0), torch.cov(bounded.T, correction=0)),
            dynamic=self.sampling == "coins" and self.calibration == "paper",
            epsilon=self.asked_for,
            calibration=self.calibration,
        )

    def shape(self, model: Classifier) -> None:
        """Put the parts between encoder and head that a finished run has, for its weights to be read into."""
        dimension = self._width(model.width)
        training = LDPLayer(self.mechanism, dimension, 1.0, self.clip_norm)
        narrow = self._narrow(dimension, model)
        inference = LDPLayer(self.mechanism, narrow, 1.0, self._query_norm(narrow, dimension))
        shape_model(model, training, inference, Rng(0), position=self._position)

    @property
    def _position(self) -> Position:
        return "token" if self.position == "token" else "sentence"

    def _width(self, encoder_width: int) -> int:
        if self.projection == "whole" or self.position == "token":
            return encoder_width
        return min(self.dimension, encoder_width)

    def _narrow(self, dimension: int, model: Classifier) -> int:
        """Return how wide a query is: as in training, unless a linear head has axes to show."""
        if self.calibration != "sound" or self.position == "token" or model.settings.head != "linear":
            return dimension
        return min(dimension, max(self.query_dimension, len(model.label_names)))

    def _query_norm(self, narrow: int, dimension: int) -> float:
        return 1.0 if narrow < dimension else self.clip_norm  # on its axes a query is about one long

    def _queries(self, dimension: int, model: Classifier, delta: float) -> LDPLayer:
        narrow = self._narrow(dimension, model)
        return LDPLayer.for_budget(
            self.mechanism,
            dimension=narrow,
            epsilon=self.per_query,
            delta=delta,
            clip_norm=self._query_norm(narrow, dimension),
        )

    def _layer(self, dimension: int, epsilon: float, delta: float, sending: Sending) -> LDPLayer:
        return LDPLayer.for_budget(
            self.mechanism,
            dimension=dimension,
            epsilon=epsilon,
            delta=delta,
            clip_norm=self.clip_norm,
            sending=sending,
            calibration=self.calibration,
        )

    def _layer_of_unit(
        self, dimension: int, delta: float, sentences: int, label_epsilon: float | None, sending: Sending
    ) -> LDPLayer:
        """Return the layer with the least noise that keeps all sentences and labels of a unit within its epsilon."""
        epsilon = self.asked_for
        each = epsilon / sentences * _BELOW - (label_epsilon or 0.0)
        if self.mechanism == "privunit":  # pure budgets add up
            return LDPLayer(self.mechanism, dimension, each, self.clip_norm)
        if self.calibration != "sound":
            return self._layer(dimension, each, delta, sending)

        def event(strength: float) -> DpEvent:
            one = LDPLayer(self.mechanism, dimension, strength, self.clip_norm).event
            both = one if label_epsilon is None else ComposedDpEvent([one, LocalDpEvent(label_epsilon)])
            return SelfComposedDpEvent(both, sentences)

        if self.mechanism == "gaussian":
            noise = least_noise(event, epsilon=epsilon, delta=delta, adjacency=Adjacency.REPLACE_ONE)
            return LDPLayer(self.mechanism, dimension, noise * (1 + _MARGIN), self.clip_norm)
        kappa = largest_rate(
            event,
            epsilon=epsilon,
            delta=delta,
            adjacency=Adjacency.REPLACE_ONE,
            low=1e-6,
            high=60.0 * max(epsilon, 1.0) * max(1.0, dimension**0.5),
            guess=epsilon / sentences,
        )
        return LDPLayer(self.mechanism, dimension, kappa, self.clip_norm)

    def _with_labels(self, dimension: int, sending: Sending, conditions: Conditions) -> tuple[LDPLayer, float]:
        """Return the noise of vectors and the epsilon of each report of a label that all steps together can afford."""
        assert self.label_epsilon is not None
        high = self.label_epsilon + 40.0
        each = sending.strongest(LocalDpEvent, self.label_epsilon, conditions.delta, high)
        noise_std = least_noise(
            lambda std: sending.event(
                ComposedDpEvent([GaussianDpEvent(std / (2 * self.clip_norm)), LocalDpEvent(each)])
            ),
            epsilon=self.asked_for,
            delta=conditions.delta,
            adjacency=Adjacency.REPLACE_ONE,
        )
        return LDPLayer(self.mechanism, dimension, noise_std, self.clip_norm), each

    def _claim(self, sending: Sending, layer: LDPLayer, delta: float) -> Guarantee:
        return paper_claim(self.clip_norm, sending, layer.strength, delta, self.calibration)

    def _learned(self, conditions: Conditions, dimension: int) -> tuple[Projection, Tensor]:
        """Return the projection, and the public vectors it was learned from."""
        if self.public is not None and conditions.public is None:
            raise DataError(f"Expected the public text {self.public!r} for the projection of ldp. Give public=.")
        vectors, labels = (
            (made_up_vectors(classifier_of(conditions.model, self.name)), None)
            if conditions.public is None
            else conditions.public()
        )
        vectors = vectors.float().cpu()
        if dimension == conditions.model.width:
            return whole_space(dimension), vectors
        if len(vectors) <= dimension:
            raise DataError(
                f"Expected more than {dimension} public texts for a projection to {dimension} dimensions, found "
                f"{len(vectors)}. Give more public text, or none: made-up sentences then serve."
            )
        source = "made-up sentences" if conditions.public is None else f"public text {self.public!r}"
        if self.projection != "labels":
            return principal(vectors, dimension, f"{source}, without labels"), vectors
        if labels is None or labels.is_floating_point():
            raise DataError(
                f"Expected public text with the labels {', '.join(conditions.model.label_names)}, found "
                f"{self.public!r} with others or none. Rename them, or use {setting('projection', 'principal')}."
            )
        return labelled(vectors, labels.cpu(), dimension, f"{source} and its labels"), vectors


@torch.inference_mode()
def made_up_vectors(model: Classifier, count: int = _MADE_UP) -> Tensor:
    """Return the encoder's vectors of made-up sentences: always the same, and nothing private in them."""
    texts = list(Decoys.of_vocabulary(model.tokenizer.get_vocab()).draw(count, Rng(0).fork("made-up sentences")))
    was_training = model.training
    model.eval()
    found = []
    for start in range(0, count, 128):
        inputs = model.tokenizer(
            texts[start : start + 128],
            truncation=True,
            max_length=model.max_length,
            padding=True,
            return_tensors="pt",
        )
        kept = {k: v.to(model.device) for k, v in inputs.items() if k != "token_type_ids"}
        found.append(model.represent(kept).float().cpu())
    model.train(was_training)
    return torch.cat(found)


@dataclass(frozen=True, repr=False)
class SentOnce:
    """All vectors, each sent once; the rows of one unit add up."""

    protect: LocalLayer
    rows: int
    response: RandomizedResponse | None
    secret: Rng

    @property
    def event(self) -> DpEvent:
        """The cost of all sentences of the unit that has most."""
        one = with_label(self.protect.training.event, self.response)
        return one if self.rows == 1 else SelfComposedDpEvent(one, self.rows)

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it should be said, with that of one sentence where a unit owns several."""
        if self.rows > 1:
            one = price(with_label(self.protect.training.event, self.response), found.delta, Adjacency.REPLACE_ONE)
            said = (
                f"each sentence has epsilon {in_digits(one)}, and those of up to {self.rows} sentences of one "
                f"{found.unit} are added up"
            )
            found = replace(found, assumptions=tuple(dict.fromkeys((said, *found.assumptions))))  # beside the figure
        return self.protect.stated(found, self.rows)

    @property
    def noise_variance(self) -> None:
        """None: the head is fitted to what queries will look like instead."""
        return

    @property
    def label_truth(self) -> float:
        """The probability that a label is the true one, which is public."""
        return 1.0 if self.response is None else self.response.truth

    @property
    def partners(self) -> None:
        """None: nothing is mixed."""
        return

    @property
    def weights(self) -> None:
        """None: nothing is mixed."""
        return

    def send(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what leaves the users: a vector for each row, in their order, and the labels that go with them."""
        layer = self.protect.training
        sent = layer(self.protect.projection.on(vectors.device)(vectors.float()), self.secret.fork("vectors"))
        if self.response is not None:
            targets = self.response(targets, self.secret.fork("labels"))
        return sent, targets

    def __call__(self, vectors: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the server learns from: what it was sent, made more like what it will be asked."""
        layer, query = self.protect.training, self.protect.inference
        sent, targets = self.send(vectors, targets)
        more = query.variance - layer.variance
        if self.protect.retrain and more > 0 and query.dimension == layer.dimension:  # learn at the noise of queries
            extra = torch.empty_like(sent).normal_(generator=self.secret.fork("retrain").torch(sent.device))
            sent = sent + extra * math.sqrt(more)
        if query.dimension < layer.dimension and not targets.is_floating_point():
            kept = balanced(targets, self.secret.fork("balance"))
            sent, targets = sent[kept], targets[kept]
        return sent, targets


@dataclass(frozen=True, repr=False)
class SentAgain:
    """Some vectors at every step, a fixed number or by coins, with fresh noise each time."""

    protect: LocalLayer
    response: RandomizedResponse | None
    secret: Rng
    device: torch.device

    def cost(self, step: int, epoch: int, size: int | None = None) -> tuple[DpEvent, str]:
        """Return what a step costs; with noise by the size of a batch, what one of this size does, which is public."""
        layer, sending = self.protect.training, self.protect.sending
        if self.protect.dynamic and size is not None:
            if not size:
                return NoOpDpEvent(), f"step {step}"
            layer = replace(layer, strength=self.noise_std(size))
            sending = replace(sending, drawn=size, sampling="fixed")
        return sending.step(with_label(layer.event, self.response)), f"step {step}"

    def noise_std(self, size: int) -> float:
        """Return the noise of a step that sends so many vectors."""
        layer = self.protect.training
        return layer.strength * size / self.protect.sending.drawn if self.protect.dynamic else layer.strength

    def stated(self, found: Guarantee) -> Guarantee:
        """Return the guarantee as it should be said."""
        return self.protect.stated(found)

    def draw(self, rows: Rows, shape: tuple[int, ...], step: int, epoch: int) -> dict[str, Tensor]:
        """Return the noise of a step, and the labels' answers."""
        layer, secret = self.protect.training, self.secret.fork("noise", step)
        # In float64 until it is added: rounded noise would show what it was added to.
        noise = Gaussian(self.noise_std(len(rows))).sample((*shape[:-1], layer.dimension), secret, self.device)
        drawn = {"noise": noise}
        if self.response is not None:
            truth = torch.zeros(len(rows), dtype=torch.int64)
            shift = self.response(truth, secret.fork("labels"))  # how far each label is turned, none being the truth
            drawn["turn"] = shift.to(self.device)
        return drawn

    def hide(
        self, vectors: Tensor, targets: Tensor, drawn: Mapping[str, Tensor], public: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the clipped and noised vectors; gradients flow through."""
        if self.response is not None:
            targets = (targets + drawn["turn"]) % self.response.categories
        projection, norm = self.protect.projection, self.protect.training.clip_norm
        std = self.noise_std(len(vectors))
        if self.protect.position == "token":
            return release(clip_states(vectors.float(), norm), drawn["noise"], std), targets
        inside = projection.on(vectors.device)(vectors.float())
        length = torch.linalg.vector_norm(inside, dim=1, keepdim=True)
        bounded = inside * (norm * (1 - 1e-6) / length.clamp_min(norm))
        return release(bounded, drawn["noise"], std), targets


def with_label(vector: DpEvent, response: RandomizedResponse | None) -> DpEvent:
    """Return the cost of a vector and, if it is reported, of its label."""
    return vector if response is None else ComposedDpEvent([vector, response.event])


def balanced(targets: Tensor, rng: Rng) -> Tensor:
    """Return rows with equally many of every class, drawn at random.

    Under much noise a head mostly learns which class is more frequent; a query's axes need where the classes part.

    >>> balanced(torch.tensor([0, 1, 1, 1]), Rng(0)).tolist()
    [0, 1]
    """
    labels = targets.cpu().numpy()
    fewest = min(int((labels == c).sum()) for c in np.unique(labels))
    rows = []
    for c in np.unique(labels):
        found = np.flatnonzero(labels == c)
        rows.append(found[rng.fork(int(c)).permutation(len(found))[:fewest]])
    return torch.from_numpy(np.sort(np.concatenate(rows))).to(targets.device)
