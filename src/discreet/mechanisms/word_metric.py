"""Word-level mechanisms for metric privacy: the nearest word to a noisy embedding, or a random word."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from discreet.core.errors import DataError, non_negative, positive
from discreet.core.randomness import Rng
from discreet.mechanisms.arrays import Array, in_kind, tensor_of
from discreet.mechanisms.integers import draw_by_cost
from discreet.mechanisms.laplace import L2Laplace

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


_BLOCK = 256  # rows whose distances to others are computed at a time
_EPSILON_RULE = "It is the epsilon per unit of distance; smaller means more noise."


@dataclass(frozen=True, eq=False)
class _WordMechanism:
    """Base of the word mechanisms: epsilon per distance, a public table of embeddings, and its diameter."""

    epsilon: float
    embeddings: Any = field(repr=False)
    diameter: float | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        non_negative("epsilon", self.epsilon, _EPSILON_RULE)
        _check_table(self.embeddings, self.diameter)

    @property
    def event(self) -> DpEvent:
        """The cost of one word; the diameter is computed at first use if it is None."""
        from discreet.accounting.events import MetricDpEvent

        return MetricDpEvent(self.epsilon, "euclidean", self.worst_distance)

    @functools.cached_property
    def worst_distance(self) -> float:
        """The diameter, computed if it is None."""
        if self.diameter is not None:
            return self.diameter
        # rounded up by more than the rounding error of the sums
        return farthest(tensor_of(self.embeddings).double()) * (1 + 2.0**-40)


@dataclass(frozen=True, eq=False)
class WordNoise(_WordMechanism):
    """Replace each word by the one nearest to its embedding plus noise of density proportional to exp(-epsilon |z|).

    Words are row numbers of `embeddings` (V, d), which is public. Every word is a separate release.

    Guarantee: metric privacy: two words at Euclidean distance r lead to releases within a factor e^(epsilon r); so pure
        epsilon * diameter for a word replaced by any other in the table. Taking the nearest word is post-processing.
        In floating point: see docs/secure_randomness.md.
    Paper: Feyisetan, Balle, Drake and Diethe 2020, Privacy- and utility-preserving textual analysis via calibrated
        multivariate perturbations.
    Differs: neighbours are exact; the worst case over the table is reported with the metric figure.
    """

    def __post_init__(self) -> None:
        """Check the fields."""
        positive("epsilon", self.epsilon, _EPSILON_RULE)
        super().__post_init__()

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the released words, in the type of the input."""
        words, table = _words_of(x, self.embeddings)
        return _released(torch.from_numpy(nearest_to_noisy(table, table, self.epsilon, words.numpy(), rng)), x)


@dataclass(frozen=True, eq=False)
class WordChoice(_WordMechanism):
    """Replace each word by any word of the table, chosen with probability proportional to exp(-epsilon distance / 2).

    Words are row numbers of `embeddings` (V, d), which is public. Every word of the table is possible: choosing only
    among the nearest few would give no guarantee, because the lists of two words differ.

    Guarantee: metric privacy: two words at Euclidean distance r lead to releases within a factor e^(epsilon r), half of
        it from the score and half from the sum of the weights; so pure epsilon * diameter for a word replaced by any
        other in the table. Sampling is exact for the computed weights: see `draw_by_cost`.
    Paper: Yue, Du, Wang, Li, Sun and Chow 2021, Differential privacy for text analytics via natural text sanitization.
    Differs: all words are treated equally; the paper's split into sensitive and other words is left to the caller.

    >>> import numpy as np
    >>> from discreet import Rng
    >>> table = np.array([[0.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    >>> WordChoice(epsilon=200.0, embeddings=table)(np.array([0, 1, 2, 2]), Rng(1)).tolist()
    [0, 1, 2, 2]
    """

    def __call__(self, x: Array, rng: Rng) -> Array:
        """Return the released words, in the type of the input."""
        words, table = _words_of(x, self.embeddings)
        return _released(torch.from_numpy(choose(table, table, self.epsilon, words.numpy(), rng)), x)


def farthest(rows: torch.Tensor) -> float:
    """Return the largest distance of two rows; the triangle inequality excludes most pairs.

    >>> farthest(torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]], dtype=torch.float64))
    5.0
    """
    radius = torch.linalg.vector_norm(rows - rows.mean(0), dim=1)
    order = radius.argsort(descending=True)
    rows, radius = rows[order], radius[order]
    slack = 1e-9 * float(radius[0]) if len(rows) else 0.0
    best = float(torch.linalg.vector_norm(rows - rows[0], dim=1).max())
    for start in range(0, len(rows), _BLOCK):
        reach = float(radius[start])
        last = int(torch.searchsorted(-radius, slack - (best - reach), right=True))  # rows with reach + radius > best
        if last <= start:
            break  # both rows of any remaining pair are too close to the centre
        distances = torch.cdist(rows[start : start + _BLOCK], rows[start:last], compute_mode="use_mm_for_euclid_dist")
        best = max(best, float(distances.max()))
    return best


