"""Reconstruction from instance encodings without candidates: private vectors are estimated from their mixtures.

Paper: Xie and Hong 2021, Reconstruction attack on instance encoding for language understanding; after Carlini et al.
2020, Is Private Learning Possible with Instance Encoding?
Differs: no network is trained. Masks are grouped and removed by second moments. Mixtures of n < d vectors then lie in a
simplex whose corners are the private vectors. The outermost mixtures are the first estimate of the corners; then
weights (in the simplex) and vectors (by least squares) are optimized alternately. Labels are not used.

Reused masks are removed with public vectors of the same kind. Vectors of an encoder have a common direction, so two
encodings under the same mask point the same way, and under different masks they do not. The second moments of a group
are those of the private vectors with the signs of its mask, s_i s_j M_ij. In the elementwise product with the moments
of another group, or of public text, the first eigenvector has the signs of one mask times the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch

from discreet.attacks.base import Mixing, Need, VectorAttack
from discreet.attacks.representation.candidates import Doubles, accelerated, known_vectors, matrix, released, statistics
from discreet.attacks.representation.index import Index, unit
from discreet.core.errors import UnsupportedError, invalid, whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, RepresentationRelease

_NAME = "Blind reconstruction"
Rows = npt.NDArray[np.int64]
_INNER = 40
_PUBLIC = 3000  # public sentences that are encoded, if only their texts are known
_TURNS = 20
_STARTS = 3
_RIDGE = 1e-2


@dataclass(frozen=True)
class BlindReconstruction(VectorAttack):
    """Reconstruct `count` private vectors from their mixtures under one of `masks` reused masks (0 for no mask).

    It needs no candidates, but `extra["public"]`, vectors of public text of the same kind from the same encoder, or the
    text as `auxiliary` with the public model. Fresh masks cannot be grouped: use `InstanceReconstruction`.

    In the guess, `details["vectors"]` are the reconstructed vectors and `details["misfit"]` the unexplained share. If
    the knowledge has candidates with `extra["vectors"]`, `indices`, `texts` and `scores` are the nearest of each.
    """

    count: int = 100
    masks: int = 16
    turns: int = 8

    name: ClassVar[str] = "blind"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.PUBLIC_VECTORS})

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("count", self.count)
        whole("masks", self.masks, 0)
        whole("turns", self.turns)

    def run(self, seen: RepresentationRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the reconstructed vectors; the attack is deterministic."""
        encodings = released(seen, _NAME)
        width = encodings.shape[1]
        values = known_vectors(knows, "public", knows.auxiliary[:_PUBLIC])
        if values is None:
            raise UnsupportedError(
                f"Expected extra['public'], vectors of public text, for {_NAME}, got none. Encode text of the same "
                "kind with the same encoder, or pass Knowledge(auxiliary=texts, model=the public encoder)."
            )
        public = matrix("extra['public']", values, width)
        if self.count >= width or self.count > len(encodings):
            rule = f"below {width}, the width, and at most {len(encodings)}, the encodings"
            raise invalid("count", self.count, rule, "Mixtures do not determine more corners than dimensions.")
        spread = statistics(public)[1].astype(np.float64)
        mixed = encodings / spread
        if self.masks:
            mixed = remove_masks(mixed, public / spread, self.masks)
        vectors, misfit = corners(mixed, self.count, self.turns)
        vectors = vectors * spread
        details = {"vectors": torch.from_numpy(vectors).float(), "misfit": misfit}
        pool = knows.extra.get("vectors")
        if pool is None:
            return Guess(details=details)
        nearest, cosines = Index(unit(matrix("extra['vectors']", pool, width))).search(unit(vectors))
        best = tuple(int(row) for row in nearest[:, 0])
        texts = tuple(knows.candidates[row] for row in best) if knows.candidates else ()
        return Guess(texts, tuple(float(score) for score in cosines[:, 0]), best, details)

    def informed(self, mixing: Mixing) -> Self:
        """Return the attack with `count` and `masks` set from the protection."""
        return replace(self, count=mixing.count, masks=mixing.masks)


def corners(mixtures: Doubles, count: int, turns: int) -> tuple[Doubles, float]:
    """Return the vectors whose mixtures best explain all rows, and the unexplained share of the rows."""
    directions = np.linalg.svd(mixtures, full_matrices=False)[2][:count]
    rows = mixtures @ directions.T
    vectors = rows[_outermost(rows, count)]
    weights = np.full((len(rows), count), 1 / count)
    for _ in range(turns):
        weights = _simplex_weights(rows, vectors, weights)
        vectors = np.linalg.solve(weights.T @ weights + 1e-9 * len(rows) * np.eye(count), weights.T @ rows)
    misfit = np.linalg.norm(weights @ vectors @ directions - mixtures) / max(float(np.linalg.norm(mixtures)), 1e-30)
    return np.asarray(vectors @ directions), float(misfit)


def _outermost(rows: Doubles, count: int) -> list[int]:
    """Return rows one by one, each with the largest component orthogonal to all previous ones."""
    residual = rows.copy()
    chosen = []
    for _ in range(count):
        row = int((residual**2).sum(axis=1).argmax())
        chosen.append(row)
        direction = _direction(residual[row])
        residual = residual - np.outer(residual @ direction, direction)
    return chosen


def _simplex_weights(rows: Doubles, vectors: Doubles, start: Doubles) -> Doubles:
    """Return, for each row, the weights on the simplex whose combination of the vectors is closest to the row."""
    gram = vectors @ vectors.T
    largest = max(float(np.linalg.eigvalsh(gram)[-1]), 1e-30)
    target = rows @ vectors.T
    return accelerated(start, lambda ahead: _on_simplex(ahead - (ahead @ gram - target) / largest), _INNER)


