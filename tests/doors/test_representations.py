"""`discreet train --protect dp-ie` and `--protect ldp`: vectors are released once, and all else is made from them."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doors.table import CERTIFIED, ESTIMATE, REJECTED, door

from discreet.accounting.events import event_from_json
from discreet.accounting.interpret import epsilon
from discreet.accounting.ledger import Ledger
from discreet.cli.main import main
from discreet.core.guarantee import Adjacency, Caveat
from discreet.runs.people import People
from discreet.training.hidden import StoredStep

BUDGET = 20.0
BOTH = pytest.mark.parametrize("name", ["dp-ie", "ldp"])


class Command:
    """`discreet train` of a tiny head on a few patients, with its results."""

    def __init__(self, folder: Path, encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.encoder, self.capsys = folder, encoder, capsys
        self.rows = folder / "notes.csv"
        self.write(lambda i: f"p{i // 2}")

    def write(self, owner: Callable[[int], str], last: str = "the calm end") -> None:
        with self.rows.open("w", newline="", encoding="utf-8") as file:
            write = csv.writer(file)
            write.writerow(("text", "label", "patient_id"))
            for i in range(40):
                text = last if i == 39 else f"the {('heart', 'knee')[i % 2]} was {('sharp', 'dull', 'calm')[i % 3]} {i}"
                write.writerow((text, ("ward", "clinic")[i % 2], owner(i)))

    def __call__(self, name: str, out: str, *more: object, unit: str | None = "patient_id") -> tuple[int, Any, str]:
        """Train, and return the status, the JSON of the result and what was said to the owner."""
        words: list[object] = ["train", self.rows, "--out", self.folder / out, "--model", self.encoder, "--json"]
        words += ["--train", "head", "--epochs", 2, "--batch-size", 20, "--classes", "ward,clinic"]
        words += ["--protect", name, "--epsilon", BUDGET, *(("--unit", unit) if unit else ()), *more]
        status = main([str(word) for word in words])
        shown = self.capsys.readouterr()
        return status, json.loads(shown.out) if status == 0 else None, " ".join(shown.err.split())

    def files(self, out: str) -> dict[str, bytes]:
        folder = self.folder / out
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def check(self, out: str) -> int:
        """Return the exit status of the gate that releases pass."""
        policy = self.folder / "policy.toml"
        policy.write_text(f"[guarantee]\nepsilon = {BUDGET}\n", encoding="utf-8")
        status = main(["check", str(self.folder / out), "--policy", str(policy)])
        self.capsys.readouterr()
        return status


@pytest.fixture
def command(tmp_path: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, tiny_encoder("bert"), capsys)


def recomputed(path: Path, delta: float) -> float:
    """Return the epsilon of a ledger's spends by an accountant."""
    statement = Ledger.read(path)
    return epsilon(statement.event, delta, statement.adjacency)


def is_true(result: Any, folder: Path) -> bool:
    """Return whether the printed figure is that of everything spent, within the budget and without a caveat."""
    stated = result["guarantee"]
    again = recomputed(folder / "ledger.jsonl", stated["delta"])
    return stated["certified"] and not stated["caveats"] and math.isclose(stated["epsilon"], again, rel_tol=1e-9)


@BOTH
@door("dp-ie", "unit", CERTIFIED)
@door("ldp", "unit", CERTIFIED)
def test_without_a_unit_the_figure_is_for_each_row_and_the_column_of_people_is_named(
    name: str, command: Command
) -> None:
    status, result, said = command(name, "run", unit=None)
    assert status == 0 and "'patient_id'" in said and "a person with several rows is protected less" in said
    assert result["guarantee"]["unit"] == "row" and is_true(result, command.folder / "run")
    assert result["guarantee"]["epsilon"] <= BUDGET and result["units"] == 40 - result["quality"]["rows"]
    _, by_patient, _ = command(name, "by patient")
    assert by_patient["guarantee"]["unit"] == "patient" and by_patient["units"] < result["units"]


