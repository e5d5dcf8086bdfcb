"""Normal noise that is correlated between the steps of a training run, so that it partly cancels in their sum.

With independent standard normal arrays z_t, the noise of step t is the t-th row of C⁻¹ z, where C is a lower triangular
Toeplitz matrix with coefficients c_0 = 1, c_1, c_2, … ≥ 0. Releasing x + C⁻¹ z is post-processing of C x + z, so the
cost of the release is that of independent noise on C x: a record that adds a vector of norm 1 at step j adds c_k of it
to row j + k. docs/accounting.md has the proof, also for gradients that depend on earlier releases.

The arrays z_t are regenerated from the source of their step and never stored.

Paper: Kalinin et al. 2026, DP-λCGD (one earlier array); Choquette-Choo et al. 2023, (Amplified) Banded Matrix
Factorization, and Kalinin and Lampert 2024, Banded Square Root Matrix Factorization (a band in C).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from discreet.core.errors import invalid, whole
from discreet.core.randomness import Rng
from discreet.mechanisms.normals import NormalSource, check_finite, release

Floats = npt.NDArray[np.float64]
INDEPENDENT, LAMBDA_CGD, BANDED = CORRELATIONS = ("independent", "lambda-cgd", "banded")
REMEDY = "Leave the sampler out: amplification for independent noise does not hold for correlated noise."
_ROUNDING = 1e-12  # relative floating-point error of a squared norm


class Correlation(ABC):
    """Base class of correlations between the noise of different steps."""

    @abstractmethod
    def coefficients(self, count: int) -> Floats:
        """Return the first coefficients of C; they are not negative."""

    @property
    @abstractmethod
    def column_norm(self) -> float:
        """Norm of a column of C, of any length: what one use of a record moves, over its clip norm."""

    @property
    @abstractmethod
    def earlier_normals(self) -> tuple[float, ...]:
        """Factors of z_(t-1), z_(t-2), … in the noise of step t."""

    @property
    @abstractmethod
    def earlier_noise(self) -> tuple[float, ...]:
        """Factors of the noise of steps t-1, t-2, … in the noise of step t."""

    @property
    @abstractmethod
    def deviation(self) -> float:
        """Standard deviation of the noise of a late step, over that of z."""

    @abstractmethod
    def groups_for(self, size: int, units: int) -> tuple[int, float]:
        """Return how many groups of units the steps take in turn, and the rate at which units of a group are drawn."""

    @abstractmethod
    def check_groups(self, groups: int, rate: float) -> None:
        """Reject groups and rates for which the cost is not proven."""

    def squared_cycles(self, period: int, cycles: int) -> Floats | None:
        """Return what each cycle adds to the squared sensitivity, or None if each step has a cost of its own."""
        return None


@dataclass(frozen=True)
class LambdaCGD(Correlation):
    """The noise of step t is z_t - decay · z_(t-1), where z_(t-1) is regenerated; C has coefficients decay^k.

    >>> round(LambdaCGD(0.6).column_norm, 6)
    1.25
    """

    decay: float
    earlier_noise: ClassVar[tuple[float, ...]] = ()

    def __post_init__(self) -> None:
        """Reject a decay outside (0, 1)."""
        if not 0 < self.decay < 1:
            raise invalid("decay", self.decay, "in (0, 1)", "It is the share of the last noise that is subtracted.")

    def groups_for(self, size: int, units: int) -> tuple[int, float]:
        """Return groups of the size of a batch, all of whose units are drawn."""
        return math.ceil(units / size), 1.0

    def check_groups(self, groups: int, rate: float) -> None:
        """Reject rates below 1: amplification is not proven."""
        if rate != 1:
            raise invalid("rate", rate, f"1 with {LAMBDA_CGD}", REMEDY)

    def squared_cycles(self, period: int, cycles: int) -> Floats:
        """Return what each cycle of `period` steps adds to the squared sensitivity, for a record in one step of each.

        A record in the first step of every cycle moves row i of cycle k by decay^i (1 + decay^period + … +
        decay^(k period)) times its norm. One in a later step moves every row less.

        >>> LambdaCGD(0.5).squared_cycles(1, 2).tolist()  # rows (1) and (1.5)
        [1.000000000001, 2.25000000000225]
        """
        log_decay = math.log(self.decay)
        in_cycle = math.expm1(2 * period * log_decay) / math.expm1(2 * log_decay)
        so_far = np.expm1(period * log_decay * np.arange(1, cycles + 1)) / math.expm1(period * log_decay)
        return np.asarray(in_cycle * so_far**2 * (1 + _ROUNDING), dtype=np.float64)

    def coefficients(self, count: int) -> Floats:
        """Return the powers of the decay."""
        return np.asarray(self.decay ** np.arange(count, dtype=np.float64))

    @property
    def column_norm(self) -> float:
        """Norm of a geometric series."""
        return (1 + _ROUNDING) / math.sqrt(1 - self.decay**2)

    @property
    def earlier_normals(self) -> tuple[float, ...]:
        """One earlier array."""
        return (-self.decay,)

    @property
    def deviation(self) -> float:
        """Of the difference of two arrays."""
        return math.sqrt(1 + self.decay**2)


@dataclass(frozen=True)
class Banded(Correlation):
    """C has the first `bands` coefficients of (1 - x)^(-1/2), the square root of the prefix sums, and then zeros.

    >>> Banded(3).coefficients(5).tolist()
    [1.0, 0.5, 0.375, 0.0, 0.0]
    """

    bands: int
    earlier_normals: ClassVar[tuple[float, ...]] = ()

    def __post_init__(self) -> None:
        """Reject a single band, which is independent noise."""
        whole("bands", self.bands, 2, "One band is independent noise.")

    def groups_for(self, size: int, units: int) -> tuple[int, float]:
        """Return one group for each band, so that a record is used in steps whose noise is independent."""
        batches = math.ceil(units / size)
        if self.bands > batches:
            remedy = "Each band has a group of units of its own; use fewer bands or smaller batches."
            raise invalid("bands", self.bands, f"<= {batches}, the number of batches in an epoch", remedy)
        return self.bands, min(size * self.bands / units, 1.0)

    def check_groups(self, groups: int, rate: float) -> None:
        """Reject fewer groups than bands."""
        if groups < self.bands:
            raise invalid("groups", groups, f">= {self.bands}, the number of bands", REMEDY)

    def coefficients(self, count: int) -> Floats:
        """Return the coefficients of the band, then zeros."""
        band = np.ones(self.bands)
        for k in range(1, self.bands):
            band[k] = band[k - 1] * (2 * k - 1) / (2 * k)
        return np.concatenate([band, np.zeros(max(0, count - self.bands))])[:count]

    @property
    def column_norm(self) -> float:
        """Norm of the band."""
        return float(np.linalg.norm(self.coefficients(self.bands))) * (1 + _ROUNDING)

    @property
    def earlier_noise(self) -> tuple[float, ...]:
        """Solve C w = z row by row."""
        return tuple((-self.coefficients(self.bands)[1:]).tolist())

    @property
    def deviation(self) -> float:
        """After a thousand steps; decreasing coefficients make the filter stable."""
        inverse = np.zeros(1000)
        inverse[0] = 1.0
        factors = np.array(self.earlier_noise)
        for t in range(1, len(inverse)):
            past = inverse[max(0, t - len(factors)) : t][::-1]
            inverse[t] = float(np.dot(factors[: len(past)], past))
        return float(np.linalg.norm(inverse))


class CorrelatedNormals:
    """The noise of the steps of one training run; `source` must be able to repeat itself.

    Guarantee: that of `Correlation` for all steps together, if the source stays secret.
    """

    def __init__(self, correlation: Correlation, std: float, source: Rng) -> None:
        """Begin with no noise."""
        if source.is_secure:
            remedy = "Noise of earlier steps is regenerated; use Rng.secret()."
            raise invalid("source", source, "reproducible", remedy)
        self._correlation, self._std, self._source = correlation, std, source
        self._past: list[dict[str, Tensor]] = []  # noise of the last steps, newest first
        self._next = 0

    def add(self, values: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        """Return the values of a step plus its noise, added in float64 and rounded once."""
        check_finite(values.values())
        if self._correlation.earlier_noise:
            if step != self._next:
                self._past, self._next = [], 0
            for earlier in range(self._next, step):  # a resumed run repeats the noise before it
                self._noise(values, earlier)
        noise = self._noise(values, step)
        kept = bool(self._correlation.earlier_noise)  # for the next steps
        scaled = {name: one * self._std if kept else one.mul_(self._std) for name, one in noise.items()}
        return {name: release(value.detach(), scaled[name], self._std) for name, value in values.items()}

    def _noise(self, values: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        noise = self._normals(values, step)
        for back, factor in enumerate(self._correlation.earlier_normals, 1):
            if back <= step:
                for name, one in self._normals(values, step - back).items():
                    noise[name].add_(one, alpha=factor)
        for past, factor in zip(self._past, self._correlation.earlier_noise, strict=False):
            for name, one in past.items():
                noise[name].add_(one, alpha=factor)
        if self._correlation.earlier_noise:
            self._past = [noise, *self._past][: len(self._correlation.earlier_noise)]
            self._next = step + 1
        return noise

    def _normals(self, values: Mapping[str, Tensor], step: int) -> dict[str, Tensor]:
        source = NormalSource(self._source.fork("noise", step))
        return {
            name: source.draw(tuple(value.shape), value.device, number)
            for number, (name, value) in enumerate(values.items())
        }
