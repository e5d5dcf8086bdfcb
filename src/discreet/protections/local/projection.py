"""Projections of vectors to few dimensions, learned from public text, and the axes of queries.

The noise that hides a direction grows with the number of dimensions, so a release should have few, and the useful ones
first. Everything here is learned from public text; learned from private text, it would itself be a release.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from discreet.core.errors import DataError, invalid, non_negative, whole


@dataclass(frozen=True)
class Projection:
    """Centre a vector and project it: (x - mean) @ matrix.T; `source` names the text it was learned from.

    Guarantee: none of its own. `public` says that no private text was used; only then can a release of projected
        vectors be certified.
    """

    mean: Tensor = field(repr=False)
    matrix: Tensor = field(repr=False)
    source: str
    public: bool = True

    def __post_init__(self) -> None:
        """Reject shapes that do not fit together, and values that are not finite."""
        if self.matrix.ndim != 2 or self.mean.shape != (self.matrix.shape[1],):
            shapes = f"{tuple(self.mean.shape)} and {tuple(self.matrix.shape)}"
            raise invalid("matrix", shapes, "of shape (outputs, inputs) with a mean of (inputs,)", "")
        if not bool(torch.isfinite(self.matrix).all() and torch.isfinite(self.mean).all()):
            raise DataError("Expected a projection of finite numbers, got NaN or infinity. Learn it again.")

    @property
    def width(self) -> int:
        """Number of output coordinates."""
        return int(self.matrix.shape[0])

    def on(self, device: torch.device | str) -> Projection:
        """Return the same projection on a device."""
        return replace(self, mean=self.mean.to(device), matrix=self.matrix.to(device))

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the coordinates of each row."""
        if vectors.ndim != 2 or vectors.shape[1] != self.matrix.shape[1]:
            raise DataError(
                f"Expected vectors of width {self.matrix.shape[1]}, got shape {tuple(vectors.shape)}. The projection "
                "was learned for another encoder."
            )
        return (vectors - self.mean) @ self.matrix.T


def whole_space(width: int) -> Projection:
    """Return the identity projection: every coordinate of the encoder is released."""
    return Projection(torch.zeros(width), torch.eye(width), "nothing: every coordinate is kept")


def principal(vectors: Tensor, dimension: int, source: str, *, skip: int = 0, power: float = 0.0) -> Projection:
    """Return the projection on principal components of public vectors; no label is used.

    `skip` leaves out the strongest components, which often hold the topic; `power` between 0 and 1 scales the rest
    towards equal variance, which 1 reaches (whitening).

    >>> principal(torch.randn(100, 12, generator=torch.Generator().manual_seed(0)), 8, "noise").width
    8
    """
    values, basis = _spectrum(vectors, whole("dimension", dimension) + whole("skip", skip, 0))
    scale = values[skip:] ** (-non_negative("power", power) / 2)
    return Projection(vectors.mean(0), (basis[:, skip:] * scale).T.contiguous(), source)


def labelled(
    vectors: Tensor, labels: Tensor, dimension: int, source: str, *, spread: float = 4.0, ridge: float = 1.0
) -> Projection:
    """Return a projection whose first axes separate the public labels; `spread` scales the other axes.

    The label axes are those of linear discriminant analysis, regularized by `ridge` times the mean variance; the others
    are principal components orthogonal to them, scaled so that a typical vector is `spread` times as long there as
    along the label axes. With spread 0 the release would be the score of the label and nothing else.

    >>> generator = torch.Generator().manual_seed(0)
    >>> labels = torch.arange(200) % 2
    >>> vectors = torch.randn(200, 12, generator=generator) + 3 * labels[:, None] * torch.eye(12)[0]
    >>> projected = labelled(vectors, labels, 8, "an example")(vectors)
    >>> bool(projected[labels == 1, 0].mean() - projected[labels == 0, 0].mean() > 1)
    True
    """
    whole("dimension", dimension, 2)
    non_negative("spread", spread, "It is the length of the release on axes that do not separate the labels.")
    classes = torch.unique(labels)
    if len(classes) < 2:
        raise DataError("Expected public text of at least two classes, got one. The projection must separate them.")
    vectors = vectors.double()
    mean = vectors.mean(0)
    centres = torch.stack([vectors[labels == c].mean(0) for c in classes])
    within = sum(torch.cov(vectors[labels == c].T, correction=0) * (labels == c).double().mean() for c in classes)
    assert isinstance(within, Tensor)
    eye = torch.eye(len(mean), dtype=torch.float64)
    within = within + ridge * within.trace() / len(mean) * eye
    differences = centres - (centres * torch.stack([(labels == c).double().mean() for c in classes])[:, None]).sum(0)
    axes = torch.linalg.solve(within, differences.T)
    left, strength, _ = torch.linalg.svd(axes, full_matrices=False)
    count = min(len(classes) - 1, dimension - 1, int((strength > 1e-9 * strength[0]).sum()))
    # Point towards the last class, so that the same public text always gives the same axes.
    along = left[:, :count] * torch.where(differences[-1] @ left[:, :count] < 0, -1.0, 1.0)
    along = along / ((vectors - mean) @ along).std(0)
    rest_vectors = (vectors - mean) - (vectors - mean) @ left[:, :count] @ left[:, :count].T
    values, across = _spectrum(rest_vectors, dimension - count)
    across = across * (spread * (count / (dimension - count)) ** 0.5 / values.clamp_min(1e-30).sqrt())
    matrix = torch.cat([along, across], dim=1).T.float().contiguous()
    return Projection(mean.float(), matrix, source)


