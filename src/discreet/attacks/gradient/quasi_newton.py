"""L-BFGS for many problems at once: every candidate has a history and a step of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_HISTORY = 20
_LEAST_STEP = 2.0**-20
_FLOOR = 1e-30

Slopes = Callable[[Tensor], tuple[Tensor, Tensor]]
Step = Callable[[int, Tensor, Tensor], bool]


def minimise(x: Tensor, slopes: Slopes, rate: float, steps: int, after: Step) -> Tensor:
    """Return candidates (problems, candidates, …) after at most `steps` evaluations of their losses and gradients.

    A step under which a candidate's loss rises is taken back and halved, also where the loss is no number; one that
    can be halved no more forgets the history. `after` is given the evaluation's number, the candidates and their
    losses, and says whether to go on.

    >>> target = torch.tensor([[[1.0, -2.0]], [[3.0, 0.5]]])
    >>> slopes = lambda x: ((x - target).square().sum(-1), 2 * (x - target))
    >>> found = minimise(torch.zeros(2, 1, 2), slopes, 1.0, 20, lambda *_: True)
    >>> bool((found - target).abs().max() < 1e-4)
    True
    """
    losses, gradient = slopes(x)
    history: list[tuple[Tensor, Tensor]] = []
    step = torch.full_like(losses, rate)
    # The first step has no curvature to go by, so it is as long as one number.
    direction = -gradient / _whole(gradient.abs().flatten(2).sum(-1).clamp_min(_FLOOR), gradient)
    for number in range(1, steps):
        tried = x + _whole(step, x) * direction
        new, new_gradient = slopes(tried)
        good = torch.isfinite(new) & (new <= losses)
        stuck = ~good & (step <= _LEAST_STEP)
        taken = _whole(good, x)
        moved = torch.where(taken, tried - x, torch.zeros_like(x))
        turned = torch.where(taken, new_gradient - gradient, torch.zeros_like(x))
        x = torch.where(taken, tried, x)
        gradient = torch.where(taken, new_gradient, gradient)
        losses = torch.where(good, new, losses)
        if bool(good.any()):
            history = [*history[-_HISTORY + 1 :], (moved, turned)]
        if bool(stuck.any()):
            keep = _whole(~stuck, x).to(x.dtype)
            history = [(a * keep, b * keep) for a, b in history]
        renewed = _whole(good | stuck, x)
        direction = torch.where(renewed, _two_loops(gradient, history), direction)
        step = torch.where(good | stuck, torch.full_like(step, rate), step / 2)
        if not after(number, x, losses):
            break
    return x


def _two_loops(gradient: Tensor, history: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Return minus the inverse Hessian, as the history tells it, times the gradient."""
    q = gradient
    weights: list[tuple[Tensor, Tensor]] = []
    for moved, turned in reversed(history):
        curve = _dot(moved, turned)
        rho = torch.where(curve > _FLOOR, 1 / curve.clamp_min(_FLOOR), torch.zeros_like(curve))
        alpha = rho * _dot(moved, q)
        q = q - _whole(alpha, q) * turned
        weights.append((rho, alpha))
    scale = torch.ones_like(_dot(q, q))
    for moved, turned in history:  # the latest step with curvature sets the scale
        curve = _dot(moved, turned)
        scale = torch.where(curve > _FLOOR, curve / _dot(turned, turned).clamp_min(_FLOOR), scale)
    q = q * _whole(scale, q)
    for (moved, turned), (rho, alpha) in zip(history, reversed(weights), strict=True):
        beta = rho * _dot(turned, q)
        q = q + _whole(alpha - beta, q) * moved
    return -q


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(2).sum(-1)


def _whole(value: Tensor, like: Tensor) -> Tensor:
    return value.view(*value.shape, *(1,) * (like.dim() - 2))
