"""Taking reused masks off: which encodings share one, and what each is, from public vectors of the same kind alone.

Vectors of an encoder lean one way, so two encodings under one mask point alike, and under two masks they do not. The
second moments of a group are those of the private vectors with the signs of its mask, s_i s_j M_ij: multiplied entry by
entry with the moments of another group, or of public text, their first eigenvector has the signs of one mask times the
other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from discreet.attacks.representation.index import unit

Doubles = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

_TURNS = 20
_STARTS = 3
_RIDGE = 1e-2


def groups(encodings: Doubles, count: int) -> Rows:
    """Return the number of the group of each encoding, by direction: the best of a few starts.

    >>> groups(np.array([[1.0, 0.1], [0.0, 1.0], [0.9, 0.0], [0.1, 1.1]]), 2).tolist()
    [0, 1, 0, 1]
    """
    rows = unit(encodings).astype(np.float64)
    count = min(count, len(rows))
    tries = (
        _settled(rows, _far_apart(rows, count, first, around))
        for first in range(min(_STARTS, len(rows)))
        for around in (1, max(1, len(rows) // (4 * count)))
    )
    return max(tries, key=lambda found: found[1])[0]


def _far_apart(rows: Doubles, count: int, first: int, around: int) -> Doubles:
    """Return centres, each the mean of some neighbours of the row that is farthest from all before."""
    centres: list[Doubles] = []
    nearest = np.zeros(len(rows))
    nearest[first] = -2.0
    for _ in range(count):
        close = np.argsort(-(rows @ rows[int(nearest.argmin())]), kind="stable")[:around]
        centres.append(_direction(rows[close].sum(axis=0)))
        along = rows @ centres[-1]
        nearest = along if len(centres) == 1 else np.maximum(nearest, along)
    return np.array(centres)


def _settled(rows: Doubles, centres: Doubles) -> tuple[Rows, float]:
    """Return the groups that these centres settle into, and how well the rows point along their centres."""
    found = (rows @ centres.T).argmax(axis=1)
    for _ in range(_TURNS):
        sums = np.eye(len(centres))[found].T @ rows
        centres = np.array(
            [_direction(total) if total.any() else old for total, old in zip(sums, centres, strict=True)]
        )
        again = (rows @ centres.T).argmax(axis=1)
        if (again == found).all():
            break
        found = again
    return np.asarray(found, dtype=np.int64), float((rows @ centres.T).max(axis=1).sum())


def _direction(vector: Doubles) -> Doubles:
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-30))


def unmasked(encodings: Doubles, public: Doubles, masks: int) -> Doubles:
    """Return encodings without their masks, of which there are `masks`; public vectors give the signs of the last one.

    Both are taken in the spreads of the public vectors.
    """
    whose = groups(encodings, masks)
    numbers = [number for number in range(masks) if (whose == number).any()]
    numbers.sort(key=lambda number: -int((whose == number).sum()))
    moments = {number: _moments(encodings[whose == number]) for number in numbers}
    signs = {numbers[0]: np.ones(encodings.shape[1])}
    total = moments[numbers[0]].copy()
    for number in numbers[1:]:  # the largest first: what is already together shows the next its signs
        signs[number] = shared_signs(moments[number], total)
        total += _turned(moments[number], signs[number])
    for number in numbers[1:]:
        total -= _turned(moments[number], signs[number])
        signs[number] = shared_signs(moments[number], total)
        total += _turned(moments[number], signs[number])
    out = encodings * np.array([signs[number] for number in whose.tolist()])
    last = likeliest_signs(_moments(out), _moments(public), shared_signs(_moments(out), _moments(public)))
    out = out * last
    # An eigenvector has no sign of its own: each group leans the way public vectors do.
    mean = public.mean(axis=0)
    for number in numbers:
        if out[whose == number].mean(axis=0) @ mean < 0:
            out[whose == number] *= -1
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
    """Return the signs under which vectors with these moments are likeliest to be of the public kind, from a start.

    One sign at a time is turned, as long as the normal likelihood grows.
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


def _turned(moments: Doubles, signs: Doubles) -> Doubles:
    return np.asarray(moments * np.outer(signs, signs))
