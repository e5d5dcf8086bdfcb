from __future__ import annotations

import dataclasses
import importlib.util
import json
import random
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from discreet.core.errors import DataError, OutputError, SettingError
from discreet.core.settings import as_dict
from discreet.study.file import Goal, Study
from discreet.study.result import read_result
from discreet.study.store import NAME, Store, read_trials
from discreet.study.sweep import FORMAT, STUDY, Standing, read_failures, read_kept_study, sweep

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import toy  # noqa: E402


def test_every_trial_runs_once_and_a_second_start_runs_none(study: Study, tmp_path: Path) -> None:
    seen: list[Standing] = []
    first = sweep(study, toy.quick, tmp_path / "s", workers=2, watch=seen.append)
    assert (first.total, first.done, first.before, first.failures) == (8, 8, 0, {})
    assert max(len(standing.running) for standing in seen) == 2
    assert seen[-1].seconds_left == 0
    again = sweep(study, toy.failing, tmp_path / "s", workers=2)
    assert (again.done, again.before) == (0, 8)
    assert len(read_trials(tmp_path / "s")) == 8


@pytest.mark.parametrize(("run", "said"), [(toy.failing, "two is too many"), (toy.dying, "killed")])
def test_a_failed_trial_costs_only_itself_and_is_run_again(run, said: str, study: Study, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    first = sweep(study, run, tmp_path / "s", workers=2)
    assert (first.done, len(first.failures)) == (6, 2)
    assert all(said in why for why in first.failures.values())
    assert set(read_failures(tmp_path / "s")) == {"dp-sgd, epsilon 2, seed 0", "dp-sgd, epsilon 2, seed 1"}
    again = sweep(study, toy.quick, tmp_path / "s", workers=1)
    assert (again.done, again.before, again.failures) == (2, 6, {})
    assert read_failures(tmp_path / "s") == {}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "s").iterdir()} == {0o600}


def test_a_changed_study_is_refused_and_nothing_is_lost(study: Study, tmp_path: Path) -> None:
    sweep(study, toy.quick, tmp_path / "s", workers=1)
    kept = (tmp_path / "s" / NAME).read_bytes()
    changed = dataclasses.replace(study, data={"source": "reviews"})
    with pytest.raises(SettingError, match='data.source was "notes" and is "reviews"'):
        sweep(changed, toy.quick, tmp_path / "s")
    assert (tmp_path / "s" / NAME).read_bytes() == kept


@pytest.mark.parametrize(
    "goal", [Goal("one-of-n/identified", ceiling=0.3, utility="accuracy"), Goal("one-of-n/identified", floor=0.8), None]
)
def test_a_changed_goal_takes_the_place_of_the_old_one_and_runs_nothing(
    goal: Goal | None, study: Study, tmp_path: Path
) -> None:
    sweep(study, toy.quick, tmp_path / "s", workers=1)
    kept = (tmp_path / "s" / NAME).read_bytes()
    again = sweep(dataclasses.replace(study, goal=goal), toy.failing, tmp_path / "s", workers=1)
    assert (again.done, again.before) == (0, 8)
    assert (tmp_path / "s" / NAME).read_bytes() == kept
    stored = read_kept_study(tmp_path / "s")
    assert stored.get("goal") == (None if goal is None else as_dict(goal))
    assert {**stored, "goal": as_dict(study.goal)} == json.loads(json.dumps(study.as_dict()))


def test_a_changed_goal_does_not_carry_another_change_in_with_it(study: Study, tmp_path: Path) -> None:
    sweep(study, toy.quick, tmp_path / "s", workers=1)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()}
    changed = dataclasses.replace(study, goal=Goal("one-of-n/identified", ceiling=0.3), seeds=(0, 1, 2))
    with pytest.raises(SettingError, match=r"seeds was \[0, 1\] and is \[0, 1, 2\].* Only its goal may change"):
        sweep(changed, toy.quick, tmp_path / "s")
    assert {path.name: path.read_bytes() for path in (tmp_path / "s").iterdir()} == kept


@pytest.mark.parametrize(
    ("goal", "said"),
    [
        (
            Goal("one-of-n/identified", ceiling=0.3, utility="pearson"),
            "goal.utility to be measured in the trials",
        ),
        (Goal("one-of-n/identfied", ceiling=0.3), "Did you mean 'one-of-n/identified'"),
    ],
)
def test_a_finished_study_refuses_a_goal_that_nothing_measured(
    goal: Goal, said: str, study: Study, tmp_path: Path
) -> None:
    sweep(study, toy.quick, tmp_path / "s", workers=1)
    with pytest.raises(SettingError, match=said):
        sweep(dataclasses.replace(study, goal=goal), toy.quick, tmp_path / "s")
    assert read_kept_study(tmp_path / "s")["goal"] == as_dict(study.goal)


