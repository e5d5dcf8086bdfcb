"""A private training as its user sees it: asked for by a budget, killed, resumed, and billed once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from discreet.accounting.ledger import Ledger
from discreet.cli.main import main

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"


@pytest.fixture
def command(toy_csv: Path, tiny_encoder: Callable[[str], Path]) -> list[str]:
    words = [
        "train",
        toy_csv,
        "--model",
        tiny_encoder("bert"),
        "--train",
        "head",
        "--device",
        "cpu",
        "--protect",
        "dp-sgd",
    ]
    return [*map(str, words), "--classes", "clinic,ward", "--protect", "dp-sgd"]


def told(capfd: pytest.CaptureFixture[str], *words: object, status: int = 0) -> tuple[str, str]:
    assert main([str(word) for word in words]) == status
    return capfd.readouterr()


def test_a_budget_is_kept_and_carried_everywhere(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, err = told(capfd, *command, "--epsilon", 3, "--epochs", 4, "--out", tmp_path / "a", "--json")
    done = json.loads(out)
    promise = done["guarantee"]
    assert promise["certified"] and 2.9 < promise["epsilon"] <= 3.0
    assert promise["adjacency"] == "zero-out" and promise["unit"] == "row"
    assert promise["delta"] == pytest.approx(min(1e-5, 1 / (10 * done["units"])))
    columns = done["epsilon_by_adjacency"]
    assert columns["zero-out"] == pytest.approx(promise["epsilon"]) and columns["add/remove"] is None
    assert columns["replace-one"] > promise["epsilon"]
    folder = tmp_path / "a"
    assert "Certified" in (folder / "README.md").read_text(encoding="utf-8")
    assert not (folder / "secret").exists() and not (folder / "checkpoint.safetensors").exists()
    assert not {"rows", "truncated"} & set(done)
    assert "loss" not in (folder / "metrics.json").read_text(encoding="utf-8")
    assert "loss" not in err
    held = Ledger.read(folder / "ledger.jsonl")
    assert held.spends == done["steps"]
    assert held.guarantee(promise["delta"]).epsilon == pytest.approx(promise["epsilon"], rel=1e-6)


def test_a_limit_beside_a_noise_stops_before_it_is_exceeded(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--noise-multiplier", 1, "--epsilon", 4, "--epochs", 200, "--out", tmp_path / "a", "--json"]
    out, err = told(capfd, *command, *words)
    done = json.loads(out)
    assert done["out_of_budget"] and done["guarantee"]["epsilon"] <= 4.0
    assert "The budget allows no further step" in err


def test_an_attack_bound_can_be_asked_for(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--true-positive-rate", 0.05, "--delta", 0.5, "--epochs", 2, "--out", tmp_path / "a", "--json"]
    out, err = told(capfd, *command, *words)
    assert json.loads(out)["protection"]["noise_multiplier"] > 0.5
    assert "Warning: delta=0.5 is above 1/" in err


def test_directions_are_billed_under_both_adjacencies(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*command[:-1], "dir-dp-sgd", "--kappa", 20, "--epochs", 2, "--out", tmp_path / "a"]
    out, _ = told(capfd, *words)
    assert "epsilon, add/remove" in out and "not defined here" in out
    assert "pure epsilon over all steps" in out
    assert (tmp_path / "a" / "ledger.jsonl").exists()


def test_killed_and_resumed_is_billed_once(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [*command, "--noise-multiplier", "1", "--noise-seed", "5", "--epochs", "8"]
    told(capfd, *words, "--out", tmp_path / "whole")
    saved = tmp_path / "part.unfinished" / "checkpoint.safetensors"
    call = [
        sys.executable,
        HERE / "ended_inside.py",
        int(signal.SIGKILL),
        12,
        saved,
        *words,
        "--out",
        tmp_path / "part",
    ]
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    process = subprocess.run([str(word) for word in call], env=environment, stderr=subprocess.PIPE, check=False)
    assert process.returncode == -signal.SIGKILL, process.stderr
    killed = Ledger.read(tmp_path / "part.unfinished" / "ledger.jsonl").spends  # all planned steps, before the first
    told(capfd, *words, "--out", tmp_path / "part", "--resume")
    whole, part = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "part"))
    assert all((whole[name] == part[name]).all() for name in whole)
    spent = [Ledger.read(tmp_path / name / "ledger.jsonl").spends for name in ("whole", "part")]
    assert spent[0] == spent[1] == killed > 12


def test_without_a_given_seed_the_noise_is_secret_and_fresh(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        told(capfd, *command, "--noise-multiplier", 1, "--epochs", 1, "--out", tmp_path / name)
    first, second = (load_file(tmp_path / name / "model.safetensors")["head.weight"] for name in ("a", "b"))
    assert not (first == second).all()


def test_a_run_that_could_not_be_named_goes_on_with_the_same_noise(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    words = [*command, "--noise-multiplier", "1", "--epochs", "2", "--out", str(tmp_path / "a")]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        told(capfd, *words, status=2)
    first = load_file(tmp_path / "a.unfinished" / "model.safetensors")
    spent = Ledger.read(tmp_path / "a.unfinished" / "ledger.jsonl").spends
    told(capfd, *words, "--resume")
    second = load_file(tmp_path / "a" / "model.safetensors")
    assert all((first[name] == second[name]).all() for name in first)
    assert Ledger.read(tmp_path / "a" / "ledger.jsonl").spends == spent


def test_a_given_noise_seed_is_no_certificate(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out, _ = told(capfd, *command, "--epsilon", 3, "--epochs", 2, "--noise-seed", 1, "--out", tmp_path / "a", "--json")
    assert json.loads(out)["guarantee"]["certified"] is False
    card = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert "Estimate, not a bound" in card and "Estimates of epsilon at the same delta" in card
    words = ["--epsilon", 3, "--epochs", 2, "--noise-seed", 1, "--out", tmp_path / "b"]
    assert "(estimates, for the reason above)" in told(capfd, *command, *words)[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Expected --epsilon, --noise-multiplier or --true-positive-rate"),
        (["--epsilon", "0"], "Expected --epsilon to be > 0"),
        (["--epsilon", "-1"], "Expected --epsilon to be > 0"),
        (["--epsilon", "3", "--clip-norm", "0"], "Expected --clip-norm to be > 0"),
        (["--epsilon", "3", "--delta", "lots"], "Expected --delta to be auto or a number"),
        (["--epsilon", "3", "--delta", "1"], "Expected --delta to be"),
        (["--epsilon", "3", "--kappa", "4"], "It belongs to dir-dp-sgd"),
    ],
)
def test_bad_budgets_get_a_sentence_and_write_nothing(
    words: list[str], message: str, command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, err = told(capfd, *command, *words, "--out", tmp_path / "a", status=2)
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_few_units_under_noise_train_the_head_unless_told_otherwise(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["train", toy_csv, "--model", tiny_encoder("bert"), "--protect", "dp-sgd", "--epsilon", 8, "--epochs", 1]
    out, err = told(capfd, *words, "--json", "--out", tmp_path / "few")
    assert json.loads(out)["trained"] == "head" and "--train all" in err
    out, err = told(capfd, *words, "--json", "--out", tmp_path / "all", "--train", "all")
    assert json.loads(out)["trained"] == "all" and "frozen" not in err
