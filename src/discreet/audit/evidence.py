"""The log-likelihood ratio of canaries in released sums: included against excluded, for every sampler and correlation.

Each canary has a coordinate of its own, in which it adds 1 (in units of the clip norm) to the sums that it is in. The
ratio is the optimal score of a canary. It is computed step by step, from the coordinates that were released.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.samplers import CyclicPoisson, Poisson, RandomAllocation, Sampler, TruncatedPoisson
from discreet.mechanisms.correlated import Correlation

Bits = npt.NDArray[np.bool_]


class Evidence(ABC):
    """The evidence for each of `count` canaries after some steps; `state` has everything that a checkpoint needs."""

    def __init__(self, count: int, noise_multiplier: float) -> None:
        """Begin with no evidence."""
        self.variance = noise_multiplier**2
        self.state: dict[str, Tensor] = {"evidence": torch.zeros(count, dtype=torch.float64)}

    @property
    def total(self) -> Tensor:
        """The log-ratio of each canary so far."""
        return self.state["evidence"]

    @abstractmethod
    def add(self, scores: Tensor, step: int, can_be_in: Bits) -> None:
        """Add the released coordinates of a step; `can_be_in` are the canaries that the step may have sampled."""


class SampledEvidence(Evidence):
    """Every step samples each canary at a rate, with independent noise."""

    def __init__(self, count: int, noise_multiplier: float, rate: float) -> None:
        """Take the rate."""
        super().__init__(count, noise_multiplier)
        self.rate = rate

    def add(self, scores: Tensor, step: int, can_be_in: Bits) -> None:
        """Add the log-ratio of a step."""
        self.state["evidence"] += _sampled((scores - 0.5) / self.variance, self.rate)


class AllocatedEvidence(Evidence):
    """Every canary is in one of the steps of an epoch: the ratio of an epoch is the average over them."""

    def __init__(self, count: int, noise_multiplier: float, bins: int) -> None:
        """Take the number of steps in an epoch."""
        super().__init__(count, noise_multiplier)
        self.bins = bins
        self.state["epoch"] = torch.full((count,), -math.inf, dtype=torch.float64)

    def add(self, scores: Tensor, step: int, can_be_in: Bits) -> None:
        """Add the step to its epoch, and the epoch at its last step."""
        self.state["epoch"] = torch.logaddexp(self.state["epoch"], (scores - 0.5) / self.variance)
        if (step + 1) % self.bins == 0:
            self.state["evidence"] += self.state["epoch"] - math.log(self.bins)
            self.state["epoch"].fill_(-math.inf)


class CyclicEvidence(Evidence):
    """Every canary is sampled in one step of a cycle, and its value returns in later sums through correlated noise.

    The released series is multiplied by the matrix C, which makes its noise independent: at rate 1 a canary adds known
    values to its rows, otherwise its column of C to the rows of a band, if it was sampled.
    """

    def __init__(self, count: int, noise_multiplier: float, rate: float, correlation: Correlation) -> None:
        """Take the rate of a cycle and the correlation."""
        super().__init__(count, noise_multiplier)
        self.rate = rate
        self.recursive, self.moving = correlation.earlier_normals, correlation.earlier_noise
        self.band = torch.from_numpy(correlation.coefficients(len(self.moving) + 1))
        for name in ("age", "projection", *self._past):
            self.state[name] = torch.full((count,), math.inf if name == "age" else 0.0, dtype=torch.float64)

    @property
    def _past(self) -> list[str]:
        return [f"past {back}" for back in range(max(len(self.recursive), len(self.moving)))]

    def add(self, scores: Tensor, step: int, can_be_in: Bits) -> None:
        """Add the rows of a step."""
        past = [self.state[name] for name in self._past]
        row = scores.clone()
        for factor, earlier in zip(self.recursive or self.moving, past, strict=True):
            row -= factor * earlier
        for name, value in zip(self._past, [row if self.recursive else scores, *past], strict=False):
            self.state[name] = value
        begins = torch.from_numpy(can_be_in)
        if self.recursive:  # rate 1: `projection` is what the canary adds to this row
            moved = begins.double() - self.recursive[0] * self.state["projection"]
            self.state["projection"] = moved
            self.state["evidence"] += (moved * row - moved.square() / 2) / self.variance
            return
        age = torch.where(begins, 0.0, self.state["age"] + 1)
        inside = age < len(self.band)
        weight = torch.where(inside, self.band[age.clamp_max(len(self.band) - 1).long()], 0.0)
        along = torch.where(begins, 0.0, self.state["projection"]) + weight * row
        ends = age == len(self.band) - 1
        ratio = _sampled((along - float(self.band.square().sum()) / 2) / self.variance, self.rate)
        self.state["evidence"] += torch.where(ends, ratio, 0.0)
        self.state["age"], self.state["projection"] = age, along


def evidence_for(count: int, noise_multiplier: float, sampler: Sampler, correlation: Correlation | None) -> Evidence:
    """Return the evidence of canaries under a sampler and a correlation of the noise."""
    if correlation is not None and isinstance(sampler, CyclicPoisson):
        return CyclicEvidence(count, noise_multiplier, sampler.rate, correlation)
    if isinstance(sampler, RandomAllocation):
        return AllocatedEvidence(count, noise_multiplier, sampler.bins)
    if isinstance(sampler, Poisson | TruncatedPoisson):
        return SampledEvidence(count, noise_multiplier, sampler.rate)
    raise UnsupportedError(
        f"Expected Poisson batches, random allocation or correlated noise for canaries, got {sampler!r}. Use another "
        "sampler."
    )


def canary_sampler(sampler: Sampler) -> Sampler:
    """Return the sampler of gradient canaries, which are not truncated."""
    return Poisson(sampler.rate) if isinstance(sampler, TruncatedPoisson) else sampler


def sampled_canaries(sampler: Sampler, step: int, count: int, rng: Rng) -> tuple[Bits, Bits]:
    """Return the canaries that a step samples, and those that it may have sampled.

    A truncated batch is drawn as a Poisson batch here: the canaries are not units of the corpus.
    """
    sampled, possible = np.zeros(count, dtype=bool), np.ones(count, dtype=bool)
    sampled[canary_sampler(sampler).draw(step, count, rng)] = True
    if isinstance(sampler, CyclicPoisson):
        possible = np.zeros(count, dtype=bool)
        possible[CyclicPoisson(sampler.groups, 1.0).draw(step, count, rng)] = True
    return sampled, possible


def _sampled(log_ratio: Tensor, rate: float) -> Tensor:
    """Return ln(1 - q + q e^x), x the log-ratio of a sampled canary."""
    if rate == 1:
        return log_ratio
    return torch.logaddexp(torch.tensor(math.log1p(-rate), dtype=torch.float64), log_ratio + math.log(rate))
