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
from discreet.models.classifier import ModelSettings
from discreet.models.language_model import LanguageModel

TEXTS = ["the heart was dull", "a knee and very slow walk"]


def opened(folder: Path, seed: int = 0, **changes: object) -> LanguageModel:
    model = LanguageModel.open(str(folder), rng=Rng(seed), objective="next")
    model.tokenizer.mask_token = "[MASK]"
    for name, value in changes.items():
        setattr(model, name, value)
    return model.eval()


def inputs_of(model: LanguageModel) -> dict[str, torch.Tensor]:
    return dict(model.tokenizer(TEXTS, return_tensors="pt", padding=True))


def test_the_next_token_is_asked_for_at_every_real_position(tiny_encoder: Callable[[str], Path]) -> None:
    model = opened(tiny_encoder("gpt2"))
    inputs = inputs_of(model)
    found = model.losses(inputs, torch.zeros(2))
    for row in range(2):
        length = int(inputs["attention_mask"][row].sum())
        ids = inputs["input_ids"][row : row + 1, :length]
        scores = model.head(model.states({"input_ids": ids, "attention_mask": torch.ones_like(ids)}))[0, :-1]
        wanted = torch.nn.functional.cross_entropy(scores, ids[0, 1:])
        torch.testing.assert_close(found[row], wanted)


def test_masked_tokens_are_ordinary_ones_and_drawn_anew(tiny_encoder: Callable[[str], Path]) -> None:
    model = opened(tiny_encoder("bert"), objective="masked")
    inputs = inputs_of(model)
    ids, real = inputs["input_ids"], inputs["attention_mask"].bool()
    special = torch.tensor(model.tokenizer.all_special_ids)
    drawn = [model._asked(ids, real) for _ in range(200)]
    assert all(bool(asked.any(dim=1).all()) for asked in drawn)
    assert not any(bool((asked & (torch.isin(ids, special) | ~real)).any()) for asked in drawn)
    assert len({tuple(asked.flatten().tolist()) for asked in drawn}) > 5
    again = opened(tiny_encoder("bert"), objective="masked")
    first = opened(tiny_encoder("bert"), objective="masked").losses(inputs, torch.zeros(2))
    assert torch.equal(again.losses(inputs, torch.zeros(2)), first)


def test_each_text_has_a_gradient_of_its_own(tiny_encoder: Callable[[str], Path]) -> None:
    model = opened(tiny_encoder("bert"))
    inputs = inputs_of(model)
    tape = Tape(model)
    with tape:
        losses = model.losses(inputs, torch.zeros(2))
    norms = tape.backward(losses).norms()
    for row in range(2):
        model.zero_grad()
        model.losses(inputs, torch.zeros(2))[row].backward()
        square = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
        assert float(norms[row]) == pytest.approx(square**0.5, rel=1e-4)


def test_what_cannot_be_asked_is_refused(tiny_encoder: Callable[[str], Path]) -> None:
    with pytest.raises(SettingError, match="objective to be .*, got 'maskd'"):
        LanguageModel.open(str(tiny_encoder("bert")), rng=Rng(0), objective="maskd")
    with pytest.raises(ModelError, match="mask token"):
        LanguageModel.open(str(tiny_encoder("gpt2")), rng=Rng(0), objective="masked")
    with pytest.raises(ModelError, match="encoder of transformers, got BiLSTM"):
        LanguageModel.open("bilstm", rng=Rng(0), objective="next")


FAMILIES = ("gpt2", "llama", "qwen2")


