"""Candidates of attacks on representations: their vectors, and the mean and spread of public vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from discreet.core.errors import UnsupportedError, invalid
from discreet.core.types import Knowledge, Release, RepresentationRelease
from discreet.data.batches import tokenise
from discreet.data.corpus import Corpus
from discreet.models.base import evaluating
from discreet.models.classifier import Classifier

Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

_BATCH = 64
_LEAST_SPREAD = 1e-3  # of the mean spread: some encoders have nearly constant coordinates


@dataclass(frozen=True)
class Candidates:
    """Candidate sentences as vectors, (candidates, width), with the mean and spread of public vectors."""

    vectors: Floats = field(repr=False)
    texts: tuple[str, ...] = field(repr=False)
    mean: Floats = field(repr=False)
    spread: Floats = field(repr=False)

    def __len__(self) -> int:
        """Return the number of candidates."""
        return len(self.vectors)

    def named(self, rows: Sequence[int]) -> tuple[str, ...]:
        """Return the texts of some candidates; empty if the attacker has only their vectors."""
        return tuple(self.texts[row] for row in rows) if self.texts else ()


def candidates(knows: Knowledge, width: int, attack: str) -> Candidates:
    """Return the candidates from an attacker's knowledge; errors name `attack`.

    They are `extra["vectors"]`, or the public model's vectors of the texts in `candidates`. The mean and spread come
    from `extra["public"]`, vectors of public text, or else from the candidates themselves.
    """
    values = known_vectors(knows, "vectors", knows.candidates)
    if values is None or not len(values):
        raise UnsupportedError(
            f"Expected candidates for {attack}, got none. Pass Knowledge(candidates=texts, model=the public encoder), "
            "or their vectors as extra={'vectors': tensor}."
        )
    vectors = matrix("extra['vectors']", values, width)
    texts = tuple(knows.candidates)
    if texts and len(texts) != len(vectors):
        raise invalid(
            "candidates", len(texts), f"as many as their vectors, {len(vectors)}", "Pass one vector per text."
        )
    public = knows.extra.get("public")
    mean, spread = statistics(vectors if public is None else matrix("extra['public']", public, width))
    return Candidates(vectors, texts, mean, spread)


def known_vectors(knows: Knowledge, name: str, texts: Sequence[str]) -> Any:
    """Return the vectors of this name in an attacker's knowledge, or those of texts by the public encoder, or None."""
    values = knows.extra.get(name)
    if values is None and texts and isinstance(knows.model, Classifier):
        return representations(knows.model, texts)
    return values


def statistics(vectors: Floats) -> tuple[Floats, Floats]:
    """Return the mean and the standard deviation of each coordinate; a constant one gets a small deviation."""
    spread = vectors.std(axis=0)
    least = float(spread.mean()) * _LEAST_SPREAD or 1.0  # a single vector has no spread
    return vectors.mean(axis=0), np.asarray(np.maximum(spread, least), dtype=np.float32)


def released(seen: Release, attack: str) -> Floats:
    """Return the vectors of a release; raise if it has none."""
    if not isinstance(seen, RepresentationRelease):
        raise UnsupportedError(
            f"Expected seen to be a RepresentationRelease, got a {type(seen).__name__}. {attack} reads vectors; "
            "attack a gradient with the attacks in discreet.attacks.span or .matching."
        )
    return matrix("seen.vectors", seen.vectors, None)


def matrix(name: str, values: torch.Tensor | npt.ArrayLike, width: int | None) -> Floats:
    """Return vectors as rows of float32; raise unless they are a finite matrix of that width."""
    rows = values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)
    if rows.ndim != 2 or not rows.size:
        raise invalid(f"{name}.shape", rows.shape, "(rows, width), neither of them 0", "Pass one vector per row.")
    if width is not None and rows.shape[1] != width:
        raise invalid(f"{name}.width", rows.shape[1], f"{width}, that of the release", "Use the same encoder for both.")
    out = np.ascontiguousarray(rows, dtype=np.float32)
    if not np.isfinite(out).all():
        raise invalid(name, "NaN or infinite values", "finite", "Check the encoder for overflow.")
    return out


def accelerated(start: Doubles, descend: Callable[[Doubles], Doubles], steps: int) -> Doubles:
    """Return the point after some steps of a descent with Nesterov's momentum; `descend` takes one of them."""
    point = ahead = start
    momentum = 1.0
    for _ in range(steps):
        new = descend(ahead)
        following = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = new + (momentum - 1) / following * (new - point)
        point, momentum = new, following
    return point


@torch.inference_mode()
def representations(model: Classifier, texts: Sequence[str]) -> torch.Tensor:
    """Return the public encoder's vectors of texts, (texts, width)."""
    tokens = tokenise(Corpus("candidates", tuple(texts)), model.tokenizer, model.max_length, model.device)
    order = np.argsort(tokens.lengths, kind="stable").astype(np.int64)
    out = torch.empty(len(order), model.width)
    with evaluating(model):
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            out[torch.from_numpy(rows)] = model.represent(tokens.batch(rows).inputs).float().cpu()
    return out
