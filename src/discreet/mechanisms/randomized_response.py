"""Randomized response: report the true category with a known probability, else another one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, invalid, non_negative, open_probability, whole
from discreet.core.rates import lower_rates, upper_rates
from discreet.mechanisms.arrays import Array, in_kind, tensor_of
from discreet.mechanisms.integers import uniform_below

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent

    from discreet.core.randomness import Rng

Floats = npt.NDArray[np.float64]
_ONE = 2**64


@dataclass(frozen=True)
class Shares:
    """The estimated share of each category among the true values, with an interval for each.

    The estimate is unbiased, so it may lie outside [0, 1]; the interval is clipped to it.
    """

    estimate: Floats
    low: Floats
    high: Floats
    n: int
    confidence: float


@dataclass(frozen=True)
class RandomizedResponse:
    """Report a category: the true one with probability e^epsilon / (e^epsilon + k - 1), else uniformly another.

    Values are integers in {0, ..., categories - 1}, or booleans for two categories. Every value is a separate release.
    Sampling uses integers from uniform words, so it works with a secure source.

    Guarantee: pure epsilon for each value replaced by any other. It is exact: the probability of a false report is a
        multiple of 2^-64, rounded up.
    Paper: Warner 1965, Randomized response; Kairouz, Bonawitz and Ramage 2016, Discrete distribution estimation under
        local privacy, for k categories.

    >>> round(RandomizedResponse(epsilon=math.log(3)).truth, 12)
    0.75
    """

    epsilon: float
    categories: int = 2

    def __post_init__(self) -> None:
        """Check the fields."""
        non_negative("epsilon", self.epsilon)
        if whole("categories", self.categories, 2, "With one category there is nothing to hide.") > 2**31:
            raise invalid("categories", self.categories, "at most 2^31", "Group the values first.")

    @property
    def _lies(self) -> int:
        """The number of the 2^64 equally likely words that give another category."""
        others = self.categories - 1
        share = others / (math.exp(self.epsilon) + others) if self.epsilon < 700 else 0.0
        fewest = math.ceil(share * 2.0**64 * (1 + 2.0**-49))  # rounded up by more than the rounding error
        return max(1, min(fewest, -(-_ONE * others // self.categories)))

    @property
    def truth(self) -> float:
        """The probability of reporting the true category."""
        return 1 - self._lies / _ONE

    @property
    def event(self) -> DpEvent:
        """The cost of one value."""
        from discreet.accounting.events import NoOpDpEvent, RandomizedResponseDpEvent

        # With probability p the event's answer is uniform over all k categories: lies = p (k - 1) / k.
        uniform = self._lies / _ONE * self.categories / (self.categories - 1)
        return RandomizedResponseDpEvent(uniform, self.categories) if uniform < 1 else NoOpDpEvent()

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the reported categories, in the type of the input."""
        import torch

        values = tensor_of(x)
        if values.is_floating_point() or values.is_complex():
            raise DataError(f"Expected integers, got {values.dtype}. Give the categories as 0, 1, 2, …")
        true = values.cpu().numpy().astype(np.int64).reshape(-1)
        if true.size and not (true.min() >= 0 and true.max() < self.categories):
            raise DataError(f"Expected categories in 0 … {self.categories - 1}, got other values.")
        lie = rng.words(len(true)) < np.uint64(self._lies)
        other = (true + 1 + uniform_below(self.categories - 1, len(true), rng)) % self.categories
        reported = torch.from_numpy(np.where(lie, other, true)).view(values.shape)
        return in_kind(reported.to(values.dtype).to(values.device), x)

    def shares(self, reported: Any, confidence: float = 0.95) -> Shares:
        """Return the unbiased estimate of each category's share among the true values, with exact intervals.

        Each interval is Clopper and Pearson's for the reported share, transformed to the true share. It holds for one
        category at the stated confidence, for fixed and for random true values (Hoeffding 1956: fixed values only make
        the count less variable).

        >>> RandomizedResponse(math.log(3)).shares(np.array([1, 1, 1, 0, 0, 0])).estimate.round(6).tolist()
        [0.5, 0.5]
        """
        open_probability("confidence", confidence)
        if self.epsilon == 0:
            raise invalid("epsilon", self.epsilon, "> 0", "At epsilon 0 the reports are independent of the truth.")
        answers = tensor_of(reported).cpu().numpy().astype(np.int64).reshape(-1)
        n = len(answers)
        if n == 0 or answers.min() < 0 or answers.max() >= self.categories:
            raise DataError(f"Expected at least one answer, all in 0 … {self.categories - 1}.")
        counts = np.bincount(answers, minlength=self.categories)
        tail = (1 - confidence) / 2
        base = (1 - self.truth) / (self.categories - 1)

        def true_share(share: Floats) -> Floats:
            return np.asarray((share - base) / (self.truth - base))

        low, high = (true_share(bounds(counts, n, tail)).clip(0, 1) for bounds in (lower_rates, upper_rates))
        return Shares(true_share(counts / n), low, high, n, confidence)