def loaded(folder: Path, **settings: object) -> LanguageModel:
    return LanguageModel.load(ModelSettings(str(folder), **settings), rng=Rng(0))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_causal_model_gives_the_loss_of_transformers(kind: str, tiny_causal: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM

    model = loaded(tiny_causal(kind)).eval()
    tokens = tokens_for(model, Corpus("toy", tuple(TEXTS)))
    batch = tokens.batch(np.arange(2))
    found = model.losses(batch.inputs, batch.targets)
    network = AutoModelForCausalLM.from_pretrained(tiny_causal(kind)).eval()
    for row, length in enumerate(tokens.lengths.tolist()):
        ids = batch.inputs["input_ids"][row : row + 1, :length]
        assert (int(ids[0, 0]), int(ids[0, -1])) == (model.start, model.end)
        torch.testing.assert_close(found[row], network(input_ids=ids, labels=ids).loss)


@pytest.mark.parametrize("embeddings", [False, True])
@pytest.mark.parametrize("kind", FAMILIES)
def test_tied_embeddings_are_frozen_with_a_sentence_and_every_text_is_clipped(
    kind: str, embeddings: bool, tiny_causal: Callable[[str], Path]
) -> None:
    model = loaded(tiny_causal(kind), embeddings=embeddings).eval()
    assert model.tied == (kind != "qwen2")
    assert bool(model.remarks) == (model.tied and not embeddings)
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    assert any("embed" in name or "wte" in name for name in frozen) != embeddings
    tokens = tokens_for(model, Corpus("toy", tuple(TEXTS)))
    batch, tape = tokens.batch(np.arange(2)), Tape(model)
    with tape:
        losses = model.losses(batch.inputs, batch.targets)
    norms = tape.backward(losses).norms()
    for row in range(2):
        model.zero_grad()
        model.losses(batch.inputs, batch.targets)[row].backward()
        square = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
        assert float(norms[row]) == pytest.approx(square**0.5, rel=1e-4)


def test_texts_are_read_between_start_and_end_unless_they_are_cut(tiny_causal: Callable[[str], Path]) -> None:
    model = loaded(tiny_causal("llama"), max_length=6)
    corpus = Corpus(
        "toy", ("the heart was", "the heart was dull and slow", "the heart was dull", "the heart was dull a")
    )
    tokens = tokens_for(model, corpus)
    ids = [row[:n].tolist() for row, n in zip(tokens.columns["input_ids"], tokens.lengths.tolist(), strict=True)]
    assert [len(row) for row in ids] == [5, 6, 6, 6] and tokens.truncated == 1
    assert all(row[0] == model.start for row in ids)
    assert [row[-1] == model.end for row in ids] == [True, False, True, False]
    assert bool((tokens.columns["attention_mask"].sum(1) == torch.from_numpy(tokens.lengths)).all())


def test_generated_texts_follow_the_seed_and_the_temperature(tiny_causal: Callable[[str], Path]) -> None:
    model = loaded(tiny_causal("llama")).train()
    state = torch.random.get_rng_state()
    first = model.generate("the heart", count=3, max_tokens=6, rng=Rng(1))
    assert torch.equal(torch.random.get_rng_state(), state) and model.training
    assert first == model.generate("the heart", count=3, max_tokens=6, rng=Rng(1)) and len(set(first)) == 3
    assert first != model.generate("the heart", count=3, max_tokens=6, rng=Rng(2))
    likeliest = model.generate("", count=2, max_tokens=6, temperature=0, rng=Rng(1))
    assert likeliest[0] == likeliest[1] == model.generate("", max_tokens=6, temperature=0, rng=Rng(7))[0]
    for wrong in ({"count": 0}, {"max_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}):
        with pytest.raises(SettingError, match=next(iter(wrong))):
            model.generate("", rng=Rng(0), **wrong)  # type: ignore[arg-type]


def test_weights_that_are_shared_are_stored_once_and_read_back(tiny_causal: Callable[[str], Path]) -> None:
    model = loaded(tiny_causal("llama"))
    weights = {name: value.clone() for name, value in model.weights().items()}
    assert "head.weight" not in weights and "head.weight" in model.state_dict()
    other = loaded(tiny_causal("llama"))
    with torch.no_grad():
        other.head.weight.zero_()
    other.load_weights(weights)
    assert torch.equal(other.head.weight, model.head.weight)
    with pytest.raises(RuntimeError, match="norm"):
        other.load_weights({name: value for name, value in weights.items() if name != "encoder.norm.weight"})


def bidirectional(folder: Path) -> tuple[object, object]:
    from transformers import AutoTokenizer, BertConfig, BertLMHeadModel

    tokenizer = AutoTokenizer.from_pretrained(folder)
    config = BertConfig(vocab_size=200, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, is_decoder=False)
    return BertLMHeadModel(config), tokenizer


def test_what_is_no_causal_language_model_is_rejected_by_name(
    tiny_causal: Callable[[str], Path], tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="safetensors"):
        loaded(tmp_path)
    with pytest.raises(ModelError, match="no-such-model.*hf download"):
        loaded(Path("no-such-model"))
    with pytest.raises(ModelError, match="is not there. It is no causal language model"):
        loaded(tiny_encoder("bert"))
    with pytest.raises(ModelError, match="lets a token see those after it"):
        LanguageModel.from_transformers(*bidirectional(tiny_encoder("bert")))
    with pytest.raises(SettingError, match="train to be all, top-N or lora"):
        loaded(tiny_causal("llama"), train="head")
    with pytest.raises(SettingError, match="pooling to be left out"):
        loaded(tiny_causal("llama"), pooling="cls")


def test_too_many_tokens_for_the_model_are_rejected(tiny_causal: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(tiny_causal("llama"))
    tokenizer = AutoTokenizer.from_pretrained(tiny_causal("llama"))
    tokenizer.add_tokens([f"new{i}" for i in range(200)])
    with pytest.raises(ModelError, match="resize_token_embeddings"):
        LanguageModel.from_transformers(network, tokenizer)