def _check_table(embeddings: Any, diameter: float | None) -> None:
    table = tensor_of(embeddings)
    if table.ndim != 2 or 0 in table.shape or not table.is_floating_point():
        raise DataError(f"Expected embeddings as a (V, d) matrix of floats, got {table.dtype} {tuple(table.shape)}.")
    if not bool(torch.isfinite(table).all()):
        raise DataError("Expected finite embeddings, got NaN or infinity.")
    if diameter is not None:
        positive("diameter", diameter, "It is the largest distance of two rows; omit it to compute it.")


def _words_of(x: Any, embeddings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    words, table = tensor_of(x), tensor_of(embeddings)
    if words.is_floating_point() or words.is_complex():
        raise DataError(f"Expected words as row numbers, got {words.dtype}.")
    flat = words.reshape(-1).cpu().long()
    if flat.numel() and not (int(flat.min()) >= 0 and int(flat.max()) < len(table)):
        raise DataError(f"Expected words in 0 … {len(table) - 1}, the rows of the table, got other values.")
    return flat, table.cpu().double()


def _released(released: torch.Tensor, x: Array) -> Array:
    like = tensor_of(x)
    return in_kind(released.to(like.dtype).to(like.device).view(like.shape), x)


Rows = npt.NDArray[np.int64]
Watch = Callable[[int], None]


def _unwatched(done: int) -> None:
    """Ignore the progress."""


_CHOICE_BLOCK = 128  # points whose distances to all words are computed at a time
_NOISE_BLOCK = 256


def choose(
    points: torch.Tensor, table: torch.Tensor, epsilon: float, which: Rows, rng: Rng, watch: Watch = _unwatched
) -> Rows:
    """Return a row of the table for each entry of `which`, sampled with weight exp(-epsilon distance / 2).

    `which` are row numbers of `points`.

    Guarantee: metric privacy of `epsilon` per Euclidean distance for every entry. Every word is possible, however small
        its weight: see `draw_by_cost`.
    """
    squares = (table * table).sum(1)
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(len(points)), side="right")
    rows = np.empty(len(which), dtype=np.int64)
    done = 0
    for start in range(0, len(points), _CHOICE_BLOCK):
        block = points[start : start + _CHOICE_BLOCK]
        # In place: for thirty thousand words memory traffic costs as much as the product.
        square = torch.addmm(squares, block, table.T, alpha=-2.0).add_((block * block).sum(1)[:, None])
        square[square < 1e-12] = 0.0  # rounding gives a word a distance of 1e-8 from itself
        distances = square.sqrt_()
        distances -= distances.amin(1, keepdim=True)  # a common factor of the weights
        end = int(ends[start + len(block) - 1])
        entries = order[done:end]
        rows[entries] = draw_by_cost(distances.mul_(epsilon / 2), which[entries] - start, rng)
        done = end
        watch(done)
    return rows


def nearest_to_noisy(
    points: torch.Tensor, table: torch.Tensor, epsilon: float, which: Rows, rng: Rng, watch: Watch = _unwatched
) -> Rows:
    """Return, for each entry of `which`, the row nearest to its point plus noise of density e^(-epsilon |z|).

    Guarantee: metric privacy of `epsilon` per Euclidean distance for every entry; finding the nearest row is
        post-processing.
    """
    nearest = NearestWord.of(table)
    rows = np.empty(len(which), dtype=np.int64)
    for start in range(0, len(which), _NOISE_BLOCK):
        noisy = noisy_points(points[torch.from_numpy(which[start : start + _NOISE_BLOCK])], epsilon, rng)
        rows[start : start + _NOISE_BLOCK] = nearest(noisy)
        watch(min(start + _NOISE_BLOCK, len(which)))
    return rows


def noisy_points(points: torch.Tensor, epsilon: float, rng: Rng) -> torch.Tensor:
    """Return each point plus a vector of density proportional to exp(-epsilon |z|): uniform direction, gamma length.

    Guarantee: metric privacy of `epsilon` per Euclidean distance for every row.
    """
    noisy: torch.Tensor = L2Laplace(1 / epsilon, int(points.shape[1]))(points, rng)
    return noisy


KINDS = (torch.bfloat16, torch.float32)
_EXACT_BLOCK = 1 << 14  # candidates compared in doubles at a time; a point can have thousands
_TIMED = 64  # rows used to time the two dtypes
_SINGLE = 2.0**-24  # unit roundoff of the sums of products


