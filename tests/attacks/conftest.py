"""A classifier of a family with a tiny random encoder wide enough to tell a few sentences apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModel

from discreet.attacks import base
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.models.encoder import quiet

BATCH = Corpus("toy", ("the heart was dull", "a knee", "very slow walk and sharp pain"), labels=(0, 1, 0))


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every look at the clock of a search take a hundredth of a second, whatever the machine."""
    ticks = itertools.count()
    monkeypatch.setattr(base, "time", SimpleNamespace(monotonic=lambda: 0.01 * next(ticks)))


@pytest.fixture(scope="session")
def tiny_model(
    tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Classifier]:
    """Return a function from a family to a classifier: the shared tiny model, 64 wide, 3 deep."""
    import shutil

    made: dict[str, Path] = {}

    def folder(kind: str) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp(f"wide-{kind}")
            shutil.copytree(tiny_encoder(kind), made[kind], dirs_exist_ok=True)
            names = {"gpt2": {"n_embd": 64, "n_layer": 3}, "distilbert": {"dim": 64, "hidden_dim": 128, "n_layers": 3}}
            changes = names.get(kind, {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3})
            with quiet(), torch.random.fork_rng():
                torch.manual_seed(0)
                config = AutoConfig.from_pretrained(made[kind], **changes)
                model = AutoModel.from_config(config)
                for weight in model.parameters():  # fresh weights of 0.02 make every token much the same
                    if weight.dim() == 2:
                        weight.data.mul_(4)
                model.save_pretrained(made[kind])
        return made[kind]

    def build(kind: str, **changes: object) -> Classifier:
        return Classifier.build(BATCH, rng=Rng(0), encoder=str(folder(kind)), **changes)

    return build
