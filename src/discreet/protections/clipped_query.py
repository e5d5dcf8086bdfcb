"""What a query to a model of noisy encodings passes through: a public projection and a clip, no noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.models.classifier import Classifier
from discreet.protections.representation import clip


class Clipped(nn.Module):
    """What a query passes through: the public projection, if there is one, and the clip; no noise."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, width: int, clip_norm: float, dimension: int | None) -> None:
        """Make room for the projection; its numbers come with the weights."""
        super().__init__()
        self.clip_norm = clip_norm
        self.projects = dimension is not None
        self.register_buffer("matrix", torch.zeros(dimension or 0, width))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, vectors: Tensor) -> Tensor:
        """Return what the head was trained on, less the noise."""
        vectors = vectors.float()
        if self.projects:
            vectors = (vectors - self.mean) @ self.matrix.T
        return clip(vectors, self.clip_norm)


def attach(model: Classifier, front: Clipped, rng: Rng) -> None:
    """Give a model a front and a head of the width that comes out of it."""
    if front.projects:
        if model.pooler is not None:
            raise SettingError(
                "Expected no pooler with a projection. The head reads what is projected; use --no-pooler."
            )
        model.replace_head(front.matrix.shape[0], rng.fork("head"))
    model.query = front.to(model.device)
