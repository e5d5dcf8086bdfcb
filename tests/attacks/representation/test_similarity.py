import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.representation.conftest import WIDTH, Scene, scene

from discreet.attacks.representation.similarity import SCORES, Similarity
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge, RepresentationRelease

pytestmark = pytest.mark.search


def hits(attack: Similarity, made: Scene) -> float:
    guess = attack.run(made.seen, made.knows, Rng(0))
    assert guess.texts == tuple(f"sentence {i}" for i in guess.indices)
    return float((np.array(guess.indices) == made.heaviest).mean())


@pytest.mark.parametrize("score", SCORES)
def test_a_plain_vector_gives_its_sentence_away(score: str, leaking: Scene) -> None:
    assert hits(Similarity(score=score), leaking) == 1.0


def test_a_mask_hides_from_signed_cosine_alone() -> None:
    masked = scene(masks=-1)
    assert hits(Similarity("signed"), masked) < 0.2
    assert hits(Similarity("absolute"), masked) == 1.0
    assert hits(Similarity("least-squares"), masked) == 1.0


def named(attack: Similarity, made: Scene, mix: int) -> float:
    ranked = attack.run(made.seen, made.knows, Rng(0)).details["ranked"]
    true = [set(np.flatnonzero(row)) for row in made.weights]
    return float(np.mean([len(set(rows[:mix]) & b) / len(b) for rows, b in zip(ranked, true, strict=True)]))


def test_least_squares_names_what_was_mixed_under_fresh_masks() -> None:
    mixed = scene(mix=3, masks=-1, width=128)
    assert named(Similarity("least-squares"), mixed, 3) > 0.95
    guess = Similarity("least-squares").run(mixed.seen, mixed.knows, Rng(0))
    assert np.median(guess.details["misfit"]) < 0.02
    weights = [row[0] for row in guess.details["weights"]]
    np.testing.assert_allclose(np.median(np.abs(weights - mixed.weights.max(axis=1))), 0, atol=0.02)


def test_more_rounds_name_more_than_the_signs_that_public_vectors_give_away() -> None:
    mixed = scene(mix=3, masks=-1, width=128)
    assert named(Similarity("least-squares", rounds=1), mixed, 3) < 0.9


def test_without_masks_least_squares_may_trust_the_signs() -> None:
    mixed = scene(mix=4)
    assert hits(Similarity("least-squares", masked=False), mixed) == 1.0


@pytest.mark.parametrize("score", SCORES)
def test_random_vectors_give_chance_level(score: str) -> None:
    made = scene(queries=200)
    noise = torch.randn(200, WIDTH, generator=torch.Generator().manual_seed(1))
    guess = Similarity(score).run(RepresentationRelease(noise), made.knows, Rng(0))
    assert (np.array(guess.indices) == made.heaviest).mean() < 0.06  # chance 1/120, and four standard deviations


@settings(max_examples=20, deadline=None)
@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 1000))
def test_neither_scale_nor_mask_changes_the_absolute_score(scale: float, seed: int) -> None:
    made = scene(mix=4, queries=8, seed=seed)
    mask = np.random.default_rng(seed).choice([-1.0, 1.0], size=(8, WIDTH))
    changed = RepresentationRelease(made.seen.vectors * torch.from_numpy(mask * scale).float())
    before, after = (Similarity("absolute").run(seen, made.knows, Rng(0)) for seen in (made.seen, changed))
    assert before.indices == after.indices
    np.testing.assert_allclose(before.scores, after.scores, rtol=1e-4)


def test_the_same_release_gives_the_same_guess() -> None:
    made = scene(mix=4, masks=16)
    first, second = (Similarity("least-squares").run(made.seen, made.knows, Rng(seed)) for seed in (0, 1))
    assert first == second


def test_a_release_of_zeros_is_safe(leaking: Scene) -> None:
    zeros = RepresentationRelease(torch.zeros(3, WIDTH))
    for score in SCORES:
        assert len(Similarity(score).run(zeros, leaking.knows, Rng(0)).indices) == 3


def test_one_candidate_alone_is_always_named(leaking: Scene) -> None:
    alone = Knowledge(candidates=["it"], extra={"vectors": leaking.vectors[:1]})
    for score in SCORES:
        assert set(Similarity(score).run(leaking.seen, alone, Rng(0)).texts) == {"it"}


def test_candidates_come_from_texts_and_the_public_model(tiny_encoder) -> None:
    from discreet.attacks.representation.candidates import representations
    from discreet.data.corpus import Corpus
    from discreet.models.classifier import Classifier

    texts = ("the heart was sharp", "a dull knee", "the nurse was calm", "very slow week")
    corpus = Corpus("toy", texts, labels=(0, 1, 0, 1))
    model = Classifier.build(corpus, encoder=str(tiny_encoder("bert")), rng=Rng(0))
    seen = RepresentationRelease(representations(model, [texts[2], texts[0]]))
    guess = Similarity().run(seen, Knowledge(candidates=texts, model=model), Rng(0))
    assert guess.texts == (texts[2], texts[0])


def test_what_cannot_be_used_is_refused(leaking: Scene) -> None:
    attack = Similarity()
    with pytest.raises(UnsupportedError, match=r"seen to be a RepresentationRelease, got a GradientRelease.*gradient"):
        attack.run(GradientRelease({}, 1), leaking.knows, Rng(0))  # type: ignore[arg-type]
    with pytest.raises(UnsupportedError, match=r"candidates for Similarity search, got none.*Knowledge"):
        attack.run(leaking.seen, Knowledge(), Rng(0))
    with pytest.raises(SettingError, match=r"width to be 48, that of the release.*, got 7. Use the same encoder"):
        attack.run(leaking.seen, Knowledge(extra={"vectors": torch.ones(3, 7)}), Rng(0))
    with pytest.raises(SettingError, match=r"candidates to be as many as their vectors, 120.*, got 1"):
        attack.run(leaking.seen, Knowledge(candidates=["x"], extra=leaking.knows.extra), Rng(0))
    with pytest.raises(SettingError, match=r"to be finite, got"):
        attack.run(RepresentationRelease(torch.full((1, WIDTH), torch.nan)), leaking.knows, Rng(0))
    with pytest.raises(SettingError, match=r"score to be one of signed, .*, got 'sign'. Did you mean 'signed'"):
        Similarity(score="sign")
