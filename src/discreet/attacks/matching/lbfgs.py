"""Batched L-BFGS: each row is an independent problem, with its own history, step size and termination."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]  # (problems, numbers) to values and gradients
After = Callable[[int, Tensor, Tensor], bool]  # the step's number, points and values; returns whether to continue

_CURVATURE = 1e-10  # smallest product of a step and its change of gradient that counts as curvature
_LEAST_STEP = 2.0**-20
_FLOOR = 1e-30


@dataclass(frozen=True)
class Minimum:
    """Result of each problem: the point with the smallest value, that value, and whether it ended in NaN."""

    points: Tensor
    values: Tensor
    broken: Tensor


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    rate: float,
    steps: int,
    history: int = 20,
    backtrack: bool = False,
    enough: float = -math.inf,
    after: After | None = None,
) -> Minimum:
    """Return the minima that L-BFGS reaches from the rows of `start`, with one more evaluation than steps.

    With `backtrack`, a step that increases a row's value or makes it NaN is undone and halved; a step that cannot be
    halved further clears the row's history. Without it, every step is taken, and a row that becomes NaN stops: that is
    the optimizer of the published attacks, and one reason why they fail. A row stops when its value is at most
    `enough`. `after` is called after each step and returns whether to continue.

    >>> target = torch.tensor([[1.0, -2.0], [3.0, 0.5]])
    >>> bowl = lambda x: ((x - target).square().sum(-1), 2 * (x - target))
    >>> end = minimise(bowl, torch.zeros(2, 2), rate=1.0, steps=20, backtrack=True)
    >>> bool((end.points - target).abs().max() < 1e-4)
    True
    """
    points = start.clone()
    values, gradients = objective(points)
    best, least = points, values
    broken = torch.zeros_like(values, dtype=torch.bool) if backtrack else ~torch.isfinite(values)
    curvature = _Curvature(values, history, _FLOOR if backtrack else _CURVATURE)
    # There is no curvature yet, so the first step has an L1 norm of 1, or at most 1 without backtracking.
    length = 1.0 / gradients.abs().sum(dim=1).clamp_min(_FLOOR)
    directions = -gradients * (length if backtrack else length.clamp_max(1.0))[:, None]
    step = torch.full_like(values, rate)
    for number in range(1, steps + 1):
        active = ~broken & (least > enough)
        if not bool(active.any()):
            break
        move = step[:, None] * directions
        reached = points + move
        new_values, new_gradients = objective(reached)
        finite = torch.isfinite(new_values) & torch.isfinite(new_gradients).all(dim=1)
        taken = active & finite & (new_values <= values) if backtrack else active & finite
        failed = active & ~taken
        stuck = failed & (step <= _LEAST_STEP)
        if not backtrack:
            broken = broken | failed
        change = torch.where(taken[:, None], new_gradients - gradients, 0.0)
        if bool(taken.any()):
            curvature.add(torch.where(taken[:, None], move, 0.0), change)
        curvature.clear(stuck)
        points = torch.where(taken[:, None], reached, points)
        gradients = torch.where(taken[:, None], new_gradients, gradients)
        values = torch.where(taken, new_values, values)
        better = taken & (new_values < least)
        best = torch.where(better[:, None], points, best)
        least = torch.where(better, new_values, least)
        directions = torch.where((taken | stuck)[:, None], -curvature.solve(gradients), directions)
        step = torch.where(failed & ~stuck, step / 2, rate)
        if after is not None and not after(number, points, values):
            break
    return Minimum(best, least, broken)


class _Curvature:
    """The inverse curvature of each row, from its last steps and the changes of its gradient."""

    def __init__(self, like: Tensor, history: int, least: float) -> None:
        self.history, self.least = history, least
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # steps, changes, and one over their products
        self.scale = torch.ones_like(like)

    def add(self, moves: Tensor, changes: Tensor) -> None:
        """Add one step; a row without curvature stores zeros, which have no effect."""
        curved = _dot(moves, changes)
        keep = curved > self.least
        moves, changes = torch.where(keep[:, None], moves, 0.0), torch.where(keep[:, None], changes, 0.0)
        self.pairs = [*self.pairs, (moves, changes, 1 / curved.clamp_min(self.least))][-self.history :]
        self.scale = torch.where(keep, curved / _dot(changes, changes).clamp_min(_FLOOR), self.scale)

    def clear(self, rows: Tensor) -> None:
        """Clear the history of some rows."""
        if bool(rows.any()):
            self.pairs = [
                (torch.where(rows[:, None], 0.0, moves), torch.where(rows[:, None], 0.0, changes), over)
                for moves, changes, over in self.pairs
            ]
            self.scale = torch.where(rows, 1.0, self.scale)

    def solve(self, gradients: Tensor) -> Tensor:
        """Return the inverse curvature times the gradients, by the two-loop recursion."""
        product = gradients
        weights: list[Tensor] = []
        for moves, changes, over in reversed(self.pairs):
            weights.append(over * _dot(moves, product))
            product = product - weights[-1][:, None] * changes
        product = product * self.scale[:, None]
        for (moves, changes, over), weight in zip(self.pairs, reversed(weights), strict=True):
            product = product + moves * (weight - over * _dot(changes, product))[:, None]
        return product


def _dot(first: Tensor, second: Tensor) -> Tensor:
    return (first * second).sum(dim=1)
