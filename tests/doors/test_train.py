"""The door of `discreet train --protect dp-sgd`: what a careless user may do there, and what the command says then."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.doors.commands import CLASSES, FILES, Answer, Door, answer, check, door_of, edits, write
from tests.doors.table import CERTIFIED, ESTIMATE, REJECTED, door

from discreet.accounting.events import PoissonSampledDpEvent, SelfComposedDpEvent
from discreet.accounting.interpret import epsilon
from discreet.accounting.ledger import Ledger
from discreet.core.guarantee import Adjacency, Caveat
from discreet.runs.people import People
from discreet.training import loop
from discreet.training.engine import PrivateParts

SGD = ("--protect", "dp-sgd", "--noise-multiplier", "1.5", "--delta", "1e-4", "--json")


@pytest.fixture(scope="module")
def here(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path], toy_rows: list[tuple[str, str]]
) -> Door:
    return door_of(tmp_path_factory.mktemp("door"), tiny_encoder("bert"), toy_rows)


@pytest.fixture(scope="module")
def trained(here: Door) -> tuple[Path, Answer]:
    """Return a run on patients, with the names of the classes set, and what the command printed."""
    run = here.rows.with_name("trained")
    alone = replace(here, home=run.with_name("home of one run"))  # whatever other tests train before
    said = alone.say("train", *SGD, *CLASSES, "--unit", "patient_id", out=run)
    assert said.status == 0, said.err
    return run, said


@pytest.fixture
def counted(here: Door, trained: tuple[Path, Answer], tmp_path_factory: pytest.TempPathFactory) -> Door:
    """Return the door with a record that holds the run of `trained` and nothing else."""
    home = tmp_path_factory.mktemp("counted") / "home"
    shutil.copytree(trained[0].with_name("home of one run"), home)
    return replace(here, home=home)


def cost_of(run: Path, steps: int) -> float:
    """Return epsilon of so many steps at the noise and rate that a run states, by the accountant alone."""
    metrics = json.loads((run / "metrics.json").read_text())
    (event, _), *others = Ledger.read(run / "ledger.jsonl").spent
    assert not others and isinstance(event, PoissonSampledDpEvent)
    assert event.sampling_probability == metrics["sampler"]["rate"]
    assert event.event.noise_multiplier == metrics["protection"]["noise_multiplier"] == 1.5
    return epsilon(SelfComposedDpEvent(event, steps), 1e-4, Adjacency.ZERO_OUT)


@door("train", "unit", CERTIFIED)
def test_without_a_unit_it_is_said_that_each_row_is_protected_and_which_column_repeats(
    here: Door, tmp_path: Path
) -> None:
    said = here.say("train", *SGD, *CLASSES, out=tmp_path / "run")
    stated = said.values["guarantee"]
    assert "'patient_id'" in said.err and "its values repeat" in said.err and "--unit patient_id" in said.err
    assert stated["certified"] and stated["unit"] == "row" and "for each row" in stated["sentence"]
    assert stated["epsilon"] == pytest.approx(cost_of(tmp_path / "run", said.values["steps"]), rel=1e-9)
    assert "patient" not in (tmp_path / "run" / "metrics.json").read_text()


@door("train", "again", CERTIFIED)
def test_a_second_run_on_the_same_patients_is_added_to_the_first(
    counted: Door, trained: tuple[Path, Answer], tmp_path: Path
) -> None:
    run, first = trained
    said = counted.say("train", *SGD, *CLASSES, "--unit", "patient_id", out=tmp_path / "run")
    total = said.values["people"]
    both = cost_of(run, 2 * first.values["steps"])
    assert total["trainings"] == 2 and total["guarantee"]["certified"]
    assert (
        total["guarantee"]["epsilon"] == pytest.approx(both, rel=1e-9) and both > first.values["guarantee"]["epsilon"]
    )
    assert "Before this training run" in said.err


@door("train", "again", REJECTED)
def test_a_second_run_beyond_the_budget_of_the_patients_is_rejected(
    counted: Door, trained: tuple[Path, Answer], tmp_path: Path
) -> None:
    _, first = trained
    budget = ["--budget", 1.01 * first.values["guarantee"]["epsilon"]]
    said = counted.say("train", *SGD, *CLASSES, "--unit", "patient_id", *budget, out=tmp_path / "run")
    assert said.status == 2 and "the budget of these patients" in said.err and not list(tmp_path.iterdir())


@door("train", "stop", CERTIFIED)
def test_a_run_that_stops_because_of_its_model_costs_as_much_as_its_plan(
    here: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "evaluate", lambda *_: {"accuracy": 0.5, "f1": 0.5, "matthews": 0.0})
    said = here.say("train", *SGD, *CLASSES, "--epochs", 6, "--patience", 1, out=tmp_path / "run")
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    stated, planned = metrics["guarantee"], cost_of(tmp_path / "run", 3 * metrics["steps"])
    assert metrics["counted_steps"] == 3 * metrics["steps"]  # it stopped after the second of six epochs
    assert stated["certified"] and stated["epsilon"] == pytest.approx(planned, rel=1e-9)
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").guarantee(1e-4).epsilon == stated["epsilon"]
    assert said.values["guarantee"]["epsilon"] == stated["epsilon"]
    assert planned > 1.2 * cost_of(tmp_path / "run", metrics["steps"])


@door("train", "error", ESTIMATE)
def test_memory_that_private_rows_exhaust_is_survived_and_makes_the_figure_an_estimate(
    here: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, failed = PrivateParts.add, []

    def short_of_memory(self: PrivateParts, *rest: object, **options: object) -> object:
        if not failed:
            failed.append(True)
            raise torch.OutOfMemoryError
        return add(self, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(PrivateParts, "add", short_of_memory)
    said = here.say("train", *SGD, *CLASSES, out=tmp_path / "run")
    stated = said.values["guarantee"]
    assert failed and not stated["certified"] and stated["caveats"] == [Caveat.UNSTEADY_KERNELS]
    spent = Ledger.read(tmp_path / "run" / "ledger.jsonl")
    assert spent.terms.caveats == {Caveat.UNSTEADY_KERNELS} and spent.spends == said.values["steps"]


@door("train", "state", ESTIMATE)
def test_names_of_classes_that_are_read_from_private_labels_make_the_figure_an_estimate(
    here: Door, tmp_path: Path
) -> None:
    said = here.say("train", *SGD, "--unit", "patient_id", out=tmp_path / "run")
    stated = json.loads((tmp_path / "run" / "metrics.json").read_text())["guarantee"]
    assert not stated["certified"] and stated["caveats"] == [Caveat.PRIVATE_CLASSES]
    assert not any("names of the labels" in one for one in stated["assumptions"])
    assert Ledger.read(tmp_path / "run" / "ledger.jsonl").terms.caveats == {Caveat.PRIVATE_CLASSES}
    assert "Estimate, not a bound" in (tmp_path / "run" / "README.md").read_text()
    (record,) = (one for one in People(here.home).records() if one.out == str((tmp_path / "run").resolve()))
    assert record.caveats == (Caveat.PRIVATE_CLASSES,)
    assert "Private detail, do not share this line" in said.err and "--classes clinic,ward" in said.err


@door("train", "state", CERTIFIED)
def test_a_folder_holds_the_same_names_whatever_label_one_patient_has(
    here: Door, toy_rows: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Whoever knows all other patients learns nothing from the run's existence: it is accepted either way."""
    held = []
    for label in ("ward", "hiv"):
        rows = [(text, mark, f"p{number // 3:02}") for number, (text, mark) in enumerate(toy_rows)]
        rows += [("the knee was dull", "hiv", "p90"), ("the knee was dull", label, "p91")]
        path = write(tmp_path / f"{label}.csv", rows)
        named = ("--classes", "clinic,hiv,ward", "--unit", "patient_id", "--validation", 0, "--epochs", 1)
        said = here.say("train", *SGD, *named, data=path, out=tmp_path / label)
        assert said.status == 0 and said.values["guarantee"]["certified"], said.err
        metrics = json.loads((tmp_path / label / "metrics.json").read_text())
        assert metrics.pop("digests")  # of the weights and the ledger, which have secret noise and names
        texts = [json.dumps(metrics), *((tmp_path / label / one).read_text() for one in ("settings.toml", "README.md"))]
        held.append([text.replace(f"{label}.csv", "").replace(str(tmp_path / label), "") for text in texts])
    assert held[0] == held[1]


