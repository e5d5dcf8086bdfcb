from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from discreet.clipping.tape import Tape
from discreet.core.errors import ModelError, SettingError
from discreet.core.randomness import Rng
from discreet.models.language_head import LanguageModel

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
    with pytest.raises(ModelError, match="encoder of transformers, found BiLSTM"):
        LanguageModel.open("bilstm", rng=Rng(0), objective="next")
