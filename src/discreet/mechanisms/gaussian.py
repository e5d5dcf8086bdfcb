"""Gaussian noise for a bounded L2 sensitivity, calibrated exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.core.errors import non_negative
from discreet.mechanisms.arrays import Array, checked_sensitivity, floats_of, in_kind

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent

    from discreet.core.randomness import Rng


@dataclass(frozen=True)
class Gaussian:
    """Add independent normal noise of standard deviation `std` to every coordinate.

    `sensitivity` is the largest L2 distance between the values of two neighbours, under the adjacency used for
    accounting. It is needed for `event` only.

    Guarantee: for one release of the whole array, mu-GDP with mu = sensitivity / std, so the exact delta at every
        epsilon, if the L2 sensitivity is as declared. In floating point: see docs/secure_randomness.md;
        `DiscreteGaussian` is exact.
    Paper: Balle and Wang 2018, Improving the Gaussian mechanism for differential privacy.

    >>> round(Gaussian.for_budget(epsilon=1.0, delta=1e-5, sensitivity=1.0).std, 2)
    3.73
    """

    std: float
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        non_negative("std", self.std, "It is a standard deviation.")
        if self.sensitivity is not None:
            checked_sensitivity(self.sensitivity)

    @classmethod
    def for_budget(cls, epsilon: float, delta: float, sensitivity: float) -> Gaussian:
        """Return the least noise for (epsilon, delta), for any epsilon >= 0, by the analytic formula."""
        from discreet.accounting.gdp import ROUNDING, gaussian_noise

        return cls(gaussian_noise(epsilon, delta, sensitivity) * (1 + ROUNDING), sensitivity)

    @property
    def event(self) -> DpEvent:
        """The cost of one release of the whole array."""
        from discreet.accounting.events import GaussianDpEvent

        return GaussianDpEvent(self.std / checked_sensitivity(self.sensitivity))

    def sample(self, shape: tuple[int, ...], rng: Rng, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return only the noise, in float64; add it with `release` and `deviation`, which round the sum once."""
        from discreet.mechanisms.normals import normals

        return normals(shape, rng, device).mul_(self.std)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in one coordinate."""
        return self.std

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the array plus noise, added in float64 and rounded once, in the type and precision of the input."""
        from discreet.mechanisms.normals import add_normal

        return in_kind(add_normal(floats_of(x), self.std, rng), x)
