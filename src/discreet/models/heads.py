"""Heads: from a sentence vector to class scores or a number."""

from __future__ import annotations

from torch import nn

from discreet.core.errors import one_of, whole
from discreet.models.model_settings import TEXTHIDE_HIDDEN

HEADS = ("linear", "mlp")


def head(kind: str, width: int, outputs: int, hidden: tuple[int, ...] = TEXTHIDE_HIDDEN) -> nn.Module:
    """Return a linear head, or one with hidden layers of the given sizes.

    Paper: Huang et al. 2020, TextHide, uses three hidden layers of 768.

    >>> sum(p.numel() for p in head("linear", 384, 2).parameters())
    770
    """
    one_of("head", kind, HEADS)
    whole("outputs", outputs)
    if kind == "linear":
        return nn.Linear(width, outputs)
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, whole("hidden", size)), nn.ReLU()]
        width = size
    return nn.Sequential(*layers, nn.Linear(width, outputs))
