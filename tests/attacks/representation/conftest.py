"""Vectors that lean one way, as an encoder's do, mixed and masked as a client would."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
import torch

from discreet.core.types import Knowledge, RepresentationRelease

WIDTH = 48


@dataclass(frozen=True)
class Scene:
    """Candidates, a release of mixtures of some of them, and the truth that only the measure sees."""

    vectors: npt.NDArray[np.float32]
    weights: npt.NDArray[np.float64]
    seen: RepresentationRelease

    @property
    def knows(self) -> Knowledge:
        texts = tuple(f"sentence {i}" for i in range(len(self.vectors)))
        return Knowledge(candidates=texts, extra={"vectors": torch.from_numpy(self.vectors)})

    @property
    def heaviest(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.weights.argmax(axis=1))


def scene(
    *, mix: int = 1, masks: int = 0, queries: int = 40, private: int = 60, count: int = 120, seed: int = 0,
    width: int = WIDTH,
) -> Scene:  # fmt: skip
    """Return mixtures of `mix` of the private among `count` candidates, under `masks` masks (0: none, -1: fresh)."""
    source = np.random.default_rng(seed)
    vectors = (source.standard_normal((count, width)) + 0.4 * source.standard_normal(width)).astype(np.float32)
    weights = np.zeros((queries, count))
    shares = np.abs(source.standard_normal((queries, mix)))
    shares /= shares.sum(axis=1, keepdims=True)
    for j in range(mix):
        np.add.at(weights, (np.arange(queries), source.integers(private, size=queries)), shares[:, j])
    mixed = weights @ vectors
    if masks:
        size = queries if masks < 0 else masks
        pool = source.choice([-1.0, 1.0], size=(size, width))
        mixed = mixed * pool[np.arange(queries) if masks < 0 else source.integers(size, size=queries)]
    return Scene(vectors, weights, RepresentationRelease(torch.from_numpy(mixed).float()))


@pytest.fixture
def leaking() -> Scene:
    return scene()
