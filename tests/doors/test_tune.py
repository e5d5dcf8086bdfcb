"""The door of `discreet tune`: what a careless user may do there, and what the command says then."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.doors.commands import CLASSES, FILES, Answer, Door, check, door_of, edits
from tests.doors.table import CERTIFIED, ESTIMATE, REJECTED, door

from discreet.accounting.interpret import epsilon
from discreet.accounting.ledger import Ledger
from discreet.core.guarantee import Adjacency, Caveat
from discreet.training import tuning

SEARCH = ("--epsilon", "4", "--delta", "1e-4", "--try", "learning_rate=0.01,0.1", "--trials", "1", "--json")


@pytest.fixture(scope="module")
def here(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path], toy_rows: list[tuple[str, str]]
) -> Door:
    return door_of(tmp_path_factory.mktemp("door"), tiny_encoder("bert"), toy_rows)


@pytest.fixture(scope="module")
def tuned(here: Door) -> tuple[Path, Answer]:
    """Return a search without a unit, with the names of the classes set, and what the command printed."""
    run = here.rows.with_name("tuned")
    alone = replace(here, home=run.with_name("home of one search"))  # whatever other tests search before
    said = alone.say("tune", *SEARCH, *CLASSES, out=run)
    assert said.status == 0, said.err
    return run, said


def cost_of(run: Path) -> float:
    """Return epsilon of the one event that a search wrote into its ledger, by the accountant alone."""
    statement = Ledger.read(run / "ledger.jsonl")
    ((event, count),) = statement.spent
    assert count == 1 and type(event).__name__ == "RepeatAndSelectDpEvent"
    return epsilon(event, 1e-4, Adjacency.ZERO_OUT)


@door("tune", "unit", CERTIFIED)
def test_without_a_unit_it_is_said_that_each_row_is_protected_and_which_column_repeats(
    tuned: tuple[Path, Answer],
) -> None:
    run, said = tuned
    stated = said.values["guarantee"]
    assert "'patient_id'" in said.err and "its values repeat" in said.err and "--unit patient_id" in said.err
    assert stated["certified"] and stated["unit"] == "row" and "for each row" in stated["sentence"]
    assert stated["epsilon"] == pytest.approx(cost_of(run), rel=1e-9) and stated["epsilon"] <= 4


@door("tune", "again", REJECTED)
def test_a_second_search_beyond_the_budget_of_these_rows_is_rejected(
    here: Door, tuned: tuple[Path, Answer], tmp_path: Path
) -> None:
    assert tuned[1].values["people"]["trainings"] == 1
    counted = replace(here, home=tuned[0].with_name("home of one search"))
    said = counted.say("tune", *SEARCH, *CLASSES, "--budget", 5, out=tmp_path / "again")
    assert said.status == 2 and "the budget of these rows" in said.err and not list(tmp_path.iterdir())


@door("tune", "stop", REJECTED)
def test_trials_that_stop_early_are_rejected(here: Door, tmp_path: Path) -> None:
    said = here.say("tune", *SEARCH, *CLASSES, "--patience", 1, out=tmp_path / "run")
    assert said.status == 2 and "left out of a private search" in said.err and not list(tmp_path.iterdir())


@door("tune", "error", CERTIFIED)
@door("tune", "resume", REJECTED)
def test_a_search_that_failed_in_a_trial_is_resumed_as_it_was_and_counted_once(
    here: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tuning._Search, "store", failing)
        assert here.say("tune", *SEARCH, *CLASSES, out=tmp_path / "run").status == 130
    spent = (tmp_path / "run.unfinished" / "ledger.jsonl").read_bytes()
    for more in (["--try", "epochs=1,3"], ["--seed", 1]):
        said = here.say("tune", *SEARCH, *CLASSES, *more, "--resume", out=tmp_path / "run")
        assert said.status == 2, said.out
    said = here.say("tune", *SEARCH, *CLASSES, "--resume", out=tmp_path / "run")
    assert said.status == 0 and (tmp_path / "run" / "ledger.jsonl").read_bytes() == spent
    stated = said.values["guarantee"]
    assert stated["certified"] and stated["epsilon"] == pytest.approx(cost_of(tmp_path / "run"), rel=1e-9)


@door("tune", "state", ESTIMATE)
def test_names_of_classes_that_are_read_from_private_labels_make_the_figure_an_estimate(
    here: Door, tmp_path: Path
) -> None:
    said = here.say("tune", *SEARCH, "--unit", "patient_id", out=tmp_path / "run")
    stated = json.loads((tmp_path / "run" / "metrics.json").read_text())["guarantee"]
    assert not stated["certified"] and stated["caveats"] == [Caveat.PRIVATE_CLASSES]
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").terms.caveats == {Caveat.PRIVATE_CLASSES}
    assert "--classes clinic,ward" in said.err


@door("tune", "log", CERTIFIED)
def test_nothing_of_the_trials_and_of_private_rows_is_in_the_folder(tuned: tuple[Path, Answer]) -> None:
    run, said = tuned
    assert {path.name for path in run.iterdir()} == FILES
    metrics = json.loads((run / "metrics.json").read_text())
    names = set(metrics) | set(metrics["tuning"])
    assert not {"loss", "rows", "truncated", "seconds", "train_seconds", "people", "runs", "done"} & names
    assert metrics["history"] == [] and "loss" not in said.err
    assert metrics["guarantee"]["epsilon"] == pytest.approx(cost_of(run), rel=1e-9)


@door("tune", "edit", REJECTED)
def test_an_edit_of_metrics_weights_or_ledger_alone_fails_the_gate(here: Door, tuned: tuple[Path, Answer]) -> None:
    run, _ = tuned
    assert check(run, here.home).status == 0
    passed = [name for name, copy in edits(run) if check(copy, here.home).status == 0]
    assert not passed


@door("tune", "evaluate", CERTIFIED)
def test_scores_on_the_training_rows_have_noise_that_is_counted(tuned: tuple[Path, Answer]) -> None:
    run, said = tuned
    about = said.values["tuning"]
    assert about["scored_on"] == "training rows" and about["score_noise"] > 0
    # the search and its noisy scores cost more than its one model
    assert about["trial_epsilon"] < said.values["guarantee"]["epsilon"] == pytest.approx(cost_of(run), rel=1e-9)


@door("tune", "evaluate", REJECTED)
def test_the_private_rows_cannot_be_named_as_public_text_or_as_validation_rows(here: Door, tmp_path: Path) -> None:
    for words, told in (
        (["--score-on", here.rows], "other text than the private one"),
        (["--validation", here.rows], "Expected validation rows"),
    ):
        said = here.say("tune", *SEARCH, *CLASSES, *words, out=tmp_path / "run")
        assert said.status == 2 and told in said.err and not list(tmp_path.iterdir())
