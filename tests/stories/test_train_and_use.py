"""The life of a classifier as its user sees it: trained, stopped, killed, resumed, evaluated, asked."""

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from discreet.cli.main import main
from discreet.data import batches
from discreet.data.batches import tokenise
from discreet.data.sources import Columns, load

Run = Callable[..., tuple[str, str]]
HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"


def ended(signal_number: int, steps: int, out: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own, which gets a signal after this many steps."""
    saved = out.with_name(f"{out.name}.unfinished") / "checkpoint.safetensors"
    words = [sys.executable, HERE / "ended_inside.py", int(signal_number), steps, saved, *arguments, "--out", out]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "80"}
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str]]:
    """Return a function that runs the command line in this process, which saves the time to import torch."""

    def call(*arguments: object, status: int = 0, text: str = "") -> tuple[str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main([str(argument) for argument in arguments]) == status
        return capfd.readouterr()

    return call


@pytest.fixture
def command(toy_csv: Path, tiny_encoder: Callable[[str], Path]) -> list[object]:
    options = ["--epochs", 60, "--batch-size", 16, "--learning-rate", 1e-3]
    return ["train", toy_csv, "--model", tiny_encoder("bert"), "--device", "cpu", *options]


def test_killed_interrupted_and_resumed_ends_like_an_undisturbed_run(
    command: list[object], tmp_path: Path, run: Run
) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    command += ["--epochs", 8]
    run(*command, "--out", whole)
    process = ended(signal.SIGKILL, 12, part, *command)
    assert process.returncode == -signal.SIGKILL, process.stderr
    assert not part.exists()
    _, err = run(*command, "--out", part, status=2)
    assert "Resume it (--resume)" in err
    process = ended(signal.SIGINT, 10, part, *command, "--resume")
    assert process.returncode == 130, process.stderr
    assert "Run the same command with --resume to resume" in process.stderr
    assert not part.exists()
    run(*command, "--out", part, "--resume")
    first, second = (load_file(folder / "model.safetensors") for folder in (whole, part))
    assert all((first[name] == second[name]).all() for name in first)


def test_a_share_is_trained_on_another_share_held_out_and_classes_are_given(
    command: list[object], toy_csv: Path, tmp_path: Path, run: Run
) -> None:
    words = ["--share", 0.5, "--validation", 0.3, "--classes", "clinic, ward,lab"]
    told, err = run(*command, *words, "--epochs", 1, "--out", tmp_path / "a", "--json")
    done = json.loads(told)
    assert "were held out as validation" in err and "were sampled with share 0.5" in err
    assert 25 <= done["rows"] <= 60
    settings = (tmp_path / "a" / "settings.toml").read_text(encoding="utf-8")
    assert "share = 0.5" in settings and 'validation = "0.3"' in settings and '"lab"' in settings
    told, _ = run("evaluate", tmp_path / "a", toy_csv, "--json")
    assert json.loads(told)["utility"] == pytest.approx(done["utility"]), "the same rows are found again"
    _, err = run(*command, "--classes", "ward", "--out", tmp_path / "b", status=2)
    assert "two or more names" in err
    _, err = run(*command, "--population", 50, "--out", tmp_path / "b", status=2)
    assert "used with --protect" in err


def test_train_evaluate_predict(command: list[object], toy_csv: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "a"
    told, _ = run(*command, "--out", out, "--json")
    done = json.loads(told)
    assert done["guarantee"] is None
    assert done["utility"]["accuracy"] == 1.0
    assert {p.name for p in out.iterdir()} == {
        "README.md", "encoder.json", "metrics.json", "model.safetensors", "settings.toml", "tokenizer",
    }  # fmt: skip
    told, _ = run("evaluate", out, toy_csv, "--json")
    assert json.loads(told)["utility"] == pytest.approx(done["utility"])
    assert json.loads(told)["rows"] == 120 - done["rows"] > 0
    told, _ = run("predict", out, text="the heart was dull\nthe knee was sharp\n")
    assert [line.split("\t")[0] for line in told.splitlines()] == ["ward", "clinic"]
    told, _ = run("predict", out, toy_csv, "--json")
    assert len(json.loads(told)["predictions"]) == 120


def test_evaluation_on_the_runs_own_data_reads_no_training_row(
    toy_rows: list[tuple[str, str]], tiny_encoder: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    """With units the hold-out is by unit, and evaluate must find the same one, however the file is named."""
    lines = [f"{text},{label},p{i // 3}" for i, (text, label) in enumerate(toy_rows)]
    path = tmp_path / "letters.csv"
    path.write_text("body,outcome,patient_id\n" + "\n".join(lines), encoding="utf-8")
    columns = ["--text", "body", "--label", "outcome", "--unit", "patient_id"]
    run("train", path, *columns, "--model", tiny_encoder("bert"), "--train", "head", "--out", tmp_path / "a")
    held = load(path, Columns("body", None, "outcome", "patient_id")).split("validation")
    read: list[tuple[str, ...]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "tokenise", lambda rows, *a: read.append(rows.texts) or tokenise(rows, *a))
        told, _ = run("evaluate", tmp_path / "a", tmp_path / "." / "letters.csv", "--json")
    assert read == [held.texts]
    assert json.loads(told)["rows"] == len(held)


def test_plain_lines_have_no_columns(command: list[object], toy_csv: Path, tmp_path: Path, run: Run) -> None:
    run(*command, "--epochs", 1, "--train", "head", "--out", tmp_path / "a")
    _, err = run("predict", tmp_path / "a", "--text", "body", text="{}", status=2)
    assert "Text files have none" in err


def test_output_that_cannot_be_written_is_said() -> None:
    process = subprocess.run(
        f"{sys.executable} -m discreet cost --noise-multiplier 1 > /dev/full",
        shell=True, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(SOURCE)}, check=False,
    )  # fmt: skip
    assert process.returncode == 2
    assert "No space left on device" in process.stderr and "Traceback" not in process.stderr


BAD = [
    (
        ["train", "{csv}", "--task", "ranking"],
        "Expected --task to be one of classification, regression, lm, got 'ranking'",
    ),
    (["train", "{csv}", "--checkpoint-seconds", "-1"], "Expected --checkpoint-seconds to be > 0 and finite, got -1"),
    (["train", "missing.csv"], "DataError: Expected"),
    (["train", "{csv}", "--text", "txt"], "Did you mean 'text'"),
    (["train", "{csv}", "--label", "lable"], "Did you mean 'label'"),
    (["train", "{csv}", "--model", "no/such"], "hf download no/such"),
    (["train", "{csv}", "--model", "./nowhere"], "Check the path"),
    (["train", "{csv}", "--pooling", "max"], "Expected --pooling to be one of cls, mean, last, got 'max'"),
    (["train", "{csv}", "--epochs", "-1"], "Expected --epochs to be > 0 and finite, got -1"),
    (["train", "{csv}", "--device", "tpu"], "Expected --device to be one of auto, cpu, cuda, cuda:N, got 'tpu'"),
    (["evaluate", "nowhere", "{csv}"], "Expected a run folder"),
    (["predict", "nowhere"], "Expected a run folder"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[" ".join(a) for a, _ in BAD])
def test_bad_input_gets_a_sentence_status_2_and_nothing_half_written(
    arguments: list[str], message: str, toy_csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word.format(csv=toy_csv) for word in arguments]
    if words[0] == "train":
        words += ["--out", str(tmp_path / "a")]
    assert main(words) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []
