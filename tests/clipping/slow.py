"""The slow twin of `discreet.clipping`: per-example gradients by plain autograd, one example at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def gradients(model: nn.Module, losses: Tensor, units: Tensor | None = None) -> list[dict[str, Tensor]]:
    """Return each unit's gradient by parameter name, one backward pass for each.

    `losses` come from an ordinary forward pass. The losses of a unit's rows are summed.

    Guarantee: none. These are the raw gradients.
    """
    index = torch.arange(losses.shape[0], device=losses.device) if units is None else units
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = []
    for unit in range(int(index.max()) + 1 if index.numel() else 0):
        loss = losses[index == unit].sum()
        grads = torch.autograd.grad(loss, list(named.values()), retain_graph=True, allow_unused=True)
        pairs = zip(named.items(), grads, strict=True)
        gradients.append({name: torch.zeros_like(p) if g is None else g for (name, p), g in pairs})
    return gradients


def norm(gradient: dict[str, Tensor]) -> float:
    """Return the norm of a gradient over all its parameters, in float64."""
    return float(
        torch.sqrt(sum((g.double().square().sum() for g in gradient.values()), torch.zeros((), dtype=torch.float64)))
    )


def clipped_sum(model: nn.Module, losses: Tensor, bound: float, units: Tensor | None = None) -> dict[str, Tensor]:
    """Return the sum of the units' gradients, each clipped to norm at most `bound`, in float64.

    Guarantee: none by itself; no unit adds more than `bound`.
    """
    total = {n: torch.zeros_like(p, dtype=torch.float64) for n, p in model.named_parameters() if p.requires_grad}
    for gradient in gradients(model, losses, units):
        length = norm(gradient)
        factor = min(1.0, bound / length) if length > 0 else 1.0
        for name, g in gradient.items():
            total[name] += factor * g.double()
    return total