@dataclass(frozen=True, eq=False)
class NearestWord:
    """The rows of a table, prepared for fast exact nearest-neighbour search.

    A low-precision product with an error bound selects candidates, which are then compared in doubles.

    Guarantee: none on its own; it reads public rows and points that are already noisy.

    >>> table = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    >>> NearestWord.of(table)(torch.tensor([[0.2, 1.4], [0.9, -5.0]], dtype=torch.float64)).tolist()
    [2, 1]
    """

    rows: torch.Tensor = field(repr=False)  # relative to their centre, in doubles
    centre: torch.Tensor = field(repr=False)
    half_squares: torch.Tensor = field(repr=False)
    coarse: torch.Tensor = field(repr=False)
    coarse_half: torch.Tensor = field(repr=False)
    longest: float
    row_error: float  # largest distance of a coarse row from the true one
    half_error: float

    @classmethod
    def of(cls, table: torch.Tensor, kind: torch.dtype | None = None) -> NearestWord:
        """Return the prepared table; without a coarse dtype, the one that is faster on this machine is used."""
        centre = table.double().mean(0)
        rows = table.double() - centre
        half = (rows * rows).sum(1).div_(2)
        kind = _faster(rows) if kind is None else kind
        coarse, coarse_half = rows.to(kind), half.to(kind)
        return cls(
            rows,
            centre,
            half,
            coarse.T,
            coarse_half,
            float(torch.linalg.vector_norm(coarse.double(), dim=1).max()),
            float(torch.linalg.vector_norm(coarse.double() - rows, dim=1).max()),
            float((coarse_half.double() - half).abs().max()),
        )

    def __call__(self, points: torch.Tensor) -> npt.NDArray[np.int64]:
        """Return the row nearest to each point, the first one of ties."""
        centred = points.double() - self.centre
        rough = centred.to(self.coarse.dtype)
        # |x - w|² / 2 minus |x|² / 2: the smallest score is the nearest row
        scores = torch.addmm(self.coarse_half, rough, self.coarse, alpha=-1.0)
        best = scores.amin(1).double()
        error = self._error_bound(centred, rough)
        unit = torch.finfo(scores.dtype).eps / 2
        limit = best + 2 * error + 2 * unit * best.abs()
        limit = limit + 2 * unit * limit.abs()  # the smallest score is rounded too
        above = torch.nextafter(limit.float(), torch.tensor(torch.inf))
        near = np.flatnonzero((scores.float() <= above[:, None]).numpy())
        which, word = np.divmod(near, len(self.rows))
        at, of = torch.from_numpy(which), torch.from_numpy(word)
        parts = zip(torch.split(at, _EXACT_BLOCK), torch.split(of, _EXACT_BLOCK), strict=True)
        squares = torch.cat([(centred[part] - self.rows[words]).square_().sum(1) for part, words in parts])
        exact = squares.sub(centred.square().sum(1)[at]).div_(2).numpy()
        coarse = scores.flatten()[torch.from_numpy(near)].double().numpy()
        violated = np.abs(exact - coarse) > error.numpy()[which] + 2 * unit * np.abs(exact)
        if violated.any():  # this machine multiplies less precisely than the error bound assumes
            return self.slowly(points)
        order = np.lexsort((word, squares.numpy(), which))
        first = np.searchsorted(which[order], np.arange(len(points)))
        return np.asarray(word[order[first]], dtype=np.int64)

    def slowly(self, points: torch.Tensor) -> npt.NDArray[np.int64]:
        """Return the same in double precision throughout."""
        distances = torch.cdist(points.double() - self.centre, self.rows, compute_mode="donot_use_mm_for_euclid_dist")
        return np.asarray(distances.numpy().argmin(1), dtype=np.int64)

    def _error_bound(self, centred: torch.Tensor, rough: torch.Tensor) -> torch.Tensor:
        """Return a bound on the error of a coarse score, before it is rounded, for each point.

        <x, w> - <x', w'> = <x, w - w'> + <x - x', w'>, each at most the product of the lengths; sums are in single
        precision, in any order.
        """
        rough_length = torch.linalg.vector_norm(rough.double(), dim=1)
        point_error = torch.linalg.vector_norm(centred - rough.double(), dim=1)
        terms = rough_length * self.longest + float(self.half_squares.max())
        summation = 2 * (self.rows.shape[1] + 2) * _SINGLE * terms
        length = torch.linalg.vector_norm(centred, dim=1)
        bound: torch.Tensor = length * self.row_error + point_error * self.longest + self.half_error + summation
        return bound


def _faster(rows: torch.Tensor) -> torch.dtype:
    """Return the coarse dtype with the faster product on this machine; the choice does not change the result."""
    seconds = {}
    for kind in KINDS:
        sample, table = rows[:_TIMED].to(kind), rows.to(kind).T
        times = []
        for _ in range(3):
            start = time.perf_counter()
            sample @ table
            times.append(time.perf_counter() - start)
        seconds[kind] = min(times)
    return min(seconds, key=lambda kind: seconds[kind])
