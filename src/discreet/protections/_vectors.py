"""Small operations on vectors and labels that several protections share."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from discreet.protections.base import Rows

_AT_ONCE, _NUMBERS = 64, 1 << 24  # steps, and numbers, that are drawn together at most


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