@door("train", "log", CERTIFIED)
def test_nothing_that_depends_on_private_rows_is_logged_or_in_the_folder(trained: tuple[Path, Answer]) -> None:
    run, said = trained
    assert {path.name for path in run.iterdir()} == FILES
    metrics = json.loads((run / "metrics.json").read_text())
    assert not {"loss", "rows", "truncated", "seconds", "train_seconds", "people"} & set(metrics)
    assert metrics["history"] == [] and "loss" not in said.err  # no terminal: the progress is logged without its loss
    assert metrics["guarantee"]["epsilon"] == pytest.approx(cost_of(run, metrics["steps"]), rel=1e-9)
    written = b"".join(path.read_bytes() for path in run.rglob("*") if path.is_file())
    assert b"p07" not in written and b"the heart" not in written


@contextlib.contextmanager
def interrupted() -> Iterator[list[bool]]:
    yield [True]


@door("train", "resume", REJECTED)
@door("train", "stop", REJECTED)
def test_an_interrupted_run_is_resumed_as_it_was_or_not_at_all_and_has_no_final_figure(
    here: Door, toy_rows: list[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, run = (*SGD, *CLASSES), tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr("discreet.cli.train.stop_on_interrupt", interrupted)
        assert here.say("train", *words, out=run).status == 130
    said = answer("ledger", tmp_path / "run.unfinished", "--delta", 1e-4, home=here.home)
    printed = " ".join(said.out.split())
    assert "is unfinished. All of its planned steps are counted" in printed
    plan = Ledger.read(tmp_path / "run.unfinished" / "ledger.jsonl").spends
    assert plan > 1 and f"{plan:,}" in printed, "the cost of all planned steps, not of the one that was taken"
    ledger = (tmp_path / "run.unfinished" / "ledger.jsonl").read_bytes()
    other = write(tmp_path / "other.csv", [(text + " again", label, "p1") for text, label in toy_rows])
    for more, data in ((["--epochs", 3], None), (["--seed", 1], None), ([], other)):
        said = here.say("train", *words, *more, "--resume", data=data, out=run)
        assert said.status == 2 and "something has changed" in said.err
    assert (tmp_path / "run.unfinished" / "ledger.jsonl").read_bytes() == ledger and not run.exists()
    assert answer("statement", tmp_path / "run.unfinished", home=here.home).status == 2


@door("train", "edit", REJECTED)
def test_an_edit_of_metrics_weights_or_ledger_alone_fails_the_gate(here: Door, trained: tuple[Path, Answer]) -> None:
    run, _ = trained
    assert check(run, here.home).status == 0
    passed = [name for name, copy in edits(run) if check(copy, here.home).status == 0]
    assert not passed


@door("train", "evaluate", REJECTED)
@pytest.mark.parametrize("unit", [(), ("--unit", "patient_id")], ids=["rows", "patients"])
def test_validation_rows_of_those_who_are_trained_on_are_rejected(
    unit: tuple[str, ...], here: Door, tmp_path: Path
) -> None:
    said = here.say("train", *SGD, *CLASSES, *unit, "--validation", here.rows, out=tmp_path / "run")
    assert said.status == 2 and "Expected validation rows" in said.err and not list(tmp_path.iterdir())
