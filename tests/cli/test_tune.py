"""`discreet tune` as its user sees it: one epsilon, one winner in a folder like any other, and nothing of the rest."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.accounting.ledger import Ledger
from discreet.cli.main import main
from discreet.cli.tune import grid_of
from discreet.core.errors import SettingError

GRID = ["--try", "learning_rate=0.01,0.1", "--try", "clip_norm=0.1,1"]


@pytest.fixture
def command(toy_csv: Path, tiny_encoder: Callable[[str], Path]) -> list[str]:
    words = ["tune", toy_csv, "--model", tiny_encoder("bert"), "--train", "head", "--device", "cpu", "--batch-size", 20]
    return [str(word) for word in [*words, "--epochs", 2, "--classes", "clinic,ward"]]


def told(capfd: pytest.CaptureFixture[str], *words: object, status: int = 0) -> tuple[str, str]:
    assert main([str(word) for word in words]) == status
    return capfd.readouterr()


def test_a_search_writes_its_winner_as_a_run_that_every_command_reads(
    command: list[str], toy_csv: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "tuned"
    out, err = told(capfd, *command, *GRID, "--epsilon", 4, "--trials", 3, "--out", run, "--json")
    result = json.loads(out)
    stated, about = result["guarantee"], result["tuning"]
    assert stated["certified"] and 3.9 < stated["epsilon"] <= 4.0 and about["trial_epsilon"] < 4.0
    assert len(about["candidates"]) == 4 and about["chosen"] in about["candidates"]
    assert "Searching 4 combinations" in err
    # nothing of the other trials, of their number or of the time that they took
    names = {path.name for path in run.iterdir()}
    expected = {"README.md", "encoder.json", "ledger.jsonl", "metrics.json", "model.safetensors", "settings.toml"}
    assert names == expected | {"tokenizer"} and not (tmp_path / "tuned.unfinished").exists()
    metrics = json.loads((run / "metrics.json").read_text())
    assert not {"seconds", "train_seconds", "people", "runs", "done"} & (set(metrics) | set(metrics["tuning"]))
    assert metrics["tuning"] == about
    assert Ledger.read(run / "ledger.jsonl").spends == 1
    assert len({path.stat().st_mtime_ns for path in run.rglob("*")}) == 1  # the ledger was written before the trials

    out, _ = told(capfd, "evaluate", run, toy_csv, "--json")
    assert json.loads(out)["utility"]
    text = tmp_path / "text.txt"
    text.write_text("the heart was calm\n")
    out, _ = told(capfd, "predict", run, text)
    assert "ward" in out or "clinic" in out
    out, _ = told(capfd, "statement", run, "--json")
    algorithm = json.loads(out)["algorithm"]
    assert any("private search" in text and "learning rate" in text for text in algorithm["chosen_with_data"])
    assert any("4 combinations" in text for text in algorithm["chosen_without_data"])
    assert not any("learning rate 0" in text for text in algorithm["chosen_without_data"])
    assert "best of a random number" in algorithm["description"]
    policy = tmp_path / "policy.toml"
    policy.write_text("[guarantee]\nepsilon = 4.0\n")
    told(capfd, "check", run, "--policy", policy)
    out, _ = told(capfd, "ledger", run)
    assert "RepeatAndSelect" in out
    _, err = told(capfd, "audit", run, status=2)
    assert "not trained for an audit" in err


@pytest.mark.slow
def test_a_person_reads_the_choice_and_its_cost(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    grid = tmp_path / "grid.toml"
    grid.write_text("[try]\nlearning_rate = [0.01, 0.1]\n")
    out, _ = told(capfd, *command, "--grid", grid, "--epsilon", 4, "--out", tmp_path / "a")
    for words in ("chosen learning rate", "epsilon of one trial", "Certified", "stay secret"):
        assert words in " ".join(out.split())
    assert not [text for text in out.splitlines() if len(text) > 80 and str(tmp_path) not in text]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--epsilon", "3"], "combinations of settings"),
        ([*GRID], "--epsilon"),
        (["--epsilon", "3", *GRID, "--learning-rate", "1"], "left out if it is tried"),
        (["--epsilon", "3", "--try", "learning_rate"], "NAME=VALUE,VALUE"),
        (["--epsilon", "3", "--try", "speed=1,2"], "setting that can be tried"),
        (["--epsilon", "3", *GRID, "--trials", "0.5"], "--trials"),
        (["--epsilon", "3", *GRID, "--trials", "650"], "Use fewer trials"),
        (["--epsilon", "3", *GRID, "--patience", "2"], "left out of a private search"),
        (["--epsilon", "3", *GRID, "--score-on", "missing.csv"], "missing.csv"),
    ],
)
def test_what_cannot_be_searched_is_rejected_before_anything_is_written(
    command: list[str], words: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, err = told(capfd, *command, *words, "--out", tmp_path / "a", status=2)
    assert message in err
    assert not list(tmp_path.iterdir())


def test_values_are_numbers_where_they_look_like_numbers(tmp_path: Path) -> None:
    assert grid_of(["epochs=1,2.5", "optimizer=sgd"], None) == {"epochs": (1, 2.5), "optimizer": ("sgd",)}
    with pytest.raises(SettingError, match="given once"):
        grid_of(["epochs=1", "epochs=2"], None)
    with pytest.raises(SettingError, match="left out with"):
        grid_of(["epochs=1"], tmp_path / "grid.toml")


@pytest.mark.slow
def test_an_unfinished_search_is_resumed_by_tune_alone(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed after its first trial; what is left of it cannot be resumed as a training run."""
    from discreet.training import tuning

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    words = [*command, *GRID, "--epsilon", "4", "--trials", "3", "--out", str(tmp_path / "a"), "--json"]
    with monkeypatch.context() as patched:
        patched.setattr(tuning._Search, "store", killed)
        assert main(words) == 130
    capfd.readouterr()
    assert (tmp_path / "a.unfinished" / "search.json").exists()
    ledger = (tmp_path / "a.unfinished" / "ledger.jsonl").read_bytes()
    _, err = told(
        capfd,
        "train",
        *command[1:],
        "--protect",
        "dp-sgd",
        "--epsilon",
        4,
        "--resume",
        "--out",
        tmp_path / "a",
        status=2,
    )
    assert "unfinished search" in err
    _, err = told(capfd, *words, status=2)
    assert "--resume" in err
    told(capfd, *words, "--resume")
    assert (tmp_path / "a" / "ledger.jsonl").read_bytes() == ledger
