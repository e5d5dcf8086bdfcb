"""Reconstruction from instance encodings: which candidates were mixed, estimated from all encodings together.

Paper: Xie and Hong 2021, Reconstruction attack on instance encoding for language understanding, and its setting in
Xie and Hong 2022: 100 private vectors, 5,000 encodings.
Differs: no network is trained. Masked encodings are undone one by one (see `unmask`), and the sums of their weights
identify the mixed vectors. For noisy encodings, mean and covariance are those of the private vectors regardless of the
mixing, and one convex program finds the candidates that explain both best. Noise that is the same in every encoding, as
in the 2022 paper's algorithm, cancels in the covariance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import torch

from discreet.attacks.base import Mixing, Need, VectorAttack
from discreet.attacks.representation.candidates import Candidates, Doubles, Floats, accelerated, candidates, released
from discreet.attacks.representation.unmask import Unmasker
from discreet.core.errors import invalid, whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, RepresentationRelease

_NAME = "Instance reconstruction"
_STEPS = 400
_MOST = 2000  # candidates in the convex program: those that the covariance favors


@dataclass(frozen=True)
class InstanceReconstruction(VectorAttack):
    """Identify the `count` private vectors behind many encodings, each a mixture of `mix` of them.

    `masked` means that signs are hidden: up to `used` random encodings are then undone one by one. Otherwise the attack
    explains the mean and covariance of all encodings. `common_noise` means that all encodings have the same noise
    vector: the mean is then not informative, and only the covariance is used.

    Candidates are passed as for similarity search, as they would enter the mixture (clipped, if the client clips).

    The guess has `indices`, `texts` and `scores` of the candidates estimated to be private, most certain first, and
    their vectors in `details["vectors"]`.
    """

    count: int = 100
    mix: int = 4
    masked: bool = True
    common_noise: bool = False
    used: int = 400

    name: ClassVar[str] = "instance"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANDIDATES})

    def __post_init__(self) -> None:
        """Check the settings."""
        for name in ("count", "mix", "used"):
            whole(name, getattr(self, name))
        if self.masked and self.common_noise:
            raise invalid("common_noise", True, "False if masked", "Masked vectors have no noise.")

    def run(self, seen: RepresentationRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the candidates estimated to be private; candidates with equal weights are in random order."""
        encodings = released(seen, _NAME)
        pool = candidates(knows, encodings.shape[1], _NAME)
        if self.count > len(pool):
            remedy = "It is the number of private vectors."
            raise invalid("count", self.count, f"at most {len(pool)}, the candidates", remedy)
        if self.masked:
            weights = self._unmasked_weights(encodings, pool, rng)
        else:
            weights = self._moment_weights(encodings.astype(np.float64), pool.vectors.astype(np.float64))
        ties = rng.fork("ties").permutation(len(pool))
        best = ties[np.argsort(-weights[ties], kind="stable")][: self.count]
        chosen = tuple(int(row) for row in best)
        return Guess(
            texts=pool.named(chosen),
            scores=tuple(float(weights[row]) for row in chosen),
            indices=chosen,
            details={"vectors": torch.from_numpy(pool.vectors[best].copy())},
        )

    def _unmasked_weights(self, encodings: Floats, pool: Candidates, rng: Rng) -> Doubles:
        """Return the mean weight of each candidate in the unmasked encodings, which count by their fit."""
        rows = rng.fork("used").permutation(len(encodings))[: self.used]
        total = np.zeros(len(pool))
        for mixture in Unmasker(pool).mixtures(encodings[rows]):
            np.add.at(total, list(mixture.rows), np.array(mixture.weights) * max(0.0, 1 - mixture.misfit) ** 4)
        return total / len(rows)

    def _moment_weights(self, encodings: Doubles, vectors: Doubles) -> Doubles:
        """Return the weight of each candidate, from 0 to 1, that best explains mean and covariance."""
        mean = encodings.mean(axis=0)
        centred = encodings - mean
        width = len(mean)
        covariance = centred.T @ centred / len(encodings)
        variance = max(float(np.trace(covariance)) / width, 1e-30)
        around = vectors - (vectors.mean(axis=0) if self.common_noise else mean)
        # Noise adds a multiple of the identity to the covariance, so all terms are compared without their trace.
        lengths = (around**2).sum(axis=1)
        along = ((around @ covariance) * around).sum(axis=1) - lengths * variance
        kept = np.argsort(-along / np.maximum(lengths, 1e-30), kind="stable")[: max(_MOST, self.count)]
        weights = np.zeros(len(vectors))
        around, vectors, lengths, along = around[kept], vectors[kept], lengths[kept], along[kept]
        share = _squares(self.mix) / self.count
        # Precisions, up to the number of encodings: 1 / variance of the mean, 1 / (2 variance²) of the covariance.
        curvature = share**2 * ((around @ around.T) ** 2 - np.outer(lengths, lengths) / width) / (2 * variance**2)
        slope = share * along / (2 * variance**2)
        if not self.common_noise:
            curvature += vectors @ vectors.T / (self.count**2 * variance)
            slope += vectors @ mean / (self.count * variance)
        weights[kept] = minimize_shares(curvature, slope, self.count)
        return weights

    def informed(self, mixing: Mixing) -> Self:
        """Return the attack with `count`, `mix` and `masked` set from the protection."""
        return replace(self, count=mixing.count, mix=mixing.mix, masked=mixing.masked)


def minimize_shares(curvature: Doubles, slope: Doubles, count: int) -> Doubles:
    """Return the w in [0, 1] with sum `count` that minimizes w'Hw / 2 - w'r, by accelerated projected gradient descent.

    >>> minimize_shares(np.eye(3), np.array([3.0, 2.0, 0.0]), 1).round(3).tolist()
    [1.0, 0.0, 0.0]
    """
    largest = _largest(curvature)
    start = np.full(len(slope), count / len(slope))
    return accelerated(start, lambda ahead: _projected(ahead - (curvature @ ahead - slope) / largest, count), _STEPS)


def _largest(square: Doubles) -> float:
    """Return an upper estimate of the largest eigenvalue of a positive matrix."""
    x = np.ones(len(square))
    size = 1.0
    for _ in range(30):
        x = square @ x
        size = max(float(np.linalg.norm(x)), 1e-30)
        x /= size
    return 1.05 * size


def _projected(w: Doubles, total: int) -> Doubles:
    """Return the nearest point in [0, 1] with sum `total`."""
    low, high = float(w.min()) - 1.0, float(w.max())
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(w - middle, 0, 1).sum() > total else (low, middle)
    return np.asarray(np.clip(w - high, 0, 1))


def _squares(mix: int) -> float:
    """Return the expected sum of squared weights of a mixture: absolute normal numbers over their sum."""
    normal = np.abs(np.random.default_rng(0).standard_normal((20_000, mix)))  # a constant of the scheme, not of a run
    return float(((normal / normal.sum(axis=1, keepdims=True)) ** 2).sum(axis=1).mean())
