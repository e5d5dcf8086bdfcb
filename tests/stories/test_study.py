"""A study from its file to the report, in seconds: trained, attacked, recommended, and started a second time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main
from discreet.study.store import read_trials

STUDY = """
name = "story"
[data]
source = "notes"
rows = 120
[model]
encoder = "{encoder}"
train = "head"
[training]
epochs = 5
[release]
train = "head"
embeddings = false
split = "train"
[[protect]]
name = "none"
[[protect]]
name = "dp-sgd"
noise_multiplier = 2.0
[[attack]]
name = "one-of-n"
candidates = 16
draws = 2000
[goal]
leakage = "one-of-n/identified"
ceiling = 0.4
"""


def test_a_study_recommends_what_keeps_its_ceiling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_encoder: Callable[[str], Path]
) -> None:
    study = STUDY.format(encoder=tiny_encoder("bert"))
    (tmp_path / "study.toml").write_text(study)
    command = ["calibrate", str(tmp_path / "study.toml"), "--out", str(tmp_path / "s"), "--workers", "1", "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["kept"]) == (2, 0)
    assert "dp-sgd" in told["verdict"][1]
    trials = list(read_trials(tmp_path / "s").values())
    leaks = {trial.settings["protect"]["name"]: trial.leakages[0] for trial in trials}
    assert leaks["none"].value > 0.9
    assert leaks["dp-sgd"].high <= 0.4
    private = next(trial for trial in trials if trial.settings["protect"]["name"] == "dp-sgd")
    assert leaks["dp-sgd"].low <= private.details["bounds"]["one-of-n/identified"]
    assert private.guarantee is not None
    assert private.guarantee.certified
    assert any("fixed seed" in text for text in private.guarantee.assumptions)
    spent = [epsilon for _, epsilon in private.details["epsilon_over_training"]]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(private.guarantee.epsilon, rel=0.01)
    curve = private.details["roc"]
    assert len(curve["true_positives"]) == len(curve["bound"]) and curve["measured"]
    bounds = dict(zip(curve["false_positives"], curve["bound"], strict=True))
    for rate, (_, low, _) in curve["measured"].items():
        assert low <= min(bound for x, bound in bounds.items() if x >= float(rate))
    page = Path(told["report"]).read_text()
    assert "dp-sgd, noise multiplier 2" in page
    assert main(command) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["run"], again["kept"]) == (0, 2)
    assert [row["ceiling"] for row in json.loads((tmp_path / "s" / "risk.json").read_text())] == [0.4, 0.4]
    (tmp_path / "study.toml").write_text(study.replace("ceiling = 0.4", "ceiling = 0.1"))
    assert main(command) == 0  # a goal changes no trial: what was measured is judged anew
    judged = json.loads(capsys.readouterr().out)
    assert (judged["run"], judged["kept"]) == (0, 2)
    assert judged["verdict"][1] != again["verdict"][1]
    assert [row["ceiling"] for row in json.loads((tmp_path / "s" / "risk.json").read_text())] == [0.1, 0.1]
    page = Path(judged["report"]).read_text()
    assert "ceiling 10%" in page and "ceiling 40%" not in page
    changed = study.replace("epochs = 5", "epochs = 6")
    (tmp_path / "study.toml").write_text(changed)
    assert main(command) == 2
    assert "training.epochs was 5 and is 6" in capsys.readouterr().err
    assert len(read_trials(tmp_path / "s")) == 2
