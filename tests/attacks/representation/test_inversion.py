import numpy as np
import pytest
import torch

from discreet.attacks.representation.inversion import EmbeddingInversion
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, RepresentationRelease
from discreet.metrics.table import text_leakage

pytestmark = pytest.mark.search

VOCABULARY = [f"word{i}" for i in range(40)]
SMALL = EmbeddingInversion(hidden=64, epochs=12, batch_size=32, rate=5e-3)


def sentences(count: int, seed: int) -> tuple[list[str], torch.Tensor]:
    """Return texts of four random words and vectors in which each word has a direction of its own."""
    source = np.random.default_rng(seed)
    directions = np.random.default_rng(9).standard_normal((40, 24))
    rows = [source.choice(40, size=4, replace=False) for _ in range(count)]
    vectors = np.array([directions[row].sum(axis=0) for row in rows])
    return [" ".join(VOCABULARY[i] for i in row) for row in rows], torch.from_numpy(vectors).float()


def overlap(noise: float) -> tuple[float, float]:
    aux, aux_vectors = sentences(700, 0)
    texts, vectors = sentences(100, 1)
    source = torch.Generator().manual_seed(0)
    hide = [rows + noise * torch.randn(rows.shape, generator=source) for rows in (aux_vectors, vectors)]
    knows = Knowledge(auxiliary=aux, extra={"auxiliary": hide[0]})
    guess = SMALL.run(RepresentationRelease(hide[1]), knows, Rng(0))
    leak = text_leakage("jaccard", guess.texts, texts, rng=Rng(0))
    return leak.value, leak.chance or 0.0


def test_words_are_read_from_vectors_and_noise_hides_them_smoothly() -> None:
    clear, some, drowned = (overlap(noise) for noise in (0.0, 1.5, 50.0))
    assert clear[0] > 0.6
    assert clear[0] > some[0] + 0.1
    assert some[0] > drowned[0] + 0.1
    assert drowned[0] == pytest.approx(drowned[1], abs=0.08)


def test_what_cannot_be_used_is_refused() -> None:
    texts, vectors = sentences(30, 0)
    seen = RepresentationRelease(vectors)
    with pytest.raises(UnsupportedError, match="auxiliary text for Embedding inversion, got none"):
        SMALL.run(seen, Knowledge(), Rng(0))
    with pytest.raises(SettingError, match="auxiliary to be as many as their vectors, 5.*, got 30"):
        SMALL.run(seen, Knowledge(auxiliary=texts, extra={"auxiliary": vectors[:5]}), Rng(0))
    with pytest.raises(SettingError, match="auxiliary to be at least 20 sentences.*, got 5"):
        SMALL.run(seen, Knowledge(auxiliary=texts[:5], extra={"auxiliary": vectors[:5]}), Rng(0))
