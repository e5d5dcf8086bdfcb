"""Audits of single mechanisms: for each, the two neighbours that are hardest to hide, and a score to tell them apart.

A mechanism of `discreet.mechanisms` without an entry here fails the law book.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.accounting.von_mises_fisher import replaced_epsilon
from discreet.audit.aspects import Aspect
from discreet.audit.many_runs import Draw
from discreet.audit.subject import Subject
from discreet.audit.trade_off import priv_unit
from discreet.core.errors import invalid, one_of, open_probability, positive, whole
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace
from discreet.mechanisms.gaussian import Gaussian
from discreet.mechanisms.laplace import L2Laplace, Laplace
from discreet.mechanisms.priv_unit import PrivUnit
from discreet.mechanisms.randomized_response import RandomizedResponse
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.mechanisms.word_metric import WordChoice, WordNoise

Floats = npt.NDArray[np.float64]
DIMENSION = 8
_GRID = 2.0**-10
_WORDS = 12
_SPREAD = 0.01  # of the words that are close together


def subject_of(mechanism: Any, *, name: str = "", claimed: Any = None) -> Subject:
    """Return the audit of a mechanism with its worst neighbours; `claimed` is the one whose event is claimed.

    >>> subject_of(Gaussian(2.0, sensitivity=1.0)).upper_bound(1e-5) < 2.2
    True
    """
    kind = type(mechanism)
    known = next((one for one in AUDITED if issubclass(kind, one)), None)
    if known is None:
        rule = "one of " + ", ".join(sorted(one.__name__ for one in AUDITED))
        raise invalid("mechanism", kind.__name__, rule, "Audit others with Subject and a function that draws.")
    claimed = mechanism if claimed is None else claimed
    draw = AUDITED[known](mechanism)
    family = priv_unit(claimed.dimension) if isinstance(claimed, PrivUnit) else None
    return Subject(name or kind.__name__, draw, claimed.event, Adjacency.REPLACE_ONE, family, (Aspect.NOISE_SCALE,))


def _noisy(mechanism: Any, here: Floats, there: Floats, score: Callable[[Floats], Floats]) -> Draw:
    """Return the draws of a mechanism at two values, as scores."""

    def draw(present: bool, count: int, rng: Rng) -> Floats:
        rows = np.broadcast_to(here if present else there, (count, *here.shape)).copy()
        return score(np.asarray(mechanism(rows, rng)))

    return draw


def _chosen(mechanism: Any, here: int, there: int) -> Draw:
    """Return the draws of a mechanism at two categories."""

    def draw(present: bool, count: int, rng: Rng) -> npt.NDArray[np.int64]:
        values = np.full(count, here if present else there, dtype=np.int64)
        return np.asarray(mechanism(values, rng), dtype=np.int64)

    return draw


def _scalar(mechanism: Gaussian | Laplace) -> Draw:
    return _noisy(mechanism, np.array([float(mechanism.sensitivity or 1.0)]), np.zeros(1), _first)


def _l2_laplace(mechanism: L2Laplace) -> Draw:
    half = float(mechanism.sensitivity or 1.0) / 2 * _axis(mechanism.dimension)

    def closer(values: Floats) -> Floats:
        gap = np.linalg.norm(values + half, axis=-1) - np.linalg.norm(values - half, axis=-1)
        return np.asarray(gap, dtype=np.float64)

    return _noisy(mechanism, half, -half, closer)


def _discrete(mechanism: DiscreteGaussian | DiscreteLaplace) -> Draw:
    gap = math.floor(mechanism.sensitivity / mechanism.grid) * mechanism.grid
    axis = _axis(mechanism.dimension)
    return _noisy(mechanism, gap * axis, np.zeros(mechanism.dimension), lambda values: values @ axis)


def _direction(mechanism: VonMisesFisher | PrivUnit) -> Draw:
    axis = _axis(mechanism.dimension)
    return _noisy(mechanism, axis, -axis, lambda values: values @ axis)


def _response(mechanism: RandomizedResponse) -> Draw:
    return _chosen(mechanism, 0, mechanism.categories - 1)


def _words(mechanism: WordChoice | WordNoise) -> Draw:
    return _chosen(mechanism, *farthest_pair(np.asarray(mechanism.embeddings, dtype=np.float64)))


def farthest_pair(table: Floats) -> tuple[int, int]:
    """Return the rows of a table that are farthest apart."""
    gaps = np.linalg.norm(table[:, None] - table[None], axis=-1)
    here, there = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    return int(here), int(there)


def _first(values: Floats) -> Floats:
    return np.asarray(values[:, 0], dtype=np.float64)


def _axis(dimension: int) -> Floats:
    axis = np.zeros(dimension)
    axis[0] = 1.0
    return axis


AUDITED: dict[type[Any], Callable[[Any], Draw]] = {
    Gaussian: _scalar,
    Laplace: _scalar,
    L2Laplace: _l2_laplace,
    DiscreteGaussian: _discrete,
    DiscreteLaplace: _discrete,
    VonMisesFisher: _direction,
    PrivUnit: _direction,
    RandomizedResponse: _response,
    WordChoice: _words,
    WordNoise: _words,
}


def _kappa(epsilon: float, delta: float, dimension: int) -> float:
    """Return the largest kappa whose exact epsilon at delta is at most epsilon, rounded down."""
    low, high = 0.0, epsilon
    while replaced_epsilon(high, dimension, delta) <= epsilon:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if replaced_epsilon(middle, dimension, delta) <= epsilon else (low, middle)
    return low


def word_table(words: int = _WORDS, dimension: int = DIMENSION) -> Floats:
    """Return made-up word vectors whose largest distance is 1: one word alone, and the others close together.

    The words near the second word take its probability away from the first one, which makes these two easy to tell
    apart: sampling by distance then loses nearly all of its epsilon, between two words alone only half of it.
    """
    vectors = _SPREAD * Rng(0).fork("words").numpy().standard_normal((words, dimension))
    vectors[0, 0] += 1.0
    here, there = farthest_pair(vectors)
    return np.asarray(vectors / np.linalg.norm(vectors[here] - vectors[there]), dtype=np.float64)


# Mechanisms by their names in `discreet cost` and on the command line, made for a budget of one release.
MECHANISMS: dict[str, Callable[[float, float, int], Any]] = {
    "gaussian": lambda epsilon, delta, _: Gaussian.for_budget(epsilon, delta, 1.0),
    "laplace": lambda epsilon, _, __: Laplace.for_epsilon(epsilon, 1.0),
    "laplace-l2": lambda epsilon, _, dimension: L2Laplace.for_epsilon(epsilon, 1.0, dimension),
    "vmf": lambda epsilon, delta, dimension: VonMisesFisher(_kappa(epsilon, delta, dimension), dimension),
    "privunit": lambda epsilon, _, dimension: PrivUnit(epsilon, dimension),
    "randomized-response": lambda epsilon, _, __: RandomizedResponse(epsilon),
    "discrete-gaussian": lambda epsilon, delta, _: DiscreteGaussian.for_budget(
        epsilon, delta, sensitivity=1.0, grid=_GRID, on_grid=True
    ),
    "discrete-laplace": lambda epsilon, _, __: DiscreteLaplace.for_epsilon(
        epsilon, sensitivity=1.0, grid=_GRID, on_grid=True
    ),
    "word-choice": lambda epsilon, _, dimension: WordChoice(epsilon, word_table(dimension=dimension)),
    "word-noise": lambda epsilon, _, dimension: WordNoise(epsilon, word_table(dimension=dimension)),
}


def mechanism_subject(name: str, epsilon: float, delta: float, dimension: int = DIMENSION) -> Subject:
    """Return the audit of a mechanism by its name, with the noise that a budget needs.

    Args:
        name: The name of the mechanism.
        epsilon: The budget that its noise is calibrated for.
        delta: Its delta.
        dimension: The dimension of the vectors.
    """
    one_of("mechanism", name, MECHANISMS)
    positive("epsilon", epsilon)
    open_probability("delta", delta)
    whole("dimension", dimension, 2)
    made = MECHANISMS[name](epsilon, delta, dimension)
    return subject_of(made, name=name)
