from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from discreet.core.errors import DataError
from discreet.core.randomness import Rng
from discreet.data.batches import tokenise, tokens_for
from discreet.data.corpus import Corpus
from discreet.models.build import represent_apart
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.language_model import LanguageModel
from discreet.training.evaluation import assess, by_length, evaluate, predict


@given(st.lists(st.integers(1, 60), max_size=50), st.integers(1, 200))
def test_groups_hold_every_row_once_and_about_the_tokens_asked_for(lengths: list[int], tokens: int) -> None:
    array = np.array(lengths, dtype=np.int64)
    groups = by_length(array, tokens)
    assert sorted(row for group in groups for row in group.tolist()) == list(range(len(lengths)))
    assert all(len(group) == 1 or len(group) * array[group].max() <= tokens for group in groups)


def test_predictions_keep_the_order_of_the_corpus(tiny_encoder: Callable[[str], Path]) -> None:
    corpus = Corpus("toy", tuple("the " * (1 + (5 * i) % 9) + f"knee {i}" for i in range(12)), labels=(0, 1) * 6)
    model = Classifier.build(corpus, rng=Rng(0), encoder=str(tiny_encoder("bert")))
    together = predict(model, corpus).values
    alone = np.concatenate([predict(model, corpus.take([i])).values for i in range(12)])
    np.testing.assert_allclose(together, alone, atol=1e-6)
    np.testing.assert_allclose(together.sum(axis=1), 1, atol=1e-6)


def test_predictions_go_on_in_smaller_groups_when_memory_runs_out(
    tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = Corpus("toy", tuple(f"the knee {i}" for i in range(7)), labels=(0, 1, 0, 1, 0, 1, 0))
    model = Classifier.build(corpus, rng=Rng(0), encoder=str(tiny_encoder("bert")))
    whole, represent = predict(model, corpus).values, Classifier.represent

    def short_of_memory(self: Classifier, inputs: Mapping[str, Tensor]) -> Tensor:
        if len(inputs["input_ids"]) > 2:
            raise torch.OutOfMemoryError
        return represent(self, inputs)

    monkeypatch.setattr(Classifier, "represent", short_of_memory)
    np.testing.assert_allclose(predict(model, corpus).values, whole, atol=1e-6)
    monkeypatch.setattr(Classifier, "represent", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        predict(model, corpus)


def test_classes_are_matched_by_name(tiny_encoder: Callable[[str], Path]) -> None:
    texts = tuple(f"the knee {i}" for i in range(6))
    corpus = Corpus("toy", texts, labels=(0, 1, 0, 1, 0, 1), label_names=("ward", "clinic"))
    swapped = Corpus("toy", texts, labels=(1, 0, 1, 0, 1, 0), label_names=("clinic", "ward"))
    model = Classifier.build(corpus, rng=Rng(0), encoder=str(tiny_encoder("bert")))
    assert evaluate(model, corpus) == evaluate(model, swapped)
    strange = Corpus("toy", texts, labels=(1, 0) * 3, label_names=("clinic", "moon"))
    with pytest.raises(DataError, match="got 'moon'.*Rename"):
        evaluate(model, strange)
    with pytest.raises(DataError, match="Expected data for classification.*got regression"):
        evaluate(model, Corpus("toy", texts, scores=(0.0,) * 6))


def test_a_frozen_encoder_reads_smaller_parts_when_memory_runs_out(
    tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = tuple(f"the {word} was calm" for word in ("film", "plot", "knee", "scan", "ward", "note"))
    corpus = Corpus("toy", rows, labels=(0, 1, 0, 1, 0, 1))
    model = Classifier.build(corpus, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    tokens = tokenise(corpus, model.tokenizer, model.max_length)
    wanted, _ = represent_apart(model, tokens)
    represent, sizes = model.represent, []

    def short_of_memory(inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        sizes.append(len(inputs["input_ids"]))
        if sizes[-1] > 3:
            raise torch.OutOfMemoryError("made up")
        return represent(inputs)

    monkeypatch.setattr(model, "represent", short_of_memory)
    found, _ = represent_apart(model, tokens)
    torch.testing.assert_close(found, wanted)
    assert max(sizes) > 3 and sizes[-1] <= 3


def test_perplexity_is_the_loss_of_all_tokens_together(tiny_causal: Callable[[str], Path]) -> None:
    model = LanguageModel.load(ModelSettings(str(tiny_causal("llama"))), rng=Rng(0))
    corpus = Corpus("toy", tuple("the heart " * (1 + i % 4) + f"knee {i}" for i in range(9)), labels=(0, 1, 0) * 3)
    total, count = 0.0, 0
    for row in range(9):
        batch = tokens_for(model, corpus.take([row])).batch(np.arange(1))
        tokens = int(batch.inputs["attention_mask"].sum()) - 1
        total, count = total + model.eval().losses(batch.inputs, batch.targets).item() * tokens, count + tokens
    quality = assess(model.train(), corpus).quality
    assert quality.value == pytest.approx(np.exp(total / count), rel=1e-5) and model.training
    assert quality.interval[0] < quality.value < quality.interval[1] and quality.baseline == len(model.tokenizer)
    assert evaluate(model, corpus)["perplexity"] == quality.value
