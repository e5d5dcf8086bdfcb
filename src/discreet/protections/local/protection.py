"""Local privacy as users set it: the budgets, the mechanism and the projection, and how they are resolved.

`local.release` holds the protection that runs, and the paper.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from discreet.accounting.calibrate import largest_rate, least_noise
from discreet.accounting.events import ComposedDpEvent, DpEvent, GaussianDpEvent, LocalDpEvent, SelfComposedDpEvent
from discreet.accounting.local_layer import CALIBRATIONS, SAMPLINGS, LocalLayerCost, Sending
from discreet.core.errors import (
    DataError,
    Message,
    SettingError,
    invalid,
    setting,
)
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng, digest, weights_digest
from discreet.core.rules import OneOf, Positive, Whole, check_fields
from discreet.core.settings import option_field
from discreet.models.classifier import classifier_of
from discreet.protections.base import DELTA, Conditions, Place, Position, Protection
from discreet.protections.local.decoys import Decoys
from discreet.protections.local.layer import LEAST_DIMENSION, MECHANISMS, LDPLayer
from discreet.protections.local.projection import Projection, labelled, principal, whole_space
from discreet.protections.local.release import LocalLayer, shape_model

if TYPE_CHECKING:
    from discreet.models.base import TextModel
    from discreet.models.classifier import Classifier


_DIMENSION = Whole(LEAST_DIMENSION, "With fewer, a release holds little but the label.")
POSITIONS = ("sentence", "token")
PROJECTIONS = ("principal", "labels", "whole")
_SYNTHETIC = 2000
_MOST_COMPUTED = 4  # encoders whose vectors of synthetic sentences stay in memory
_computed: dict[str, Tensor] = {}
_MARGIN = 1e-9  # rounding margin, so that calibrated noise stays within its budget
_BELOW = 1 - 1e-12  # rounding margin of parts that add up to a budget


@dataclass(frozen=True)
class LocalPrivacy(Protection):
    """Randomize sentence vectors on the user's side, in training and in queries.

    `epsilon` is the budget of one unit, shared by all its sentences; `epsilon_per_message` is the budget of each
    sentence instead, so that a unit with several sentences pays their sum. `inference_epsilon` is the budget of one
    query.

    `dimension` is the width of a release in training, and `query_dimension` the width of a query: if it is smaller, a
    query is projected to the axes that the head has learned. The projection is learned from `public` text, or from
    synthetic sentences if there is none; only projection="labels" uses its labels. `label_epsilon` is the part of the
    training budget that protects a label; without it labels are public. `queries` is the number of queries that the
    user's ledger allows; their costs are added up. `sampling` is once (every sentence is sent once), fixed (each step
    samples a batch) or coins (each step sends every sentence with the same probability).

    Args:
        epsilon: Privacy budget of one unit; all of its training sentences share it.
        epsilon_per_message: Instead of epsilon: privacy budget of each training sentence; those of one unit add up.
        inference_epsilon: Privacy budget of each query. By default that of training.
        delta: Delta of the guarantee; well below 1 / number of units. By default 0.1 / number of units, at most 1e-5.
        mechanism: Noise: privunit, vmf or gaussian.
        position: What gets noise: the sentence vector, or every token (gaussian only).
        dimension: Project vectors to this many dimensions in training.
        query_dimension: Number of coordinates in a query, along axes learned by the head.
        clip_norm: Vectors are clipped to this norm.
        projection: principal, labels (uses the labels of the public text), or whole (no projection).
        public: Public data from which the projection is learned. By default built-in sentences.
        label_epsilon: The part of epsilon that hides the label; without it labels are public.
        sampling: once (each sentence is sent once), fixed (a batch at each step) or coins (a Poisson batch at each
            step).
        calibration: sound (proven), or paper (as published; then epsilon is an estimate).
        queries: Number of queries that the client's ledger allows.

    >>> LocalPrivacy(epsilon=8.0).mechanism
    'privunit'
    """

    epsilon: float | None = option_field(
        None,
        "Privacy budget of one unit; all of its training sentences share it.",
        "Budget",
        rule=Positive("It is the budget of all sentences of one unit."),
    )
    epsilon_per_message: float | None = option_field(
        None,
        "Instead of epsilon: privacy budget of each training sentence; those of one unit add up.",
        "Budget",
        rule=Positive("It is the budget of each training sentence."),
    )
    inference_epsilon: float | None = option_field(
        None,
        "Privacy budget of each query.",
        "Budget",
        "that of training",
        rule=Positive("It is the budget of each query."),
    )
    delta: float | None = field(default=None, metadata=DELTA)
    mechanism: str = option_field("privunit", "Noise: privunit, vmf or gaussian.", "Method", rule=OneOf(MECHANISMS))
    position: str = option_field(
        "sentence",
        "What gets noise: the sentence vector, or every token (gaussian only).",
        "Method",
        rule=OneOf(POSITIONS),
    )
    dimension: int = option_field(32, "Project vectors to this many dimensions in training.", "Method", rule=_DIMENSION)
    query_dimension: int = option_field(
        8, "Number of coordinates in a query, along axes learned by the head.", "Method", rule=_DIMENSION
    )
    clip_norm: float = option_field(
        1.0, "Vectors are clipped to this norm.", "Method", rule=Positive("It bounds the distance between two vectors.")
    )
    projection: str = option_field(
        "principal",
        "principal, labels (uses the labels of the public text), or whole (no projection).",
        "Method",
        rule=OneOf(PROJECTIONS),
    )
    public: str | None = option_field(
        None, "Public data from which the projection is learned.", "Method", "built-in sentences"
    )
    label_epsilon: float | None = option_field(
        None, "The part of epsilon that hides the label; without it labels are public.", "Budget"
    )
    sampling: str = option_field(
        "once",
        "once (each sentence is sent once), fixed (a batch at each step) or coins (a Poisson batch at each step).",
        "Method",
        rule=OneOf(SAMPLINGS),
    )
    calibration: str = option_field(
        "sound",
        "sound (proven), or paper (as published; then epsilon is an estimate).",
        "Method",
        rule=OneOf(CALIBRATIONS),
    )
    queries: int = option_field(1000, "Number of queries that the client's ledger allows.", "Budget", rule=Whole())
    name: ClassVar[str] = "ldp"
    place: ClassVar[Place] = "representation"
    has_sides: ClassVar[bool] = True
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE
    default_part: ClassVar[str] = "head"

    def __post_init__(self) -> None:
        """Reject settings outside their range, and settings that contradict each other."""
        check_fields(self)
        self._check_budgets()
        if self.projection == "labels" and self.public is None:
            rule = f"principal without {setting('public')}"
            raise invalid("projection", self.projection, rule, "Provide labelled public text.")
        if self.mechanism != "gaussian":
            for name, required in (("calibration", "sound"), ("sampling", "once"), ("position", "sentence")):
                if getattr(self, name) != required:
                    remedy = f"Add {setting('mechanism', 'gaussian')}."
                    raise invalid(name, getattr(self, name), f"{required} unless gaussian", remedy)
        if self.position == "token" and self.sampling == "once":
            remedy = f"Add {setting('sampling', 'fixed')}, {setting('train', 'all')}."
            raise invalid("sampling", self.sampling, "fixed or coins for tokens", remedy)

    def _check_budgets(self) -> None:
        if self.epsilon is None and self.epsilon_per_message is None:
            raise SettingError(
                f"Expected {setting('epsilon')} or {setting('epsilon_per_message')} for ldp. The first is the budget "
                "of one unit, the second that of each of its sentences; 8 is a common start."
            )
        if self.epsilon is not None and self.epsilon_per_message is not None:
            remedy = "Set the budget of a unit or of each of its sentences, not both."
            raise invalid("epsilon_per_message", self.epsilon_per_message, "left out with epsilon", remedy)
        if self.label_epsilon is not None and not 0 < self.label_epsilon < self.budget:
            raise invalid("label_epsilon", self.label_epsilon, f"in (0, {self.budget:g})", "It is a part of epsilon.")

    @property
    def limits(self) -> bool:
        """Whether the ledger enforces epsilon: not if it is that of a sentence, or the paper's claim."""
        return self.epsilon is not None and self.calibration == "sound"

    @property
    def budget(self) -> float:
        """Budget of a unit, or of each sentence if that is set."""
        budget = self.epsilon if self.epsilon is not None else self.epsilon_per_message
        assert budget is not None
        return budget

    def notice(self, conditions: Conditions, unit: str) -> str | None:
        """Return a notice that the sentences of a unit share its budget, if a unit has several."""
        if self.epsilon is None or conditions.most_rows == 1:
            return None
        return Message(
            f"Epsilon {self.epsilon:g} is the budget of one {unit}, shared by its up to {conditions.most_rows} "
            f"sentences; {setting('epsilon_per_message')} sets the budget of each sentence instead."
        )

    @property
    def per_query(self) -> float:
        """Epsilon of one query; by default that of training."""
        return self.budget if self.inference_epsilon is None else self.inference_epsilon

    def resolve(self, conditions: Conditions) -> LocalLayer:
        """Return the protection that runs: learn the projection, and calibrate the noise of training and queries."""
        dimension = self._width(conditions.model.width)
        shared = conditions.most_rows if self.epsilon is not None else 1  # sentences that share the budget
        sending = Sending(conditions.rows)
        if self.sampling != "once":
            if conditions.units != conditions.rows or conditions.most_rows > 1:
                remedy = "Sentences are sampled, and units may own several; send each sentence once."
                raise invalid("sampling", self.sampling, "once for units of several rows", remedy)
            sending = Sending(
                conditions.rows, min(conditions.batch_size, conditions.rows), conditions.steps, sampling=self.sampling
            )
        projection, public = self._learn_projection(conditions, dimension)
        label_epsilon = self.label_epsilon
        if shared > 1:
            label_epsilon = None if label_epsilon is None else label_epsilon / shared * _BELOW
            training = self._layer_of_unit(dimension, conditions.delta, shared, label_epsilon, sending)
        elif self.sampling == "once" or label_epsilon is None or self.calibration != "sound":
            training = self._layer(dimension, self.budget - (label_epsilon or 0.0), conditions.delta, sending)
        else:
            training, label_epsilon = self._with_labels(dimension, sending, conditions)
        inference = self._queries(dimension, classifier_of(conditions.model, self.name), conditions.delta)
        claimed = None
        if self.calibration != "sound":
            cost = LocalLayerCost(self.clip_norm, **vars(sending), calibration=self.calibration)
            claimed = cost.guarantee(training.strength, delta=conditions.delta)
        bounded = training.bounded(projection(public))
        return LocalLayer(
            training,
            inference,
            projection,
            sending,
            conditions.delta,
            label_epsilon,
            claimed,
            position=self._position,
            pairs=conditions.pairs,
            typical=(bounded.mean(0), torch.cov(bounded.T, correction=0)),
            dynamic=self.sampling == "coins" and self.calibration == "paper",
            epsilon=self.budget,
            calibration=self.calibration,
        )

    def shape(self, model: Classifier) -> None:
        """Add the modules between encoder and head that a finished run has, so that its weights can be loaded."""
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
        """Return the width of a query: that of training, unless a linear head defines fewer axes."""
        if self.calibration != "sound" or self.position == "token" or model.settings.head != "linear":
            return dimension
        return min(dimension, max(self.query_dimension, len(model.label_names)))

    def _query_norm(self, narrow: int, dimension: int) -> float:
        return 1.0 if narrow < dimension else self.clip_norm  # on these axes the norm of a query is about 1

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
        epsilon = self.budget
        per_sentence = epsilon / sentences * _BELOW - (label_epsilon or 0.0)
        if self.mechanism == "privunit":  # pure budgets add up
            return LDPLayer(self.mechanism, dimension, per_sentence, self.clip_norm)
        if self.calibration != "sound":
            return self._layer(dimension, per_sentence, delta, sending)

        def event(strength: float) -> DpEvent:
            vector = LDPLayer(self.mechanism, dimension, strength, self.clip_norm).event
            both = vector if label_epsilon is None else ComposedDpEvent([vector, LocalDpEvent(label_epsilon)])
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
        """Return the layer, and the epsilon of each reported label, that keep all steps together within the budget."""
        assert self.label_epsilon is not None
        high = self.label_epsilon + 40.0
        per_report = sending.strongest(LocalDpEvent, self.label_epsilon, conditions.delta, high)
        noise_std = least_noise(
            lambda std: sending.event(
                ComposedDpEvent([GaussianDpEvent(std / (2 * self.clip_norm)), LocalDpEvent(per_report)])
            ),
            epsilon=self.budget,
            delta=conditions.delta,
            adjacency=Adjacency.REPLACE_ONE,
        )
        return LDPLayer(self.mechanism, dimension, noise_std, self.clip_norm), per_report

    def _learn_projection(self, conditions: Conditions, dimension: int) -> tuple[Projection, Tensor]:
        """Return the projection, and the public vectors it was learned from."""
        if self.public is not None and conditions.public is None:
            raise DataError(f"Expected the public text {self.public!r} for the projection of ldp. Pass public=.")
        labels: Tensor | None = None
        if conditions.public is None:
            vectors = synthetic_vectors(conditions.model)
        else:
            vectors, labels = conditions.public()
        vectors = vectors.float().cpu()
        if dimension == conditions.model.width:
            return whole_space(dimension), vectors
        if len(vectors) <= dimension:
            raise DataError(
                f"Expected more than {dimension} public texts for a projection to {dimension} dimensions, got "
                f"{len(vectors)}. Provide more public text, or none: synthetic sentences are used then."
            )
        source = "made-up sentences" if conditions.public is None else f"public text {self.public!r}"
        if self.projection != "labels":
            return principal(vectors, dimension, f"{source}, without labels"), vectors
        if labels is None or labels.is_floating_point():
            raise DataError(
                f"Expected public text with the labels {', '.join(conditions.model.label_names)}, got {self.public!r} "
                f"with other labels or none. Rename them, or use {setting('projection', 'principal')}."
            )
        return labelled(vectors, labels.cpu(), dimension, f"{source} and its labels"), vectors


