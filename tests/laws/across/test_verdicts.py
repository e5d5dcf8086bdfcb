"""The seam between a proof and its sentence: what is recommended is proven for the release that the goal names."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as library
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from discreet.accounting.events import PoissonSampledDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import guarantee_of
from discreet.cli.main import main
from discreet.core.types import Trial
from discreet.data.corpus import Corpus
from discreet.experiment.attack.request import Updates
from discreet.protections.dp_sgd import DPSGD
from discreet.report.words import verdict_of
from discreet.study import trial as trials
from discreet.study.file import Goal, Study, read_study
from discreet.study.frontier import best, points_of
from discreet.study.grid import Planned, key_of
from discreet.study.result import read_result
from discreet.study.store import NAME, read_trials, trial_as_dict
from discreet.study.sweep import FORMAT

IDENTIFIED = "one-of-n/identified"


class Scene:
    """Candidates whose gradients are orthonormal: the worst case for one record among known others."""

    def __init__(self) -> None:
        self.model, self.origin, self.run = torch.nn.Linear(2, 2), "a made-up model", None

    def draw(self, count: int, rng: object, **asked: object) -> Corpus:
        return Corpus("made up", tuple(f"text {i}" for i in range(count)))

    def gram(self, rows: Corpus) -> np.ndarray[Any, Any]:
        return np.eye(len(rows))


def attacked(
    monkeypatch: pytest.MonkeyPatch,
    noise: float,
    rate: float,
    steps: int,
    candidates: int,
    accuracy: float,
    base: float,
    draws: int = 500,
) -> Trial:
    """Return a trial as `run_trial` makes it, but for the training, of which only the public facts are needed."""
    protect = DPSGD(noise_multiplier=noise)
    event = SelfComposedDpEvent(PoissonSampledDpEvent(rate, protect.event), steps)
    promise = guarantee_of(event, delta=1e-5, adjacency=protect.adjacency)
    details = {
        "evaluated_rows": 500,
        "steps": steps,
        "baselines": {"accuracy": base},
        "sampling_rate": rate,
        "trained": "all",
    }
    updates = Updates(steps, rate, event, 100 * rate)
    trained = trials._Trained({"accuracy": accuracy}, promise, details, protect, updates, Scene())
    monkeypatch.setattr(trials, "_trained", lambda *a: trained)
    monkeypatch.setattr(trials, "scene_of", lambda *a: Scene())
    table = {"name": "one-of-n", "candidates": candidates, "draws": draws}
    asked = {
        "data": {"source": "notes"},
        "protect": {"name": "dp-sgd", "noise_multiplier": noise},
        "attack": [table],
    }
    return trials._run(Planned("key", asked, 0))


def slow_bound(noise: float, rate: float, steps: int, candidates: int, release: str) -> float:
    """Return the most that any attack identifies, by another library's loss distribution, or by the closed form."""
    if release == "update":
        return float(norm.cdf(norm.ppf(1 / candidates) + 1 / noise))
    one = library.from_gaussian_mechanism(noise, value_discretization_interval=1e-3, sampling_prob=rate)
    composed = one.self_compose(steps)._pmf_remove
    epsilons = np.linspace(-3, 15, 2000)
    deltas = np.array(composed.get_delta_for_epsilon(epsilons))
    return min(1.0, float(np.min(deltas + np.exp(epsilons) / candidates)))


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.floats(0.6, 20.0), min_size=1, max_size=4, unique=True),
    st.floats(0.02, 0.9),
    st.integers(1, 200),
    st.sampled_from([4, 64]),
    st.floats(0.02, 0.6),
    st.sampled_from(["update", "training", "model", None]),
    st.floats(0.1, 0.8),
)
def test_what_is_recommended_is_proven_for_the_release_that_the_goal_names(
    monkeypatch: pytest.MonkeyPatch,
    noises: list[float],
    rate: float,
    steps: int,
    candidates: int,
    excess: float,
    release: str | None,
    base: float,
) -> None:
    ceiling = min(1 / candidates + excess, 0.95)
    found = [
        attacked(monkeypatch, noise, rate, steps, candidates, 0.9 - 0.1 * i, base) for i, noise in enumerate(noises)
    ]
    goal = Goal(IDENTIFIED, ceiling=ceiling, release=release)
    points = points_of(found)
    chosen = best(points, goal, "accuracy")
    named = release or "training"
    slow = {noise: slow_bound(noise, rate, steps, candidates, named) for noise in noises}
    if chosen is None:  # no setting that surely keeps it and learned something is overlooked
        for i, noise in enumerate(noises):
            assert slow[noise] > ceiling * 0.98 or 0.9 - 0.1 * i <= base
        return
    noise = chosen.protection["noise_multiplier"]
    assert slow[noise] <= ceiling + 2e-3
    assert chosen.utility["accuracy"].value > base
    measured = chosen.leakage[goal.resolved().leakage]
    assert measured.low <= slow[noise] + 2e-3  # the attack that was run is on the same release


