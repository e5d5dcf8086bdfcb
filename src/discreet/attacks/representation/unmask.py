"""Undoing mixes and masks: which candidates, with which weights, and which signs, give a released vector.

A mask hides the signs of a mixture and none of its sizes. The signs of a coordinate that public vectors hardly ever
change are known; with them, non-negative least squares finds some of the mixture; that predicts more signs; and so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discreet.attacks.representation.candidates import Candidates, Floats
from discreet.attacks.representation.index import Index, unit

Doubles = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_FIRST, _LAST = 0.8, 0.03  # doubt about the predicted coordinates, in spreads, in the first and in the last round
_SUM = 50.0  # weight of the row that says: the weights sum to one
_KEPT = 88  # candidates that stay for the next round
_EXPLAINED = 0.05  # a misfit below which nothing is left to find


@dataclass(frozen=True)
class Mixture:
    """What a released vector is taken to be made of: candidates and their weights, heaviest first, and the misfit.

    The misfit is the length of what is left unexplained over the length of the vector, both in spreads.
    """

    rows: tuple[int, ...]
    weights: tuple[float, ...]
    misfit: float


class Unmasker:
    """Non-negative least squares over a shortlist of candidates, in turns with a guess of the signs.

    Each round predicts the vector from the weights found so far (at first: the public mean), gives each size the sign
    of its prediction, softly where the prediction is near zero, solves for the weights, and lets the candidates that
    point most along what is left over into the shortlist.
    """

    def __init__(self, known: Candidates, *, rounds: int = 12, shortlist: int = 64, added: int = 8) -> None:
        """Index the candidates, in spreads and, for the first shortlist, by their sizes alone."""
        self._known = known
        self._rounds, self._shortlist, self._added = rounds, shortlist, added
        whitened = known.vectors / known.spread
        self._along = Index(whitened)
        self._sizes = Index(unit(np.abs(whitened)))
        self._signed = Index(unit(whitened))

    def mixtures(self, queries: Floats, *, masked: bool = True) -> list[Mixture]:
        """Return the mixture behind each query, whose signs are hidden if it is masked.

        What starting from the public mean leaves unexplained is tried again from the candidate with the most similar
        sizes, and the better of the two is kept.
        """
        whitened = (queries / self._known.spread).astype(np.float64)
        first = self._sizes if masked else self._signed
        listed, _ = first.search(unit(np.abs(whitened) if masked else whitened), self._shortlist)
        mean = (self._known.mean / self._known.spread).astype(np.float64)
        found = self._solve(whitened, listed, np.broadcast_to(mean, whitened.shape), masked)
        again = [row for row, mixture in enumerate(found) if masked and mixture.misfit > _EXPLAINED]
        if again:
            starts = (self._known.vectors[listed[again, 0]] / self._known.spread).astype(np.float64)
            for row, other in zip(again, self._solve(whitened[again], listed[again], starts, masked), strict=True):
                found[row] = min(found[row], other, key=lambda mixture: mixture.misfit)
        return found

    def _solve(self, whitened: Doubles, listed: Rows, starts: Doubles, masked: bool) -> list[Mixture]:
        """Return a mixture for each query from one start."""
        lists = list(listed)
        prediction = starts.copy()
        weights: list[Doubles] = []
        for doubt in np.geomspace(_FIRST, _LAST, self._rounds):
            target = signed(whitened, prediction, float(doubt)) if masked else whitened
            if weights:
                lists = self._longer(lists, weights, target - prediction)
            weights = []
            for row, chosen in enumerate(lists):
                rows = (self._known.vectors[chosen] / self._known.spread).astype(np.float64)
                weights.append(simplex_weights(rows, target[row]))
                prediction[row] = weights[-1] @ rows
        left = np.abs(whitened) - np.abs(prediction) if masked else whitened - prediction
        misfits = np.linalg.norm(left, axis=1) / np.maximum(np.linalg.norm(whitened, axis=1), 1e-30)
        return [_mixture(*parts) for parts in zip(lists, weights, misfits.tolist(), strict=True)]

    def _longer(self, lists: list[Rows], weights: list[Doubles], left: Doubles) -> list[Rows]:
        """Return the shortlists with the candidates that point most along what is left over."""
        fresh, _ = self._along.search(left, self._added)
        kept = (listed[np.argsort(-found, kind="stable")[:_KEPT]] for listed, found in zip(lists, weights, strict=True))
        return [
            np.array(list(dict.fromkeys([*old.tolist(), *new.tolist()])), dtype=np.int64)
            for old, new in zip(kept, fresh, strict=True)
        ]


def signed(sizes: Doubles, prediction: Doubles, doubt: float) -> Doubles:
    """Return sizes with the signs of a prediction, drawn towards zero where size and prediction are small.

    It is the expected value of a number of which the size is exact and the prediction has a normal error.

    >>> signed(np.array([-2.0, 2.0]), np.array([1.0, -0.01]), 0.5).round(2).tolist()
    [2.0, -0.16]
    """
    a = np.abs(sizes)
    return np.asarray(a * np.tanh(a * prediction / doubt**2))


def simplex_weights(rows: Doubles, target: Doubles) -> Doubles:
    """Return the non-negative weights, summing to one or nearly, with which rows come closest to a target."""
    from scipy.optimize import nnls

    stacked = np.vstack([rows.T, np.full((1, len(rows)), _SUM)])
    return np.asarray(nnls(stacked, np.append(target, _SUM), maxiter=20 * max(rows.shape))[0])


def _mixture(listed: Rows, weights: Doubles, misfit: float) -> Mixture:
    order = [int(place) for place in np.argsort(-weights, kind="stable") if weights[place] > 0]
    order = order or [0]  # a query of zeros: no candidate is better than another
    return Mixture(tuple(int(listed[i]) for i in order), tuple(float(weights[i]) for i in order), misfit)
