"""The door of audited training: what a careless user may do there, and what the audit says then."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.audit.test_canaries import toy
from tests.doors.table import CERTIFIED, REJECTED, door

from discreet.accounting.interpret import epsilon
from discreet.audit.aspects import Aspect
from discreet.audit.canaries import FILE, record_path
from discreet.audit.run import RunAudit, audit_run
from discreet.core.errors import DataError, DiscreetError, ModelError
from discreet.core.guarantee import Adjacency
from discreet.data.corpus import Corpus
from discreet.data.samplers import Poisson
from discreet.data.sources import TextSource
from discreet.experiment.run import RunOptions, RunRequest, train_once
from discreet.models.classifier import ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.training.steps import Report

UNITS, STEPS = 40, 5
PROTECT = DPSGD(noise_multiplier=2.0, delta=1e-3)


class Door:
    """`discreet train --audit 60` and `discreet audit RUN`, on a tiny encoder."""

    def __init__(self, encoder: Path) -> None:
        self.model = ModelSettings(encoder=str(encoder), train="head", dropout=0.0)

    def request(self, **values: Any) -> RunRequest:
        settings = TrainSettings(epochs=1, batch_size=8, learning_rate=1e-2)
        return RunRequest(TextSource("toy.csv"), self.model, settings, PROTECT, **{"audit": 60, **values})

    def train(self, out: Path, corpus: Corpus | None = None, options: RunOptions | None = None, **values: Any) -> Any:
        return train_once(self.request(**values), out, corpus=corpus or toy(UNITS + 8), options=options).values()


@pytest.fixture(scope="module")
def entry(tiny_encoder: Callable[[str], Path]) -> Door:
    return Door(tiny_encoder("bert"))


@pytest.fixture(scope="module")
def run(entry: Door, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audited") / "run"
    entry.train(out)
    return out


def cost(units: int = UNITS, steps: int = STEPS) -> float:
    """Return the epsilon of the steps, computed from their event alone."""
    return epsilon(PROTECT.training_cost(Poisson.expecting(8, units), steps, units), 1e-3, Adjacency.ZERO_OUT)


def is_true(result: RunAudit) -> None:
    """Assert that the audited figure is that of all steps, and that every check of the steps passed."""
    assert result.upper_bound == pytest.approx(cost(), rel=1e-9)
    assert result.lower_bound <= result.upper_bound and not result.refuted
    assert Aspect.COST in {check.aspect for check in result.checks}


@door("audit", "unit", CERTIFIED)
def test_without_a_unit_the_figure_is_about_rows_and_the_audit_says_that_units_are_not_tested(run: Path) -> None:
    """Rows of one person in several units are not found by an audit: the unit is in the claim, and in what is open."""
    result = audit_run(run)
    is_true(result)
    assert result.guarantee is not None and result.guarantee.unit == toy().unit_name
    assert Aspect.UNITS in {one.aspect for one in result.not_tested}
    assert "all rows of a person are in one unit" in json.dumps(result.as_dict())


@door("audit", "again", CERTIFIED)
def test_a_second_audited_run_about_the_same_people_is_added_to_the_first(entry: Door, tmp_path: Path) -> None:
    first, second = (entry.train(tmp_path / name)["people"]["guarantee"]["epsilon"] for name in ("a", "b"))
    assert first == pytest.approx(cost(), rel=1e-6) and second == pytest.approx(cost(steps=2 * STEPS), rel=1e-6)
    is_true(audit_run(tmp_path / "b"))  # of that run alone


@door("audit", "stop", REJECTED)
def test_a_run_that_was_stopped_is_not_audited(entry: Door, tmp_path: Path) -> None:
    stops = iter([False, True])
    options = RunOptions(should_stop=lambda: next(stops, True))
    assert not entry.train(tmp_path / "a", options=options)["finished"]
    assert not record_path(tmp_path / "a").exists()
    with pytest.raises(ModelError, match="unfinished"):
        audit_run(tmp_path / "a")


@door("audit", "error", CERTIFIED)
def test_steps_after_a_caught_error_are_recorded_and_counted_once(entry: Door, tmp_path: Path) -> None:
    def fail(report: Report) -> None:
        if report.stage == "training" and report.step >= STEPS:
            raise OSError("no space on the progress bar")

    with pytest.raises(OSError, match="progress"):
        entry.train(tmp_path / "a", options=RunOptions(watch=fail))
    entry.train(tmp_path / "a", options=RunOptions(resume=True))
    is_true(audit_run(tmp_path / "a"))
    assert json.loads(record_path(tmp_path / "a").read_text())["steps"] == STEPS


@door("audit", "state", CERTIFIED)
def test_what_an_audit_leaves_in_the_run_folder_does_not_depend_on_private_text(entry: Door, tmp_path: Path) -> None:
    corpus = toy(UNITS + 8)
    other = dataclasses.replace(corpus, texts=tuple(text.replace("the", "a bad cough") for text in corpus.texts))
    for name, rows in (("a", corpus), ("b", other)):
        entry.train(tmp_path / name, rows, noise_seed=5)
    assert (tmp_path / "a" / FILE).read_bytes() == (tmp_path / "b" / FILE).read_bytes()
    result = audit_run(tmp_path / "a")
    assert result.upper_bound == pytest.approx(cost(), rel=1e-9) and not result.failed


@door("audit", "log", CERTIFIED)
def test_who_was_drawn_is_in_no_file_of_the_run_and_in_no_output(entry: Door, tmp_path: Path) -> None:
    said: list[str] = []
    result = entry.train(tmp_path / "a", options=RunOptions(say=said.append))
    path = record_path(tmp_path / "a")
    assert path.stat().st_mode & 0o077 == 0 and path.parent == tmp_path
    record = json.loads(path.read_text())["batches"]
    secrets = {json.dumps(record["sizes"]), json.dumps(record["counts"])}
    files = [file.read_text(errors="replace") for file in (tmp_path / "a").rglob("*") if file.is_file()]
    outputs = [*said, json.dumps(result), json.dumps(audit_run(tmp_path / "a").as_dict()), *files]
    assert not any(secret[1:-1] in text or '"sizes"' in text for secret in secrets for text in outputs)
    is_true(audit_run(tmp_path / "a"))


@door("audit", "resume", REJECTED)
@pytest.mark.parametrize("values", [{"audit": 61}, {"audit": None}, {"audit_canaries": "examples"}], ids=str)
def test_a_run_is_not_resumed_with_other_canaries(values: dict[str, Any], entry: Door, tmp_path: Path) -> None:
    stops = iter([False, True])
    entry.train(tmp_path / "a", options=RunOptions(should_stop=lambda: next(stops, True)))
    with pytest.raises(DiscreetError):
        entry.train(tmp_path / "a", options=RunOptions(resume=True), **values)


@door("audit", "edit", REJECTED)
@pytest.mark.parametrize("own", [True, False], ids=["canaries", "record of the steps"])
@pytest.mark.parametrize("act", ["edited", "of another run"])
def test_a_file_of_the_audit_that_this_run_did_not_write_is_rejected(
    act: str, own: bool, run: Path, entry: Door, tmp_path: Path
) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    shutil.copy(record_path(run), record_path(copy))
    is_true(audit_run(copy))
    path = copy / FILE if own else record_path(copy)
    if act == "edited":
        record = json.loads(path.read_text())
        record["included" if own else "misread"] = [0, 1] * 30 if own else 1
        path.write_text(json.dumps(record))
    else:
        other = tmp_path / "other"
        entry.train(other)
        shutil.copy(other / FILE if own else record_path(other), path)
    with pytest.raises(DataError, match="edited, or belongs to another run"):
        audit_run(copy)


@door("audit", "evaluate", CERTIFIED)
def test_an_audited_run_without_held_out_rows_has_no_figure_about_its_rows(entry: Door, tmp_path: Path) -> None:
    result = entry.train(tmp_path / "a", toy(UNITS + 8).split("train"))
    assert result["evaluated_on"] is None and result["utility"] == {}
    metrics = json.loads((tmp_path / "a" / "metrics.json").read_text())
    assert metrics["utility"] == {} and metrics["quality"] is None and metrics["history"] == []
    is_true(audit_run(tmp_path / "a"))
