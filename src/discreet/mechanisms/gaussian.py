"""Gaussian noise for a bounded L2 sensitivity: calibrated exactly, or by the classical formula where that is proven."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.core.checks import non_negative, open_probability, positive, refuse
from discreet.mechanisms.arrays import Array, floats_of, in_kind, noise_dtype

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.core.randomness import Rng

_DELTA = "Gaussian noise has unbounded loss: give a small positive delta, such as 1e-5, or use Laplace."
_STATE = "Say how far one record can move x: .event is the cost at that distance."


@dataclass(frozen=True)
class Gaussian:
    """Add independent normal noise of standard deviation `std` to every coordinate.

    `sensitivity` is the largest L2 distance between the values of two neighbours, under the adjacency you account for;
    it may be left out where no cost is asked for.

    Guarantee: (epsilon, delta) with delta = `gaussian_delta(epsilon, std / sensitivity)`, exactly, for one release of
        the whole array, if the L2 sensitivity is as declared. In floating point: see docs/secure_randomness.md.
    Paper: Balle and Wang 2018, Improving the Gaussian mechanism for differential privacy.

    >>> round(Gaussian.for_budget(epsilon=1.0, delta=1e-5, sensitivity=1.0).std, 2)
    3.73
    """

    std: float
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        """Refuse negative noise and a sensitivity that is no distance."""
        non_negative("std", self.std, "It is a standard deviation.")
        if self.sensitivity is not None:
            positive("sensitivity", self.sensitivity, _STATE)

    @classmethod
    def for_budget(cls, epsilon: float, delta: float, sensitivity: float) -> Gaussian:
        """Return the least noise for (epsilon, delta), for any epsilon >= 0, by the analytic formula."""
        return cls(analytic_std(epsilon, delta, sensitivity), sensitivity)

    @classmethod
    def classical(cls, epsilon: float, delta: float, sensitivity: float) -> Gaussian:
        """Return the noise sensitivity * sqrt(2 ln(1.25 / delta)) / epsilon, which is proven for epsilon < 1 only."""
        return cls(classical_std(epsilon, delta, sensitivity), sensitivity)

    @property
    def event(self) -> DpEvent:
        """The cost of one release of the whole array."""
        from discreet.accounting.events import GaussianDpEvent

        if self.sensitivity is None:
            raise refuse("sensitivity", None, "stated", _STATE)
        return GaussianDpEvent(self.std / self.sensitivity)

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the array with noise added, in its own kind and precision."""
        values = floats_of(x)
        generator = rng.torch(values.device, "Gaussian")
        noise = values.new_empty(values.shape, dtype=noise_dtype(values)).normal_(generator=generator)
        return in_kind((values + noise.mul_(self.std)).to(values.dtype), x)


def gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """Return the exact delta at epsilon of normal noise with standard deviation noise_multiplier times the sensitivity.

    >>> f"{gaussian_delta(1.0, 3.7304):.3g}"
    '1e-05'
    """
    from scipy.special import erfcx, ndtr

    non_negative("epsilon", epsilon)
    positive("noise_multiplier", noise_multiplier, _DELTA)
    mu = 1.0 / noise_multiplier
    near, far = mu / 2 - epsilon * noise_multiplier, -mu / 2 - epsilon * noise_multiplier
    # The formula is Phi(near) - e^epsilon Phi(far). As e^epsilon phi(far) = phi(near), it is phi(near) times a
    # difference of Mills ratios, which loses no digits where both terms are nearly equal.
    if near < 5.0:
        ratio = math.sqrt(math.pi / 2) * float(erfcx(-near / math.sqrt(2)) - erfcx(-far / math.sqrt(2)))
        return math.exp(-near * near / 2) / math.sqrt(2 * math.pi) * ratio
    second = math.sqrt(math.pi / 2) * float(erfcx(-far / math.sqrt(2))) * math.exp(-near * near / 2)
    return float(ndtr(near)) - second / math.sqrt(2 * math.pi)


def analytic_std(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the least standard deviation of normal noise for (epsilon, delta): exact for every epsilon >= 0.

    >>> [round(analytic_std(e, 1e-5, 1.0), 2) for e in (1, 4, 10)]
    [3.73, 1.08, 0.5]
    """
    non_negative("epsilon", epsilon)
    open_probability("delta", delta, _DELTA)
    positive("sensitivity", sensitivity, _STATE)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) > delta:
        low, high = high, high * 2
    # Bisection keeps the end where delta is met, so that rounding is always on the private side.
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(epsilon, middle) > delta else (low, middle)
    return high * sensitivity


def classical_std(epsilon: float, delta: float, sensitivity: float) -> float:
    """Return the textbook standard deviation, refused where it is not proven."""
    open_probability("delta", delta, _DELTA)
    positive("sensitivity", sensitivity, _STATE)
    if not 0 < epsilon < 1:
        raise refuse("epsilon", epsilon, "in (0, 1)", "The classical formula is proven only there; use for_budget.")
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
