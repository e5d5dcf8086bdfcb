"""Puts states that were read one by one into sentences: by a tag that they share, or by running means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment

from discreet.attacks.gradient.imprints import Imprints

Words = dict[int, int]  # position to token
_ALIKE = (0.02, 0.05, 0.1, 0.2, 0.4)  # distances of tags, relative to their usual length, tried for one sentence
_SAME = 0.02  # how far two running sums may differ, relative to their length, and be the same
_MOST = 0.8  # the part of the clear states that the sentences together must hold


def groups(found: Imprints, count: int, sure: float) -> list[Words]:
    """Return at most `count` sentences whose states share a tag, the largest first.

    Clear states form the groups; the others join the nearest. Within a group, states are assigned to positions so that
    the total match is largest, one to a position.
    """
    if not len(found):
        return []
    tags, matches = found.tags.double().cpu().numpy(), found.matches.double().cpu().numpy()
    clear = np.flatnonzero(matches >= min(sure, float(np.median(matches))))
    labels = _clusters(tags[clear], count)
    largest = np.argsort(-np.bincount(labels), kind="stable")[:count]  # what is left over are mixtures of states
    centres = np.stack([np.median(tags[clear][labels == k], axis=0) for k in largest])
    away = np.linalg.norm(tags[:, None] - centres, axis=2)
    nearest = np.where(away.min(axis=1) <= _reach(centres), away.argmin(axis=1), -1)
    made = [_placed(found, np.flatnonzero(nearest == k), matches) for k in range(len(centres))]
    return sorted((words for words in made if words), key=len, reverse=True)[:count]


def _reach(centres: npt.NDArray[np.float64]) -> float:
    """Return how far from its group's tag a state may lie: half of the way to the next group."""
    if len(centres) < 2:
        return math.inf
    apart = np.linalg.norm(centres[:, None] - centres, axis=2)
    return float(apart[apart > 0].min(initial=math.inf)) / 2


def _clusters(tags: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.int64]:
    """Return the number of each tag's group, cut as finely as leaves most tags in `count` groups."""
    if len(tags) == 1:
        return np.zeros(1, dtype=np.int64)
    length = float(np.median(np.linalg.norm(tags, axis=1)))
    tree = linkage(tags, "average")
    for alike in _ALIKE:
        labels = np.asarray(fcluster(tree, alike * length, "distance") - 1, dtype=np.int64)
        if np.sort(np.bincount(labels))[-count:].sum() >= _MOST * len(tags):
            break
    return labels


def _placed(found: Imprints, rows: npt.NDArray[np.int64], matches: npt.NDArray[np.float64]) -> Words:
    """Return the tokens of one group by position: the assignment of states to positions with the best total match."""
    if not len(rows):
        return {}
    tokens, places = found.tokens[rows].tolist(), found.places[rows].tolist()
    positions = sorted(set(places))
    scores = np.zeros((len(rows), len(positions)))
    for i, place in enumerate(places):
        scores[i, positions.index(place)] = matches[rows[i]]
    taken, columns = linear_sum_assignment(scores, maximize=True)
    return {positions[j]: tokens[i] for i, j in zip(taken, columns, strict=True) if scores[i, j] > 0}


def chains(found: Imprints, count: int) -> list[Words]:
    """Return at most `count` sentences of a causal model, the longest first.

    There a tag is the mean over the tokens up to a state's own. What is left of its sum without the state's own part is
    the sum at the position before: each state follows the one whose sum that is. Sentences that begin alike share
    states, so the states form a tree, and a sentence is a way from the root to a leaf.
    """
    if not len(found):
        return []
    places = found.places.cpu().numpy()
    sums = found.tags.double().cpu().numpy() * (places[:, None] + 1)
    before = sums - found.sources.double().cpu().numpy()
    matches = found.matches.double().cpu().numpy()
    tokens = found.tokens.tolist()
    ways: dict[int, Words] = {}  # the way to each state at the position before
    ended: list[Words] = []
    for place in range(int(places.max()) + 1):
        longer: dict[int, Words] = {}
        followed: set[int] = set()
        for row in _distinct(np.flatnonzero(places == place), sums, matches):
            way: Words = {}
            if ways:
                last = min(ways, key=lambda k: float(np.linalg.norm(before[row] - sums[k])))
                if _close(before[row], sums[last]):
                    way = ways[last]
                    followed.add(last)
            longer[row] = {**way, place: tokens[row]}
        ended += [way for row, way in ways.items() if row not in followed]
        ways = longer
    return sorted([*ended, *ways.values()], key=len, reverse=True)[:count]


def _close(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> bool:
    return bool(np.linalg.norm(first - second) <= _SAME * np.linalg.norm(second))


def _distinct(
    rows: npt.NDArray[np.int64], sums: npt.NDArray[np.float64], matches: npt.NDArray[np.float64]
) -> list[int]:
    """Return one row of each that have the same sums: the one that matches best."""
    kept: list[int] = []
    for row in rows[np.argsort(-matches[rows], kind="stable")].tolist():
        if not any(_close(sums[row], sums[k]) for k in kept):
            kept.append(row)
    return kept


def sentences(words: Sequence[Words]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each sentence in order.

    >>> sentences([{2: 30, 0: 10, 1: 20}])
    ((10, 20, 30),)
    """
    return tuple(tuple(one[place] for place in sorted(one)) for one in words)
