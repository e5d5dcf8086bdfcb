"""What a query to a model that learned behind masks passes through: one mask, folded in at the end, or all of them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from discreet.models.classifier import Classifier


class OneMask(nn.Module):
    """Predict through one mask, as the paper's code does; the mask is in no state and no repr."""

    mask: Tensor

    def __init__(self, mask: Tensor) -> None:
        """Keep the mask out of what is saved."""
        super().__init__()
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return masked vectors."""
        return vectors * self.mask.to(vectors.dtype)


class AllMasks(nn.Module):
    """Predict through every mask of the pool and average; the masks are in no state and no repr."""

    masks: Tensor

    def __init__(self, masks: Tensor) -> None:
        """Keep the masks out of what is saved."""
        super().__init__()
        self.register_buffer("masks", masks, persistent=False)

    def forward(self, vectors: Tensor) -> Tensor:
        """Return the vectors under each mask, (masks, rows, width)."""
        return vectors * self.masks.to(vectors.device, vectors.dtype)[:, None, :]


def fold(model: Classifier, query: OneMask) -> None:
    """Multiply the columns of the first layer after the encoder by a mask, so that plain vectors give what masked did.

    Whoever knew the layer before can divide and has this one mask.
    """
    layer = model.pooler if model.pooler is not None else next(m for m in model.head.modules() if type(m) is nn.Linear)
    with torch.no_grad():
        layer.weight.mul_(query.mask.to(layer.weight.dtype))
