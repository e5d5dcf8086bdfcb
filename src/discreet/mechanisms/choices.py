"""Exact draws among many options with weights exp(-cost): every option can come out, however small its weight."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from discreet.core.randomness import Rng

Rows = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

# An option is proposed with an integer of 2^-40; the rest of its weight is decided by accepting it or not.
_BITS = 40
_LAST = np.uint64(2**64 - 1)


def draw_by_cost(costs: torch.Tensor, which: Rows, rng: Rng) -> Rows:
    """Return for each entry of `which`, a row of `costs`, an option drawn with probability proportional to exp(-cost).

    `costs` are float64, rows by options, with 0 as the least in each row. An option is proposed with probability
    proportional to the integer floor(2^40 e^-cost) + 1, and accepted with probability 2^40 e^-cost over that integer,
    by an exponential number without an upper end. So the probabilities are as stated, up to the rounding of a cost, and
    no option is out of reach. One proposal in a million or fewer is rejected.

    >>> import torch
    >>> from discreet import Rng
    >>> draw_by_cost(torch.tensor([[0.0, 50.0], [900.0, 0.0]], dtype=torch.float64), np.array([0, 1, 1]), Rng(0))
    array([0, 1, 1])
    """
    import torch

    steps = torch.exp(-costs).mul_(2.0**_BITS).floor_().to(torch.int64).add_(1).cumsum(1).cpu().numpy()
    at = costs.cpu().numpy()
    drawn = np.empty(len(which), dtype=np.int64)
    left = np.arange(len(which))
    while len(left):
        rows = which[left]
        total = steps[rows, -1].astype(np.uint64)
        words = rng.words(len(left))
        even = words <= _LAST - (_LAST % total + np.uint64(1)) % total  # the last few would favour the first options
        found = _places(steps, rows, (words % total).astype(np.int64))
        weight = steps[rows, found] - np.where(found > 0, steps[rows, np.maximum(found, 1) - 1], 0)
        least = at[rows, found] - _BITS * math.log(2) + np.log(weight)
        keep = even & (exponentials(len(left), rng) >= least)
        drawn[left[keep]] = found[keep]
        left = left[~keep]
    return drawn


def _places(steps: Rows, rows: Rows, values: Rows) -> Rows:
    """Return for each value the first option of its row whose step is above it; a row is searched once for all."""
    order = np.argsort(rows, kind="stable")
    used, starts = np.unique(rows[order], return_index=True)
    if len(used) == len(rows) == len(steps):  # one draw from each row: all of them at once
        import torch

        asked = torch.from_numpy(values[order])[:, None]
        each = torch.searchsorted(torch.from_numpy(steps), asked, right=True)[:, 0].numpy()
        return np.asarray(each[rows], dtype=np.int64)
    found = np.empty(len(rows), dtype=np.int64)
    for row, mine in zip(used.tolist(), np.split(order, starts[1:]), strict=True):
        found[mine] = np.searchsorted(steps[row], values[mine], side="right")
    return found


def exponentials(count: int, rng: Rng) -> Floats:
    """Return exponential numbers of mean 1 with 64 significant bits before rounding and no upper end.

    >>> from discreet import Rng
    >>> bool(0.9 < exponentials(10_000, Rng(1)).mean() < 1.1)
    True
    """
    first, zeros = rng.words(count), np.zeros(count)
    while (empty := np.flatnonzero(first == 0)).size:  # 64 bits of zeros: the number is that much larger, and goes on
        zeros[empty] += 64
        first[empty] = rng.words(empty.size)
    second = rng.words(count)
    uniform = first.astype(np.float64) * 2.0**-64 + (second.astype(np.float64) + 0.5) * 2.0**-128
    return np.asarray(zeros * math.log(2) - np.log(uniform))
