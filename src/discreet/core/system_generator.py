"""Floating-point draws whose every bit comes from the operating system, for releases that nobody needs to repeat.

The methods are those of `numpy.random.Generator` that the mechanisms use, with the same names and meaning.
"""

from __future__ import annotations

import os
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_HALF, _TAIL = 2.0**-64, 2.0**-128


class FloatGenerator(Protocol):
    """What the mechanisms draw from: a numpy generator, or the operating system."""

    def random(self, size: int) -> Floats:
        """Return uniform numbers between 0 and 1."""
        ...

    def standard_normal(self, size: int) -> Floats:
        """Return normal numbers of variance 1."""
        ...

    def standard_exponential(self, size: int) -> Floats:
        """Return exponential numbers of mean 1."""
        ...

    def standard_gamma(self, shape: float, size: int) -> Floats:
        """Return gamma numbers of scale 1."""
        ...


class SystemGenerator:
    """Draw uniform, normal, exponential and gamma numbers in float64 from `os.urandom`.

    A uniform number has 128 bits before it is rounded to float64, so that its logarithm is not limited to the values
    that 53 bits allow in the tail.
    """

    def random(self, size: int) -> Floats:
        """Return uniform numbers in (0, 1], with 53 significant bits at any size down to 2^-129."""
        words = np.frombuffer(os.urandom(16 * size), dtype=np.uint64).astype(np.float64)
        return np.asarray(words[:size] * _HALF + (words[size:] + 0.5) * _TAIL)

    def standard_exponential(self, size: int) -> Floats:
        """Return -log of uniform numbers."""
        return np.asarray(-np.log(self.random(size)))

    def standard_normal(self, size: int) -> Floats:
        """Return normal numbers by the method of Box and Muller, both of each pair."""
        pairs = -(-size // 2)
        radius = np.sqrt(2 * self.standard_exponential(pairs))
        angle = 2 * np.pi * self.random(pairs)
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]

    def standard_gamma(self, shape: float, size: int) -> Floats:
        """Return gamma numbers.

        Paper: Marsaglia and Tsang 2000, A simple method for generating gamma variables.
        """
        if shape < 1:
            power = self.standard_exponential(size) / -shape
            return np.asarray(self.standard_gamma(shape + 1, size) * np.exp(power))
        d = shape - 1 / 3
        found = np.empty(size)
        filled = 0
        while filled < size:
            count = int((size - filled) * 1.1) + 8
            x = self.standard_normal(count)
            v = (1 + x / np.sqrt(9 * d)) ** 3
            positive = v > 0
            log_v = np.log(np.where(positive, v, 1.0))
            keep = positive & (-self.standard_exponential(count) < x * x / 2 + d - d * v + d * log_v)
            some = (d * v)[keep][: size - filled]
            found[filled : filled + len(some)] = some
            filled += len(some)
        return found