def synthetic_vectors(model: TextModel, count: int = _SYNTHETIC) -> Tensor:
    """Return the encoder's vectors of synthetic sentences: always the same sentences, with nothing private in them.

    They are computed once in a process for the same encoder and tokenizer: the trials of a study share them.
    """
    texts = list(Decoys.of_vocabulary(model.tokenizer.get_vocab()).draw(count, Rng(0).fork("made-up sentences")))
    model = classifier_of(model, "sentence vectors")
    batches = (_tokens(model, texts[start : start + 128]) for start in range(0, count, 128))
    first = next(batches)
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer in Python has no description that another one could be compared with
        return _encoded(model, chain([first], batches))
    reads = (repr(model.encoder.config), model.settings.pooling, model.settings.pairs, str(model.device))
    # The first batch has set the truncation and padding that the description contains.
    key = digest(weights_digest(model.encoder), reads, backend.to_str(), first, texts)
    if key not in _computed:
        while len(_computed) >= _MOST_COMPUTED:
            del _computed[next(iter(_computed))]
        _computed[key] = _encoded(model, chain([first], batches))
    return _computed[key].clone()


def _tokens(model: Classifier, texts: list[str]) -> dict[str, Tensor]:
    inputs = model.tokenizer(texts, truncation=True, max_length=model.max_length, padding=True, return_tensors="pt")
    return {name: column for name, column in inputs.items() if name != "token_type_ids"}


@torch.inference_mode()
def _encoded(model: Classifier, batches: Iterable[dict[str, Tensor]]) -> Tensor:
    was_training = model.training
    model.eval()
    columns = ({name: column.to(model.device) for name, column in batch.items()} for batch in batches)
    vectors = torch.cat([model.represent(batch).float().cpu() for batch in columns])
    model.train(was_training)
    return vectors
