"""Word-level mechanisms for metric privacy: noise in embedding space then the nearest word, or a random word."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from discreet.core.checks import non_negative, positive
from discreet.core.errors import DataError
from discreet.mechanisms.arrays import Array, in_kind, tensor_of
from discreet.mechanisms.choices import draw_by_cost
from discreet.mechanisms.sphere import uniform_directions

if TYPE_CHECKING:
    import torch
    from dp_accounting.dp_event import DpEvent

    from discreet.core.randomness import Rng

# Distances are taken for as many words at a time as give about this many numbers.
_BLOCK = 1 << 22
_PRICE = "It is a price per unit of distance; smaller is more noise."


@dataclass(frozen=True, eq=False)
class _WordMechanism:
    """What the word mechanisms share: a price per distance, a public table of embeddings, and its diameter."""

    epsilon: float
    embeddings: Any = field(repr=False)
    diameter: float | None = None

    def __post_init__(self) -> None:
        """Refuse a negative price and a table that is no matrix."""
        non_negative("epsilon", self.epsilon, _PRICE)
        _check_table(self.embeddings, self.diameter)

    @property
    def event(self) -> DpEvent:
        """The cost of one word; the diameter is measured at first use if it was not given."""
        from discreet.accounting.events import MetricDpEvent

        return MetricDpEvent(self.epsilon, "euclidean", self.worst_distance)

    @functools.cached_property
    def worst_distance(self) -> float:
        """The largest distance of two words of the table, as given or measured."""
        if self.diameter is not None:
            return self.diameter
        return table_diameter(self.embeddings) * (1 + 2.0**-40)  # past what the sums may have rounded off


@dataclass(frozen=True, eq=False)
class WordNoise(_WordMechanism):
    """Replace each word by the one nearest to its embedding plus noise of density proportional to exp(-epsilon |z|).

    Words are row numbers of `embeddings` (V, d), which is public. Every word is a release of its own.

    Guarantee: metric privacy: two words at Euclidean distance r lead to releases within a factor e^(epsilon r); so pure
        epsilon * diameter for a word exchanged for any other in the table. Taking the nearest word is post-processing.
        In floating point: see docs/secure_randomness.md.
    Paper: Feyisetan, Balle, Drake and Diethe 2020, Privacy- and utility-preserving textual analysis via calibrated
        multivariate perturbations.
    Differs: neighbours are exact; the worst case over the table is stated beside the metric figure.
    """

    def __post_init__(self) -> None:
        """Refuse no noise and a table that is no matrix."""
        positive("epsilon", self.epsilon, _PRICE)
        super().__post_init__()

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the released words, in kind."""
        import torch

        words, table = _words_of(x, self.embeddings)
        lengths = rng.floats()
        released = torch.empty_like(words)
        dimension = table.shape[1]
        squares = (table * table).sum(-1)
        for part in _parts(len(words), len(table)):
            some = words[part]
            noise = uniform_directions(len(some), dimension, rng, table.device)
            noise *= torch.from_numpy(lengths.standard_gamma(dimension, len(some)) / self.epsilon).to(noise)[:, None]
            released[part] = (squares - 2 * (table[some] + noise) @ table.T).argmin(-1)
        return _released(released, x)


@dataclass(frozen=True, eq=False)
class WordChoice(_WordMechanism):
    """Replace each word by any word of the table, chosen with probability proportional to exp(-epsilon distance / 2).

    Words are row numbers of `embeddings` (V, d), which is public. Every word of the table can come out: to choose among
    the nearest few only would give no guarantee, as two words' lists differ.

    Guarantee: metric privacy: two words at Euclidean distance r lead to releases within a factor e^(epsilon r), half of
        it from the score and half from the sum of the weights; so pure epsilon * diameter for a word exchanged for any
        other in the table. The draw is exact for the weights as computed: see `draw_by_cost`.
    Paper: Yue, Du, Wang, Li, Sun and Chow 2021, Differential privacy for text analytics via natural text sanitization.
    Differs: all words are treated alike; the paper's split into sensitive and other words is a choice of the caller.

    >>> import numpy as np
    >>> from discreet import Rng
    >>> table = np.array([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    >>> WordChoice(epsilon=200.0, embeddings=table)(np.array([0, 1, 2, 2]), Rng(1)).tolist()
    [0, 1, 2, 2]
    """

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the released words, in kind."""
        import torch

        words, table = _words_of(x, self.embeddings)
        released = torch.empty_like(words)
        for part in _parts(len(words), len(table)):
            distances = _distances(table[words[part]], table)
            distances.scatter_(1, words[part, None], 0.0)  # a matrix product leaves a word 1e-8 away from itself
            costs = distances.mul_(self.epsilon / 2)
            drawn = draw_by_cost(costs, np.arange(len(costs)), rng)
            released[part] = torch.from_numpy(drawn).to(released.device)
        return _released(released, x)


def table_diameter(embeddings: Any) -> float:
    """Return the largest Euclidean distance between two rows; it takes about V * V * d multiplications.

    >>> import numpy as np
    >>> table_diameter(np.array([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]]))
    5.0
    """
    table = tensor_of(embeddings).double()
    largest = 0.0
    for part in _parts(len(table), len(table)):
        # Each pair once: a block against the rows from its start on.
        largest = max(largest, float(_distances(table[part], table[part.start :]).max()))
    return largest


def _distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cdist(a, b, compute_mode="use_mm_for_euclid_dist")


def _check_table(embeddings: Any, diameter: float | None) -> None:
    import torch

    table = tensor_of(embeddings)
    if table.ndim != 2 or 0 in table.shape or not table.is_floating_point():
        raise DataError(f"Expected embeddings as a (V, d) matrix of floats, found {table.dtype} {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise DataError("Expected finite embeddings, found NaN or infinity.")
    if diameter is not None:
        positive("diameter", diameter, "It is the largest distance of two rows; leave it out to have it measured.")


def _words_of(x: Any, embeddings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    words, table = tensor_of(x), tensor_of(embeddings)
    if words.is_floating_point() or words.is_complex():
        raise DataError(f"Expected words as row numbers, found {words.dtype}.")
    flat = words.reshape(-1).to(table.device).long()
    if flat.numel() and not (int(flat.min()) >= 0 and int(flat.max()) < len(table)):
        raise DataError(f"Expected words in 0 … {len(table) - 1}, the rows of the table, found others.")
    return flat, table.double()


def _parts(count: int, width: int) -> list[slice]:
    step = max(1, _BLOCK // width)
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _released(released: torch.Tensor, x: Array) -> Array:
    like = tensor_of(x)
    return in_kind(released.to(like.dtype).to(like.device).view(like.shape), x)
