"""Word-level mechanisms for metric privacy: noise in embedding space then the nearest word, or a random word."""

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


_BLOCK = 256  # rows whose distances to others are taken at once
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
        return farthest(tensor_of(self.embeddings).double()) * (1 + 2.0**-40)  # past what the sums may have rounded off


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
        words, table = _words_of(x, self.embeddings)
        return _released(torch.from_numpy(nearest_to_noisy(table, table, self.epsilon, words.numpy(), rng)), x)


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
        words, table = _words_of(x, self.embeddings)
        return _released(torch.from_numpy(choose(table, table, self.epsilon, words.numpy(), rng)), x)


def farthest(rows: torch.Tensor) -> float:
    """Return the largest distance of two rows, looking only at pairs that the triangle inequality leaves open.

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
        last = int(torch.searchsorted(-radius, slack - (best - reach), right=True))  # those with reach + radius > best
        if last <= start:
            break  # both of any pair left are too near the middle
        found = torch.cdist(rows[start : start + _BLOCK], rows[start:last], compute_mode="use_mm_for_euclid_dist")
        best = max(best, float(found.max()))
    return best


def _check_table(embeddings: Any, diameter: float | None) -> None:
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
    flat = words.reshape(-1).cpu().long()
    if flat.numel() and not (int(flat.min()) >= 0 and int(flat.max()) < len(table)):
        raise DataError(f"Expected words in 0 … {len(table) - 1}, the rows of the table, found others.")
    return flat, table.cpu().double()


def _released(released: torch.Tensor, x: Array) -> Array:
    like = tensor_of(x)
    return in_kind(released.to(like.dtype).to(like.device).view(like.shape), x)


Rows = npt.NDArray[np.int64]
Watch = Callable[[int], None]


def _unwatched(done: int) -> None:
    """Tell nobody how many are done."""


_CHOICE_BLOCK = 128  # places whose distances to all words are held at once
_NOISE_BLOCK = 256


def choose(
    places: torch.Tensor, table: torch.Tensor, price: float, which: Rows, rng: Rng, watch: Watch = _unwatched
) -> Rows:
    """Return a row of the table for each entry of `which`, drawn with weight exp(-price distance / 2).

    `which` are row numbers of `places`.

    Guarantee: metric privacy of `price` per Euclidean distance for every entry. Every word can be drawn, however small
        its weight: see `draw_by_cost`.
    """
    squares = (table * table).sum(1)
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(len(places)), side="right")
    drawn = np.empty(len(which), dtype=np.int64)
    done = 0
    for start in range(0, len(places), _CHOICE_BLOCK):
        block = places[start : start + _CHOICE_BLOCK]
        # In place: over thirty thousand words the passes over memory cost as much as the product.
        square = torch.addmm(squares, block, table.T, alpha=-2.0).add_((block * block).sum(1)[:, None])
        square[square < 1e-12] = 0.0  # rounding leaves a word 1e-8 away from itself
        distances = square.sqrt_()
        distances -= distances.amin(1, keepdim=True)  # a common factor of the weights
        end = int(ends[start + len(block) - 1])
        mine = order[done:end]
        drawn[mine] = draw_by_cost(distances.mul_(price / 2), which[mine] - start, rng)
        done = end
        watch(done)
    return drawn


def nearest_to_noisy(
    places: torch.Tensor, table: torch.Tensor, price: float, which: Rows, rng: Rng, watch: Watch = _unwatched
) -> Rows:
    """Return, for each entry of `which`, the row nearest to its place plus noise of density e^(-price |z|).

    Guarantee: metric privacy of `price` per Euclidean distance for every entry; which row is nearest is
        post-processing.
    """
    nearest = NearestWord.of(table)
    drawn = np.empty(len(which), dtype=np.int64)
    for start in range(0, len(which), _NOISE_BLOCK):
        noisy = noisy_places(places[torch.from_numpy(which[start : start + _NOISE_BLOCK])], price, rng)
        drawn[start : start + _NOISE_BLOCK] = nearest(noisy)
        watch(min(start + _NOISE_BLOCK, len(which)))
    return drawn


def noisy_places(places: torch.Tensor, price: float, rng: Rng) -> torch.Tensor:
    """Return each place plus a vector of density proportional to exp(-price |z|): uniform direction, gamma length.

    Guarantee: metric privacy of `price` per Euclidean distance for every row.
    """
    found: torch.Tensor = L2Laplace(1 / price, int(places.shape[1]))(places, rng)
    return found


KINDS = (torch.bfloat16, torch.float32)
_WHOLE = 1 << 14  # words measured in doubles at once: where lengths differ much, thousands stay possible for a place
_TRIED = 64  # rows by which the two kinds are timed
_SINGLE = 2.0**-24  # unit roundoff in which products are added up


@dataclass(frozen=True, eq=False)
class NearestWord:
    """The rows of a table, prepared for many questions which of them is nearest.

    Guarantee: none of its own; it looks at public rows and at places that are already noisy.

    >>> table = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    >>> NearestWord.of(table)(torch.tensor([[0.2, 1.4], [0.9, -5.0]], dtype=torch.float64)).tolist()
    [2, 1]
    """

    rows: torch.Tensor = field(repr=False)  # about their centre, in doubles
    centre: torch.Tensor = field(repr=False)
    half_squares: torch.Tensor = field(repr=False)
    coarse: torch.Tensor = field(repr=False)
    coarse_half: torch.Tensor = field(repr=False)
    longest: float
    strayed: float  # how far coarse rows are from the true ones
    strayed_half: float

    @classmethod
    def of(cls, table: torch.Tensor, kind: torch.dtype | None = None) -> NearestWord:
        """Return the table prepared; without a kind of coarse numbers, for the one that is faster on this machine."""
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

    def __call__(self, places: torch.Tensor) -> npt.NDArray[np.int64]:
        """Return the row nearest to each place; of several equally near, the first."""
        about = places.double() - self.centre
        rough = about.to(self.coarse.dtype)
        # |x - w|² / 2 less |x|² / 2: what is smallest is nearest
        scores = torch.addmm(self.coarse_half, rough, self.coarse, alpha=-1.0)
        best = scores.amin(1).double()
        wrong = self._wrong(about, rough)
        unit = torch.finfo(scores.dtype).eps / 2
        limit = best + 2 * wrong + 2 * unit * best.abs()
        limit = limit + 2 * unit * limit.abs()  # the least score is rounded as well
        above = torch.nextafter(limit.float(), torch.tensor(torch.inf))
        near = np.flatnonzero((scores.float() <= above[:, None]).numpy())
        which, word = np.divmod(near, len(self.rows))
        at, of = torch.from_numpy(which), torch.from_numpy(word)
        parts = zip(torch.split(at, _WHOLE), torch.split(of, _WHOLE), strict=True)
        squares = torch.cat([(about[some] - self.rows[words]).square_().sum(1) for some, words in parts])
        exact = squares.sub(about.square().sum(1)[at]).div_(2).numpy()
        told = scores.flatten()[torch.from_numpy(near)].double().numpy()
        strange = np.abs(exact - told) > wrong.numpy()[which] + 2 * unit * np.abs(exact)
        if strange.any():  # this machine multiplies in another way than was counted on
            return self.slowly(places)
        order = np.lexsort((word, squares.numpy(), which))
        first = np.searchsorted(which[order], np.arange(len(places)))
        return np.asarray(word[order[first]], dtype=np.int64)

    def slowly(self, places: torch.Tensor) -> npt.NDArray[np.int64]:
        """Return the same by double precision throughout."""
        found = torch.cdist(places.double() - self.centre, self.rows, compute_mode="donot_use_mm_for_euclid_dist")
        return np.asarray(found.numpy().argmin(1), dtype=np.int64)

    def _wrong(self, about: torch.Tensor, rough: torch.Tensor) -> torch.Tensor:
        """Return how far a coarse score may be from the true one, before it is rounded, for each place.

        <x, w> - <x', w'> = <x, w - w'> + <x - x', w'>, each at most the product of the lengths; sums are in single
        precision, in any order.
        """
        long = torch.linalg.vector_norm(rough.double(), dim=1)
        astray = torch.linalg.vector_norm(about - rough.double(), dim=1)
        added = 2 * (self.rows.shape[1] + 2) * _SINGLE * (long * self.longest + float(self.half_squares.max()))
        true = torch.linalg.vector_norm(about, dim=1)
        wrong: torch.Tensor = true * self.strayed + astray * self.longest + self.strayed_half + added
        return wrong


def _faster(rows: torch.Tensor) -> torch.dtype:
    """Return the kind of coarse numbers whose product takes less time here; which it is changes no result."""
    taken = {}
    for kind in KINDS:
        some, table = rows[:_TRIED].to(kind), rows.to(kind).T
        times = []
        for _ in range(3):
            began = time.perf_counter()
            some @ table
            times.append(time.perf_counter() - began)
        taken[kind] = min(times)
    return min(taken, key=lambda kind: taken[kind])
