"""The server's head in NumPy: for one vector of a few hundred numbers, the overhead of torch exceeds the product."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from discreet.core.errors import DataError, ModelError
from discreet.core.task import Task

if TYPE_CHECKING:
    from discreet.local.server import ServerSide

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Head:
    """Linear layers with ReLU between them, applied to released vectors: post-processing only.

    >>> head = Head(((np.eye(2, 3, dtype=np.float32), np.zeros(2, dtype=np.float32)),), ("no", "yes"))
    >>> head.answers(head.checked([[0.0, 2.0, 9.0]]))[0]["label"]
    'yes'
    """

    layers: tuple[tuple[Vectors, Vectors], ...] = field(repr=False)
    label_names: tuple[str, ...]
    task: Task = Task.CLASSIFICATION
    about: str = ""

    @classmethod
    def of(cls, side: ServerSide) -> Head:
        """Return the head of a `ServerSide`."""
        from torch import nn

        parts = [side.head] if isinstance(side.head, nn.Linear) else list(side.head.children())
        layers = []
        for number, part in enumerate(parts):
            if not isinstance(part, nn.Linear if number % 2 == 0 else nn.ReLU):
                raise ModelError(f"Expected linear layers with ReLU between them, got {type(part).__name__}.")
            if isinstance(part, nn.Linear):
                tensors = part.weight, part.bias
                layers.append(tuple(t.detach().cpu().float().numpy().copy() for t in tensors))
        return cls(tuple((w, b) for w, b in layers), side.label_names, side.task, side.about)

    @property
    def width(self) -> int:
        """The width of a released vector."""
        return int(self.layers[0][0].shape[1])

    def checked(self, rows: Any) -> Vectors:
        """Return lists of numbers as vectors; reject text and anything else that is not a release of this width."""
        if isinstance(rows, str) or not isinstance(rows, list) or not rows:
            raise DataError(
                f"Expected vectors as a list of lists of {self.width} numbers, got {_kind(rows)}. The server "
                "accepts no text: protect it on the user's side (discreet query) and send the release."
            )
        try:
            array = np.array(rows)
        except (ValueError, OverflowError, TypeError):
            array = np.empty(0, dtype=object)
        if array.ndim != 2 or array.dtype.kind not in "fi":
            if array.dtype.kind == "U":
                raise DataError(
                    "Expected numbers in vectors, got text. The server accepts no text: protect it on the user's side."
                )
            raise DataError(
                f"Expected vectors as lists of {self.width} numbers, got another shape or type. Fix the vectors."
            )
        if array.shape[1] != self.width:
            raise DataError(
                f"Expected vectors of width {self.width}, got {array.shape[1]}. They are for another server; use the "
                "client folder written with this one."
            )
        with np.errstate(over="ignore"):
            vectors = array.astype(np.float32)
        if not np.isfinite(vectors).all():
            raise DataError(
                "Expected finite float32 numbers in vectors, got NaN, infinity or an overflow. Protect the text again."
            )
        return vectors

    def values(self, vectors: Vectors) -> Vectors:
        """Return class probabilities, (rows, classes), or scores, (rows, 1)."""
        with np.errstate(over="ignore", invalid="ignore"):
            scores = vectors
            for number, (weights, bias) in enumerate(self.layers):
                scores = (np.maximum(scores, 0) if number else scores) @ weights.T + bias
            if not self.task.has_classes:
                return scores
            scores -= scores.max(axis=1, keepdims=True)
            np.exp(scores, out=scores)
            scores /= scores.sum(axis=1, keepdims=True)
        return scores

    def answers(self, vectors: Vectors) -> list[dict[str, Any]]:
        """Return a label with all probabilities, or a score, for each vector; reject vectors that overflow."""
        values = self.values(vectors)
        if not np.isfinite(values).all():
            raise DataError("Expected vectors with finite scores, got an overflow. Protect the text again.")
        if not self.task.has_classes:
            return [{"score": score} for score in values[:, 0].tolist()]
        best = values.argmax(axis=1)
        return [
            {"label": self.label_names[label], "probabilities": row}
            for label, row in zip(best, values.tolist(), strict=True)
        ]


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    return "none" if value is None or value == [] else f"a {type(value).__name__}"
