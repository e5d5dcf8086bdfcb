"""Von Mises–Fisher noise: replace a direction by a random direction close to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from discreet.core.errors import DataError, non_negative, whole
from discreet.mechanisms import cosines
from discreet.mechanisms.arrays import Array, in_kind, vectors_of
from discreet.mechanisms.sphere import directions_around

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent

    from discreet.core.randomness import Rng


@dataclass(frozen=True)
class VonMisesFisher:
    """Release a unit vector y of density proportional to exp(kappa <u, y>) around the direction u of each row.

    The last axis is the vector; its length is discarded and every row is a separate release. A row of zeros has no
    direction and gives a uniformly random one, as does kappa = 0. It takes one normal number per coordinate; the noise
    is sampled into the result.

    Guarantee: for each row, replaced by any other, pure epsilon = 2 * kappa, and the exact and far smaller epsilon of
        its event at a delta. A row of zeros costs no more. The length of a row must not be released with it. In
        floating point: see docs/secure_randomness.md.
    Paper: Faustini, Fernandes, McIver and Dras, Empirical calibration and metric differential privacy in
        language models; sampling after Ulrich 1984 and Wood 1994.
    Differs: the exact curve is computed besides the published pure bound; zero rows are defined.

    >>> import numpy as np
    >>> from discreet import Rng
    >>> y = VonMisesFisher(kappa=50.0, dimension=3)(np.array([[0.0, 0.0, 2.0]]), Rng(1))
    >>> bool(y[0, 2] > 0.8), round(float(np.linalg.norm(y)), 4)
    (True, 1.0)
    """

    kappa: float
    dimension: int

    def __post_init__(self) -> None:
        """Check the fields."""
        non_negative("kappa", self.kappa, "An infinite kappa releases the direction itself.")
        whole("dimension", self.dimension, 2, "A direction needs at least two coordinates.")

    @property
    def event(self) -> DpEvent:
        """The cost of one row."""
        from discreet.accounting.events import VonMisesFisherDpEvent

        return VonMisesFisherDpEvent(self.kappa, self.dimension)

    @property
    def mean_cosine(self) -> float:
        """The mean of <u, y>: dividing y by it gives an unbiased estimate of the direction u."""
        return cosines.mean_cosine(self.kappa, self.dimension)

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return a random unit vector for each row, in the type and precision of the input."""
        return self._released(x, rng, 1.0)

    def estimate(self, x: Array, rng: Rng) -> Array:
        """Return an unbiased estimate of the direction of each row: the random unit vector over the mean cosine."""
        return self._released(x, rng, 1 / self.mean_cosine)

    def _released(self, x: Array, rng: Rng, length: float) -> Array:
        vectors = vectors_of(x, self.dimension)
        flat = vectors.reshape(-1, self.dimension)
        cosine, sine = cosines.draw_cosines(self.kappa, self.dimension, len(flat), rng.floats())
        return in_kind(directions_around(flat, cosine, sine, rng, length).view(vectors.shape), x)

    def cosines(self, count: int, rng: Rng, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return only the cosines <u, y> of `count` releases, in float64, for noise that is generated elsewhere."""
        import torch

        cosine, _ = cosines.draw_cosines(self.kappa, self.dimension, count, rng.floats())
        return torch.from_numpy(cosine).to(device)

    def log_density(self, y: Array, x: Array) -> Array:
        """Return the log-density of the release y given the direction of x, with respect to surface area.

        If x is zero the release is uniform. A kappa above 1e10 is rejected: the cosine in float64 does not determine
        the density then.
        """
        import torch

        released, vectors = (vectors_of(array, self.dimension).double() for array in (y, x))
        length = torch.linalg.vector_norm(vectors, dim=-1)
        if not bool(torch.isfinite(length).all()):
            raise DataError("Expected finite vectors, got NaN or infinity. Clean them first.")
        cosine = (released * vectors).sum(-1) / torch.where(length > 0, length, 1.0)
        uniform = -cosines.log_sphere_area(self.dimension)
        return in_kind(torch.where(length > 0, self.kappa * cosine + self.log_normaliser, uniform), y)

    @property
    def log_normaliser(self) -> float:
        """The log of the normalizing constant C of the density C exp(kappa <u, y>), for kappa of at most 1e10."""
        from discreet.accounting.von_mises_fisher import log_mean

        return -log_mean(self.kappa, self.dimension) - cosines.log_sphere_area(self.dimension)
