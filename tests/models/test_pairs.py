"""Pairs of texts that are read separately."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from discreet.clipping.tape import Tape
from discreet.core.errors import ModelError, SettingError
from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.models.model_settings import ModelSettings
from discreet.models.pairs import SLOPE, THRESHOLD, pair_features, separate

FIRST = ("the plot was slow", "a film", "nobody laughed at all")
SECOND = ("the plot was slow", "two good jokes in a film", "nobody")


def pairs(scores: tuple[float, ...] | None = None) -> Corpus:
    labels = None if scores else (1, 0, 0)
    return Corpus("pairs", FIRST, second=SECOND, labels=labels, scores=scores)


def built(corpus: Corpus, encoder: Path, **settings: object) -> Classifier:
    return Classifier.build(corpus, rng=Rng(0), encoder=str(encoder), pairs="separate", **settings).eval()  # type: ignore[arg-type]


def alone(model: Classifier, text: str) -> torch.Tensor:
    """The vector of one text, read by itself: the slow twin."""
    inputs = model.tokenizer([text], return_tensors="pt")
    return model.states(dict(inputs)).mean(dim=1)


def test_a_pair_has_the_features_of_two_texts_that_are_read_alone(tiny_encoder: Callable[[str], Path]) -> None:
    model = built(pairs(), tiny_encoder("bert"))
    batch = tokens_for(model, pairs()).batch(np.arange(3))
    slow = torch.cat([pair_features(alone(model, a), alone(model, b)) for a, b in zip(FIRST, SECOND, strict=True)])
    found = model.represent(batch.inputs)
    assert found.shape == (3, model.width)
    torch.testing.assert_close(found, slow, atol=1e-5, rtol=1e-4)
    assert found[0, 0].item() == pytest.approx(1.0, abs=1e-5)


def test_the_untrained_head_predicts_from_the_cosine(tiny_encoder: Callable[[str], Path]) -> None:
    model = built(pairs(), tiny_encoder("bert"))
    batch = tokens_for(model, pairs()).batch(np.arange(3))
    cosine = model.represent(batch.inputs)[:, 0]
    odds = model(batch.inputs).diff(dim=1)[:, 0]
    torch.testing.assert_close(odds, SLOPE * (cosine - THRESHOLD), atol=1e-5, rtol=1e-5)
    scored = built(pairs((5.0, 1.0, 0.0)), tiny_encoder("bert"), score_range=(1.0, 5.0))
    torch.testing.assert_close(scored(batch.inputs)[:, 0], 1 + 4 * cosine, atol=1e-5, rtol=1e-5)


def test_gradients_of_two_readings_are_clipped_as_one(tiny_encoder: Callable[[str], Path]) -> None:
    model = built(pairs(), tiny_encoder("bert"), train="all")
    batch = tokens_for(model, pairs()).batch(np.arange(3))
    tape = Tape(model)
    with tape:
        losses = model.losses(batch.inputs, batch.targets)
    norms = tape.backward(losses).norms()
    for row in range(3):
        model.zero_grad()
        one = {name: value[row : row + 1] for name, value in batch.inputs.items()}
        model.losses(one, batch.targets[row : row + 1]).sum().backward()
        squares = [p.grad.square().sum() for p in model.parameters() if p.grad is not None]
        assert norms[row].item() == pytest.approx(torch.stack(squares).sum().sqrt().item(), rel=1e-4)


def test_tokens_without_types_are_rejected() -> None:
    ids = torch.ones(1, 4, dtype=torch.int64)
    with pytest.raises(ModelError, match="token types"):
        separate({"input_ids": ids, "attention_mask": ids}, 101)
    with pytest.raises(SettingError, match="pairs"):
        ModelSettings(pairs="both")