def test_the_audits_training_is_judged_by_all_its_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise 2.356, rate .5203, 80 steps: 4.2% from one update, 43.8% from all; an attack reaches 38.8%."""
    found = [attacked(monkeypatch, 2.3560846029089415, 0.5203252032520326, 80, 64, 0.8, 0.4, 4000)]
    points = points_of(found)
    assert best(points, Goal(IDENTIFIED, ceiling=0.05), "accuracy") is None
    assert best(points, Goal(IDENTIFIED, ceiling=0.05, release="model"), "accuracy") is None
    assert best(points, Goal(IDENTIFIED, ceiling=0.05, release="update"), "accuracy") is points[0]
    leaks = points[0].leakage
    assert leaks[IDENTIFIED].bound == pytest.approx(0.438, abs=0.002)
    assert leaks[IDENTIFIED].value == pytest.approx(0.388, abs=0.03)
    assert leaks[IDENTIFIED + "_update"].bound == pytest.approx(0.0421, abs=0.0005)


def write(folder: Path, found: list[Trial], goal: dict[str, object]) -> None:
    folder.mkdir(exist_ok=True)
    study = {"name": "made up", "data": {"source": "notes"}, "protect": [{"name": "dp-sgd"}], "goal": goal}
    (folder / "study.json").write_text(json.dumps({"format": FORMAT, **study}))
    lines = [json.dumps({"key": key_of(one.settings, 0), **trial_as_dict(one)}) for one in found]
    (folder / NAME).write_text("\n".join(lines) + "\n")


def test_a_verdict_names_its_release_and_what_would_keep_the_ceiling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [attacked(monkeypatch, 2.356, 0.52, 80, 64, 0.8, 0.4)]
    write(tmp_path, found, {"leakage": IDENTIFIED, "ceiling": 0.05})
    kept = {"noise": 9.197, "limit": 0.05, "event": "a whole training (80 steps, rate 0.52)", "sentence": ""}
    row = {"ceiling": 0.05, "candidates": 64, "certified": kept, "measured": kept, "ratio": 1.0, "scope": "training"}
    (tmp_path / "risk.json").write_text(json.dumps([row]))
    told = read_result(tmp_path)
    assert told.recommended is None
    assert "all 80 updates of the training" in verdict_of(told)[1]
    assert "44%" in verdict_of(told)[1] and "9.197" in verdict_of(told)[1]
    write(tmp_path, found, {"leakage": IDENTIFIED, "ceiling": 0.05, "release": "update"})
    told = read_result(tmp_path)
    assert told.recommended is not None and "proven for every attack on one update" in verdict_of(told)[1]


def test_a_model_that_learned_nothing_is_never_recommended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [attacked(monkeypatch, 15.0, 0.5, 80, 64, 0.192, 0.4)]
    write(tmp_path, found, {"leakage": IDENTIFIED, "ceiling": 0.05})
    told = read_result(tmp_path)
    assert told.recommended is None
    assert "no better than a constant answer" in verdict_of(told)[1]


TINY = """
name = "a \\"tiny\\" study"
title = "Żółć 日本 — may it be trained?"
seeds = [0]
[data]
source = "notes"
rows = 120
[model]
encoder = "{encoder}"
train = "head"
[training]
epochs = 2
[release]
train = "head"
embeddings = false
split = "train"
[[protect]]
name = "dp-sgd"
noise_multiplier = [4.0]
[[attack]]
name = "one-of-n"
candidates = 8
draws = 500
[goal]
leakage = "one-of-n/identified"
floor = 0.05
"""


@pytest.mark.usefixtures("trials_here")
def test_the_study_that_a_report_prints_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_encoder: Callable[[str], Path]
) -> None:
    (tmp_path / "study.toml").write_text(TINY.format(encoder=tiny_encoder("bert")))
    assert main(["calibrate", str(tmp_path / "study.toml"), "--out", str(tmp_path / "a"), "--workers", "1"]) == 0
    assert 'the default is "training"' in " ".join(capsys.readouterr().err.split())
    markdown = (tmp_path / "a" / "report.md").read_text()
    printed = markdown.partition("```toml\n")[2].partition("\n```")[0]
    assert tomllib.loads(printed)["goal"]["release"] == "training"
    (tmp_path / "again.toml").write_text(printed)
    assert isinstance(read_study(tmp_path / "again.toml"), Study)
    assert main(["calibrate", str(tmp_path / "again.toml"), "--out", str(tmp_path / "b"), "--workers", "1"]) == 0
    first, second = (next(iter(read_trials(tmp_path / name).values())) for name in ("a", "b"))
    assert first.utility == second.utility and first.leakages == second.leakages
    assert math.isclose(first.details["bounds"][IDENTIFIED], second.details["bounds"][IDENTIFIED])


def test_an_attack_on_a_run_reads_all_its_updates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_encoder: Callable[[str], Path]
) -> None:
    made = ["train", "notes", "--rows", "120", "--train", "head", "--protect", "dp-sgd", "--noise-multiplier", "2"]
    made += ["--model", str(tiny_encoder("bert"))]
    assert main([*made, "--epochs", "3", "--out", str(tmp_path / "run"), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    attack = ["attack", str(tmp_path / "run"), "--attack", "one-of-n", "--candidates", "8", "--draws", "500", "--json"]
    assert main(attack) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["release"]["scope"] == "training"
    assert told["release"]["steps"] == done["steps"] > 1
    slow = slow_bound(2.0, done["sampler"]["rate"], done["steps"], 8, "training")
    assert told["bound"] == pytest.approx(slow, abs=2e-3)
    assert main([*attack, "--steps", "1"]) == 0
    assert json.loads(capsys.readouterr().out)["bound"] == pytest.approx(slow_bound(2.0, 1.0, 1, 8, "update"), abs=1e-6)
