"""L-BFGS for many small problems at once: each row is a problem of its own, with a history and an end of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]  # (problems, numbers) to values and gradients
_CURVED = 1e-10  # the least product of a step and its change of gradient that says something about the curvature


@dataclass(frozen=True)
class Minimum:
    """Where each problem ended: the point with the least value met, that value, and whether it ended in no number."""

    points: Tensor
    values: Tensor
    broken: Tensor
    evaluations: int


def minimise(objective: Objective, start: Tensor, *, rate: float, history: int, steps: int, enough: float) -> Minimum:
    """Return the minima that L-BFGS without a line search finds from the rows of `start`.

    A row that meets no number stops where it is; a row below `enough` is done. Without a line search a row may run
    away: that is the optimiser of the published attacks, and one reason why they fail.
    """
    points = start.clone()
    values, gradients = objective(points)
    best, least = points.clone(), values.clone()
    broken = ~torch.isfinite(values)
    moves: list[Tensor] = []
    changes: list[Tensor] = []
    scale = torch.ones_like(values)
    directions = -gradients
    # As usual, a first step is no longer than one in sum of absolute values.
    length = (rate * (1.0 / gradients.abs().sum(dim=1)).clamp_max(1.0))[:, None]
    evaluations = 1
    for _ in range(steps):
        going = ~broken & (least > enough)
        if not bool(going.any()):
            break
        move = torch.where(going[:, None], length * directions, 0.0)
        reached = points + move
        values, fresh = objective(reached)
        evaluations += 1
        bad = going & ~(torch.isfinite(values) & torch.isfinite(fresh).all(dim=1))
        broken = broken | bad
        move = torch.where(bad[:, None], 0.0, move)
        fresh = torch.where((bad | ~going)[:, None], gradients, fresh)
        points = points + move
        change = fresh - gradients
        gradients = fresh
        better = going & ~bad & (values < least)
        best = torch.where(better[:, None], points, best)
        least = torch.where(better, values, least)
        curved = (move * change).sum(dim=1)
        keep = curved > _CURVED
        # A row without curvature keeps a step of zeros, which changes nothing in the recursion.
        moves.append(torch.where(keep[:, None], move, 0.0))
        changes.append(torch.where(keep[:, None], change, 0.0))
        scale = torch.where(keep, curved / change.square().sum(dim=1).clamp_min(1e-30), scale)
        if len(moves) > history:
            del moves[0], changes[0]
        directions = -_recursion(gradients, moves, changes, scale)
        length = torch.full_like(length, rate)
    return Minimum(best, least, broken, evaluations)


def _recursion(gradients: Tensor, moves: list[Tensor], changes: list[Tensor], scale: Tensor) -> Tensor:
    """Return the inverse curvature times the gradients, by the two-loop recursion."""
    found = gradients
    weights: list[Tensor] = []
    inverse = [1.0 / (m * c).sum(dim=1).clamp_min(_CURVED) for m, c in zip(moves, changes, strict=True)]
    for move, change, over in zip(reversed(moves), reversed(changes), reversed(inverse), strict=True):
        weight = over * (move * found).sum(dim=1)
        weights.append(weight)
        found = found - weight[:, None] * change
    found = found * scale[:, None]
    for move, change, over, weight in zip(moves, changes, inverse, reversed(weights), strict=True):
        back = over * (change * found).sum(dim=1)
        found = found + move * (weight - back)[:, None]
    return found
