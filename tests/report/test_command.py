"""The command of a report trains what the trials of the setting trained."""

from __future__ import annotations

import shlex
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from discreet.catalog import PROTECTIONS, settings_of_protection
from discreet.cli.main import main
from discreet.report.command import _SWITCHES, train_command
from discreet.report.page import command_text
from discreet.study.file import NONE, Study, check
from discreet.study.trial import corpus_of, training_request

DATA = {"source": "notes", "rows": 120, "unit": None, "max_per_unit": 2, "classes": None, "validation": "0.2"}
OWN: dict[str, dict[str, Any]] = {
    NONE: {},
    "dp-sgd": {"epsilon": 2.5, "clip_norm": 0.3, "delta": 1e-4},
    "dir-dp-sgd": {"kappa": 3000.0},
    "texthide": {"mix": 4, "fresh_masks": True},
    "dp-ie": {"epsilon": 8.0},
    "ldp": {"epsilon_per_message": 6.0, "mechanism": "gaussian", "dimension": 16},
    "santext": {"epsilon_per_word": 14.0, "keep_marks": False, "rewrite_queries": False},
    "santext+": {"epsilon_per_word": 14.0, "keep_marks": True, "rewrite_queries": True},
    "word-noise": {"epsilon_per_word": 20.0},
}


@pytest.mark.parametrize("name", [NONE, *PROTECTIONS])
def test_the_command_trains_what_the_trials_trained(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    protection = {"name": name, **OWN[name]}
    if name == "santext+":
        (tmp_path / "words.txt").write_text("knee\n")
        protection["sensitive"] = str(tmp_path / "words.txt")
    model = {"embeddings": False} if name == "dp-sgd" else {}
    if name in {"dp-ie", "ldp", "texthide"}:
        model = {"train": "head"}
    study: dict[str, Any] = {
        "name": "a study: of <notes>",
        "data": DATA,
        "model": {**model, "max_length": 40},
        "training": {"epochs": 2.5, "batch_size": 40, "learning_rate": 0.0007},
        "protect": [protection],
        "attack": [],
    }
    check(Study(**study))
    requests: list[Any] = []

    def stopped(request: Any, out: Any, **rest: Any) -> Any:
        requests.append((request, str(out)))
        return SimpleNamespace(values=lambda: {"finished": False, "steps": 0})

    monkeypatch.setattr("discreet.experiment.train_once", stopped)
    command = train_command(study, protection)
    words = shlex.split(command_text(command))
    assert shlex.split(command_text(command, 60).replace("\\\n", "")) == words
    assert max(map(len, command_text(command, 60).splitlines())) <= 60 or name == "santext+"  # the path of a file
    assert words[0] == "discreet" and main(words[1:]) == 130
    request, out = requests[0]
    settings = {key: study[key] for key in ("data", "model", "training")}
    trial = training_request({**settings, "protect": protection}, corpus_of(DATA), 0)
    assert replace(trial, noise_seed=None) == request
    assert out == "runs/a-study-of-notes-release" and command.missing == ()


def test_every_switch_of_a_protection_is_known() -> None:
    fields = {
        name: field
        for one in PROTECTIONS
        for name, field in settings_of_protection(one).items()
        if field.default is False
    }
    assert set(fields) == _SWITCHES


@pytest.mark.parametrize("chosen", [{}, {"pairs": "separate"}, {"pairs": "joint", "train": "all"}])
def test_pairs_are_read_as_in_the_trials(chosen: dict[str, str]) -> None:
    protection = {"name": "dp-sgd", "epsilon": 3.0}
    study: dict[str, Any] = {"name": "p", "data": {"source": "notes-pairs", "rows": 40}, "model": chosen}
    options = dict(train_command(study, protection).options)
    assert {name: options.get(name) for name in ("pairs", "train")} == {
        name: chosen.get(name) for name in ("pairs", "train")
    }


def test_what_no_option_sets_is_named() -> None:
    study = {"name": "s", "data": {"source": "a b.csv", "classes": ["x", "y"]}, "training": {"momentum": 0.8}}
    command = train_command(study, {"name": "dp-sgd", "epsilon": 3.0})
    assert command.missing == ("training.momentum",)
    text = command_text(command)
    assert "'a b.csv' --classes x,y" in text and "--train" not in text and "--momentum" not in text


@pytest.mark.parametrize("data", [{}, {"label": None}])
def test_a_study_of_language_models_is_trained_as_lm(data: dict[str, None]) -> None:
    study = {"name": "l", "data": {"source": "notes", "task": "unlabelled", **data}, "model": {"train": "lora-2"}}
    command = train_command(study, {"name": "dp-sgd", "epsilon": 3.0})
    assert dict(command.options)["task"] == "lm" and command.missing == ()
