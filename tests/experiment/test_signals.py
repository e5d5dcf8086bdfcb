"""Signals of membership: the scores of a language model's tokens do not depend on how batches are padded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.corpus import Corpus
from discreet.experiment.attack import signals
from discreet.models.classifier import ModelSettings
from discreet.models.language_model import LanguageModel


def test_tokens_that_fill_a_batch_to_a_fixed_length_are_left_out(
    tiny_causal: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = LanguageModel.load(ModelSettings(str(tiny_causal("llama"))), rng=Rng(0))
    tokens = tokens_for(model, Corpus("toy", ("the knee was swollen", "the heart", "the hand was cold and pale")))
    expected = signals.token_scores(model, tokens, pretrained=model)
    unpadded = signals._token_scores

    def padded(*args: Any) -> tuple[Any, ...]:  # as on a GPU
        return tuple(np.pad(values, ((0, 0), (0, 3))) for values in unpadded(*args))

    monkeypatch.setattr(signals, "_token_scores", padded)
    scores = signals.token_scores(model, tokens, pretrained=model)
    for name in ("target", "hits", "real", "pretrained"):
        np.testing.assert_array_equal(getattr(scores, name), getattr(expected, name))
