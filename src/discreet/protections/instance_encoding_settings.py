"""DP instance encoding as it is asked for, and the projection it learns from public text."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from discreet.core.checks import whole
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.models.classifier import Classifier
from discreet.protections.clipped_query import Clipped, attach
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.ldp_projection import Projection, labelled, principal
from discreet.protections.representation import Place
from discreet.protections.settings import Conditions, check_budget


@dataclass(frozen=True)
class InstanceEncodingSettings:
    """DP instance encoding as it is asked for; with a public corpus and a dimension, a projection is learned first."""

    epsilon: float | None = None
    delta: float | None = None
    mechanism: str = "gaussian"
    clip_norm: float = 1.0
    mix: int = 1
    mix_cap: float | None = None
    labels: str = "public"
    label_epsilon: float | None = None
    calibration: str = "sound"
    dimension: int | None = None
    public: str | None = None
    name: ClassVar[str] = "dp-ie"
    place: ClassVar[Place] = "representation"
    usual_train: ClassVar[str] = "head"
    usual_head: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        """Refuse settings outside their rules, and no budget."""
        check_budget(self.epsilon, self.delta)
        if self.epsilon is None:
            raise SettingError("Expected --epsilon for dp-ie. It is the budget of the release; 8 is a common start.")
        if (self.dimension is None) != (self.public is None):
            missing = "--public DATA" if self.public is None else "--dimension N"
            raise SettingError(
                f"Expected {missing} beside {'--dimension' if self.public is None else '--public'} for dp-ie. A "
                "projection is learned from public text, to so many dimensions."
            )
        if self.dimension is not None:
            whole("dimension", self.dimension)
        self.protection(1e-5, None, True, 1)

    @property
    def limits(self) -> bool:
        """Whether the ledger may hold training to the epsilon: the paper's noise costs more than it claims."""
        return self.calibration == "sound"

    def protection(self, delta: float, projection: Projection | None, stored: bool, epochs: int) -> InstanceEncoding:
        """Return the protection for a training."""
        assert self.epsilon is not None
        return InstanceEncoding(
            self.epsilon,
            delta,
            self.clip_norm,
            self.mix,
            self.mix_cap,
            self.mechanism,
            self.labels,
            self.label_epsilon,
            self.calibration,
            stored=stored,
            epochs=epochs,
            projection=projection,
        )

    def build(self, given: Conditions) -> InstanceEncoding:
        """Return the protection: stored for a frozen encoder, at every step for one that is trained."""
        projection = None
        if self.dimension is not None and given.public is not None:
            vectors, labels = given.public()
            projection = learned(vectors.cpu(), None if labels is None else labels.cpu(), self.dimension)
        found = self.protection(given.delta, projection, given.model.settings.frozen, math.ceil(given.epochs))
        found.check(given.batch_size, given.rows)
        return found

    def shape(self, model: Classifier) -> None:
        """Make room in a model for the weights of a run."""
        attach(model, Clipped(model.width, self.clip_norm, self.dimension), Rng(0))


def learned(vectors: Tensor, labels: Tensor | None, dimension: int) -> Projection:
    """Return a projection learned from public vectors, with their labels where there are any; typical length 1."""
    if labels is None or labels.is_floating_point() or dimension < 2:
        found = principal(vectors, dimension, "public text")
    else:
        found = labelled(vectors, labels, dimension, "public text with labels")
    typical = float(torch.linalg.vector_norm(found(vectors), dim=1).median())
    return dataclasses.replace(found, matrix=found.matrix / max(typical, 1e-12))