def _on_simplex(rows: Doubles) -> Doubles:
    """Return the nearest points with non-negative coordinates that sum to one."""
    ordered = -np.sort(-rows, axis=1)
    sums = ordered.cumsum(axis=1) - 1
    places = np.arange(1, rows.shape[1] + 1)
    support = (ordered - sums / places > 0).sum(axis=1)
    levels = sums[np.arange(len(rows)), support - 1] / support
    return np.asarray(np.maximum(rows - levels[:, None], 0))


def groups(encodings: Doubles, count: int) -> Rows:
    """Return the group of each encoding, by direction: the best result of a few starts.

    >>> groups(np.array([[1.0, 0.1], [0.0, 1.0], [0.9, 0.0], [0.1, 1.1]]), 2).tolist()
    [0, 1, 0, 1]
    """
    rows = unit(encodings).astype(np.float64)
    count = min(count, len(rows))
    results = (
        _k_means(rows, _initial_centres(rows, count, first, around))
        for first in range(min(_STARTS, len(rows)))
        for around in (1, max(1, len(rows) // (4 * count)))
    )
    return max(results, key=lambda result: result[1])[0]


def _initial_centres(rows: Doubles, count: int, first: int, around: int) -> Doubles:
    """Return centres, each the mean of the neighbours of the row farthest from all previous centres."""
    centres: list[Doubles] = []
    nearest = np.zeros(len(rows))
    nearest[first] = -2.0
    for _ in range(count):
        close = np.argsort(-(rows @ rows[int(nearest.argmin())]), kind="stable")[:around]
        centres.append(_direction(rows[close].sum(axis=0)))
        along = rows @ centres[-1]
        nearest = along if len(centres) == 1 else np.maximum(nearest, along)
    return np.array(centres)


def _k_means(rows: Doubles, centres: Doubles) -> tuple[Rows, float]:
    """Return the groups after k-means iterations from these centres, and the sum of cosines with the centres."""
    group = (rows @ centres.T).argmax(axis=1)
    for _ in range(_TURNS):
        sums = np.eye(len(centres))[group].T @ rows
        centres = np.array(
            [_direction(total) if total.any() else old for total, old in zip(sums, centres, strict=True)]
        )
        updated = (rows @ centres.T).argmax(axis=1)
        if (updated == group).all():
            break
        group = updated
    return np.asarray(group, dtype=np.int64), float((rows @ centres.T).max(axis=1).sum())


def _direction(vector: Doubles) -> Doubles:
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-30))


def remove_masks(encodings: Doubles, public: Doubles, masks: int) -> Doubles:
    """Return encodings without their masks, one of `masks` each; public vectors determine the common signs.

    Encodings and public vectors are in units of the public standard deviations.
    """
    group = groups(encodings, masks)
    numbers = [number for number in range(masks) if (group == number).any()]
    numbers.sort(key=lambda number: -int((group == number).sum()))
    moments = {number: _moments(encodings[group == number]) for number in numbers}
    signs = {numbers[0]: np.ones(encodings.shape[1])}
    total = moments[numbers[0]].copy()
    for number in numbers[1:]:  # the largest group first: the total so far determines the signs of the next group
        signs[number] = shared_signs(moments[number], total)
        total += _flipped(moments[number], signs[number])
    for number in numbers[1:]:
        total -= _flipped(moments[number], signs[number])
        signs[number] = shared_signs(moments[number], total)
        total += _flipped(moments[number], signs[number])
    out = encodings * np.array([signs[number] for number in group.tolist()])
    last = likeliest_signs(_moments(out), _moments(public), shared_signs(_moments(out), _moments(public)))
    out = out * last
    # The sign of an eigenvector is arbitrary: orient each group like the public vectors.
    mean = public.mean(axis=0)
    for number in numbers:
        if out[group == number].mean(axis=0) @ mean < 0:
            out[group == number] *= -1
    return np.asarray(out)


def shared_signs(first: Doubles, second: Doubles) -> Doubles:
    """Return the signs s for which s_i s_j first_ij and second_ij agree most, up to one common sign.

    >>> moments = np.array([[2.0, 1.0, 0.5], [1.0, 2.0, 1.0], [0.5, 1.0, 2.0]])
    >>> flip = np.array([1.0, -1.0, 1.0])
    >>> abs(float(shared_signs(moments, moments * np.outer(flip, flip)) @ flip))
    3.0
    """
    product = first * second
    np.fill_diagonal(product, 0.0)
    return np.where(np.linalg.eigh(product)[1][:, -1] >= 0, 1.0, -1.0)


def likeliest_signs(moments: Doubles, public: Doubles, start: Doubles) -> Doubles:
    """Return the signs under which vectors with these moments are most likely under the public distribution.

    From `start`, one sign at a time is flipped while the normal likelihood increases.
    """
    size = float(np.trace(public)) / len(public)
    cost = np.linalg.inv(public + _RIDGE * size * np.eye(len(public))) * moments
    signs = start.copy()
    for _ in range(10 * len(signs)):
        gains = signs * (cost @ signs) - np.diag(cost)
        worst = int(gains.argmax())
        if gains[worst] <= 0:
            break
        signs[worst] *= -1
    return signs


def _moments(rows: Doubles) -> Doubles:
    return np.asarray(rows.T @ rows / len(rows))


def _flipped(moments: Doubles, signs: Doubles) -> Doubles:
    return np.asarray(moments * np.outer(signs, signs))
