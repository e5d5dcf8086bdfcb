from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.core.randomness import Rng
from discreet.data.batches import shortened, tokenise
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


class Counting:
    """A tokenizer that notes the longest text it was given, and the most characters at once."""

    def __init__(self, tokenizer: Any) -> None:
        self.inner, self.longest, self.most = tokenizer, 0, 0
        self.pad_token_id, self.is_fast = tokenizer.pad_token_id, tokenizer.is_fast

    def __call__(self, texts: Any, *others: Any, **options: Any) -> Any:
        given = [texts] if isinstance(texts, str) else [*texts, *(text for other in others for text in other or ())]
        self.longest = max(self.longest, *map(len, given))
        self.most = max(self.most, sum(map(len, given)))
        return self.inner(texts, *others, **options)


LONG = {
    "words": "the heart was calm and the knee dull " * 1_700,
    "no space": "z" * 60_000,
    "marks": "." * 60_000,
    "unknown words": ("q" * 120 + " ") * 500,
    "spaces": "the heart" + " " * 60_000 + "the knee",
}


@pytest.mark.parametrize("kind", LONG)
def test_a_long_text_is_cut_before_it_is_tokenised(encoder: Encoder, kind: str) -> None:
    texts = ("the heart", LONG[kind], "the knee")
    tokenizer = Counting(encoder.tokenizer)
    tokens = tokenise(Corpus("toy", texts, labels=(0, 1, 1)), tokenizer, 48)
    assert tokenizer.longest <= 48 * 1024 and tokenizer.most <= 2**20 + 48 * 1024
    assert tokens.truncated == 1
    whole = encoder.tokenizer(list(texts), truncation=True, max_length=48)["input_ids"]
    kept = tokens.columns["input_ids"]
    for row, ids in enumerate(whole):
        if kind != "spaces" or row != 1:  # so many spaces are cut, with the two words behind them
            assert kept[row, : tokens.lengths[row]].tolist() == ids


@cache
def bert_tokenizer() -> Any:
    """Return a WordPiece tokenizer that splits at white space and marks."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "the", "art", *"thear.né-", *(f"##{c}" for c in "thearné")]
    tokenizer = Tokenizer(models.WordPiece({w: i for i, w in enumerate(dict.fromkeys(words))}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


@cache
def byte_pairs() -> Any:
    """Return a byte-level tokenizer as GPT-2's: a word begins with the space before it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(["the heart was calm and the knee dull"] * 3, trainer)
    tokenizer.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


@given(
    st.lists(st.text(st.sampled_from("the art\n.né́我\t-"), min_size=0, max_size=40), min_size=2, max_size=4),
    st.integers(3, 12),
)
@settings(max_examples=60)
def test_the_tokens_of_a_cut_text_are_those_of_the_whole(pieces: list[str], max_length: int) -> None:
    bert, pairs = bert_tokenizer(), byte_pairs()
    for tokenizer in (bert, pairs):
        for text in (join.join(pieces) * (9_000 // (1 + len(join.join(pieces)))) for join in ("", " ")):
            short = shortened(text, tokenizer, max_length)
            expected = tokenizer(text, truncation=True, max_length=max_length)["input_ids"]
            assert tokenizer(short, truncation=True, max_length=max_length)["input_ids"] == expected


def test_pairs_of_long_texts_are_cut_too(encoder: Encoder) -> None:
    long = "the heart was calm and the knee dull " * 150
    corpus = Corpus("toy", ("heart", long), labels=(0, 1), second=(long, long[4:]))
    tokenizer = Counting(encoder.tokenizer)
    tokens = tokenise(corpus, tokenizer, 12)
    assert tokenizer.longest < len(long) and tokens.truncated == 2
    whole = encoder.tokenizer(list(corpus.texts), list(corpus.second or ()), truncation=True, max_length=12)
    assert tokens.columns["input_ids"].tolist() == whole["input_ids"]
    assert tokens.columns["token_type_ids"].tolist() == whole["token_type_ids"]
