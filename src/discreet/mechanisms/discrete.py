"""Discrete Laplace and discrete Gaussian noise on a grid: exact in finite arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.core.errors import DataError, invalid, positive, whole
from discreet.core.guarantee import Adjacency
from discreet.mechanisms.arrays import Array, in_kind, tensor_of
from discreet.mechanisms.integers import Integers, discrete_gaussian, discrete_laplace

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent

    from discreet.core.randomness import Rng

_FARTHEST = 2.0**52
# Above this many steps the exact curve of one coordinate has too many points, and zCDP is used instead.
_FINEST = 20_000


@dataclass(frozen=True)
class DiscreteLaplace:
    """Round every coordinate to the grid and add discrete Laplace noise: k grid steps weigh exp(-k * grid / scale).

    The last axis is a vector of `dimension` coordinates (a scalar is one coordinate) and every row is a separate
    release. `sensitivity` is the L1 distance of two neighbours before rounding. Rounding moves each
    coordinate by at most half a step, so it adds grid * dimension; with `on_grid` the values must already lie on the
    grid and nothing is added. Values beyond 2^52 steps are clamped there. Integers are returned as int64.

    Guarantee: pure epsilon = (sensitivity + grid * dimension) / scale for each row (without the second term for values
        on the grid), exactly, in finite arithmetic, with a seeded or secure source.
    Paper: Ghosh, Roughgarden and Sundararajan 2009, Universally utility-maximizing privacy mechanisms (the geometric
        mechanism).

    >>> DiscreteLaplace.for_epsilon(epsilon=0.5, sensitivity=1, on_grid=True)
    DiscreteLaplace(scale=2.0, sensitivity=1, grid=1.0, dimension=1, on_grid=True)
    """

    scale: float
    sensitivity: float
    grid: float = 1.0
    dimension: int = 1
    on_grid: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        _check(self, "scale", self.scale)

    @classmethod
    def for_epsilon(
        cls, epsilon: float, sensitivity: float, grid: float = 1.0, dimension: int = 1, on_grid: bool = False
    ) -> DiscreteLaplace:
        """Return the noise for a pure epsilon, including the cost of rounding."""
        positive("epsilon", epsilon)
        unscaled = cls(grid, sensitivity, grid, dimension, on_grid)
        return cls(unscaled.sensitivity_steps * grid / epsilon, sensitivity, grid, dimension, on_grid)

    @property
    def sensitivity_steps(self) -> int:
        """The largest L1 distance of two neighbours after rounding, in grid steps: an integer."""
        rounding = 0 if self.on_grid else self.dimension
        return max(1, math.floor(self.sensitivity / self.grid) + rounding)

    @property
    def event(self) -> DpEvent:
        """The cost of one row."""
        from discreet.accounting.events import DiscreteLaplaceDpEvent

        return DiscreteLaplaceDpEvent(self.grid / self.scale, self.sensitivity_steps)

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the values on the grid plus noise, in the type of the input."""
        steps, values = _to_grid(x, self.grid, self.dimension, self.on_grid)
        noise = discrete_laplace(self.scale / self.grid, steps.size, rng)
        return in_kind(_from_grid(steps, noise, self.grid, values), x)