@BOTH
@door("dp-ie", "again", CERTIFIED)
@door("ldp", "again", CERTIFIED)
def test_a_second_release_of_the_same_people_adds_up_over_protections(name: str, command: Command) -> None:
    noise = ("--noise-multiplier", 4, "--delta", 1e-5)
    words: list[object] = ["train", command.rows, "--out", command.folder / "first", "--model", command.encoder]
    words += ["--train", "head", "--epochs", 1, "--batch-size", 10, "--classes", "ward,clinic", "--json"]
    assert main([str(word) for word in [*words, "--protect", "dp-sgd", *noise, "--unit", "patient_id"]]) == 0
    first = json.loads(command.capsys.readouterr().out)
    status, second, said = command(name, "second", "--delta", 1e-5)
    assert status == 0 and is_true(second, command.folder / "second")
    before = first["epsilon_by_adjacency"]["replace-one"]
    assert "Before this training run. These patients: epsilon" in said and "nothing" not in said
    total = second["people"]["guarantee"]
    assert second["people"]["trainings"] == 2 and second["people"]["converted"] == 1
    assert total["adjacency"] == "replace-one"
    assert max(before, second["guarantee"]["epsilon"]) < total["epsilon"] <= before + second["guarantee"]["epsilon"]
    status, _, said = command(name, "third", "--budget", total["epsilon"] * 1.01)
    assert status == 2 and "BudgetError" in said and len(People().records()) == 2


@BOTH
@door("dp-ie", "stop", CERTIFIED)
@door("ldp", "stop", CERTIFIED)
def test_stopping_early_changes_nothing_that_was_released(name: str, command: Command) -> None:
    status, stopped, _ = command(name, "stopped", "--patience", 1, "--epochs", 12, "--learning-rate", 1e-9)
    assert status == 0 and stopped["steps"] < 24, "the score does not improve"
    _, whole, _ = command(name, "whole", "--epochs", 12, "--learning-rate", 1e-9)
    assert is_true(stopped, command.folder / "stopped") and is_true(whole, command.folder / "whole")
    # All vectors were released before the first step, and counted: no step costs anything.
    assert stopped["guarantee"]["epsilon"] == pytest.approx(whole["guarantee"]["epsilon"], rel=1e-3)
    spent = [Ledger.read(command.folder / run / "ledger.jsonl").spends for run in ("stopped", "whole")]
    assert spent[0] == spent[1]


