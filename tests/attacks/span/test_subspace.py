from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from discreet.attacks.encoder_layers import dissect
from discreet.attacks.span.spans import nearest_tokens, span_of, token_sets
from discreet.attacks.span.subspace import Subspace
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

pytestmark = pytest.mark.search

Build = Callable[..., Classifier]
BATCH = Corpus("toy", ("the heart was dull", "a knee", "very slow walk and sharp pain"), labels=(0, 1, 0))
ATTACK = Subspace(steps=60, choices=12)


def right_words(guess: Guess) -> int:
    """Return how many words of the first text a guess has in their place."""
    text = guess.texts[0] if guess.texts else ""
    return sum(a == b for a, b in zip(text.split(), BATCH.texts[0].split(), strict=False))


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_batch_of_different_lengths_is_read(tiny_model: Build, kind: str) -> None:
    model = tiny_model(kind)
    guess = ATTACK.run(open_release(model, BATCH), Knowledge(model=model), Rng(0))
    assert set(guess.texts) == set(BATCH.texts)


def test_little_noise_is_borne_and_much_is_not(tiny_model: Build) -> None:
    model = tiny_model("bert")
    one = BATCH.take([0])
    seen = protected_release(model, one, DPSGD(1e-5, clip_norm=1.0), Rng(0), delta=1e-5)
    assert ATTACK.run(seen, Knowledge(model=model), Rng(0)).texts == one.texts
    seen = protected_release(model, one, DPSGD(1.0, clip_norm=1.0), Rng(0), delta=1e-5)
    assert right_words(ATTACK.run(seen, Knowledge(model=model), Rng(0))) <= 1


def test_random_gradients_give_chance(tiny_model: Build) -> None:
    model = tiny_model("bert")
    source = torch.Generator().manual_seed(0)
    vectors = {n: torch.randn(p.shape, generator=source) for n, p in model.named_parameters()}
    low = {n: torch.outer(g[:, 0], g[0]) if g.dim() == 2 else g for n, g in vectors.items()}
    guess = ATTACK.run(GradientRelease(low, 1, lengths=(6,)), Knowledge(model=model), Rng(0))
    assert right_words(guess) <= 1
    full = GradientRelease(vectors, 1, noise_std=1.0, lengths=(6,))
    assert right_words(ATTACK.run(full, Knowledge(model=model), Rng(0))) <= 1


def test_the_nearest_tokens_are_those_inside(tiny_model: Build) -> None:
    model = tiny_model("bert")
    parts = dissect(model)
    span = span_of(open_release(model, BATCH.take([0])), parts.first, 4e-7, "test")
    tokens, distances = nearest_tokens(parts.embeddings, span, 6, 5)
    assert tokens[:, :1].tolist() == token_sets(parts.embeddings, span, 1e-3, 48)
    assert bool((distances.diff(dim=1) >= 0).all())


def test_what_cannot_be_attacked_is_refused(tiny_model: Build) -> None:
    model = tiny_model("bert", train="head")
    with pytest.raises(UnsupportedError, match=r"for the subspace attack, got none.*A head alone"):
        ATTACK.run(open_release(model, BATCH), Knowledge(model=model), Rng(0))
    model = tiny_model("bert")
    with pytest.raises(UnsupportedError, match="Expected lengths"):
        ATTACK.run(replace(open_release(model, BATCH), lengths=None), Knowledge(model=model), Rng(0))
    for bad in ({"choices": 0}, {"rate": 0}, {"seconds": 0}):
        with pytest.raises(SettingError):
            Subspace(**bad)  # type: ignore[arg-type]
