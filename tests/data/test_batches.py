from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from discreet.core.randomness import Rng
from discreet.data.batches import tokenise
from discreet.data.corpus import Corpus
from discreet.models.encoder import Encoder, load_encoder


@pytest.fixture
def encoder(tiny_encoder: Callable[[str], Path]) -> Encoder:
    return load_encoder(str(tiny_encoder("bert")), rng=Rng(0))


def test_rows_come_back_as_the_tokenizer_gives_them(encoder: Encoder) -> None:
    corpus = Corpus("toy", ("the heart", "the knee was very dull", "pain"), labels=(0, 1, 1))
    tokens = tokenise(corpus, encoder.tokenizer, 48)
    batch = tokens.batch(np.array([2, 0]))
    expected = encoder.tokenizer(["pain", "the heart"], padding=True, return_tensors="pt")
    for name, column in expected.items():
        assert torch.equal(batch.inputs[name], column), name
    assert batch.targets.tolist() == [1, 0]
    assert len(batch.slice(1, 2)) == 1


def test_pairs_have_types(encoder: Encoder) -> None:
    corpus = Corpus("toy", ("heart", "knee"), labels=(0, 1), second=("the ward", "lung"))
    batch = tokenise(corpus, encoder.tokenizer, 48).batch(np.array([0]))
    assert batch.inputs["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]


def test_long_texts_are_cut_and_counted(encoder: Encoder) -> None:
    corpus = Corpus("toy", ("the " * 8, "the " * 6, "the " * 9), labels=(0, 1, 1))
    tokens = tokenise(corpus, encoder.tokenizer, max_length=8)
    assert tokens.truncated == 2  # six words and two special tokens just fit
    assert tokens.lengths.tolist() == [8, 8, 8]


def test_an_empty_batch_is_a_batch(encoder: Encoder) -> None:
    corpus = Corpus("toy", ("the heart", "the knee"), labels=(0, 1))
    batch = tokenise(corpus, encoder.tokenizer, 48).batch(np.array([], dtype=np.int64))
    assert len(batch) == 0
    assert batch.inputs["input_ids"].shape[0] == 0


def test_scores_and_missing_labels_become_targets(encoder: Encoder) -> None:
    scored = Corpus("toy", ("the heart",), scores=(0.5,))
    assert tokenise(scored, encoder.tokenizer, 48).targets.tolist() == [0.5]
    assert tokenise(Corpus("toy", ("the heart",)), encoder.tokenizer, 48).targets.tolist() == [0]
