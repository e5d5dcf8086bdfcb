from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.conftest import WORDS, save_tokenizer

from discreet.core.errors import DataError, ModelError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.language_model import LanguageModel
from discreet.models.pretrained import HEAD, save_pretrained
from discreet.models.token_classifier import TokenClassifier

SIZE = len(dict.fromkeys(WORDS)) + 100
TEXTS = ["the heart was dull", "a knee and very slow walk"]
BLOCKS = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
COMMON = {"vocab_size": SIZE, "num_labels": 3, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
CONFIGS: dict[str, Callable[[], Any]] = {
    "bert": lambda: transformers.BertConfig(**BLOCKS, **COMMON),
    "roberta": lambda: transformers.RobertaConfig(**BLOCKS, **COMMON),
    "electra": lambda: transformers.ElectraConfig(**BLOCKS, **COMMON, embedding_size=16),
    "albert": lambda: transformers.AlbertConfig(**BLOCKS, **COMMON, embedding_size=16),
    "deberta": lambda: transformers.DebertaV2Config(**BLOCKS, **COMMON),
    "modernbert": lambda: transformers.ModernBertConfig(**BLOCKS, **COMMON, cls_token_id=2, sep_token_id=3),
    "distilbert": lambda: transformers.DistilBertConfig(**COMMON, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    "gpt2": lambda: transformers.GPT2Config(**COMMON, n_embd=16, n_layer=2, n_head=2),
    "llama": lambda: transformers.LlamaConfig(**BLOCKS, **COMMON, num_key_value_heads=1),
    "qwen2": lambda: transformers.Qwen2Config(**BLOCKS, **COMMON, num_key_value_heads=1),
    "gemma": lambda: transformers.GemmaConfig(**BLOCKS, **COMMON, num_key_value_heads=1, head_dim=8),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, "roberta")
    return transformers.AutoTokenizer.from_pretrained(folder)


def network_of(kind: str, auto: Any = transformers.AutoModelForSequenceClassification) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = auto.from_config(CONFIGS[kind]()).eval()
        for name, weight in network.named_parameters():
            if name.startswith(("classifier", "score", "pre_classifier")):  # else all scores are near zero
                torch.nn.init.normal_(weight, std=0.5)
    return network


def inputs_of(tokenizer: Any) -> dict[str, torch.Tensor]:
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True)
    return {name: inputs[name] for name in ("input_ids", "attention_mask")}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # of DeBERTa
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_sequence_classifier_gives_the_scores_of_transformers(kind: str, tokenizer: Any) -> None:
    network = network_of(kind)
    frozen = next(iter(network.parameters())).requires_grad_(False)
    model = Classifier.from_transformers(network, tokenizer)
    inputs = inputs_of(tokenizer)
    torch.testing.assert_close(model(inputs), network(**inputs).logits, rtol=1e-5, atol=1e-6)
    assert model.label_names == ("LABEL_0", "LABEL_1", "LABEL_2") and model.task == "classification"
    assert {id(p) for p in model.parameters()} <= {id(p) for p in network.parameters()}
    assert not frozen.requires_grad and next(iter(model.head.parameters())).requires_grad
    with torch.no_grad():
        list(model.head.parameters())[-1].add_(1.0)
    torch.testing.assert_close(model(inputs), network(**inputs).logits, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "roberta", "llama"])
def test_what_was_read_is_written_back_for_plain_transformers(kind: str, tokenizer: Any, tmp_path: Path) -> None:
    model = Classifier.from_transformers(network_of(kind), tokenizer)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    assert save_pretrained(model, tmp_path / "out", lambda kind: kind) == "AutoModelForSequenceClassification"
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    inputs = dict(
        transformers.AutoTokenizer.from_pretrained(tmp_path / "out")(TEXTS, return_tensors="pt", padding=True)
    )
    inputs = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    torch.testing.assert_close(again(**inputs).logits, model(inputs), rtol=1e-5, atol=1e-6)
    assert (tmp_path / "out" / "README.md").read_text() == "AutoModelForSequenceClassification"
    with pytest.raises(ModelError, match="Choose another name"):
        save_pretrained(model, tmp_path / "out")