@BOTH
@door("dp-ie", "error", CERTIFIED)
@door("ldp", "error", CERTIFIED)
def test_an_error_in_the_middle_and_a_resume_count_once(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, failed = StoredStep.__call__, []

    def fails_once(self: StoredStep, step: int) -> Any:
        if step == 1 and not failed:
            failed.append(step)
            raise MemoryError
        return call(self, step)

    monkeypatch.setattr(StoredStep, "__call__", fails_once)
    with pytest.raises(MemoryError):
        command(name, "run")
    (record,) = People().records()
    assert record.spends and not record.finished and not (command.folder / "run").exists()
    status, result, _ = command(name, "run", "--resume")
    assert status == 0 and failed and is_true(result, command.folder / "run")
    (record,) = People().records()
    own = Ledger.read(command.folder / "run" / "ledger.jsonl")
    assert record.finished and record.spends == own.spends, "what was released before the error is not counted again"
    assert result["guarantee"]["epsilon"] <= BUDGET
    # The same noise on the same rows: a run without an error has released as much.
    _, whole, _ = command(name, "whole")
    assert Ledger.read(command.folder / "whole" / "ledger.jsonl").spends == own.spends
    assert whole["guarantee"]["epsilon"] == pytest.approx(result["guarantee"]["epsilon"])


@door("dp-ie", "state", ESTIMATE)
def test_an_encoder_that_learns_from_private_text_is_a_caveat(command: Command) -> None:
    command.write(lambda i: f"p{i}")
    status, result, _ = command("dp-ie", "run", "--train", "all", unit="row")
    assert status == 0 and not result["guarantee"]["certified"]
    assert Caveat.TRAINED_ENCODER in result["guarantee"]["caveats"]
    assert Caveat.TRAINED_ENCODER in Ledger.read(command.folder / "run" / "ledger.jsonl").terms.caveats


@door("ldp", "state", REJECTED)
def test_an_encoder_that_would_learn_from_private_text_is_rejected(command: Command) -> None:
    status, _, said = command("ldp", "run", "--train", "all")
    assert status == 2 and "the encoder must be frozen" in said
    assert not (command.folder / "run").exists() and People().records() == []


@BOTH
@door("dp-ie", "log", CERTIFIED)
@door("ldp", "log", CERTIFIED)
def test_the_folder_holds_nothing_that_was_computed_from_private_rows_without_noise(
    name: str, command: Command
) -> None:
    _, result, _ = command(name, "run")
    assert is_true(result, command.folder / "run")
    files = command.files("run")
    metrics = json.loads(files["metrics.json"])
    private = {"seconds", "train_seconds", "rows", "truncated", "people", "loss"}
    assert private & set(metrics) == set() and all("loss" not in entry for entry in metrics["history"])
    words = {text.split(",")[0].encode() for text in command.rows.read_text().splitlines()[1:]}
    assert not any(text in data for text in words for data in files.values()), "no text"
    assert not any(b"p17" in data for path, data in files.items() if not path.endswith("safetensors")), "no id"


@BOTH
@door("dp-ie", "resume", REJECTED)
@door("ldp", "resume", REJECTED)
def test_an_unfinished_run_is_not_resumed_with_other_rows_or_settings(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def fails(self: StoredStep, step: int) -> Any:
            raise MemoryError

        patched.setattr(StoredStep, "__call__", fails)
        with pytest.raises(MemoryError):
            command(name, "run")
    (record,) = People().records()
    for more in (("--learning-rate", 0.5), ("--seed", 5)):
        assert command(name, "run", "--resume", *more)[0] == 2, "other noise would exceed the budget"
    command.write(lambda i: f"p{i // 2}", last="quite another end")
    assert command(name, "run", "--resume")[0] == 2
    assert People().records() == [record] and not (command.folder / "run").exists()


@BOTH
@door("dp-ie", "edit", REJECTED)
@door("ldp", "edit", REJECTED)
def test_a_smaller_figure_written_into_the_folder_does_not_pass_the_gate(name: str, command: Command) -> None:
    command(name, "small")
    assert command.check("small") == 0
    _, result, _ = command(name, "run", "--epsilon", 2 * BUDGET)
    assert result["guarantee"]["epsilon"] > BUDGET and command.check("run") == 1
    path = command.folder / "run" / "metrics.json"
    metrics = json.loads(path.read_text())
    metrics["guarantee"]["epsilon"] = 0.1
    path.write_text(json.dumps(metrics))
    assert command.check("run") != 0, "the ledger says more"


@BOTH
@door("dp-ie", "evaluate", CERTIFIED)
@door("ldp", "evaluate", CERTIFIED)
def test_scores_are_those_of_held_out_rows_and_an_evaluation_of_training_rows_is_not_kept(
    name: str, command: Command
) -> None:
    _, result, _ = command(name, "run")
    assert result["evaluated_on"] == "validation" and result["quality"]["rows"] < 40
    assert any("held-out rows are not protected" in text for text in result["guarantee"]["assumptions"])
    before = command.files("run")
    assert main(["evaluate", str(command.folder / "run"), str(command.rows), "--json"]) == 0
    command.capsys.readouterr()
    assert command.files("run") == before and is_true(result, command.folder / "run")
    same = command.rows.with_name("same.csv")
    same.write_bytes(command.rows.read_bytes())
    status, _, said = command(name, "shared", "--validation", same, "--patience", 1)
    assert status == 2 and "other patients than the training rows" in said, (
        "whoever is trained on must not choose the model"
    )


def test_the_event_of_a_record_is_that_of_its_ledger(command: Command) -> None:
    command("dp-ie", "run")
    (record,) = People().records()
    own = Ledger.read(command.folder / "run" / "ledger.jsonl")
    assert {event_from_json(text): count for text, count in record.spent.items()} == dict(own.spent)
    assert Adjacency(record.adjacency) is own.adjacency is Adjacency.REPLACE_ONE
