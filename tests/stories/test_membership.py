"""Who was in it, from a run folder and from a study, to the verdict and the report, in seconds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main
from discreet.study.store import read_trials

STUDY = """
name = "members"
[data]
source = "notes"
rows = 150
[model]
encoder = "{encoder}"
train = "head"
[training]
epochs = 10
[[protect]]
name = "none"
[[protect]]
name = "dp-sgd"
epsilon = 3.0
[[attack]]
name = "lira"
references = 4
[goal]
leakage = "lira/auc"
ceiling = 0.9
"""


def test_a_run_is_asked_who_was_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_encoder: Callable[[str], Path]
) -> None:
    run = str(tmp_path / "run")
    shared = ["--model", str(tiny_encoder("bert")), "--train", "head", "--epochs", "5", "--device", "cpu"]
    assert (
        main(["train", "notes", "--rows", "150", *shared, "--protect", "dp-sgd", "--epsilon", "3", "--out", run]) == 0
    )
    capsys.readouterr()
    assert main(["attack", run, "--attack", "lira", "--references", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    metrics = {one["metric"]: one for one in told["leakage"]}
    assert {"auc", "tpr_at_0.1", "advantage"} <= set(metrics)
    assert metrics["auc"]["low"] <= told["bounds"]["auc"] < 0.8  # epsilon 3
    assert "the certificate allows at most" in told["verdict"]
    assert told["details"]["roc"]["bound"] and told["details"]["riskiest"]
    assert main(["attack", run, "--attack", "rmia", "--references", "2"]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 and "at most" in shown
    assert main(["attack", run, "--attack", "lira", "--protect", "none"]) == 2
    assert "left out for lira" in " ".join(capsys.readouterr().err.split())
    assert main(["attack", "--attack", "lira"]) == 2
    assert "discreet train" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("trials_here")
def test_a_study_compares_settings_by_membership(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_encoder: Callable[[str], Path]
) -> None:
    (tmp_path / "study.toml").write_text(STUDY.format(encoder=tiny_encoder("bert")))
    command = ["calibrate", str(tmp_path / "study.toml"), "--out", str(tmp_path / "s"), "--workers", "1", "--json"]
    assert main(command) == 0
    capsys.readouterr()
    trials = {one.settings["protect"]["name"]: one for one in read_trials(tmp_path / "s").values()}
    private = trials["dp-sgd"]
    assert private.details["scopes"]["lira/auc"] == "model"
    assert private.details["bounds"]["lira/auc"] < 0.8 and "lira/auc" not in trials["none"].details["bounds"]
    assert main(["report", str(tmp_path / "s")]) == 0
    page, text = ((tmp_path / "s" / name).read_text() for name in ("report.html", "report.md"))
    assert "Who was in the training data? What a test finds" in page and "wrongly accuses" in text
