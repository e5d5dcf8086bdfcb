"""A study that an earlier version finished: nothing runs again, and every figure is the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from discreet.cli.main import main
from discreet.core.randomness import Rng
from discreet.study.file import read_study
from discreet.study.frontier import Point, frontier, well_behaved
from discreet.study.grid import Planned, key_of, plan
from discreet.study.result import read_result
from discreet.study.store import read_trials
from discreet.study.sweep import sweep

KEPT = Path(__file__).parents[1] / "fixtures" / "study_1"
FIGURES: dict[str, Any] = json.loads((KEPT / "figures.json").read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(KEPT / "sweep", tmp_path / "sweep")
    return tmp_path / "sweep"


def never(planned: Planned) -> Any:
    raise AssertionError(f"{planned.label} was run again")


def test_the_keys_of_the_trials_are_the_same() -> None:
    planned = {one.key: one for one in plan(read_study(KEPT / "study.toml"))}
    trials = read_trials(KEPT / "sweep")
    assert set(planned) == set(trials)
    for key, trial in trials.items():
        assert key_of(trial.settings, trial.seed) == key
        assert json.loads(json.dumps(planned[key].settings)) == trial.settings


def test_a_finished_study_is_resumed_without_running_a_trial(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    standing = sweep(read_study(KEPT / "study.toml"), never, folder, workers=1)
    assert (standing.total, standing.before, standing.done, standing.failures) == (10, 10, 0, {})
    after = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "sweep.lock"}
    assert {**before, "failures.json": after["failures.json"]} == after
    assert json.loads(after["failures.json"]) == {}


def test_half_of_it_is_resumed_with_the_other_half(folder: Path) -> None:
    lines = (folder / "trials.jsonl").read_text().splitlines(keepends=True)
    (folder / "trials.jsonl").write_text("".join(lines[:4]))
    standing = sweep(read_study(KEPT / "study.toml"), never, folder, workers=1)
    assert (standing.before, standing.done, len(standing.failures)) == (4, 0, 6)
    missing = {json.loads(line)["key"] for line in lines[4:]}
    assert set(standing.failures) == missing
    assert "".join(lines[:4]) == (folder / "trials.jsonl").read_text()


def test_the_figures_are_the_same(folder: Path) -> None:
    result = read_result(folder)
    assert (result.utility, result.leakages) == (FIGURES["utility"], FIGURES["leakages"])
    assert result.recommended is not None and result.recommended.label == FIGURES["chosen"]
    assert [figures_of(point) for point in result.points] == [approximately(one) for one in FIGURES["points"]]
    for name, labels in FIGURES["frontier"].items():
        assert [point.label for point in frontier(result.points, name, result.utility)] == labels
    private = [point for point in result.points if point.name == "dp-sgd"]
    noises = [-point.strength[1] for point in private if point.strength is not None]
    steady = well_behaved(noises, [point.leakage["one-of-n/identified"] for point in private], rng=Rng(0))
    assert asdict(steady) == approximately(FIGURES["well_behaved"])


def test_the_command_resumes_it_and_reports_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trials, risk = (folder / "trials.jsonl").read_bytes(), (folder / "risk.json").read_bytes()
    assert main(["calibrate", str(KEPT / "study.toml"), "--out", str(folder), "--workers", "1", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["trials"], told["run"], told["kept"]) == (10, 0, 10)
    assert (folder / "trials.jsonl").read_bytes() == trials
    assert (folder / "risk.json").read_bytes() == risk
    assert FIGURES["chosen"] in told["verdict"][1]
    assert (folder / "report.html").exists()
    rows = [
        {
            **{key: row[key] for key in ("ceiling", "candidates", "scope", "ratio")},
            "certified": row["certified"]["noise"],
            "measured": row["measured"]["noise"],
        }
        for row in read_result(folder).noise
    ]
    assert rows == FIGURES["risk"]


def figures_of(point: Point) -> dict[str, Any]:
    promise, noise = point.guarantee, point.noise
    return {
        "label": point.label,
        "variant": point.variant,
        "utility": {name: asdict(one) for name, one in point.utility.items()},
        "leakage": {name: asdict(one) for name, one in point.leakage.items()},
        "epsilon": None if promise is None else promise.epsilon,
        "certified": None if promise is None else promise.certified,
        "noise": None if noise is None else list(noise),
    }


def approximately(value: Any) -> Any:
    """Return a value with its floats equal to within 1e-12, as another processor may round the last digit."""
    if isinstance(value, dict):
        return {key: approximately(one) for key, one in value.items()}
    if isinstance(value, list):
        return [approximately(one) for one in value]
    return pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
