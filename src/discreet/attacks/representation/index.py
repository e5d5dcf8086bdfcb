"""An exact index: the rows of a matrix with the largest inner products, by faiss.

Many queries are one matrix product. A single query is limited by reading all vectors, so it first reads them quantized
to one byte per number (`Coarse`), and full vectors only where the quantized products are not conclusive.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.attacks.representation.candidates import Candidates, Floats
from discreet.core.errors import ExtraError
from discreet.core.types import Guess

RANKED = 5  # candidates of each query that are listed
_BATCH = 1000  # faiss multiplies matrices for large batches, and reads the whole index for each small one
_FEW = 16  # up to this many queries are searched one by one
_FIRST = 64  # vectors that are compared in full precision at first
_LEAST = 4096  # with fewer vectors a query is fast anyway


class Index:
    """Exact nearest-neighbour search by inner product.

    >>> best, scores = Index(np.eye(3)).search(np.array([[0.0, 0.9, 0.1]]), 2)
    >>> best.tolist(), [round(float(score), 2) for score in scores[0]]
    ([[1, 2]], [0.9, 0.1])
    """

    def __init__(self, vectors: npt.ArrayLike) -> None:
        """Index the vectors, one per row."""
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        self._size, self._width = len(rows), int(rows.shape[1])
        self._index = _faiss().IndexFlatIP(self._width)
        self._index.add(rows)

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self._size

    def search(self, queries: npt.ArrayLike, count: int = 1) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the rows with the `count` largest inner products for each query, best first, and the products."""
        rows = np.ascontiguousarray(queries, dtype=np.float32)
        count = min(count, self._size)
        if len(rows) <= _FEW and self._size >= _LEAST and count < _FIRST:
            parts = [self._search_one(query, count) for query in rows]
        else:
            parts = [self.compare(rows[start : start + _BATCH], count) for start in range(0, len(rows), _BATCH)]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def _search_one(self, query: Floats, count: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the best rows for one query: compare the best quantized rows until no other row can be better."""
        at_most = min(_FIRST, self._size)
        while at_most * 8 <= self._size:
            rows, bound = self.coarse.first(query, at_most)
            scores = self._rows[rows] @ query
            order = np.lexsort((rows, -scores))[:count]
            if scores[order[-1]] >= bound:
                return rows[None, order], scores[None, order]
            at_most *= 8
        return self.compare(query[None], count)

    def compare(self, queries: Floats, count: int = 1) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the same by comparing all vectors in full precision: the slow reference for a single query."""
        scores, rows = self._index.search(queries, count)
        return rows, scores

    @cached_property
    def coarse(self) -> Coarse:
        """The vectors in bytes, computed at the first single query."""
        return Coarse.of(self._rows)

    @property
    def _rows(self) -> Floats:
        """The vectors in faiss, without a copy."""
        flat = _faiss().rev_swig_ptr(self._index.get_xb(), self._size * self._width)
        return np.asarray(flat, dtype=np.float32).reshape(self._size, self._width)


@dataclass(frozen=True)
class Coarse:
    """Vectors quantized to one byte per number, with a bound on the error of their products with a query.

    Vectors and queries are rotated by one orthogonal matrix, which preserves products and spreads each vector evenly
    over its coordinates, and then rounded. With x and q rotated, and c and b their rounded values,
    |<q, x> - <b, c>| <= |q| |x - c| + |q - b| |c| (Cauchy-Schwarz). `error` is the largest |x - c|, `longest` the
    largest |x|. `rounding` covers float32 arithmetic: a sum of `width` products has an error of at most width * 2^-24
    times the norms. A rotated vector has `width` such errors, whose norm is sqrt(width) times as large, and two vectors
    are rotated. A margin of twelve times the first error covers norms, products of bytes (exact up to a width of 1040),
    a rotation that is not exactly orthogonal, and the products themselves.
    """

    rotation: Floats
    steps: float
    error: float
    longest: float
    index: Any

    @classmethod
    def of(cls, rows: Floats) -> Coarse:
        """Quantize vectors."""
        faiss, width = _faiss(), rows.shape[1]
        square = np.random.default_rng(0).standard_normal((width, width))  # any rotation works; it is not secret
        rotation = np.linalg.qr(square)[0].astype(np.float32)
        rotated = rows @ rotation
        bytes_, steps = _in_bytes(rotated)
        kind = faiss.ScalarQuantizer.QT_8bit_direct_signed
        index = faiss.IndexScalarQuantizer(width, kind, faiss.METRIC_INNER_PRODUCT)
        index.train(bytes_[:1])
        index.add(bytes_)
        error = float(np.linalg.norm(rotated - bytes_ / steps, axis=1).max(initial=0.0))
        return cls(rotation, float(steps), error, float(np.linalg.norm(rows, axis=1).max(initial=0.0)), index)

    @property
    def rounding(self) -> float:
        """The float32 rounding margin for a query of norm 1."""
        width = len(self.rotation)
        return (2 * float(np.sqrt(width)) + 12) * width * 2.0**-24 * self.longest

    def first(self, query: Floats, count: int) -> tuple[npt.NDArray[np.int64], float]:
        """Return the `count` rows with the largest products of bytes, and an upper bound for all other rows."""
        rotated = (query @ self.rotation)[None]
        bytes_, steps = _in_bytes(rotated)
        products, rows = self.index.search(bytes_, count)
        length, rounded = float(np.linalg.norm(query)), float(np.linalg.norm(rotated - bytes_ / steps))
        margin = length * (self.error + self.rounding) + rounded * (self.longest + self.error)
        return rows[0], float(products[0, -1]) / (self.steps * float(steps)) + margin


def _in_bytes(vectors: Floats) -> tuple[Floats, np.float32]:
    """Return vectors as integers from -127 to 127, and the number of steps per unit."""
    steps = np.float32(127 / max(float(np.abs(vectors).max(initial=0.0)), 1e-30))
    return np.round(vectors * steps), steps


def nearest(pool: Candidates, compared: Floats, queries: Floats, **details: Any) -> Guess:
    """Return the candidate with the largest cosine for each query, by the compared vectors; `details` has the next."""
    ranked, cosines = Index(unit(compared)).search(unit(queries), RANKED)
    best = tuple(int(row) for row in ranked[:, 0])
    details = {"ranked": tuple(tuple(int(row) for row in rows) for rows in ranked), **details}
    return Guess(pool.named(best), tuple(float(score) for score in cosines[:, 0]), best, details)


def unit(vectors: npt.NDArray[np.floating[Any]]) -> Floats:
    """Return vectors of norm 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1.0), dtype=np.float32)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ExtraError(
            "Expected faiss for searching representations. Install it with: pip install 'discreet[attacks]'."
        ) from None
    return faiss
