"""Undo mixing and masks: find the candidates, weights and signs that produce a released vector.

A mask hides the signs of a mixture but not its absolute values. Some coordinates have the same sign in nearly all
public vectors. With those signs, non-negative least squares finds part of the mixture, which predicts more signs, and
so on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discreet.attacks.representation.candidates import Candidates, Doubles, Floats
from discreet.attacks.representation.index import Index, unit

Rows = npt.NDArray[np.int64]

_FIRST, _LAST = 0.8, 0.03  # error of the predicted coordinates, in standard deviations, in the first and last round
_SUM = 50.0  # weight of the equation that the weights sum to one
_KEPT = 88  # candidates that are kept for the next round
_EXPLAINED = 0.05  # a misfit below which the mixture is complete


@dataclass(frozen=True)
class Mixture:
    """The estimated mixture of a released vector: candidates and weights, the largest first, and the misfit.

    The misfit is the norm of the residual over the norm of the vector, both in standard deviations.
    """

    rows: tuple[int, ...]
    weights: tuple[float, ...]
    misfit: float


class Unmasker:
    """Non-negative least squares over a shortlist of candidates, alternating with a prediction of the signs.

    Each round predicts the vector from the current weights (at first, the public mean), gives each absolute value the
    sign of its prediction, softly where the prediction is near zero, solves for the weights, and adds the candidates
    most aligned with the residual to the shortlist.
    """

    def __init__(self, pool: Candidates, *, rounds: int = 12, shortlist: int = 64, added: int = 8) -> None:
        """Index the candidates, in standard deviations, and for the first shortlist by their absolute values."""
        self._pool = pool
        self._rounds, self._shortlist, self._added = rounds, shortlist, added
        whitened = pool.vectors / pool.spread
        self._along = Index(whitened)
        self._sizes = Index(unit(np.abs(whitened)))
        self._signed = Index(unit(whitened))

    def mixtures(self, queries: Floats, *, masked: bool = True) -> list[Mixture]:
        """Return the mixture of each query, whose signs are hidden if it is masked.

        A query that is not explained from the public mean is solved again from the candidate with the most similar
        absolute values, and the better of the two is returned.
        """
        whitened = (queries / self._pool.spread).astype(np.float64)
        first = self._sizes if masked else self._signed
        listed, _ = first.search(unit(np.abs(whitened) if masked else whitened), self._shortlist)
        mean = (self._pool.mean / self._pool.spread).astype(np.float64)
        mixtures = self._solve(whitened, listed, np.broadcast_to(mean, whitened.shape), masked)
        retry = [row for row, mixture in enumerate(mixtures) if masked and mixture.misfit > _EXPLAINED]
        if retry:
            starts = (self._pool.vectors[listed[retry, 0]] / self._pool.spread).astype(np.float64)
            for row, other in zip(retry, self._solve(whitened[retry], listed[retry], starts, masked), strict=True):
                mixtures[row] = min(mixtures[row], other, key=lambda mixture: mixture.misfit)
        return mixtures

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
                rows = (self._pool.vectors[chosen] / self._pool.spread).astype(np.float64)
                weights.append(simplex_weights(rows, target[row]))
                prediction[row] = weights[-1] @ rows
        residual = np.abs(whitened) - np.abs(prediction) if masked else whitened - prediction
        misfits = np.linalg.norm(residual, axis=1) / np.maximum(np.linalg.norm(whitened, axis=1), 1e-30)
        return [_mixture(*parts) for parts in zip(lists, weights, misfits.tolist(), strict=True)]

    def _longer(self, lists: list[Rows], weights: list[Doubles], residual: Doubles) -> list[Rows]:
        """Return the shortlists extended by the candidates most aligned with the residual."""
        aligned, _ = self._along.search(residual, self._added)
        kept = (rows[np.argsort(-weight, kind="stable")[:_KEPT]] for rows, weight in zip(lists, weights, strict=True))
        return [
            np.array(list(dict.fromkeys([*old.tolist(), *new.tolist()])), dtype=np.int64)
            for old, new in zip(kept, aligned, strict=True)
        ]


def signed(sizes: Doubles, prediction: Doubles, doubt: float) -> Doubles:
    """Return absolute values with the signs of a prediction, shrunk towards zero where both are small.

    It is the expectation of a number whose absolute value is exact and whose prediction has a normal error.

    >>> signed(np.array([-2.0, 2.0]), np.array([1.0, -0.01]), 0.5).round(2).tolist()
    [2.0, -0.16]
    """
    a = np.abs(sizes)
    return np.asarray(a * np.tanh(a * prediction / doubt**2))


def simplex_weights(rows: Doubles, target: Doubles) -> Doubles:
    """Return the non-negative weights, summing to nearly one, that bring the rows closest to a target."""
    from scipy.optimize import nnls

    stacked = np.vstack([rows.T, np.full((1, len(rows)), _SUM)])
    return np.asarray(nnls(stacked, np.append(target, _SUM), maxiter=20 * max(rows.shape))[0])


def _mixture(listed: Rows, weights: Doubles, misfit: float) -> Mixture:
    order = [int(place) for place in np.argsort(-weights, kind="stable") if weights[place] > 0]
    order = order or [0]  # for a zero query all candidates are equal
    return Mixture(tuple(int(listed[i]) for i in order), tuple(float(weights[i]) for i in order), misfit)
