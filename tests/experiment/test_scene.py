from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.experiment.attack.scene import Scene
from discreet.models.classifier import Classifier

TEXTS = tuple(f"the {thing} was dull" for thing in ("heart", "knee", "lung", "hand", "back", "film", "plot", "walk"))
CORPUS = Corpus("toy", TEXTS, labels=(0, 1) * 4, splits=("train",) * 4 + ("validation",) * 4)


@pytest.fixture(scope="module")
def model(tiny_encoder: Callable[[str], Path]) -> Classifier:
    return Classifier.build(CORPUS, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")


def test_public_text_is_without_the_texts_under_attack_however_they_are_written(model: Classifier) -> None:
    public = ("The Heart  was dull", "the heart was dull", "THE KNEE WAS DULL", "the lung was dull")
    scene = Scene.of(CORPUS, model, public=public)
    assert scene.public_without(["the heart was dull", "the  knee was dull"]) == ("the lung was dull",)
    assert scene.public_without([]) == public


def test_the_place_of_the_truth_among_the_candidates_says_nothing(model: Classifier) -> None:
    """Over 200 seeds it stands at every one of four places, as a place is missed by chance once in 10^24."""
    scene = Scene.of(CORPUS, model)
    truth = scene.rows.texts[0]
    places = [scene.candidates([truth], 4, Rng(seed)).index(truth) for seed in range(200)]
    assert all(20 < places.count(place) < 80 for place in range(4))
