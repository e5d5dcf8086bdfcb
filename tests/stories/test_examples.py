"""The examples run as they are, in small."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_language_model_is_trained_from_public_text_and_fine_tuned_privately(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("peft")
    small = ["--rows", "40", "--epochs", "1", "--public-characters", "8000", "--public-epochs", "2"]
    found = example("language_model").main(small)
    assert list(found) == ["before", "lora, plain", "lora, epsilon 8", "all, plain", "all, epsilon 8"]
    values = {name: float(text.split()[0]) for name, text in found.items()}
    assert values["all, plain"] < values["before"]
    printed = capsys.readouterr().out
    assert "Certified" in printed
