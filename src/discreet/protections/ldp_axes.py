"""The axes of a query: once a server has learned from noisy vectors, it says where to look, and users look there.

Sixty thousand noisy vectors of many dimensions show well enough where the classes part, as their noise averages out. A
query stands alone, and its noise does not: it should have few dimensions, and those that matter to the fore. So the
query's projection is made from the head that was learned from the release. That is post-processing: the axes are as
public as the head, and cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from discreet.core.checks import non_negative, whole
from discreet.core.errors import DataError

SPREAD = 0.3


@dataclass(frozen=True)
class QueryAxes:
    """From bounded coordinates to a query's, z = matrix x + offset, and from its estimate back, x = origin + up z.

    The first axes are the ones the head's scores depend on, and their origin is where it is undecided; the others are
    the strongest of the text itself, and lead nowhere on the way back.
    """

    matrix: Tensor = field(repr=False)
    offset: Tensor = field(repr=False)
    up: Tensor = field(repr=False)
    origin: Tensor = field(repr=False)

    @property
    def width(self) -> int:
        """How many numbers a query is."""
        return int(self.matrix.shape[0])

    def __call__(self, bounded: Tensor) -> Tensor:
        """Return the coordinates of queries."""
        return bounded @ self.matrix.T + self.offset

    def back(self, released: Tensor) -> Tensor:
        """Return what the head sees of released queries."""
        return released @ self.up.T + self.origin


def query_axes(
    weights: Tensor, bias: Tensor, mean: Tensor, covariance: Tensor, dimension: int, spread: float = SPREAD
) -> QueryAxes:
    """Return the axes for a linear head of these weights and biases, learned on bounded vectors.

    `mean` and `covariance` are those of bounded vectors of public text: they say how long a query is and which other
    axes are strong. `spread` is how long a query is, in all its other axes together, beside those of the classes.

    Guarantee: post-processing of the release the head was learned from.

    >>> make = torch.Generator().manual_seed(0)
    >>> axes = query_axes(torch.randn(3, 12, generator=make), torch.zeros(3), torch.zeros(12), torch.eye(12), 8)
    >>> axes.width, axes.back(axes(torch.ones(5, 12))).shape
    (8, torch.Size([5, 12]))
    """
    whole("dimension", dimension, 2)
    non_negative("spread", spread, "It is how much of a query is not about the classes.")
    if covariance.shape != (weights.shape[1],) * 2 or dimension > weights.shape[1]:
        shape = tuple(covariance.shape)
        raise DataError(f"Expected a covariance of width {weights.shape[1]} >= {dimension}, found shape {shape}.")
    w, b = weights.detach().double().cpu(), bias.detach().double().cpu()
    centre, cov = mean.double().cpu(), covariance.double().cpu()
    # what decides is how scores differ; a single score is told apart from its mean on public text
    decide, start = (w - w.mean(0), b - b.mean()) if len(w) > 1 else (w, -(w @ centre))
    left, sizes, right = torch.linalg.svd(decide, full_matrices=False)
    count = max(1, min(int((sizes > 1e-6 * sizes[0]).sum()), dimension - 1))
    left, sizes, right = left[:, :count], sizes[:count].clamp_min(1e-12), right[:count]
    origin = centre - right.T @ ((left.T @ (decide @ centre + start)) / sizes)
    spread_of = right @ (cov + torch.outer(centre - origin, centre - origin)) @ right.T
    scale = max(float((sizes.square() * spread_of.diagonal()).sum().sqrt()), 1e-12)
    along = right * (sizes / scale)[:, None]  # on average of length one, long where the scores are
    keep = torch.eye(len(centre), dtype=torch.float64) - right.T @ right
    values, basis = torch.linalg.eigh(keep @ cov @ keep)
    more = dimension - count
    values, basis = values.flip(0)[:more].clamp_min(1e-12), basis.flip(1)[:, :more]
    across = (basis * (spread / (more**0.5 * values.sqrt()))).T
    matrix = torch.cat([along, across])
    offset = torch.cat([-along @ origin, -across @ centre])
    length = (1 + spread**2) ** 0.5
    back = torch.cat([right.T * (scale * length / sizes), torch.zeros(len(centre), more, dtype=torch.float64)], dim=1)
    return QueryAxes(matrix.float(), offset.float(), back.float(), origin.float())
