"""The optimizers of a training, their groups of weights and their learning rates."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from discreet.core.errors import UnsupportedError, setting
from discreet.models.base import HEAD_NAMES
from discreet.runs.checkpoint import trained
from discreet.runs.settings import TrainSettings


def optimizer_for(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Return the optimizer of the settings, over the trainable weights."""
    weights = trained(model)
    if not weights:
        raise UnsupportedError(
            "Expected a model with at least one trainable parameter, got none. Set requires_grad of the head, or build "
            f"the model with {setting('train', 'head')}."
        )
    device = next(iter(weights.values())).device
    parts = groups(model, settings.weight_decay or 0.0, settings.head_rate or 1.0)
    for part in parts:
        # A learning rate on the device can change between replays of a captured step.
        part["lr"] = torch.tensor(1.0, device=device) if device.type == "cuda" else 1.0
    if settings.optimizer == "sgd":
        return torch.optim.SGD(parts, momentum=settings.momentum, fused=True)
    return torch.optim.AdamW(parts, betas=(settings.momentum, 0.999), fused=True, capturable=device.type == "cuda")


def groups(model: nn.Module, weight_decay: float, head_rate: float = 1.0) -> list[dict[str, Any]]:
    """Return the trainable weights in groups: matrices decay, biases and norms do not; `head_rate` scales the head."""
    parts: list[dict[str, Any]] = []
    for is_head in (False, True) if head_rate != 1 else (None,):
        named = trained(model).items()
        parameters = [p for name, p in named if is_head is None or is_head is name.startswith(HEAD_NAMES)]
        pace = head_rate if is_head else 1.0
        parts += [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay, "pace": pace},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0, "pace": pace},
        ]
    return parts


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate * group["pace"])
        else:
            group["lr"] = rate * group["pace"]