@pytest.mark.parametrize(("pooling", "pooler"), [("cls", True), ("mean", None)])
def test_a_classifier_of_ours_is_written_as_far_as_transformers_has_a_class(
    pooling: str, pooler: bool | None, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    corpus = Corpus("toy", tuple(TEXTS), labels=(0, 1), label_names=("ward", "clinic"))
    settings = ModelSettings(str(tiny_encoder("bert")), pooling=pooling, pooler=pooler, train="lora-2")
    model = Classifier.build(corpus, settings, rng=Rng(0)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.fill_(0.1)
    inputs = dict(tokens_for(model, corpus).batch(np.arange(2)).inputs)
    kind = save_pretrained(model, tmp_path / "out")
    if pooler:
        assert kind == "AutoModelForSequenceClassification"
        again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
        assert again.config.id2label == {0: "ward", 1: "clinic"}
        torch.testing.assert_close(again(**inputs).logits, model(inputs), rtol=1e-4, atol=1e-5)
        return
    from safetensors.torch import load_file

    assert kind == "AutoModel"
    encoder = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    states = encoder(**inputs).last_hidden_state
    torch.testing.assert_close(states, model.states(inputs), rtol=1e-4, atol=1e-5)
    assert load_file(tmp_path / "out" / HEAD).keys() == {"head.weight", "head.bias"}


@pytest.mark.parametrize("train", ["all", "lora-2"])
def test_a_language_model_is_written_with_its_adapters_merged(
    train: str, tiny_causal: Callable[[str], Path], tmp_path: Path
) -> None:
    model = LanguageModel.load(ModelSettings(str(tiny_causal("llama")), train=train), rng=Rng(0)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name or "norm" in name:
                weight.add_(0.1)
    inputs = dict(tokens_for(model, Corpus("toy", tuple(TEXTS))).batch(np.arange(2)).inputs)
    assert save_pretrained(model, tmp_path / "out") == "AutoModelForCausalLM"
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    torch.testing.assert_close(again(**inputs).logits, model(inputs), rtol=1e-4, atol=1e-5)


def test_an_adapted_network_is_read_with_its_adapters(tokenizer: Any) -> None:
    import peft

    config = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    network = peft.get_peft_model(network_of("bert"), config)
    model = Classifier.from_transformers(network, tokenizer)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name or name.startswith("head") for name in trained)


def test_models_of_another_structure_are_rejected_by_name(tokenizer: Any) -> None:
    with pytest.raises(UnsupportedError, match="make_private"):
        network = network_of("bert")
        network.classifier = torch.nn.Sequential(network.classifier, torch.nn.Tanh())
        Classifier.from_transformers(network, tokenizer)
    several = network_of("bert")
    several.config.problem_type = "multi_label_classification"
    with pytest.raises(UnsupportedError, match="multi_label"):
        Classifier.from_transformers(several, tokenizer)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "gpt2", "llama"])
def test_a_token_classifier_gives_the_loss_of_transformers(kind: str, tokenizer: Any) -> None:
    network = network_of(kind, transformers.AutoModelForTokenClassification)
    inputs = inputs_of(tokenizer)
    lengths = inputs["attention_mask"].sum(1).tolist()
    labels = [[(row + place) % 3 if place else -100 for place in range(length)] for row, length in enumerate(lengths)]
    model = TokenClassifier(network, tokenizer, labels).eval()
    found = model.losses(inputs, torch.arange(2))
    for row, length in enumerate(lengths):
        ids = inputs["input_ids"][row : row + 1, :length]
        wanted = torch.tensor([labels[row]])
        torch.testing.assert_close(found[row], network(input_ids=ids, labels=wanted).loss, rtol=1e-4, atol=1e-5)
    with pytest.raises(DataError, match="class for each token"):
        TokenClassifier(network, tokenizer, [[0], []])