def test_a_goal_does_not_change_under_a_sweep_at_work(study: Study, tmp_path: Path) -> None:
    sweep(study, toy.quick, tmp_path / "s", workers=1)
    with Store(tmp_path / "s"), pytest.raises(OutputError, match="One is running"):
        sweep(dataclasses.replace(study, goal=None), toy.quick, tmp_path / "s")
    assert read_kept_study(tmp_path / "s")["goal"] == as_dict(study.goal)


def test_a_folder_of_something_else_is_left_alone(study: Study, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(OutputError, match="holds something else"):
        sweep(study, toy.quick, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_stopped_sweep_keeps_what_is_done(study: Study, tmp_path: Path) -> None:
    done: list[int] = []
    first = sweep(
        study,
        toy.slow,
        tmp_path / "s",
        workers=1,
        watch=lambda s: done.append(s.done),
        should_stop=lambda: done[-1] >= 3,
    )
    assert first.done == 3
    assert sweep(study, toy.quick, tmp_path / "s", workers=1).done == 5


def test_killed_five_times_at_random_it_ends_with_the_same_trials(study: Study, tmp_path: Path) -> None:
    many = dataclasses.replace(study, protect=({"name": "dp-sgd", "epsilon": [1.0 + i for i in range(40)]},))
    (tmp_path / "study.json").write_text(json.dumps(many.as_dict()))
    command = [sys.executable, str(HERE / "toy.py"), str(tmp_path / "study.json"), str(tmp_path / "s")]
    chance = random.Random(5)
    path = tmp_path / "s" / NAME
    for kill in range(5):
        process = subprocess.Popen(command)
        goal = (path.stat().st_size if path.exists() else 0) + 1
        while process.poll() is None and (not path.exists() or path.stat().st_size < goal):
            time.sleep(0.002)  # at least one line more than before, so that every kill meets a sweep at work
        time.sleep(chance.random() * 0.15)
        process.kill()
        process.wait()
        if kill == 2:  # a line cut in the middle, as a power failure may leave it
            path.write_bytes(path.read_bytes()[:-7])
    assert 0 < len(read_trials(tmp_path / "s")) < 80
    sweep(many, toy.quick, tmp_path / "s", workers=1)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines) == 80
    sweep(many, toy.quick, tmp_path / "undisturbed", workers=1)
    assert read_trials(tmp_path / "s") == read_trials(tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.versions
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_ray_gives_the_same_trials(study: Study, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(json.dumps(study.as_dict()))
    code = (
        "import sys, json, pathlib; sys.path.insert(0, sys.argv[1]); import toy\n"
        "from discreet.core.settings import parse\nfrom discreet.study.file import Study\n"
        "from discreet.study.sweep import sweep\n"
        "study = parse(Study, json.loads(pathlib.Path(sys.argv[2]).read_text()))\n"
        "sweep(study, toy.quick, pathlib.Path(sys.argv[3]), workers=2, on='ray')\n"
    )
    import os

    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1] / 'src'}"}
    command = [sys.executable, "-c", code, str(HERE), str(tmp_path / "study.json"), str(tmp_path / "ray")]
    subprocess.run(command, check=True, env=environment, timeout=600)
    sweep(study, toy.quick, tmp_path / "here", workers=2)
    assert read_trials(tmp_path / "ray") == read_trials(tmp_path / "here")
    assert (tmp_path / "ray" / STUDY).exists()


@pytest.mark.parametrize(("found", "words"), [(None, "none"), (0, "0"), ("1", "'1'")])
def test_a_folder_of_another_format_is_rejected(study: Study, tmp_path: Path, found: object, words: str) -> None:
    sweep(study, toy.quick, tmp_path / "s", workers=1)
    path = tmp_path / "s" / STUDY
    values = json.loads(path.read_text())
    assert values.pop("format") == FORMAT and "format" not in read_kept_study(tmp_path / "s")
    path.write_text(json.dumps(values if found is None else {**values, "format": found}))
    for read in (lambda: sweep(study, toy.failing, tmp_path / "s", workers=1), lambda: read_result(tmp_path / "s")):
        with pytest.raises(DataError, match=f"a study of format {FORMAT} in .*, got {words}"):
            read()
