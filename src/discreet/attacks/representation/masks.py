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
_RIDGE = 1e-2


def groups(encodings: Doubles, count: int) -> Rows:
    """Return the number of the group of each encoding, by direction; the first centres are chosen far apart.

    >>> groups(np.array([[1.0, 0.1], [0.0, 1.0], [0.9, 0.0], [0.1, 1.1]]), 2).tolist()
    [0, 1, 0, 1]
    """
    rows = unit(encodings).astype(np.float64)
    around = max(1, len(rows) // (4 * count))
    centres: list[Doubles] = []
    nearest = np.full(len(rows), -1.0)
    for _ in range(min(count, len(rows))):
        # the mean of the neighbours of the farthest row: a single row may be an outlier of a group that has its centre
        close = np.argsort(-(rows @ rows[int(nearest.argmin())]), kind="stable")[:around]
        centre = rows[close].sum(axis=0)
        centres.append(centre / max(float(np.linalg.norm(centre)), 1e-30))
        nearest = np.maximum(nearest, rows @ centres[-1])
    middle = np.array(centres)
    found = (rows @ middle.T).argmax(axis=1)
    for _ in range(_TURNS):
        members = np.eye(len(middle))[found]
        sums = members.T @ rows
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        middle = np.where(lengths > 0, sums / np.where(lengths > 0, lengths, 1.0), middle)
        again = (rows @ middle.T).argmax(axis=1)
        if (again == found).all():
            break
        found = again
    return np.asarray(found, dtype=np.int64)


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
