"""A typed sentence among others: the same figures as if it had been a row, and no trace of it behind."""

from __future__ import annotations

import numpy as np
import pytest

from discreet.attacks.identification import gram_matrix
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.experiment.attack.scene import Scene
from discreet.explorer.typed import UNIT, TypedScene
from discreet.models.build import encode

TYPED = "the heart was calm and the cough was dull"


def test_the_sentence_is_drawn_first_and_alone_if_one_is_asked_for(scenes: dict[str, Scene]) -> None:
    scene = TypedScene.beside(scenes["gradient"], TYPED, 1)
    assert scene.draw(1, Rng(0)).texts == (TYPED,)
    several = scene.draw(5, Rng(0))
    assert several.texts[0] == TYPED and len(set(several.texts)) == 5 and several.labels is not None
    assert several.labels[0] == 1 and several.unit_name == UNIT and several.units is None
    assert scene.draw(5, Rng(0)).texts == several.texts


def test_inner_products_are_those_of_all_candidates_together(scenes: dict[str, Scene]) -> None:
    scene = TypedScene.beside(scenes["gradient"], TYPED, 0)
    for text in (TYPED, scenes["gradient"].rows.texts[3]):  # new, or a text that is there already
        scene = TypedScene.beside(scenes["gradient"], text, 0)
        rows = scene.draw(12, Rng(0))
        assert len(set(rows.texts)) == 12
        slow = gram_matrix(scene.model, rows)
        np.testing.assert_allclose(scene.gram(rows), slow, rtol=1e-4, atol=1e-5 * slow.max())
    assert scene.gram(rows) is scene.gram(rows)


def test_vectors_are_the_encoder_s_and_nothing_of_the_sentence_stays_behind(scenes: dict[str, Scene]) -> None:
    base = scenes["representation"]
    scene = TypedScene.beside(base, TYPED, 0)
    texts = scene.candidates([TYPED], 6, Rng(0))
    assert TYPED in texts and len(texts) == 6
    plain = encode(base.model, Corpus("a", texts), None, "float32").vectors
    np.testing.assert_allclose(scene.vectors(texts), plain, atol=1e-5)
    scene.gram(scene.draw(6, Rng(0)))
    assert TYPED not in repr(base.cache) and TYPED not in repr(scene)


def test_pairs_are_refused(scenes: dict[str, Scene]) -> None:
    base = scenes["gradient"]
    pairs = Scene(base.model, Corpus("pairs", ("a",), second=("b",), labels=(0,), label_names=("x", "y")))
    with pytest.raises(UnsupportedError, match="single texts"):
        TypedScene.beside(pairs, TYPED, 0)
