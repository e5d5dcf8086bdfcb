from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from discreet.attacks.extraction.class_inversion import ClassInversion, whole_words
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, ModelRelease
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier

CORPUS = Corpus("toy", ("the heart was calm", "a sharp pain"), labels=(0, 1), label_names=("heart", "pain"))


@pytest.fixture(scope="module")
def model(tiny_encoder: Callable[[str], Path]) -> Classifier:
    built = Classifier.build(CORPUS, rng=Rng(0), encoder=str(tiny_encoder("bert")), dropout=0.0).eval()
    with torch.no_grad():
        built.head.weight.mul_(200)
    return built


def test_each_class_gets_a_text_that_it_likes(model: Classifier) -> None:
    attack = ClassInversion(words=4, steps=12, swaps=24, restarts=1)
    first, second = (attack.run(ModelRelease(model), Knowledge(), Rng(0)) for _ in range(2))
    assert first.texts == second.texts and len(first.texts) == 2
    start = ClassInversion(words=4, steps=1, swaps=1, restarts=1).run(ModelRelease(model), Knowledge(), Rng(0))
    assert sum(first.scores) > sum(start.scores)
    for text in first.texts:
        assert len(text.split()) == 4 and all(word.isalpha() for word in text.split())


def test_one_class_can_be_chosen_and_an_unseen_label_is_rejected(model: Classifier) -> None:
    attack = ClassInversion(words=2, steps=1, restarts=1, class_name="pain")
    assert len(attack.run(ModelRelease(model), Knowledge(), Rng(0)).texts) == 1
    with pytest.raises(SettingError, match="one of heart, pain, got 'pian'. Did you mean 'pain'"):
        ClassInversion(class_name="pian").run(ModelRelease(model), Knowledge(), Rng(0))


def test_other_models_are_rejected(model: Classifier) -> None:
    with pytest.raises(UnsupportedError, match="Use extraction for a language model"):
        ClassInversion().run(ModelRelease(torch.nn.Linear(2, 2)), Knowledge(), Rng(0))
    with pytest.raises(SettingError, match="words"):
        ClassInversion(words=0)


def test_only_whole_words_are_tried(model: Classifier) -> None:
    words = model.tokenizer.convert_ids_to_tokens(whole_words(model.tokenizer).tolist())
    assert "heart" in words and "##a" not in words and "[CLS]" not in words and "a" not in words
