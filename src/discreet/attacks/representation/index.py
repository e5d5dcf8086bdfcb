"""An exact index: the rows of a matrix with the largest inner products, by faiss."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.attacks.representation.candidates import Floats
from discreet.core.errors import ExtraError

_AT_ONCE = 1000  # faiss multiplies matrices for large batches, and reads the whole index once for each small one


class Index:
    """Vectors in which the nearest to a query are found, all compared.

    >>> best, scores = Index(np.eye(3)).search(np.array([[0.0, 0.9, 0.1]]), 2)
    >>> best.tolist(), [round(float(score), 2) for score in scores[0]]
    ([[1, 2]], [0.9, 0.1])
    """

    def __init__(self, vectors: npt.ArrayLike) -> None:
        """Take in the vectors, one in each row."""
        rows = np.ascontiguousarray(vectors, dtype=np.float32)
        self._size = len(rows)
        self._index = _faiss().IndexFlatIP(rows.shape[1])
        self._index.add(rows)

    def __len__(self) -> int:
        """Return the number of vectors."""
        return self._size

    def search(self, queries: npt.ArrayLike, count: int = 1) -> tuple[npt.NDArray[np.int64], Floats]:
        """Return the rows with the `count` largest inner products for each query, best first, and the products."""
        asked = np.ascontiguousarray(queries, dtype=np.float32)
        parts = [
            self._index.search(asked[start : start + _AT_ONCE], min(count, self._size))
            for start in range(0, len(asked), _AT_ONCE)
        ]
        return np.concatenate([rows for _, rows in parts]), np.concatenate([scores for scores, _ in parts])


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
