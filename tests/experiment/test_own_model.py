"""`discreet.attack_model`: models that the user holds, from their gradients to what was read of their texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.conftest import WORDS

import discreet
from discreet.catalog import ATTACKS
from discreet.core.errors import DataError, SettingError, UnsupportedError

TEXTS = ("the heart was dull", "a knee and very slow walk", "very sharp pain")
Held = Callable[..., tuple[Any, Any]]


@pytest.fixture(scope="module")
def held(tiny_encoder: Callable[[str], Path], tiny_causal: Callable[[str], Path]) -> Held:
    """Return a function that makes a model of transformers with weights that are not near zero, and its tokenizer."""

    def make(auto: str, kind: str = "bert") -> tuple[Any, Any]:
        folder = tiny_causal(kind) if "Causal" in auto else tiny_encoder(kind)
        config = transformers.AutoConfig.from_pretrained(folder)
        config.update({"initializer_range": 0.2, "n_embd" if kind == "gpt2" else "hidden_size": 32})
        if kind == "llama":
            config.update({"head_dim": 16})
            config.pad_token_id = None
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network = getattr(transformers, auto).from_config(config)
        return network, transformers.AutoTokenizer.from_pretrained(folder)

    return make


@pytest.mark.parametrize(
    ("auto", "kind"),
    [
        ("AutoModelForSequenceClassification", "bert"),
        ("AutoModelForTokenClassification", "bert"),
        ("AutoModelForCausalLM", "gpt2"),
        ("AutoModelForCausalLM", "llama"),
    ],
)
def test_dager_reads_every_kind_of_model(held: Held, auto: str, kind: str) -> None:
    network, tokenizer = held(auto, kind)
    training = network.train().training
    found = discreet.attack_model(network, tokenizer, TEXTS, "dager")
    assert found.n == 3 and {example.guess for example in found.examples} == set(TEXTS)
    assert found.guarantee is None and network.training == training
    together = discreet.attack_model(network, tokenizer, TEXTS, "dager", batch_size=3)
    assert {leak.metric: leak.value for leak in together.leakages}["exact_match"] == 1.0


def test_labels_may_be_names_numbers_or_one_for_each_token(held: Held) -> None:
    network, tokenizer = held("AutoModelForSequenceClassification")
    for labels in ([0, 1, 1], ["LABEL_0", "LABEL_1", "LABEL_1"]):
        assert discreet.attack_model(network, tokenizer, TEXTS, "dager", labels=labels).n == 3
    with pytest.raises(SettingError, match="labels"):
        discreet.attack_model(network, tokenizer, TEXTS, "dager", labels=["ward", "LABEL_0", "LABEL_1"])
    tokens, tokenizer = held("AutoModelForTokenClassification")
    each = [[1] * len(tokenizer(text)["input_ids"]) for text in TEXTS]
    assert discreet.attack_model(tokens, tokenizer, TEXTS, "dager", labels=each).leakages[0].value == 1.0


def test_a_budget_is_that_of_the_one_release_and_hides_the_text(held: Held) -> None:
    network, tokenizer = held("AutoModelForCausalLM", "llama")
    found = discreet.attack_model(network, tokenizer, TEXTS, "dager", protect=discreet.DPSGD(epsilon=8), noise_seed=1)
    assert found.guarantee is not None and found.guarantee.epsilon == pytest.approx(8, rel=0.01)
    assert {leak.metric: leak.value for leak in found.leakages}["exact_match"] == 0


@pytest.mark.parametrize("name", [name for name, entry in ATTACKS.items() if entry.sees == "gradient"])
@pytest.mark.parametrize("auto", ["AutoModelForSequenceClassification", "AutoModelForCausalLM"])
def test_every_gradient_attack_runs_or_says_why_not(held: Held, name: str, auto: str) -> None:
    network, tokenizer = held(auto, "gpt2" if "Causal" in auto else "bert")
    public = [f"the {word} was {other}" for word in WORDS[:6] for other in WORDS[6:10]]
    try:
        found = discreet.attack_model(
            network, tokenizer, TEXTS, name, public=public, seconds=0.2, candidates=3, noise_seed=1
        )
    except UnsupportedError as error:
        # A tied output layer gives every word a gradient, and GPT-2 has no norm before its first block.
        assert auto == "AutoModelForCausalLM", error
        assert name in {"masked-dlg", "positions", "embedding-rows", "decepticons"}, error
        return
    assert found.n > 0 and all(0 <= leak.value <= 1 for leak in found.leakages)


def test_other_models_and_attacks_are_rejected_by_name(held: Held, tiny_encoder: Callable[[str], Path]) -> None:
    network, tokenizer = held("AutoModelForSequenceClassification")
    with pytest.raises(UnsupportedError, match="BertModel.*AutoModelForSequenceClassification"):
        discreet.attack_model(network.bert, tokenizer, TEXTS)
    with pytest.raises(SettingError, match="attack"):
        discreet.attack_model(network, tokenizer, TEXTS, "rss")
    with pytest.raises(DataError, match="texts"):
        discreet.attack_model(network, tokenizer, [])
    with pytest.raises(SettingError, match="batch_size"):
        discreet.attack_model(network, tokenizer, TEXTS, batch_size=4)
    with pytest.raises(SettingError, match="settings"):
        discreet.attack_model(network, tokenizer, TEXTS, discreet.attacks.Dager(), settings={"rounds": 1})
