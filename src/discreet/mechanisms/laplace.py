"""Laplace noise: per coordinate for an L1 sensitivity, or per vector for an L2 sensitivity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.core.errors import positive, whole
from discreet.mechanisms.arrays import Array, checked_sensitivity, floats_of, in_kind, vectors_of
from discreet.mechanisms.sphere import uniform_directions

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent

    from discreet.core.randomness import Rng


@dataclass(frozen=True)
class Laplace:
    """Add independent Laplace noise to every coordinate, for a bounded L1 sensitivity.

    `sensitivity` is the largest L1 distance between the values of two neighbours, under the adjacency used for
    accounting. Vectors clipped to L2 norm C are up to 2 * C * sqrt(d) apart in L1, not 2 * C: see `l1_of_l2`.

    Guarantee: pure epsilon = sensitivity / scale for one release of the whole array, if the L1 sensitivity is as
        declared. In floating point: see docs/secure_randomness.md; `DiscreteLaplace` is exact.
    Paper: Dwork, McSherry, Nissim and Smith 2006, Calibrating noise to sensitivity in private data analysis.

    >>> Laplace.for_epsilon(epsilon=0.5, sensitivity=1.0)
    Laplace(scale=2.0, sensitivity=1.0)
    """

    scale: float
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        positive("scale", self.scale, "It is the mean absolute value of the noise.")
        if self.sensitivity is not None:
            checked_sensitivity(self.sensitivity)

    @classmethod
    def for_epsilon(cls, epsilon: float, sensitivity: float) -> Laplace:
        """Return the noise for a pure epsilon at an L1 sensitivity."""
        return cls(checked_sensitivity(sensitivity) / positive("epsilon", epsilon), sensitivity)

    @property
    def event(self) -> DpEvent:
        """The cost of one release of the whole array.

        One coordinate is the worst case for a vector too: replace the coordinates one at a time. Each replacement costs
        the trade-off curve of its own distance, and the curves of a log-concave noise compose to that of the total
        distance.
        """
        from discreet.accounting.events import LaplaceDpEvent

        return LaplaceDpEvent(self.scale / checked_sensitivity(self.sensitivity))

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the array plus noise, added in float64 and rounded once, in the type and precision of the input."""
        from discreet.mechanisms.normals import release

        values = floats_of(x)
        return in_kind(release(values, self.sample(values.shape, rng, values.device), self.deviation), x)

    def sample(self, shape: tuple[int, ...], rng: Rng, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return only the noise, in float64: the difference of two exponential numbers.

        The logarithm of one uniform number lies on a lattice that is visible in the tail; the difference of two does
        not.
        """
        import torch

        if torch.device(device).type == "cpu" or rng.is_secure:
            source, count = rng.floats(), math.prod(shape)
            noise = torch.from_numpy(source.standard_exponential(count))
            noise -= torch.from_numpy(source.standard_exponential(count))
            return noise.mul_(self.scale).view(shape).to(device)
        generator = rng.torch(device, "Laplace")
        noise = torch.empty(shape, dtype=torch.float64, device=device).exponential_(generator=generator)
        noise -= torch.empty_like(noise).exponential_(generator=generator)
        return noise.mul_(self.scale)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in one coordinate."""
        return math.sqrt(2) * self.scale


@dataclass(frozen=True)
class L2Laplace:
    """Add noise of density proportional to exp(-|z| / scale) to each vector, for a bounded L2 sensitivity.

    The direction is uniform and the length is Gamma(dimension, scale). The last axis is the vector; every row is a
    separate release.

    Guarantee: pure epsilon = sensitivity / scale for each row, if two neighbours' rows are at most `sensitivity` apart
        in L2: the log-density changes by at most that distance over the scale. In floating point: see
        docs/secure_randomness.md.
    Paper: Hardt and Talwar 2010, On the geometry of differential privacy (the K-norm mechanism with the L2 ball).

    >>> L2Laplace.for_epsilon(epsilon=4.0, sensitivity=2.0, dimension=384)
    L2Laplace(scale=0.5, dimension=384, sensitivity=2.0)
    """

    scale: float
    dimension: int
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        positive("scale", self.scale, "The mean length of the noise is dimension * scale.")
        whole("dimension", self.dimension)
        if self.sensitivity is not None:
            checked_sensitivity(self.sensitivity)

    @classmethod
    def for_epsilon(cls, epsilon: float, sensitivity: float, dimension: int) -> L2Laplace:
        """Return the noise for a pure epsilon at an L2 sensitivity."""
        return cls(checked_sensitivity(sensitivity) / positive("epsilon", epsilon), dimension, sensitivity)

    @property
    def event(self) -> DpEvent:
        """The cost of one row."""
        from discreet.accounting.events import EpsilonDeltaDpEvent

        return EpsilonDeltaDpEvent(checked_sensitivity(self.sensitivity) / self.scale, 0.0)

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the vectors plus noise, added in float64 and rounded once, in the type and precision of the input."""
        from discreet.mechanisms.normals import release

        values = floats_of(vectors_of(x, self.dimension))
        return in_kind(release(values, self.sample(values.shape, rng, values.device), self.deviation), x)

    def sample(self, shape: tuple[int, ...], rng: Rng, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return only the noise, in float64."""
        import torch

        rows = math.prod(shape[:-1])
        noise = uniform_directions(rows, self.dimension, rng, device)
        lengths = self.scale * rng.floats().standard_gamma(self.dimension, rows)
        noise *= torch.from_numpy(lengths).to(noise.device)[:, None]
        return noise.view(shape)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in one coordinate."""
        return math.sqrt(self.dimension + 1) * self.scale


def l1_of_l2(sensitivity: float, dimension: int) -> float:
    """Return the largest L1 distance of two vectors that are at most `sensitivity` apart in L2.

    >>> l1_of_l2(2.0, 4)
    4.0
    """
    return positive("sensitivity", sensitivity) * math.sqrt(whole("dimension", dimension))
