from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer, GPT2LMHeadModel

from discreet.core.errors import ModelError
from discreet.models.causal_prior import CausalPrior
from discreet.models.encoder import quiet


@pytest.fixture(scope="module")
def folder(tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny causal language model in a folder, taught one sentence."""
    where = tmp_path_factory.mktemp("causal")
    tokenizer = AutoTokenizer.from_pretrained(tiny_encoder("gpt2"))
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(AutoConfig.from_pretrained(tiny_encoder("gpt2")))
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
        opening = tokenizer.bos_token or tokenizer.eos_token
        ids = tokenizer(opening + "the heart was dull", return_tensors="pt")["input_ids"]
        for _ in range(30):
            optimiser.zero_grad()
            model(input_ids=ids, labels=ids).loss.backward()
            optimiser.step()
        model.save_pretrained(where)
        tokenizer.save_pretrained(where)
    return where


def test_a_known_sentence_is_less_surprising_than_its_words_in_another_order(
    folder: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    spoken = AutoTokenizer.from_pretrained(tiny_encoder("bert"))
    prior = CausalPrior.load(folder, spoken)
    rows = spoken(["the heart was dull", "dull was the heart", "a knee"], return_tensors="pt", padding=True)
    known, shuffled, _ = prior.surprise(rows["input_ids"], rows["attention_mask"])
    assert float(known) < float(shuffled)
    alone = prior.surprise(rows["input_ids"][2:, :4], torch.ones(1, 4, dtype=torch.int64))
    assert float(alone[0]) == pytest.approx(
        float(prior.surprise(rows["input_ids"], rows["attention_mask"])[2]), rel=1e-4
    )


def test_what_is_no_language_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="causal language model"):
        CausalPrior.load(tmp_path, None)
