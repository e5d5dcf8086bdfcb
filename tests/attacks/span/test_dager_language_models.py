"""Span attacks on causal language models with rotary positions, with and without adapters."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from discreet.attacks.encoder_layers import dissect
from discreet.attacks.span.dager import Dager
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge
from discreet.data.corpus import Corpus
from discreet.models.classifier import ModelSettings
from discreet.models.language_model import LanguageModel
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

pytestmark = pytest.mark.search
BATCH = Corpus("toy", ("the heart was dull", "a knee", "very slow walk and sharp pain"))


@pytest.fixture(scope="module")
def causal(tiny_causal: Callable[[str], Path]) -> Callable[..., LanguageModel]:
    """Return a function that makes a causal model wide enough for a batch, with weights that are not near zero."""

    def load(kind: str = "llama", train: str = "all") -> LanguageModel:
        from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

        config = AutoConfig.from_pretrained(tiny_causal(kind))
        wide = {"n_embd": 48} if kind == "gpt2" else {"hidden_size": 48, "head_dim": 24}
        config.update({**wide, "initializer_range": 0.2})
        config.pad_token_id = None
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = AutoModelForCausalLM.from_config(config)
        tokenizer = AutoTokenizer.from_pretrained(tiny_causal(kind))
        settings = ModelSettings(kind, train=train, embeddings=False)
        model = LanguageModel.from_transformers(network, tokenizer, settings, rng=Rng(0)).eval()
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)
        return model

    return load


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("lengths", [True, False])
def test_a_batch_is_read_exactly(causal: Callable[..., LanguageModel], kind: str, lengths: bool) -> None:
    model = causal(kind)
    seen = open_release(model, BATCH)
    assert seen.lengths == tuple(len(model.tokenizer(text)["input_ids"]) + 2 for text in BATCH.texts)
    guess = Dager().run(seen if lengths else replace(seen, lengths=None), Knowledge(model=model), Rng(0))
    assert set(guess.texts) == set(BATCH.texts) and all(guess.details["confirmed"])


def test_adapters_give_one_text_away_as_well(causal: Callable[..., LanguageModel]) -> None:
    model = causal("llama", "lora-16")
    guess = Dager().run(open_release(model, BATCH.take([2])), Knowledge(model=model), Rng(0))
    assert guess.texts == (BATCH.texts[2],)


def test_nothing_is_read_through_the_noise_of_a_budget(causal: Callable[..., LanguageModel]) -> None:
    model = causal("llama")
    protect = DPSGD(noise_multiplier=0.5)
    seen = protected_release(model, BATCH, protect, Rng(3), delta=1e-5)
    guess = Dager().run(seen, Knowledge(model=model, defence=protect), Rng(0))
    assert not set(guess.texts) & set(BATCH.texts)


def test_the_parts_of_a_rotary_model_have_no_positions(causal: Callable[..., LanguageModel]) -> None:
    anatomy = dissect(causal("llama"))
    assert not anatomy.embeddings.has_positions and anatomy.causal
    assert [part.name.rsplit(".", 2)[1] for part in anatomy.first] == ["q_proj", "k_proj", "v_proj"]
    tokens = torch.tensor([5, 5])
    inputs = anatomy.embeddings.inputs(tokens, torch.arange(2))
    assert torch.equal(inputs[0], inputs[1])
    assert dissect(causal("gpt2")).embeddings.has_positions
