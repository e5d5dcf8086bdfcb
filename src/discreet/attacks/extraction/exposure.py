"""Exposure of canaries: how far down the list of all possible secrets an attacker must go to find the planted one.

A canary is a text with a random secret from a space of known size. The attacker ranks all secrets of the space by the
model's loss. Exposure is log2 of the size of the space minus log2 of the rank of the planted secret: 0 bits for the
last rank, log2 of the size for the first. A model that never saw the canary gives each rank the same probability, so
the mean exposure is then about 1/ln 2 = 1.44 bits, not 0.

Paper: Carlini, Liu, Erlingsson, Kos and Song 2019, The Secret Sharer: Evaluating and Testing Unintended Memorization.
Differs: tied losses share their mean rank, so that a constant model has low exposure. The secrets of the other canaries
of the same space are not candidates: they were planted too. For a classifier the loss is that of the planted label.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from discreet.attacks.base import ExtractionAttack, Need, Returns
from discreet.core.errors import UnsupportedError, invalid, whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, ModelRelease
from discreet.data.canaries import Canary

Floats = npt.NDArray[np.float64]

ENUMERATED, SAMPLED, FITTED = "enumerated", "sampled", "skew-normal fit"
_FEWEST_FOR_FIT = 100  # below this number of losses a fitted tail says nothing


@dataclass(frozen=True)
class CanaryExposure(ExtractionAttack):
    """Rank the candidates of each canary by their loss.

    `extra["canaries"]` holds an array of losses for each canary, one per candidate. A space of at most `candidates`
    secrets is enumerated; of a larger one that many are sampled, and with `fit` the exposure above what the sample can
    show is extrapolated by a skew-normal distribution of the losses, which is an estimate.

    In the guess, `indices` are the candidates with the smallest loss.
    """

    candidates: int = 10_000
    fit: bool = True

    name: ClassVar[str] = "exposure"
    returns: ClassVar[Returns] = Returns.SCORES
    needs: ClassVar[frozenset[Need]] = frozenset({Need.CANARIES})

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("candidates", self.candidates, 2, "It is the number of secrets that are compared for each canary.")

    def run(self, seen: ModelRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the candidate with the smallest loss for each canary."""
        losses = knows.extra.get(Need.CANARIES.value)
        if losses is None or not len(losses):
            raise UnsupportedError(
                "Expected the losses of canaries' candidates for exposure, got none. Pass "
                f"Knowledge(extra={{{Need.CANARIES.value!r}: [losses of each canary's candidates]}})."
            )
        for row in losses:
            _check_losses(row)
        best = [int(np.argmin(row)) for row in losses]
        return Guess(indices=tuple(best), scores=tuple(float(row[i]) for row, i in zip(losses, best, strict=True)))


@dataclass(frozen=True)
class Exposure:
    """The exposure of one canary in bits, its rank, the number of candidates it was ranked among, and how.

    `largest` is the largest value that this measurement could have returned. `distance` is the Kolmogorov–Smirnov
    distance of a fit.
    """

    bits: float
    rank: float
    candidates: int
    method: str
    largest: float
    distance: float | None = None


def exposure(loss: float, others: npt.ArrayLike, *, space: int, fit: bool = True) -> Exposure:
    """Return the exposure of a canary from its loss and the losses of other candidates.

    `space` is the number of possible secrets. If the candidates are all of them, the rank is exact. If they are a
    sample, the rank among them gives at most log2 of their number; with `fit`, a canary whose loss is below all of
    theirs gets the exposure of a skew-normal distribution fitted to their losses, at most log2 of `space`.

    >>> exposure(1.0, [0.5, 2.0, 3.0], space=4)
    Exposure(bits=1.0, rank=2.0, candidates=4, method='enumerated', largest=2.0, distance=None)
    """
    losses = _check_losses(others)
    if not math.isfinite(loss):
        raise invalid("loss", loss, "finite", "The model's loss on a canary is NaN or infinite; train it again.")
    candidates = len(losses) + 1
    if candidates > whole("space", space, 2):
        raise invalid("others", len(losses), f"fewer than the {space} secrets of the space", "Pass each secret once.")
    rank = 1 + int((losses < loss).sum()) + int((losses == loss).sum()) / 2
    bits, largest = math.log2(candidates) - math.log2(rank), math.log2(candidates)
    if candidates == space:
        return Exposure(bits, rank, candidates, ENUMERATED, largest)
    if not fit or rank > 1 or candidates <= _FEWEST_FOR_FIT or np.ptp(losses) == 0:
        return Exposure(bits, rank, candidates, SAMPLED, largest)
    extrapolated, distance = _fitted(loss, losses)
    most = math.log2(space)
    return Exposure(min(max(bits, extrapolated), most), rank, candidates, FITTED, most, distance)


def _fitted(loss: float, losses: Floats) -> tuple[float, float]:
    """Return -log2 of the probability of a smaller loss under a skew-normal fit, and the distance of the fit."""
    from scipy.stats import kstest, skewnorm

    center, spread = float(losses.mean()), float(losses.std())
    standard = (losses - center) / spread
    shape, place, scale = skewnorm.fit(standard)
    below = float(skewnorm.logcdf((loss - center) / spread, shape, place, scale))
    distance = float(kstest(standard, skewnorm(shape, place, scale).cdf).statistic)
    return (math.inf if below == -math.inf else -below / math.log(2)), distance


def chance_exposure(candidates: int) -> float:
    """Return the mean exposure of a canary that the model never saw: every rank is then equally likely.

    >>> round(chance_exposure(2), 3), round(chance_exposure(10**6), 3)
    (0.5, 1.443)
    """
    whole("candidates", candidates)
    return math.log2(candidates) - math.lgamma(candidates + 1) / (candidates * math.log(2))


@dataclass(frozen=True)
class Candidates:
    """The candidates of one canary and, for the scoring, the place of the true secret among them.

    `space` is the number of secrets that the planted one was drawn from.
    """

    secrets: tuple[str, ...]
    truth: int
    space: int


def candidates_of(canary: Canary, canaries: Sequence[Canary], most: int, rng: Rng) -> Candidates:
    """Return the candidates of a canary: all secrets of its space or a sample of them, without those of others.

    Given the other canaries' secrets, its own is uniform over the remaining ones, so without memorization every rank is
    equally likely. With the same `rng`, all canaries of a space share one sample, which is then read once.
    """
    space = canary.space
    others = {one.secret for one in canaries if one.space == space} - {canary.secret}
    remaining = space.size - len(others)
    if space.size <= most:
        secrets = [secret for secret in map(space.secret, range(space.size)) if secret not in others]
        return Candidates(tuple(secrets), secrets.index(canary.secret), remaining)
    planted = others | {canary.secret}
    sample: dict[str, None] = {}
    source = rng.fork("sample")
    while len(sample) < most - 1:
        secret = space.draw(source)
        if secret not in planted:
            sample[secret] = None
    place = int(rng.fork("place", canary.name).uniform(1)[0] * most)
    secrets = list(sample)
    secrets.insert(place, canary.secret)
    return Candidates(tuple(secrets), place, remaining)


def _check_losses(losses: npt.ArrayLike) -> Floats:
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1 or not values.size or not np.isfinite(values).all():
        raise invalid("losses", values.shape, "a one-dimensional array of finite numbers", "One per candidate.")
    return values
