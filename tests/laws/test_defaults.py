"""A study and `discreet train` choose the same for the same settings: data, model, training and protection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from discreet.catalog import PROTECTIONS
from discreet.cli.main import main
from discreet.core.errors import SettingError
from discreet.study.file import NONE, Study
from discreet.study.trial import check_rows, corpus_of, training_request

NEEDED = {  # what a protection does not choose by itself
    "dp-sgd": {"epsilon": 3.0},
    "dir-dp-sgd": {"epsilon": 400.0},
    "texthide": {"mix": 4},
    "dp-ie": {"epsilon": 8.0},
    "ldp": {"epsilon_per_message": 6.0},
    "santext": {"epsilon_per_word": 14.0},
    "santext+": {"epsilon_per_word": 14.0},
    "word-noise": {"epsilon_per_word": 20.0},
}
TEXTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "texts": ({"source": "notes", "rows": 60}, ["notes", "--rows", "60"]),
    "pairs": ({"source": "notes-pairs", "rows": 60}, ["notes-pairs", "--rows", "60"]),
    "scores": ({"source": "notes-pairs-scores", "rows": 60}, ["notes-pairs-scores", "--rows", "60"]),
    "language": ({"source": "notes", "rows": 60, "task": "unlabelled"}, ["notes", "--rows", "60", "--task", "lm"]),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", [NONE, *PROTECTIONS])
def test_a_study_trains_what_train_trains(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    data, words = TEXTS[text]
    own = dict(NEEDED.get(name, {}))
    if name == "santext+":
        (tmp_path / "words.txt").write_text("knee\n", encoding="utf-8")
        own["sensitive"] = str(tmp_path / "words.txt")
    for option, value in own.items():
        words = [*words, f"--{option.replace('_', '-')}", str(value)]
    words = [*words, *([] if name == NONE else ["--protect", name]), "--out", str(tmp_path / "run")]
    requests: list[Any] = []

    def stopped(request: Any, out: Any, **rest: Any) -> Any:
        requests.append(request)
        return SimpleNamespace(values=lambda: {"finished": False, "steps": 0})

    monkeypatch.setattr("discreet.experiment.train_once", stopped)
    assert main(["train", *words]) == 130
    trial = training_request({"data": data, "protect": {"name": name, **own}}, corpus_of(data), 0)
    assert replace(trial, noise_seed=None) == requests[0]


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ({"name": "one-of-n", "candidates": 4000}, "candidates"),
        ({"name": "dager", "examples": 4000}, "examples"),
    ],
)
def test_a_study_of_more_texts_than_there_are_is_rejected_before_a_trial_trains(
    table: dict[str, Any], named: str
) -> None:
    data = {"source": "notes", "rows": 60}
    study = Study("s", data, ({"name": NONE},), ({**table},))
    with pytest.raises(SettingError, match=named):
        check_rows(study, corpus_of(data))
    small = {**table, "candidates": 4} if named == "candidates" else {**table, "examples": 2}
    check_rows(replace(study, attack=(small,)), corpus_of(data))
