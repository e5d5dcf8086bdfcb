"""The life of a language model as its user sees it: trained privately, stopped, resumed, evaluated, asked to write."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from discreet.cli.main import main
from discreet.runs.folder import load_run

Call = Callable[..., str]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object, status: int = 0) -> str:
        assert main([str(argument) for argument in arguments]) == status
        found = capfd.readouterr()
        return found.err if status else found.out

    return run


@pytest.fixture
def command(toy_csv: Path, tiny_causal: Callable[[str], Path]) -> list[object]:
    options = ["--epochs", 4, "--batch-size", 16, "--learning-rate", 1e-2, "--unit", "row", "--seed", 3]
    return ["train", toy_csv, "--task", "lm", "--model", tiny_causal("llama"), "--device", "cpu", *options]


def test_trained_evaluated_and_asked_to_write(command: list[object], tmp_path: Path, call: Call) -> None:
    out = tmp_path / "plain"
    found = json.loads(call(*command, "--out", out, "--json"))
    assert found["guarantee"] is None and found["quality"]["metric"] == "perplexity"
    assert found["utility"]["perplexity"] < 100 < found["quality"]["baseline"]
    again = json.loads(call("evaluate", out, "--json"))
    assert again["utility"]["perplexity"] == pytest.approx(found["utility"]["perplexity"], rel=1e-6)
    assert again["split"] == "validation"
    assert "perplexity" in call("evaluate", out, command[1])
    texts = json.loads(call("generate", out, "--prompt", "the", "--count", 2, "--max-tokens", 5, "--json"))["texts"]
    assert len(texts) == 2
    assert call("generate", out, "--temperature", 0, "--max-tokens", 3).strip()
    assert "no classes" in call("predict", out, command[1], status=2)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "language model" in card and "discreet generate" in card


def test_protected_stopped_and_resumed_it_ends_like_an_undisturbed_run(
    command: list[object], tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = [*command, "--protect", "dp-sgd", "--epsilon", 8, "--noise-seed", 5, "--json"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    found = json.loads(call(*private, "--out", whole))
    assert math.isclose(found["guarantee"]["epsilon"], 8, rel_tol=0.01)
    from discreet.cli import train

    steps = iter([False, False, True])

    class StopAtThird(list[bool]):
        def __bool__(self) -> bool:
            return next(steps)

    class Interrupts:
        def __enter__(self) -> list[bool]:
            return StopAtThird()

        def __exit__(self, *_: object) -> None:
            pass

    with monkeypatch.context() as patch:
        patch.setattr(train, "stop_on_interrupt", Interrupts)
        call(*private, "--out", stopped, status=130)
    call(*private, "--out", stopped, "--resume")
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, stopped))
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
    ledgers = [(folder / "ledger.jsonl").read_text(encoding="utf-8").count("\n") for folder in (whole, stopped)]
    assert ledgers[0] == ledgers[1]
    run = load_run(whole)
    assert run.settings.task == "lm" and run.model.task == "lm"


def test_adapters_are_trained_privately_and_read_back(command: list[object], tmp_path: Path, call: Call) -> None:
    out = tmp_path / "lora"
    lora = ["--train", "lora", "--rank", 4, "--protect", "dp-sgd", "--epsilon", 8]
    found = json.loads(call(*command, *lora, "--out", out, "--json"))
    assert found["guarantee"]["certified"] and found["trained"] == "lora-4"
    again = json.loads(call("evaluate", out, "--json"))
    assert again["utility"]["perplexity"] == pytest.approx(found["utility"]["perplexity"], rel=1e-5)
    folder = tmp_path / "plain"
    assert json.loads(call("export", out, "--out", folder, "--json"))["class"] == "AutoModelForCausalLM"
    assert "Choose another name" in call("export", out, "--out", folder, status=2)
    model, run = AutoModelForCausalLM.from_pretrained(folder).eval(), load_run(out)
    ids = torch.arange(5, 12)[None]
    scores = run.model({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    torch.testing.assert_close(model(input_ids=ids).logits, scores, rtol=1e-4, atol=1e-5)
    card = ModelCard((folder / "README.md").read_text(encoding="utf-8"))
    stated = card.data.to_dict()["differential_privacy"]
    assert (stated["epsilon"], stated["unit"]) == (found["guarantee"]["epsilon"], "row") and stated["certified"]
    assert stated["delta"] == found["guarantee"]["delta"] and "differential_privacy" in card.data.tags
    assert "AutoModelForCausalLM.from_pretrained" in card.text and card.data.library_name == "transformers"
    assert "rank" in call(*command, "--rank", 4, "--out", tmp_path / "other", status=2)


def test_what_a_language_model_cannot_do_is_rejected(command: list[object], tmp_path: Path, call: Call) -> None:
    out = tmp_path / "run"
    assert "no sentence vectors" in call(*command, "--protect", "texthide", "--out", out, status=2)
    assert "train to be all" in call(*command, "--train", "head", "--out", out, status=2)
    assert "task" in call(*command, "--task", "chat", "--out", out, status=2)
    assert not out.exists() and not list(tmp_path.glob("run*"))
