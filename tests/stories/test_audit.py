"""An audit as its user sees it: train with canaries, measure epsilon on them, audit a mechanism without a run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main

Call = Callable[..., str]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object, status: int = 0) -> str:
        assert main([str(argument) for argument in arguments]) == status
        found = capfd.readouterr()
        return found.err if status == 2 else found.out

    return run


def test_a_run_is_trained_with_canaries_and_audited(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    train = ["train", toy_csv, "--model", tiny_encoder("bert"), "--train", "head", "--device", "cpu", "--epochs", 3]
    private = [*train, "--classes", "clinic,ward", "--protect", "dp-sgd", "--epsilon", 3]
    assert "discreet audit" in call(*private, "--audit", 500, "--out", tmp_path / "a")
    found = json.loads(call("audit", tmp_path / "a", "--json"))
    assert 0 <= found["lower_bound"] <= found["upper_bound"] <= 3 and found["confidence"] == 0.95
    assert found["canaries"] == "gradient" and "never replaces a proof" in found["sentence"]
    printed = call("audit", tmp_path / "a", "--confidence", 0.9)
    assert "certified upper bound" in printed and "measured lower bound" in printed
    assert "The verdict uses the f-DP bound alone." in printed and "in up to 10% of audits" in " ".join(printed.split())
    assert "An audit never replaces a proof" in printed
    assert max(map(len, printed.splitlines())) <= 80
    call(*private, "--audit", 100, "--audit-canaries", "examples", "--out", tmp_path / "b")
    assert json.loads(call("audit", tmp_path / "b", "--json"))["canaries"] == "examples"
    rejected = call(*private, "--audit", 10, "--out", tmp_path / "c", status=2)
    assert "--audit to be >= 62" in rejected and "ln(canaries / 3)" in rejected
    call(*train, "--out", tmp_path / "e")
    assert "with discreet train … --audit 1000," in call("audit", tmp_path / "e", status=2)
    assert "used with --audit" in call(*train, "--audit-canaries", "examples", "--out", tmp_path / "d", status=2)


def test_a_language_model_is_audited_by_tokens(
    toy_csv: Path, tiny_causal: Callable[[str], Path], tmp_path: Path, call: Call
) -> None:
    train = ["train", toy_csv, "--task", "lm", "--model", tiny_causal("llama"), "--device", "cpu", "--epochs", 2]
    call(*train, "--embeddings", "--learning-rate", 1e-2, "--audit", 12, "--out", tmp_path / "a")
    found = json.loads(call("audit", tmp_path / "a", "--json"))
    assert found["canaries"] == "tokens" and found["upper_bound"] is None and found["lower_bound"] >= 0
    assert "none, not protected" in call("audit", tmp_path / "a")


def test_mechanisms_and_protections_are_audited_without_a_run(call: Call) -> None:
    few = ["--draws", 20_000, "--canaries", 2000, "--json"]
    found = json.loads(call("audit", "--mechanism", "randomized-response", "--epsilon", 2, *few))
    assert 1.5 < found["lower_bound"] <= found["upper_bound"] <= 2.0
    found = json.loads(
        call("audit", "--protect", "ldp", "--set", "mechanism=vmf", "--set", "dimension=8", "--epsilon", 2, *few)
    )
    assert found["name"] == "one release of ldp" and found["lower_bound"] <= found["upper_bound"]
    found = json.loads(call("audit", "--protect", "santext", *few))
    assert found["upper_bound"] == pytest.approx(1.0, rel=0.01)
    found = json.loads(call("audit", "--mechanism", "gaussian", "--sequential", "--draws", 10_000, "--json"))
    assert found["method"] == "sequential" and not found["refuted"] and found["draws"] == 10_000
    printed = call("audit", "--mechanism", "gaussian", "--draws", 10_000)
    assert "claimed upper bound" in printed and max(map(len, printed.splitlines())) <= 80
    assert "one of RUN, --mechanism and --protect" in call("audit", status=2)
    assert "--canaries to be >=" in call("audit", "--mechanism", "gaussian", "--epsilon", 9, "--canaries", 50, status=2)
    assert "one of gaussian" in call("audit", "--mechanism", "gausian", status=2)
    for settings in ([], ["--set", "mix=2"]):
        assert "protect to be one of" in call("audit", "--protect", "texthide", *settings, status=2)
