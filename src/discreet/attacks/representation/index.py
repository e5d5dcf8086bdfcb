"""An exact index: the rows of a matrix with the largest inner products, by faiss.

Many queries are one product of matrices. A single one has to read all vectors, and that is what takes its time; so it
reads one byte for each number first (`Coarse`), and whole vectors only where the bytes leave a doubt.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.attacks.representation.candidates import Floats
from discreet.core.errors import ExtraError

_AT_ONCE = 1000  # faiss multiplies matrices for large batches, and reads the whole index once for each small one
_FEW = 16  # so many queries are asked one by one
_FIRST = 64  # vectors that are read whole at first
_LEAST = 4096  # below so many vectors a query takes no time at all


class Index:
    """Vectors in which the nearest to a query are found, as if all were compared.

    >>> best, scores = Index(np.eye(3)).search(np.array([[0.0, 0.9, 0.1]]), 2)
    >>> best.tolist(), [round(float(score), 2) for score in scores[0]]
    ([[1, 2]], [0.9, 0.1])
    """

    def __init__(self, vectors: npt.ArrayLike) -> None:
        """Take in the vectors, one in each row."""
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        self._size, self._width = len(rows), int(rows.shape[1])
        self._index = _faiss().IndexFlatIP(self._width)
        self._index.add(rows)

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self._size

    def search(self, queries: npt.ArrayLike, count: int = 1) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the rows with the `count` largest inner products for each query, best first, and the products."""
        asked = np.ascontiguousarray(queries, dtype=np.float32)
        count = min(count, self._size)
        if len(asked) <= _FEW and self._size >= _LEAST and count < _FIRST:
            parts = [self._search_one(query, count) for query in asked]
        else:
            parts = [self.compare(asked[start : start + _AT_ONCE], count) for start in range(0, len(asked), _AT_ONCE)]
        return np.concatenate([rows for rows, _ in parts]), np.concatenate([scores for _, scores in parts])

    def _search_one(self, query: Floats, count: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the best rows for one query: those that the bytes put first, if no other can be among them."""
        at_most = min(_FIRST, self._size)
        while at_most * 8 <= self._size:
            found, bound = self.coarse.first(query, at_most)
            scores = self._rows[found] @ query
            order = np.lexsort((found, -scores))[:count]
            if scores[order[-1]] >= bound:
                return found[None, order], scores[None, order]
            at_most *= 8
        return self.compare(query[None], count)

    def compare(self, queries: Floats, count: int = 1) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the same by comparing all vectors as they are: the slow truth for a single query."""
        scores, rows = self._index.search(queries, count)
        return rows, scores

    @cached_property
    def coarse(self) -> Coarse:
        """The same vectors in bytes, made when a single query is first asked."""
        return Coarse.of(self._rows)

    @property
    def _rows(self) -> Floats:
        """The vectors as faiss holds them, without a copy."""
        held = _faiss().rev_swig_ptr(self._index.get_xb(), self._size * self._width)
        return np.asarray(held, dtype=np.float32).reshape(self._size, self._width)


@dataclass(frozen=True)
class Coarse:
    """Vectors in one byte a number, and how far the product with a query can be from that with the vectors themselves.

    All vectors are turned by one orthogonal matrix, which changes no product and spreads each evenly over its numbers,
    then rounded; so is a query. With x and q turned, c and b what they were rounded to,
    |<q, x> - <b, c>| <= |q| |x - c| + |q - b| |c| (Cauchy and Schwarz). `error` is the largest |x - c|, `longest` the
    largest |x|; `rounding` covers the arithmetic in single precision. A sum of `width` products is off by at most
    width * 2^-24 of the lengths; a turned vector holds `width` of them, together sqrt(width) times as much, and two are
    turned. Twelve times as much once more is left for lengths, products of bytes (exact up to a width of 1040), for a
    turn that is not quite orthogonal, and for the products themselves.
    """

    turn: Floats
    steps: float
    error: float
    longest: float
    index: Any

    @classmethod
    def of(cls, rows: Floats) -> Coarse:
        """Return the bytes of some vectors."""
        faiss, width = _faiss(), rows.shape[1]
        square = np.random.default_rng(0).standard_normal((width, width))  # any turn will do: nothing is secret here
        turn = np.linalg.qr(square)[0].astype(np.float32)
        turned = rows @ turn
        bytes_, steps = _in_bytes(turned)
        kind = faiss.ScalarQuantizer.QT_8bit_direct_signed
        index = faiss.IndexScalarQuantizer(width, kind, faiss.METRIC_INNER_PRODUCT)
        index.train(bytes_[:1])
        index.add(bytes_)
        error = float(np.linalg.norm(turned - bytes_ / steps, axis=1).max(initial=0.0))
        return cls(turn, float(steps), error, float(np.linalg.norm(rows, axis=1).max(initial=0.0)), index)

    @property
    def rounding(self) -> float:
        """What single precision may add to the error, for a query of length 1."""
        width = len(self.turn)
        return (2 * float(np.sqrt(width)) + 12) * width * 2.0**-24 * self.longest

    def first(self, query: Floats, count: int) -> tuple[npt.NDArray[np.int64], float]:
        """Return so many rows whose bytes give the largest products, and what no other row's product can exceed."""
        turned = (query @ self.turn)[None]
        bytes_, steps = _in_bytes(turned)
        products, rows = self.index.search(bytes_, count)
        length, rounded = float(np.linalg.norm(query)), float(np.linalg.norm(turned - bytes_ / steps))
        doubt = length * (self.error + self.rounding) + rounded * (self.longest + self.error)
        return rows[0], float(products[0, -1]) / (self.steps * float(steps)) + doubt


def _in_bytes(turned: Floats) -> tuple[Floats, np.float32]:
    """Return integers from -127 to 127, and how many there are to the unit."""
    steps = np.float32(127 / max(float(np.abs(turned).max(initial=0.0)), 1e-30))
    return np.round(turned * steps), steps


def unit(vectors: npt.NDArray[np.floating[Any]]) -> Floats:
    """Return vectors of length 1; a vector of zeros stays one."""
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
