from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.models.classifier import Classifier, ModelSettings, head, losses
from discreet.models.encoder import pool


@dataclass(frozen=True)
class Target:
    task: str = "classification"
    label_names: tuple[str, ...] = ("no", "yes", "maybe")


def build(folder: Path, **changes: object) -> Classifier:
    return Classifier.build(Target(), rng=Rng(0), encoder=str(folder), **changes)


def trained(model: Classifier) -> set[str]:
    return {name for name, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("how", ["cls", "mean", "last"])
def test_pooling_ignores_padding(how: str) -> None:
    states = torch.randn(2, 3, 4)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    changed = states.clone()
    changed[0, 2] += 100
    torch.testing.assert_close(pool(states, mask, how), pool(changed, mask, how))


def test_what_is_trained(tiny_encoder: Callable[[str], Path]) -> None:
    folder = tiny_encoder("bert")
    assert trained(build(folder, train="head")) == {"head.weight", "head.bias"}
    assert trained(build(folder, train="pooler+head")) == {"head.weight", "head.bias", "pooler.weight", "pooler.bias"}
    top = trained(build(folder, train="top-1"))
    assert any("layer.1." in name for name in top)
    assert not any("layer.0." in name or "embeddings" in name for name in top)
    everything = build(folder, train="all")
    assert trained(everything) == {name for name, _ in everything.named_parameters()}
    kept = trained(build(folder, train="all", embeddings=False))
    assert set(trained(everything) - kept) == {n for n in trained(everything) if n.endswith("_embeddings.weight")}


def test_minilm_pooler_and_head_have_the_calibration_papers_shape() -> None:
    # 768 wide it is 592,130 weights, as the calibration paper counts; at MiniLM's width of 384 it is this.
    model = Classifier.build(Target(label_names=("a", "b")), rng=Rng(0), train="pooler+head")
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == 384 * 384 + 384 + 2 * 384 + 2


def test_dropout_is_set_everywhere(tiny_encoder: Callable[[str], Path]) -> None:
    for kind in ("bert", "distilbert", "gpt2"):
        model = build(tiny_encoder(kind), dropout=0.0).train()
        inputs = {"input_ids": torch.full((1, 6), 7), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
        torch.testing.assert_close(model(inputs), model(inputs))


def test_given_vectors_skip_the_encoder(tiny_encoder: Callable[[str], Path]) -> None:
    model = build(tiny_encoder("bert"), train="head").eval()
    inputs = {"input_ids": torch.full((1, 6), 7), "attention_mask": torch.ones(1, 6, dtype=torch.long)}
    torch.testing.assert_close(model({"vectors": model.represent(inputs)}), model(inputs))


def test_losses_are_one_per_example() -> None:
    scores = torch.randn(4, 3)
    hard = torch.tensor([0, 2, 1, 1])
    soft = torch.nn.functional.one_hot(hard, 3).float()
    assert losses(scores, hard, "classification").shape == (4,)
    torch.testing.assert_close(losses(scores, hard, "classification"), losses(scores, soft, "classification"))
    assert losses(torch.tensor([[2.0]]), torch.tensor([5.0]), "regression").tolist() == [9.0]


def test_the_texthide_head_has_three_hidden_layers() -> None:
    assert [p.shape[0] for p in head("mlp", 384, 2).parameters() if p.ndim == 2] == [768, 768, 768, 2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": "maen"}, "Did you mean 'mean'"),
        ({"train": "top-0"}, "top-N"),
        ({"train": "everything"}, "top-N"),
        ({"dropout": 1.5}, "dropout to be in.*, got 1.5"),
        ({"max_length": 2}, "max_length to be .*, got 2"),
        ({"train": "pooler+head", "pooler": False}, "pooler to be .*, got False"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ModelSettings(**changes)


def test_more_blocks_than_there_are_is_refused(tiny_encoder: Callable[[str], Path]) -> None:
    with pytest.raises(SettingError, match="with N at most 2"):
        build(tiny_encoder("bert"), train="top-3")