@dataclass(frozen=True)
class DiscreteGaussian:
    """Round every coordinate to the grid and add discrete Gaussian noise: k steps weigh exp(-(k grid)^2 / (2 std^2)).

    The last axis is a vector of `dimension` coordinates (a scalar is one coordinate) and every row is a separate
    release. `sensitivity` is the L2 distance of two neighbours before rounding. Rounding moves each
    coordinate by at most half a step, so it adds grid * sqrt(dimension); with `on_grid` the values must already lie on
    the grid and nothing is added. Values beyond 2^52 steps are clamped there. Integers are returned as int64.

    Guarantee: for each row rho-zCDP with rho = (sensitivity + grid * sqrt(dimension))^2 / (2 std^2), and for one
        coordinate (noise of up to 20,000 steps) the exact curve of the discrete Gaussian; in finite arithmetic, with
        a seeded or secure source.
    Paper: Canonne, Kamath and Steinke 2020, The discrete Gaussian for differential privacy.
    Differs: zero-concentrated privacy is used instead of the published multivariate bound on delta.

    >>> DiscreteGaussian(std=4.0, sensitivity=1.0, grid=2**-10, dimension=384).event.rho < 0.0325
    True
    """

    std: float
    sensitivity: float
    grid: float = 1.0
    dimension: int = 1
    on_grid: bool = False

    def __post_init__(self) -> None:
        """Check the fields."""
        _check(self, "std", self.std)

    @classmethod
    def for_budget(
        cls,
        epsilon: float,
        delta: float,
        sensitivity: float,
        grid: float = 1.0,
        dimension: int = 1,
        on_grid: bool = False,
    ) -> DiscreteGaussian:
        """Return the least noise for (epsilon, delta), to six digits, including the cost of rounding."""
        from discreet.accounting.gdp import bisect_up, gaussian_noise
        from discreet.accounting.losses import curve_of

        def with_std(std: float) -> DiscreteGaussian:
            return cls(std, sensitivity, grid, dimension, on_grid)

        def holds(std: float) -> bool:
            return curve_of(with_std(std).event, Adjacency.REPLACE_ONE).delta(epsilon) <= delta

        # Continuous noise for the rounded distance is a good start; on a coarse grid less may suffice.
        std = max(gaussian_noise(epsilon, delta, with_std(grid).sensitivity_steps * grid), grid / 4)
        while not holds(std):
            std *= 1.25
        return with_std(bisect_up(holds, std / 4, std, 1e-6))

    @property
    def sensitivity_steps(self) -> float:
        """The largest L2 distance of two neighbours after rounding, in grid steps."""
        rounding = 0.0 if self.on_grid else math.sqrt(self.dimension)
        steps = self.sensitivity / self.grid + rounding
        return max(1.0, float(math.floor(steps)) if self.dimension == 1 else steps)

    @property
    def event(self) -> DpEvent:
        """The cost of one row."""
        from discreet.accounting.events import DiscreteGaussianDpEvent, ZCDpEvent

        sigma = self.std / self.grid
        if self.dimension == 1 and sigma <= _FINEST and self.sensitivity_steps <= 10 * _FINEST:
            return DiscreteGaussianDpEvent(sigma, int(self.sensitivity_steps))
        return ZCDpEvent(self.sensitivity_steps**2 / (2 * sigma**2))

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the values on the grid plus noise, in the type of the input."""
        steps, values = _to_grid(x, self.grid, self.dimension, self.on_grid)
        noise = discrete_gaussian(self.std / self.grid, steps.size, rng)
        return in_kind(_from_grid(steps, noise, self.grid, values), x)


def _check(noise: DiscreteLaplace | DiscreteGaussian, name: str, width: float) -> None:
    positive(name, width)
    positive("sensitivity", noise.sensitivity, "It is the largest change of x by one record, before rounding.")
    whole("dimension", noise.dimension)
    if math.frexp(positive("grid", noise.grid))[0] != 0.5:
        nearest = 2.0 ** round(math.log2(noise.grid))
        raise invalid("grid", noise.grid, "a power of two", f"Rounding to it is exact. The closest is {nearest:g}.")
    if not 2.0**-10 <= width / noise.grid <= 2.0**40:
        raise invalid(name, width, f"between 2^-10 and 2^40 steps of grid={noise.grid!r}", "Choose another grid.")


def _to_grid(x: Any, grid: float, dimension: int, on_grid: bool) -> tuple[Integers, torch.Tensor]:
    values = tensor_of(x)
    last = values.shape[-1] if values.ndim else 1
    if last != dimension:
        raise DataError(f"Expected vectors of dimension {dimension} on the last axis, got shape {tuple(values.shape)}.")
    exact = values.detach().cpu().numpy() if values.dtype.itemsize > 2 else values.detach().cpu().double().numpy()
    if exact.dtype in (np.int64, np.uint64):
        # Larger integers have no exact float64; clamping moves no two neighbours farther apart.
        exact = exact.clip(max(-(2**53), np.iinfo(exact.dtype).min), 2**53)
    scaled = np.asarray(exact, dtype=np.float64).reshape(-1) / grid
    if np.isnan(scaled).any():
        raise DataError("Expected numbers, got NaN. Clean the values first: noise does not hide it.")
    scaled = np.clip(scaled, -_FARTHEST, _FARTHEST)
    steps = np.rint(scaled)
    if on_grid and not np.array_equal(steps, scaled):
        raise DataError(f"Expected values on the grid of {grid:g}, got others. Omit on_grid to round them.")
    return steps.astype(np.int64), values


def _from_grid(steps: Integers, noise: Integers, grid: float, like: torch.Tensor) -> torch.Tensor:
    import torch

    total = torch.from_numpy(steps + noise).view(like.shape)
    if like.is_floating_point():
        return (total.double() * grid).to(like.dtype).to(like.device)
    if grid < 1:
        return (total.double() * grid).to(like.device)
    most = 2**62 // int(grid)  # above it the product overflows int64; clamping a release is post-processing
    return (total.clamp(-most, most) * int(grid)).to(like.device)
