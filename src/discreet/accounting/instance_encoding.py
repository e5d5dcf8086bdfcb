"""Privacy cost of DP instance encoding: noisy mixtures of clipped representations, each visible to the server.

The sound calibration: every output has fresh noise, and the weights are independent of the data, so the cost is
computed conditionally on them. Replacing record i moves output j by at most 2 C lambda_ij, hence all outputs of all
epochs together by at most 2 C sqrt(sum_j lambda_ij²) in L2 and 2 C sum_j lambda_ij in weighted norm. Training on stored
encodings is post-processing and costs nothing more.

Paper: Xie and Hong 2022, Differentially Private Instance Encoding against Privacy Attacks, theorems 3 and 4.
Differs: the paper's figures are available as calibration="paper" and are not bounds: it uses 2C for the L1 distance of
two vectors of L2 norm C (it is 2C sqrt(d)), C for the L2 distance (it is 2C), one noise vector for all outputs (their
differences are then free of noise), and no composition over the outputs that a record enters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from discreet.accounting.events import DpEvent, EpsilonDeltaDpEvent, GaussianDpEvent, LaplaceDpEvent
from discreet.accounting.gdp import gaussian_noise
from discreet.core.errors import invalid, one_of, open_probability, positive, whole

NOISES = ("gaussian", "laplace", "l2-laplace")
CALIBRATIONS = ("sound", "paper", "paper-printed")


@dataclass(frozen=True)
class Load:
    """The largest sum of squared weights and of weights of one record over all outputs."""

    squares: float
    total: float

    def __post_init__(self) -> None:
        """Check that both sums are positive."""
        positive("squares", self.squares)
        positive("total", self.total)


@dataclass(frozen=True)
class InstanceEncodingCost:
    """The cost of DP instance encoding under replace-one, by the sound or by the published calibration.

    `noise` is gaussian (scale: standard deviation), laplace (per coordinate) or l2-laplace (uniform direction, radius
    Gamma(d, scale)).

    >>> once = InstanceEncodingCost(clip_norm=1.0, load=Load(1.0, 1.0), dimension=768)
    >>> round(once.scale(epsilon=4.0, delta=1e-5), 2)
    2.16
    """

    clip_norm: float
    load: Load
    dimension: int
    noise: str = "gaussian"
    calibration: str = "sound"

    def __post_init__(self) -> None:
        """Check the fields."""
        positive("clip_norm", self.clip_norm)
        whole("dimension", self.dimension)
        one_of("noise", self.noise, NOISES)
        one_of("calibration", self.calibration, CALIBRATIONS)
        if self.calibration != "sound" and self.noise == "l2-laplace":
            raise invalid("noise", self.noise, "gaussian or laplace", "The paper defines no other noise.")

    @property
    def sensitivity(self) -> float:
        """The largest change of all outputs together when one record is replaced, in the norm of the noise."""
        if self.noise == "gaussian":
            return 2 * self.clip_norm * math.sqrt(self.load.squares)
        spread = math.sqrt(self.dimension) if self.noise == "laplace" else 1.0
        return 2 * self.clip_norm * spread * self.load.total

    def event(self, scale: float) -> DpEvent:
        """Return the event at this noise scale under replace-one, regardless of the calibration."""
        share = positive("scale", scale) / self.sensitivity
        if self.noise == "gaussian":
            return GaussianDpEvent(share)
        return LaplaceDpEvent(share) if self.noise == "laplace" else EpsilonDeltaDpEvent(1 / share)

    def scale(self, epsilon: float, delta: float = 0.0) -> float:
        """Return the noise scale by the calibration."""
        epsilon = positive("epsilon", epsilon)
        if self.calibration == "sound":
            if self.noise == "gaussian":
                return gaussian_noise(epsilon, delta, self.sensitivity)
            return self.sensitivity / epsilon
        if self.noise == "laplace":
            return 2 * self.clip_norm / epsilon
        delta = open_probability("delta", delta, "Gaussian noise needs a delta above 0.")
        numerator = (1 + math.sqrt(2 * math.log(1 / delta))) * self.clip_norm
        # the printed formula divides the variance by epsilon; every related result divides it by epsilon squared
        return numerator / (epsilon if self.calibration == "paper" else math.sqrt(epsilon))