def _spectrum(vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest variances of the vectors and their directions, largest first."""
    if vectors.ndim != 2 or len(vectors) < 2:
        raise DataError(f"Expected at least two public vectors, got shape {tuple(vectors.shape)}. Provide more text.")
    if count > vectors.shape[1]:
        raise invalid("dimension", count, f"<= {vectors.shape[1]}, the encoder's width", "Use fewer dimensions.")
    values, basis = torch.linalg.eigh(torch.cov(vectors.T, correction=0))
    return values.flip(0)[:count].clamp_min(0), basis.flip(1)[:, :count]


SPREAD = 0.3


@dataclass(frozen=True)
class QueryAxes:
    """Affine maps from bounded coordinates to those of a query, z = matrix x + offset, and back, x = origin + up z.

    The first axes are those that the scores of the head depend on, with their origin at its decision boundary; the
    others are the strongest axes of the text itself, and `back` ignores them.
    """

    matrix: Tensor = field(repr=False)
    offset: Tensor = field(repr=False)
    up: Tensor = field(repr=False)
    origin: Tensor = field(repr=False)

    def __call__(self, bounded: Tensor) -> Tensor:
        """Return the coordinates of queries."""
        return bounded @ self.matrix.T + self.offset

    def back(self, released: Tensor) -> Tensor:
        """Return released queries in the coordinates of the head."""
        return released @ self.up.T + self.origin


def query_axes(
    weights: Tensor, bias: Tensor, mean: Tensor, covariance: Tensor, dimension: int, spread: float = SPREAD
) -> QueryAxes:
    """Return the axes for a linear head with these weights and biases, trained on bounded vectors.

    `mean` and `covariance` are those of bounded vectors of public text; they determine the length of a query and its
    strongest other axes. `spread` is the length of a query on all other axes together, relative to those of the
    classes.

    Guarantee: post-processing of the release that the head was trained on.

    >>> weights = torch.randn(3, 12, generator=torch.Generator().manual_seed(0))
    >>> axes = query_axes(weights, torch.zeros(3), torch.zeros(12), torch.eye(12), 8)
    >>> axes(torch.ones(5, 12)).shape, axes.back(axes(torch.ones(5, 12))).shape
    (torch.Size([5, 8]), torch.Size([5, 12]))
    """
    whole("dimension", dimension, 2)
    non_negative("spread", spread, "It is the length of a query on axes that do not separate the classes.")
    if covariance.shape != (weights.shape[1],) * 2 or dimension > weights.shape[1]:
        shape = tuple(covariance.shape)
        raise DataError(f"Expected a covariance of width {weights.shape[1]} >= {dimension}, got shape {shape}.")
    w, b = weights.detach().double().cpu(), bias.detach().double().cpu()
    centre, cov = mean.double().cpu(), covariance.double().cpu()
    # Differences of scores decide; a single score is compared with its mean on public text.
    decide, start = (w - w.mean(0), b - b.mean()) if len(w) > 1 else (w, -(w @ centre))
    left, sizes, right = torch.linalg.svd(decide, full_matrices=False)
    count = max(1, min(int((sizes > 1e-6 * sizes[0]).sum()), dimension - 1))
    left, sizes, right = left[:, :count], sizes[:count].clamp_min(1e-12), right[:count]
    origin = centre - right.T @ ((left.T @ (decide @ centre + start)) / sizes)
    spread_of = right @ (cov + torch.outer(centre - origin, centre - origin)) @ right.T
    scale = max(float((sizes.square() * spread_of.diagonal()).sum().sqrt()), 1e-12)
    along = right * (sizes / scale)[:, None]  # mean length 1, longer along axes with larger score differences
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
