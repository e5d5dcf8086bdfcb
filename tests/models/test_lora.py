from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from discreet.clipping.tape import Tape
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.corpus import Corpus
from discreet.models.base import TextModel
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.language_model import LanguageModel
from discreet.models.lora import merged

CORPUS = Corpus("toy", ("the heart was dull", "a knee and very slow walk"), labels=(0, 1), label_names=("a", "b"))


def classifier(folder: Path, train: str = "lora-4", seed: int = 0) -> Classifier:
    return Classifier.build(CORPUS, ModelSettings(str(folder), train=train), rng=Rng(seed)).eval()


def language_model(folder: Path, train: str = "lora-4") -> LanguageModel:
    return LanguageModel.load(ModelSettings(str(folder), train=train), rng=Rng(0)).eval()


def batch_of(model: TextModel) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    batch = tokens_for(model, CORPUS).batch(np.arange(2))
    return dict(batch.inputs), batch.targets


def shake(model: TextModel) -> None:
    """Move the second factors away from zero, where they begin."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.1)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "gpt2"])
def test_adapters_begin_as_nothing_and_every_text_is_clipped(kind: str, tiny_encoder: Callable[[str], Path]) -> None:
    model, plain = classifier(tiny_encoder(kind)), classifier(tiny_encoder(kind), "head")
    inputs, _ = batch_of(model)
    torch.testing.assert_close(model(inputs), plain(inputs), rtol=0, atol=0)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert all("lora_" in name or name.startswith("head.") for name in trained)
    assert any("lora_A" in name for name in trained)
    shake(model)
    check_norms(model)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2"])
def test_a_language_model_trains_its_adapters_alone(kind: str, tiny_causal: Callable[[str], Path]) -> None:
    model = language_model(tiny_causal(kind))
    assert all("lora_" in name for name, p in model.named_parameters() if p.requires_grad)
    shake(model)
    check_norms(model)


def check_norms(model: TextModel) -> None:
    inputs, targets = batch_of(model)
    tape = Tape(model)
    with tape:
        losses = model.losses(inputs, targets)
    norms = tape.backward(losses).norms()
    for row in range(2):
        model.zero_grad()
        model.losses(inputs, targets)[row].backward()
        square = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
        assert float(norms[row]) == pytest.approx(square**0.5, rel=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_merged_adapters_give_a_plain_network_with_the_same_scores(
    kind: str, tiny_causal: Callable[[str], Path]
) -> None:
    model = language_model(tiny_causal(kind))
    shake(model)
    inputs, _ = batch_of(model)
    network = merged(model.network)
    assert not any("lora" in name for name, _ in network.named_modules())
    torch.testing.assert_close(network(**inputs).logits, model(inputs), rtol=1e-4, atol=1e-5)
    assert any("lora" in name for name, _ in model.named_modules())


def test_the_rank_is_the_one_asked_for_and_the_seed_decides(tiny_encoder: Callable[[str], Path]) -> None:
    factors = [p for n, p in classifier(tiny_encoder("bert"), "lora-3").named_parameters() if "lora_A" in n]
    assert factors and all(p.shape[0] == 3 for p in factors)
    assert ModelSettings(train="lora").rank == 8
    one, same, other = (classifier(tiny_encoder("bert"), seed=s).state_dict() for s in (0, 0, 1))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert any(not torch.equal(one[name], other[name]) for name in one if "lora_A" in name)


def test_what_has_no_transformer_is_rejected() -> None:
    with pytest.raises(UnsupportedError, match="BiLSTM.*train"):
        classifier(Path("bilstm"))
    with pytest.raises(SettingError, match="lora-N"):
        ModelSettings(train="lora-0")
