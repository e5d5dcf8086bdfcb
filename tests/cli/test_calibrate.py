from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from discreet.catalog import attack_class
from discreet.cli.main import main
from discreet.study.file import Study, check, read_study
from discreet.study.grid import plan, points
from discreet.study.trial import run_trial

STUDY = """
name = "small"
[data]
source = "notes"
rows = 60
[model]
train = "head"
[[protect]]
name = "none"
[[protect]]
name = "dp-sgd"
epsilon = [8.0]
[[attack]]
name = "one-of-n"
candidates = 4
[goal]
leakage = "one-of-n/identified"
ceiling = 0.9
"""


def run(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    (folder / "study.toml").write_text(text)
    status = main(["calibrate", str(folder / "study.toml"), "--out", str(folder / "s")])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rows = 60", "row = 60", "Did you mean 'rows'"),
        ('train = "head"', 'tarin = "head"', "Did you mean 'train'"),
        ("epsilon = [8.0]", "epsilon = []", "An empty grid has no trial"),
        ("epsilon = [8.0]", "", "Expected epsilon, noise_multiplier or true_positive_rate for dp-sgd"),
        ("epsilon = [8.0]", "epsilno = [8.0]", "Did you mean 'epsilon'"),
        ("epsilon = [8.0]", "epsilon = [-1.0]", "Expected epsilon to be > 0 and finite, got -1.0"),
        ('name = "dp-sgd"', 'name = "dp-sdg"', "Did you mean 'dp-sgd'"),
        ('name = "one-of-n"', 'name = "one-of-m"', "one-of-n"),
        ("candidates = 4", "candidate = 4", "Did you mean 'candidates'"),
        ("ceiling = 0.9", "ceiling = 0.9\nfloor = 0.5", "either a ceiling or a floor"),
        ("ceiling = 0.9", "ceiling = 5", "Expected goal.ceiling to be in (0, 1)"),
        ("one-of-n/identified", "one-of-m/identified", "of an attack in one-of-n"),
        ("one-of-n/identified", "one-of-n/identifed", "Did you mean 'identified'"),
        ("ceiling = 0.9", 'ceiling = 0.9\nutility = "acuracy"', "Did you mean 'accuracy'"),
        ("candidates = 4", 'candidates = 4\nmetrics = ["rouge_k"]', "Expected metric to be one of"),
        ('source = "notes"', 'source = "nowhere.csv"', "Expected a file at 'nowhere.csv'"),
        ('[[protect]]\nname = "none"\n', "", None),
    ],
)
def test_a_bad_study_is_said_in_a_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str | None
) -> None:
    text = STUDY.replace(old, new, 1)
    if said is None:  # an attack on vectors, and only gradients protected
        text = text.replace('name = "one-of-n"\ncandidates = 4', 'name = "rss"').replace("one-of-n/", "rss/")
        said = "Expected an attack that fits a release"
    status, error = run(tmp_path, text, capsys)
    assert status == 2, error
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "s").exists()


def test_a_report_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "discreet calibrate" in capsys.readouterr().err
    assert main(["calibrate", str(tmp_path / "no.toml"), "--out", str(tmp_path / "s")]) == 2


STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))
# What is smaller in the tiny version of a study: as much as shows that every part of it runs.
SMALL = {"examples": 4, "candidates": 6, "references": 4, "members": 20, "draws": 50, "seconds": 0.05, "steps": 2}
WIDE = {"decepticons"}  # crafts weights that a tiny model has no room for


def tiny(study: Study, data: Path, encoder: Path) -> Study:
    """Return a study with the last point of every grid, on a few rows and a tiny model."""
    attacks = []
    for table in [table for table in study.attack if table["name"] not in WIDE]:
        less = {key: min(value, SMALL[key]) if key in SMALL else value for key, value in table.items()}
        limit = {"seconds": SMALL["seconds"]} if attack_class(table["name"]).has_time_limit else {}
        attacks.append(less | limit | ({"batch_size": 4} if "batch_size" in less else {}))
    return replace(
        study,
        data={"source": str(data)},
        model=study.model | {"encoder": str(encoder)},
        training={"epochs": 1, "batch_size": 16},
        # A kappa is meant for a number of parameters, and the tiny model has few of them.
        protect=tuple(points(table)[-1] | ({"kappa": 5.0} if "kappa" in table else {}) for table in study.protect),
        attack=tuple(attacks),
        seeds=study.seeds[:1],
    )


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_every_ready_study_is_one_that_would_run(path: Path) -> None:
    study = read_study(path)
    check(study)
    assert plan(study)


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_a_tiny_version_of_every_ready_study_runs(
    path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    study = tiny(read_study(path), toy_csv, tiny_encoder("bert"))
    check(study)
    trials = [run_trial(planned) for planned in plan(study)]
    assert study.goal is not None and len(trials) == len(study.protect)
    for trial in trials:
        assert study.goal.utility in trial.utility
        told = {leakage.metric.partition("/")[0] for leakage in trial.leakages} | set(trial.details["not_attacked"])
        assert told == {table["name"] for table in study.attack}, "every attack has figures, or says why not"
    measured = {leakage.metric for trial in trials for leakage in trial.leakages}
    assert study.goal.leakage in measured


def test_every_paper_has_its_study() -> None:
    names = {path.stem for path in STUDIES}
    assert {"demo", "template", "texthide", "instance_encoding", "local_layer", "lecture"} <= names
    assert {"calibration_cola", "calibration_sst2", "calibration_imdb"} <= names
