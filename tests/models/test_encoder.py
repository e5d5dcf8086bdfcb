from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from discreet.core.errors import ModelError
from discreet.core.randomness import Rng
from discreet.models.encoder import layers_of, load_encoder

FAMILIES = ["bert", "roberta", "distilbert", "gpt2"]


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_gives_states(kind: str, tiny_encoder: Callable[[str], Path]) -> None:
    encoder = load_encoder(str(tiny_encoder(kind)), rng=Rng(0))
    found = encoder.tokenizer(["the heart", "the knee was dull"], padding=True, return_tensors="pt")
    states = encoder.module.eval()(**found).last_hidden_state
    assert states.shape == (*found["input_ids"].shape, encoder.width)
    assert encoder.max_length == 48
    assert len(layers_of(encoder.module)) == 2
    assert not [name for name, _ in encoder.module.named_parameters() if "pooler" in name]


def test_the_pooler_is_kept_beside_the_encoder(tiny_encoder: Callable[[str], Path]) -> None:
    assert load_encoder(str(tiny_encoder("bert")), rng=Rng(0)).pooler is not None
    assert load_encoder(str(tiny_encoder("gpt2")), rng=Rng(0)).pooler is None


def test_pickled_weights_are_refused(tmp_path: Path, tiny_encoder: Callable[[str], Path]) -> None:
    for file in tiny_encoder("bert").iterdir():
        if file.suffix == ".json":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors.*convert"):
        load_encoder(str(tmp_path), rng=Rng(0))


def test_a_hub_name_is_not_fetched_behind_the_back() -> None:
    with pytest.raises(ModelError, match="hf download no-such/encoder"):
        load_encoder("no-such/encoder", rng=Rng(0))


def test_a_missing_folder_is_named() -> None:
    with pytest.raises(ModelError, match="Check the path"):
        load_encoder("./nowhere", rng=Rng(0))


def test_a_folder_that_is_no_encoder_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="Expected an encoder that transformers can open"):
        load_encoder(str(tmp_path), rng=Rng(0))


def test_a_fresh_bilstm_depends_on_its_source_alone() -> None:
    first, same, other = (load_encoder("bilstm", rng=Rng(seed)).module.state_dict() for seed in (1, 1, 2))
    name = "forwards.from_state.weight"
    assert torch.equal(first[name], same[name])
    assert not torch.equal(first[name], other[name])
