"""The cosine between a direction and its von Mises–Fisher noise: exact sampling and mean.

The cosine t has density proportional to exp(kappa t) (1 - t^2)^((d - 3) / 2) on [-1, 1]. It determines the privacy and
the error of the mechanism: the rest of the direction is uniform.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from discreet.core.errors import non_negative, whole

if TYPE_CHECKING:
    from discreet.core.randomness import FloatGenerator

Floats = npt.NDArray[np.float64]


def draw_cosines(kappa: float, dimension: int, count: int, generator: FloatGenerator) -> tuple[Floats, Floats]:
    """Return `count` exact samples of the cosine and of the sine, sqrt(1 - cosine^2).

    Rejection sampling from a transformed beta. With two gamma samples g, h of shape (d - 1) / 2 the proposal is
    t = (h - b g) / (h + b g), and the log of the acceptance probability is (d - 1) (log(1 + s) - s) with
    s = (1 - b) / 2 * (g - h) / (h + b g): no large terms cancel, at any kappa and d. At least two samples in three are
    accepted.

    Paper: Ulrich 1984 and Wood 1994, Simulation of the von Mises Fisher distribution.
    Differs: the acceptance test is rewritten as above; the sine is computed from g and h, not from 1 - cosine^2.
    """
    degrees = dimension - 1
    root = math.hypot(2 * kappa, degrees)
    b = degrees / (2 * kappa + root)
    half_gap = (kappa + 2 * kappa * kappa / (root + degrees)) / (2 * kappa + root)  # (1 - b) / 2

    def propose(missing: int) -> tuple[Floats, Floats]:
        trials = missing if kappa == 0 else int(missing * 1.55) + 8
        g = generator.standard_gamma(degrees / 2, trials)
        h = generator.standard_gamma(degrees / 2, trials)
        total = h + b * g
        s = half_gap * (g - h) / total
        keep = np.log(generator.random(trials)) <= degrees * (np.log1p(s) - s) if kappa > 0 else np.ones(trials, bool)
        g, h, total = g[keep], h[keep], total[keep]
        return (h - b * g) / total, 2 * np.sqrt(b * g * h) / total

    return accepted(count, propose)


def accepted(count: int, propose: Callable[[int], tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return `count` cosines and sines of a rejection sampler; `propose(n)` returns the accepted ones of n trials."""
    pairs = np.empty((2, count))
    filled = 0
    while filled < count:
        cosine, sine = propose(count - filled)
        end = min(filled + len(cosine), count)
        pairs[:, filled:end] = cosine[: end - filled], sine[: end - filled]
        filled = end
    return pairs[0], pairs[1]


def log_sphere_area(dimension: int) -> float:
    """Return the log of the surface area of the unit sphere in d dimensions.

    >>> round(math.exp(log_sphere_area(3)) / math.pi, 6)
    4.0
    """
    return math.log(2) + dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2)


def mean_cosine(kappa: float, dimension: int) -> float:
    """Return the mean of the cosine, the Bessel ratio I_(d/2) / I_(d/2 - 1), by its continued fraction.

    >>> round(mean_cosine(1.0, 3), 6) == round(1 / math.tanh(1.0) - 1, 6)
    True
    """
    non_negative("kappa", kappa, "An infinite kappa releases the direction itself.")
    whole("dimension", dimension, 2, "A direction needs at least two coordinates.")
    if kappa == 0:
        return 0.0
    # Backward recurrence r_v = kappa / (2 (v + 1) + kappa r_(v + 1)). Start far enough above for the error of the
    # first guess to vanish; the guess is a bound that is tight for large orders (Amos 1974).
    order = dimension / 2 - 1
    steps = 40 + int(8 * math.sqrt(kappa) + max(0.0, 2 * kappa - order) ** 0.5 * 8)
    top = order + steps
    ratio = kappa / (top + 0.5 + math.hypot(top + 1.5, kappa))
    for k in range(steps, 0, -1):
        ratio = kappa / (2 * (order + k) + kappa * ratio)
    return ratio
