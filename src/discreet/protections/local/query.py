"""The path of a query: project, bound and randomize a sentence vector, on the user's side or inside a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from discreet.core.randomness import Rng
from discreet.mechanisms.gaussian import Gaussian
from discreet.models.classifier import VECTORS
from discreet.models.encoder import pool
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.projection import Projection, QueryAxes, query_axes

if TYPE_CHECKING:
    from discreet.models.classifier import Classifier


@dataclass(frozen=True)
class QueryPath:
    """Steps of a query on the user's machine: project, bound, map to the axes of the head, randomize.

    `bound` is the layer of training, used only for its bound; without `axes` a query is as wide as in training.

    Guarantee: that of `layer` for each row.
    """

    projection: Projection
    bound: LDPLayer
    layer: LDPLayer
    axes: QueryAxes | None = None

    def coordinates(self, vectors: Tensor) -> Tensor:
        """Return the private coordinates that will be randomized; they must not leave the user."""
        projected = self.projection(vectors.float())
        return projected if self.axes is None else self.axes(self.bound.bounded(projected))

    def __call__(self, vectors: Tensor, rng: Rng) -> Tensor:
        """Return one release for each row."""
        return self.layer(self.coordinates(vectors), rng)


class LocalQuery(nn.Module):
    """The user's side between encoder and head, inside a model; its buffers are public and saved with the weights.

    The axes of queries are computed from the head at every call, so they follow its training.

    Guarantee: that of `layer` for each row, with noise from `source`, which is secret by default.
    """

    mean: Tensor
    matrix: Tensor
    centre: Tensor
    covariance: Tensor
    strengths: Tensor

    def __init__(
        self,
        inputs: int,
        training: LDPLayer,
        layer: LDPLayer,
        projection: Projection | None = None,
        typical: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        """Set the public buffers, or allocate them to be loaded from a file.

        `typical` is the mean and the covariance of bounded public vectors.
        """
        super().__init__()
        width = training.dimension
        zeros = torch.zeros(inputs), torch.zeros(width, inputs)
        mean, matrix = zeros if projection is None else (projection.mean, projection.matrix)
        centre, covariance = (torch.zeros(width), torch.eye(width) / width) if typical is None else typical
        buffers = {"mean": mean, "matrix": matrix, "centre": centre, "covariance": covariance}
        for name, value in buffers.items():
            self.register_buffer(name, value.clone())
        self.register_buffer("strengths", torch.tensor([training.strength, layer.strength], dtype=torch.float64))
        self.kind, self.clip_norms = training.mechanism, (training.clip_norm, layer.clip_norm)
        self.width, self.learned_from = layer.dimension, "" if projection is None else projection.source
        self.source = Rng.secret()
        self.count = 0

    @property
    def bound(self) -> LDPLayer:
        """The layer of training, which bounds vectors before they are mapped to the axes."""
        return LDPLayer(self.kind, int(self.matrix.shape[0]), float(self.strengths[0]), self.clip_norms[0])

    @property
    def layer(self) -> LDPLayer:
        """The layer of queries."""
        return LDPLayer(self.kind, self.width, float(self.strengths[1]), self.clip_norms[1])

    def path(self, head: nn.Module) -> QueryPath:
        """Return the path of a query to this head."""
        axes = None
        if self.width < len(self.matrix):
            assert isinstance(head, nn.Linear)
            axes = query_axes(head.weight, head.bias, self.centre, self.covariance, self.width)
            device = self.matrix.device
            axes = QueryAxes(*(getattr(axes, name).to(device) for name in ("matrix", "offset", "up", "origin")))
        return QueryPath(Projection(self.mean, self.matrix, self.learned_from), self.bound, self.layer, axes)

    def follow(self, model: Classifier) -> None:
        """Compute the axes of queries from the head of this model."""
        self._model = [model]  # in a list, so that the model is not registered as a submodule of itself

    @property
    def followed(self) -> Classifier:
        """The model whose head defines the axes."""
        return self._model[0]

    def fresh(self) -> Rng:
        """Return the source of noise for the next call."""
        self.count += 1
        return self.source.fork("query", self.count)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the input of the head from one release for each row, with fresh noise at every call."""
        path = self.path(self.followed.head)
        released = path(vectors, self.fresh())
        return released if path.axes is None else path.axes.back(released)


class TokenQuery(LocalQuery):
    """The user's side for token states: all states of a text are randomized as one vector, and pooled afterwards."""

    def forward(self, vectors: Tensor) -> Tensor:
        """Return pooled vectors unchanged: their noise was added before pooling."""
        return vectors

    def represent(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return one vector for each text, pooled from randomized states; the text length stays with the user."""
        if VECTORS in inputs:
            return inputs[VECTORS]
        model, layer = self.followed, self.layer
        states, mask = model.states(inputs).float(), inputs["attention_mask"]
        bounded = clip_states(states * mask.unsqueeze(-1), layer.clip_norm)
        return pool(Gaussian(layer.strength)(bounded, self.fresh()), mask, model.settings.pooling)


def clip_states(states: Tensor, norm: float) -> Tensor:
    """Return the states of each text, clipped so that all of them together have at most this norm.

    >>> [round(x, 4) for x in clip_states(torch.full((1, 4, 1), 2.0), 1.0).flatten().tolist()]
    [0.5, 0.5, 0.5, 0.5]
    """
    length = torch.linalg.vector_norm(states.flatten(1), dim=1)[:, None, None]
    return states.mul(norm * (1 - 1e-6) / length.clamp_min(norm))
