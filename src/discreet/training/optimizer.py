"""Optimizers by name, with their weights in two groups, and the learning rate of a step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from discreet.training.checkpoint import trained
from discreet.training.settings import TrainSettings


def optimizer_for(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Return the optimizer that the settings name, over the weights that are trained."""
    device = next(iter(trained(model).values())).device
    # A rate that lives on the device can change between replays of a captured step.
    rate: Any = torch.tensor(1.0, device=device) if device.type == "cuda" else 1.0
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups(model, settings.weight_decay), lr=rate, momentum=settings.momentum, fused=True)
    return torch.optim.AdamW(
        groups(model, settings.weight_decay),
        lr=rate,
        betas=(settings.momentum, 0.999),
        fused=True,
        capturable=device.type == "cuda",
    )


def groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return the trained weights in two groups: matrices decay, biases and norms do not."""
    parameters = trained(model).values()
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next step."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
