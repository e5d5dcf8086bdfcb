"""What attacks on mixtures and on many vectors together found: the sentences in a mixture, and rebuilt vectors."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

from discreet.core.errors import invalid
from discreet.core.randomness import Rng
from discreet.core.types import Leakage
from discreet.metrics.intervals import clopper_pearson, score_interval
from discreet.metrics.text import check_lengths, unit_rows


def constituents(
    guesses: Sequence[Collection[int]], truths: Sequence[Collection[int]], index_size: int, *, rng: Rng
) -> Leakage:
    """Return the fraction of each mixture's sentences that were named, given as many guesses as sentences."""
    check_lengths(guesses, truths)
    parts = [len(set(list(a)[: len(set(b))]) & set(b)) / len(set(b)) for a, b in zip(guesses, truths, strict=True)]
    chance = float(np.mean([len(set(b)) / index_size for b in truths]))
    low, high = score_interval(parts, rng=rng.fork("constituents"))
    return Leakage("constituents", float(np.mean(parts)), low, high, len(parts), chance)


def recovered(
    guesses: npt.ArrayLike, truths: npt.ArrayLike, threshold: float = 0.95, *, chance: float | None = None
) -> Leakage:
    """Return the fraction of private vectors that have a guess of their own with at least this cosine."""
    hits = matched_cosines(guesses, truths) >= threshold
    low, high = clopper_pearson(int(hits.sum()), len(hits))
    return Leakage(f"recovered_{threshold:g}", float(hits.mean()), low, high, len(hits), chance)


def matched_cosines(guesses: npt.ArrayLike, truths: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the cosine of each private vector with its guess in the best one-to-one matching, or -1 without one."""
    first, second = (unit_rows(np.atleast_2d(rows)) for rows in (guesses, truths))
    if first.shape[1] != second.shape[1]:
        raise invalid("guesses.width", first.shape[1], f"{second.shape[1]}, the width of the truths")
    out = np.full(len(second), -1.0)
    cosines = first @ second.T
    rows, columns = linear_sum_assignment(cosines, maximize=True)
    out[columns] = cosines[rows, columns]
    return out
