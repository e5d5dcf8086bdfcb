"""The local layer as it is asked for, before the corpus is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from discreet.accounting.calibrate import least_noise
from discreet.accounting.events import ComposedDpEvent, GaussianDpEvent, LocalDpEvent
from discreet.accounting.local_layer import CALIBRATIONS, SAMPLINGS, Sending
from discreet.core.checks import one_of, open_probability, positive, refuse, whole
from discreet.core.errors import DataError, SettingError
from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.randomness import Rng
from discreet.protections.decoys import Decoys
from discreet.protections.ldp_layer import LEAST_DIMENSION, MECHANISMS, LDPLayer
from discreet.protections.ldp_projection import Projection, labelled, principal, whole_space
from discreet.protections.ldp_protection import LocalLayer, paper_claim, shape_model
from discreet.protections.representation import Place

if TYPE_CHECKING:
    from discreet.models.classifier import Classifier
    from discreet.protections.settings import Conditions

POSITIONS = ("sentence", "token")
PROJECTIONS = ("principal", "labels", "whole")
_MADE_UP = 2000


@dataclass(frozen=True)
class LDPSettings:
    """Budgets of each sentence in training and of each query, the mechanism, and what is released.

    `dimension` is the width of a release in training, and `query_dimension` that of a query: where it is smaller, a
    query is turned to the axes that the head has learned. The projection is learned from `public` text, or from made-up
    sentences where there is none; its labels are used only by projection="labels". `label_epsilon` is the part of the
    training budget that hides a label; without it labels are public. `queries` is how many queries, their costs simply
    added up, the user's ledger allows. `sampling` is once (every sentence is sent once), fixed (a batch is drawn at
    every step) or coins (at every step each sentence is sent with the same probability).
    """

    epsilon: float | None = None
    inference_epsilon: float | None = None
    delta: float | None = None
    mechanism: str = "privunit"
    position: str = "sentence"
    dimension: int = 32
    query_dimension: int = 8
    clip_norm: float = 1.0
    projection: str = "principal"
    public: str | None = None
    label_epsilon: float | None = None
    sampling: str = "once"
    calibration: str = "sound"
    queries: int = 1000
    name: ClassVar[str] = "ldp"
    place: ClassVar[Place] = "representation"
    usual_train: ClassVar[str] = "head"
    usual_head: ClassVar[str] = "linear"
    # who writes what a finished run hands out beside the model: a module and a function of it, as in PROTECTIONS
    hands_out: ClassVar[tuple[str, str]] = ("discreet.training.local_folder", "write_sides")

    def __post_init__(self) -> None:
        """Refuse settings outside their rules, and the ones that contradict each other."""
        if self.epsilon is None:
            raise SettingError("Expected --epsilon for ldp. It is the budget of each training sentence; 8 is a start.")
        positive("epsilon", self.epsilon, "It is the budget of each training sentence; smaller is more private.")
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
        if self.label_epsilon is not None and not 0 < self.label_epsilon < self.epsilon:
            raise refuse("label_epsilon", self.label_epsilon, f"in (0, {self.epsilon:g})", "It is a part of epsilon.")
        if self.projection == "labels" and self.public is None:
            raise refuse("projection", self.projection, "principal without --public", "Give labelled public text.")
        if self.mechanism != "gaussian":
            for name, value, usual in (
                ("calibration", self.calibration, "sound"),
                ("sampling", self.sampling, "once"),
                ("position", self.position, "sentence"),
            ):
                if value != usual:
                    raise refuse(name, value, f"{usual} unless gaussian", "Add --mechanism gaussian.")
        if self.position == "token" and self.sampling == "once":
            raise refuse("sampling", self.sampling, "fixed or coins for tokens", "Add --sampling fixed, --train all.")

    @property
    def limits(self) -> bool:
        """The ledger has no budget of its own: epsilon is a sentence's, and a unit may own several of them."""
        return False

    @property
    def per_query(self) -> float:
        """The epsilon of one query: the training's, unless said otherwise."""
        assert self.epsilon is not None
        return self.epsilon if self.inference_epsilon is None else self.inference_epsilon

    def build(self, given: Conditions) -> LocalLayer:
        """Return the protection: projection learned, noise solved for training and for queries."""
        assert self.epsilon is not None
        width = given.model.width
        dimension = self._width(width)
        sending = Sending(given.rows)
        if self.sampling != "once":
            if given.units != given.rows:
                remedy = "What is drawn is a sentence, and some units here own several; send each sentence once."
                raise refuse("sampling", self.sampling, "once for units of several rows", remedy)
            sending = Sending(given.rows, min(given.batch_size, given.rows), given.steps, sampling=self.sampling)
        projection, public = self._learned(given, dimension)
        label_epsilon = self.label_epsilon
        if self.sampling == "once" or label_epsilon is None or self.calibration != "sound":
            training = self._layer(dimension, self.epsilon - (label_epsilon or 0.0), given.delta, sending)
        else:
            training, label_epsilon = self._with_labels(dimension, sending, given)
        inference = self._queries(dimension, given.model, given.delta)
        bounded = training.bounded(projection(public))
        return LocalLayer(
            training,
            inference,
            projection,
            sending,
            given.delta,
            label_epsilon,
            None if self.calibration == "sound" else self._claim(sending, training, given.delta),
            position=self._position,
            pairs=given.pairs,
            typical=(bounded.mean(0), torch.cov(bounded.T, correction=0)),
            dynamic=self.sampling == "coins" and self.calibration == "paper",
            epsilon=self.epsilon,
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
    def _position(self) -> Literal["sentence", "token"]:
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

    def _with_labels(self, dimension: int, sending: Sending, given: Conditions) -> tuple[LDPLayer, float]:
        """Return the noise of vectors and the epsilon of each report of a label that all steps together can afford."""
        assert self.epsilon is not None and self.label_epsilon is not None
        high = self.label_epsilon + 40.0
        each = sending.strongest(LocalDpEvent, self.label_epsilon, given.delta, high)
        noise_std = least_noise(
            lambda std: sending.event(
                ComposedDpEvent([GaussianDpEvent(std / (2 * self.clip_norm)), LocalDpEvent(each)])
            ),
            epsilon=self.epsilon,
            delta=given.delta,
            adjacency=Adjacency.REPLACE_ONE,
        )
        return LDPLayer(self.mechanism, dimension, noise_std, self.clip_norm), each

    def _claim(self, sending: Sending, layer: LDPLayer, delta: float) -> Guarantee:
        return paper_claim(self.clip_norm, sending, layer.strength, delta, self.calibration)

    def _learned(self, given: Conditions, dimension: int) -> tuple[Projection, Tensor]:
        """Return the projection, and the public vectors it was learned from."""
        vectors, labels = (made_up_vectors(given.model), None) if given.public is None else given.public()
        vectors = vectors.float().cpu()
        if dimension == given.model.width:
            return whole_space(dimension), vectors
        if len(vectors) <= dimension:
            raise DataError(
                f"Expected more than {dimension} public texts for a projection to {dimension} dimensions, found "
                f"{len(vectors)}. Give more public text, or none: made-up sentences then serve."
            )
        source = "made-up sentences" if given.public is None else f"public text {self.public!r}"
        if self.projection != "labels":
            return principal(vectors, dimension, f"{source}, without labels"), vectors
        if labels is None or labels.is_floating_point():
            raise DataError(
                f"Expected public text with the labels {', '.join(given.model.label_names)}, found {self.public!r} "
                "with others or none. Rename them, or use --projection principal."
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
