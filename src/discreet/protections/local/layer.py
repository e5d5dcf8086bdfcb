"""The local layer: bound and randomize a vector on the user's machine before it is sent.

Paper: anonymous, Local Differential Privacy for Privacy-Preserving NLP Tasks (LDP-NLP), Algorithms 1 to 3.
Differs: the default calibration is proven (two clipped vectors are at most 2C apart, and the server sees every vector);
PrivUnit and von Mises–Fisher noise on directions in few dimensions are available besides the paper's Gaussian noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from discreet.accounting.events import DpEvent
from discreet.accounting.local_layer import LocalLayerCost, Sending
from discreet.core.errors import DataError, invalid, one_of, open_probability, positive, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.priv_unit import PrivUnit
from discreet.mechanisms.von_mises_fisher import VonMisesFisher

MECHANISMS = ("gaussian", "vmf", "privunit")
LEAST_DIMENSION = 8  # a narrower release would hold little but the label
_UNIT_REMEDY = "At epsilon 0 nothing is released; 8 on 16 dimensions is a common start."


@dataclass(frozen=True)
class LDPLayer:
    """Bound each vector and randomize it: clip and add Gaussian noise, or randomize its direction by vmf or privunit.

    `strength` is the standard deviation of the noise for gaussian, kappa for vmf and epsilon for privunit. The release
    is an unbiased estimate of the clipped vector, or of its direction.

    Guarantee: that of `event` for one release, when a vector is replaced by any other, if encoder and projection are
        public: trained on private text, they would reveal it. `Sending` describes how often a vector is sent and
        among how many.

    >>> layer = LDPLayer.for_budget("privunit", dimension=16, epsilon=8.0)
    >>> layer.event
    LocalDpEvent(epsilon=8.0, delta=0.0)
    """

    mechanism: str
    dimension: int
    strength: float
    clip_norm: float = 1.0
    name: ClassVar[str] = "ldp"
    adjacency: ClassVar[Adjacency] = Adjacency.REPLACE_ONE  # the server sees that a vector was sent

    def __post_init__(self) -> None:
        """Reject unknown mechanisms and settings outside their range."""
        one_of("mechanism", self.mechanism, MECHANISMS)
        whole("dimension", self.dimension, 2, "A direction needs at least two coordinates.")
        positive("strength", self.strength, "It is the standard deviation of the noise, kappa, or epsilon.")
        positive("clip_norm", self.clip_norm, "It bounds the distance between two vectors.")

    @classmethod
    def for_budget(
        cls,
        mechanism: str,
        *,
        dimension: int,
        epsilon: float,
        delta: float = 1e-6,
        clip_norm: float = 1.0,
        sending: Sending | None = None,
        calibration: str = "sound",
    ) -> LDPLayer:
        """Return the layer with the least noise that keeps all releases of a record within epsilon at delta.

        Guarantee: under replace-one, certified for calibration="sound"; calibration="paper" is for comparison only.
        """
        one_of("mechanism", mechanism, MECHANISMS)
        epsilon = positive("epsilon", epsilon, _UNIT_REMEDY)
        open_probability("delta", delta)
        sending = sending or Sending(population=1)
        if mechanism == "gaussian":
            cost = LocalLayerCost(clip_norm, **vars(sending), calibration=calibration)
            return cls(mechanism, dimension, cost.noise_std(epsilon, delta), clip_norm)
        if calibration != "sound":
            raise invalid("calibration", calibration, "sound for unit vectors", "The paper has Gaussian noise only.")
        if mechanism == "privunit" and sending.sampling == "once":
            return cls(mechanism, dimension, epsilon, clip_norm)  # pure: no delta is spent
        largest_kappa = 60.0 * max(epsilon, 1.0) * max(1.0, dimension**0.5)
        high = epsilon + 40.0 if mechanism == "privunit" else largest_kappa
        strength = sending.strongest(lambda s: cls(mechanism, dimension, s).event, epsilon, delta, high)
        return cls(mechanism, dimension, strength, clip_norm)

    @property
    def noise(self) -> Gaussian | VonMisesFisher | PrivUnit:
        """Mechanism that randomizes the bounded vectors."""
        if self.mechanism == "gaussian":
            return Gaussian(self.strength, 2 * self.clip_norm)
        if self.mechanism == "vmf":
            return VonMisesFisher(self.strength, self.dimension)
        return PrivUnit(self.strength, self.dimension)

    @property
    def event(self) -> DpEvent:
        """Privacy event of one vector that is replaced by any other."""
        return self.noise.event

    @property
    def variance(self) -> float:
        """Mean squared error of one coordinate of the release, which is public."""
        noise = self.noise
        if isinstance(noise, Gaussian):
            return noise.std**2
        mean = noise.mean_cosine if isinstance(noise, VonMisesFisher) else noise.cap.mean
        return (1 / mean**2 - 1) / self.dimension

    def bounded(self, vectors: Tensor) -> Tensor:
        """Return the vectors clipped to the norm, or normalized to directions; noise is added to these."""
        if vectors.ndim != 2 or vectors.shape[1] != self.dimension:
            raise DataError(f"Expected vectors of width {self.dimension}, got shape {tuple(vectors.shape)}.")
        if not bool(torch.isfinite(vectors).all()):
            raise DataError("Expected finite vectors, got NaN or infinity. Noise hides neither; remove them first.")
        length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
        if self.mechanism == "gaussian":
            # Slightly below the norm, so that rounding cannot move a vector past it.
            return vectors.mul(self.clip_norm * (1 - 1e-6) / length.clamp_min(self.clip_norm))
        return vectors.div(length.clamp_min(torch.finfo(vectors.dtype).tiny))

    def __call__(self, vectors: Tensor, rng: Rng) -> Tensor:
        """Return one release for each row, (rows, dimension)."""
        noise, bounded = self.noise, self.bounded(vectors)
        return noise.estimate(bounded, rng) if isinstance(noise, VonMisesFisher) else noise(bounded, rng)
