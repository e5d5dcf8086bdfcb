"""`discreet.study.run`: a study from its file to its result, from Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import discreet
from discreet.core.errors import DiscreetError, SettingError
from discreet.runs.people import People
from discreet.study import IncompleteError, Study, StudyResult, read_result, result, run
from discreet.study.sweep import Standing

STUDY = """
name = "small"
[data]
source = "{data}"
classes = ["clinic", "ward"]
[model]
encoder = "{encoder}"
train = "head"
[training]
epochs = 1
batch_size = 16
[release]
train = "head"
embeddings = false
[[protect]]
name = "none"
[[protect]]
name = "dp-sgd"
noise_multiplier = 2.0
[[attack]]
name = "one-of-n"
candidates = 6
draws = 50
[goal]
leakage = "one-of-n/identified"
ceiling = 0.9
"""


@pytest.fixture
def file(tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path]) -> Path:
    path = tmp_path / "clinic.toml"
    path.write_text(STUDY.format(data=toy_csv, encoder=tiny_encoder("bert")))
    return path


@pytest.mark.usefixtures("trials_here")
def test_a_study_runs_from_python_and_nothing_runs_twice(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISCREET_HOME", str(file.parent / "home"))
    seen: list[Standing] = []
    first = discreet.study.run(str(file), workers=1, watch=seen.append)
    assert isinstance(first, StudyResult)
    assert first.folder == file.with_name("clinic-trials")
    assert [point.label for point in first.points] == ["none", "dp-sgd, noise multiplier 2"]
    assert (seen[-1].total, seen[-1].done, seen[-1].missing) == (2, 2, 0)
    assert first.goal is not None and first.goal.release == "training"
    assert [row["scope"] for row in first.noise] == ["update", "training"]
    private = first.points[1]
    assert private.guarantee is not None and private.guarantee.certified
    assert private.leakage["one-of-n/identified"].bound is not None
    files = {path.name: path.read_bytes() for path in first.folder.iterdir()}
    seen.clear()
    again = run(file, workers=1, watch=seen.append)
    assert [(standing.before, standing.done) for standing in seen] == [(2, 0)]
    assert again == first == read_result(first.folder)
    assert {path.name: path.read_bytes() for path in first.folder.iterdir()} == files


def test_a_study_that_is_no_file_names_its_folder() -> None:
    study = Study("small", {"source": "notes"}, ({"name": "none"},))
    with pytest.raises(SettingError, match="out"):
        run(study)


@pytest.mark.parametrize(
    ("failures", "said"),
    [({"a": "ValueError: two is too many"}, "1 of 3 failed: ValueError: two is too many"), ({}, "2 of 3 are missing")],
)
def test_an_incomplete_study_is_an_error_that_carries_its_progress(
    failures: dict[str, str], said: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISCREET_HOME", str(tmp_path / "home"))

    def stopped(*given: Any, **options: Any) -> Standing:
        return Standing(3, 1, 0, (), failures, None)

    monkeypatch.setattr(result, "sweep", stopped)
    with pytest.raises(IncompleteError, match=said) as error:
        run(file, tmp_path / "s")
    assert isinstance(error.value, DiscreetError)
    assert error.value.standing.failures == failures
    assert error.value.standing.missing == 2 - len(failures)
    assert error.value.folder == tmp_path / "s"


def test_a_bad_study_leaves_no_folder(file: Path, tmp_path: Path) -> None:
    file.write_text(file.read_text().replace("candidates", "candidate"))
    with pytest.raises(SettingError, match=r"got 'candidate'\. Did you mean 'candidates'"):
        run(file, tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_misspelled_keys_of_an_attack_are_looked_up_among_its_own_settings_too(file: Path, tmp_path: Path) -> None:
    text = file.read_text().replace('name = "one-of-n"\ncandidates = 6\ndraws = 50', 'name = "lamp"\nstpes = 3')
    file.write_text(text.replace("one-of-n/identified", "lamp/rouge_l"))
    with pytest.raises(SettingError, match="Did you mean 'steps'"):
        run(file, tmp_path / "s")


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"on": "nothing"}, {"out": "taken"}], ids=str)
def test_a_study_that_is_rejected_for_its_settings_is_not_recorded(
    file: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any]
) -> None:
    monkeypatch.setenv("DISCREET_HOME", str(file.parent / "home"))
    taken = file.parent / "taken"
    taken.mkdir()
    (taken / "settings.toml").write_text("")
    with pytest.raises(DiscreetError):
        discreet.study.run(file, **{**wrong, **({"out": taken} if "out" in wrong else {})})
    assert People().records() == []
