"""`discreet sanitize`: the words of a file are replaced once, and the whole file is counted before it is written."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.doors.table import CERTIFIED, ESTIMATE, REJECTED, door

from discreet.accounting.events import event_from_json
from discreet.accounting.interpret import epsilon
from discreet.cli.main import main
from discreet.core.guarantee import Adjacency, Caveat
from discreet.data import tables
from discreet.runs.people import People

PRICE = 0.5


class Command:
    """`discreet sanitize` of a file of a few patients, with two rows each."""

    def __init__(self, folder: Path, encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.encoder, self.capsys = folder, encoder, capsys
        self.rows = folder / "notes.csv"
        self.write([("the heart was sharp", "p0"), ("the knee was dull", "p0"), ("a calm day", "p1"), ("rest", "p1")])

    def write(self, rows: list[tuple[str, ...]]) -> None:
        with self.rows.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "patient_id"), *rows])

    def __call__(self, out: str, *more: object, price: float = PRICE) -> tuple[int, Any, str]:
        """Rewrite, and return the status, the JSON of the result and what was said to the owner."""
        words = ["sanitize", self.rows, "--out", self.folder / out, "--epsilon-per-word", price]
        status = main([str(word) for word in [*words, "--model", self.encoder, "--json", *more]])
        shown = self.capsys.readouterr()
        return status, json.loads(shown.out) if status == 0 else None, " ".join(shown.err.split())

    def beside(self, out: str) -> Any:
        """Return what the file beside a rewritten file says."""
        return json.loads((self.folder / f"{out}.privacy.json").read_text(encoding="utf-8"))

    def check(self, out: str, limit: float) -> int:
        """Return the exit status of the gate that releases pass."""
        policy = self.folder / "policy.toml"
        policy.write_text(f"[guarantee]\nepsilon = {limit}\n", encoding="utf-8")
        status = main(["check", str(self.folder / out), "--policy", str(policy)])
        self.capsys.readouterr()
        return status


@pytest.fixture
def command(tmp_path: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, tiny_encoder("bert"), capsys)


def is_true(beside: Any, words: int) -> bool:
    """Return whether a file states the cost of its longest unit, for all words of it, as an accountant computes it."""
    stated = beside["guarantee"]
    ((text, count),) = beside["spent"].items()
    again = epsilon(event_from_json(text), stated["delta"], Adjacency.REPLACE_ONE)
    within = stated["epsilon"] <= words * PRICE * (1 + 1e-9)  # basic composition, word by word
    return stated["certified"] and count == 1 and stated["epsilon"] == pytest.approx(again) and within


@door("sanitize", "unit", CERTIFIED)
def test_without_a_unit_the_figure_is_for_each_row_and_a_patient_costs_more(command: Command) -> None:
    status, by_row, said = command("rows.csv")
    assert status == 0 and "'patient_id'" in said and "a person with several rows is protected less" in said
    assert command.beside("rows.csv")["unit"] == "row" and is_true(command.beside("rows.csv"), 4)
    assert by_row["people"]["guarantee"]["unit"] == "row" and "These rows" in by_row["people"]["sentence"]
    _, by_patient, said = command("patients.csv", "--unit", "patient_id")
    assert "Warning" not in said
    beside = command.beside("patients.csv")
    assert beside["unit"] == "patient" and is_true(beside, 8)
    assert beside["guarantee"]["epsilon"] > command.beside("rows.csv")["guarantee"]["epsilon"], "two rows each"
    # Other names of a unit cannot be matched, and the total says so with both names.
    assert "recorded for each row, not for each patient" in " ".join(by_patient["people"]["remarks"])


@door("sanitize", "again", CERTIFIED)
@door("sanitize", "evaluate", CERTIFIED)
def test_every_file_of_the_same_people_adds_up_whichever_is_kept(command: Command) -> None:
    totals = []
    for name in ("a.csv", "b.csv", "c.csv"):  # the best-looking one is kept, the others are deleted
        status, result, _ = command(name, "--unit", "patient_id")
        assert status == 0 and is_true(command.beside(name), 8)
        totals.append(result["people"]["guarantee"]["epsilon"])
        (command.folder / name).unlink()
    each = command.beside("a.csv")["guarantee"]["epsilon"]
    assert totals[0] == pytest.approx(each) and totals[0] < totals[1] < totals[2] <= 3 * each * (1 + 1e-9)
    assert "If an earlier result decided whether to release again" in result["people"]["sentence"]
    status, _, said = command("d.csv", "--unit", "patient_id", "--budget", totals[2] * 1.01)
    assert status == 2 and "BudgetError" in said and not (command.folder / "d.csv").exists()
    assert len(People().records()) == 3


@door("sanitize", "stop", CERTIFIED)
def test_a_file_that_is_stopped_while_it_is_written_is_counted_whole(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def interrupted(path: Path, data: bytes, *, replace: bool) -> None:
            path.write_bytes(data[:20])
            raise KeyboardInterrupt

        patched.setattr(tables, "write_whole", interrupted)
        assert command("part.csv", "--unit", "patient_id")[0] != 0
    (record,) = People().records()
    assert record.spends == 1 and not record.finished
    _, result, _ = command("whole.csv", "--unit", "patient_id")
    beside = command.beside("whole.csv")
    assert record.spent == beside["spent"], "as much as a whole file costs"
    assert result["people"]["sanitized_files"] == 2 and is_true(beside, 8)


@door("sanitize", "error", REJECTED)
def test_a_row_that_cannot_be_read_or_rewritten_stops_everything_before_it_is_counted(command: Command) -> None:
    command.rows.write_bytes(b"text,patient_id\nthe heart was sharp,p0\n\xff\xfe broken,p1\na calm day,p2\n")
    status, _, said = command("out.csv", "--unit", "patient_id")
    assert status == 2 and "UTF-8" in said
    command.write([("the heart was sharp", "p0"), ("a calm day", "")])
    status, _, said = command("out.csv", "--unit", "patient_id")
    assert status == 2 and "Every row needs a unit" in said
    command.write([("the heart was sharp", "p0"), ("a zzyzx day", "p1")])
    assert command("out.csv", "--unknown", "refuse")[0] == 2
    assert not (command.folder / "out.csv").exists() and People().records() == []


@door("sanitize", "state", ESTIMATE)
def test_a_list_of_words_that_was_made_from_the_private_text_has_no_guarantee(command: Command) -> None:
    # Words outside the list mostly stay as they are: which ones these are would depend on the private text.
    listed = command.folder / "sensitive.txt"
    listed.write_text("\n".join(command.rows.read_text(encoding="utf-8").replace(",", " ").split()), encoding="utf-8")
    status, result, _ = command("out.csv", "--mechanism", "santext+", "--sensitive", listed)
    stated = command.beside("out.csv")["guarantee"]
    assert status == 0 and not stated["certified"] and stated["epsilon"] is None, stated
    assert stated["reason"] and not result["people"]["guarantee"]["certified"]


@door("sanitize", "log", CERTIFIED)
def test_the_file_beside_holds_what_the_rewritten_file_shows_and_nothing_else(command: Command) -> None:
    _, result, _ = command("out.csv", "--unit", "patient_id")
    beside = command.beside("out.csv")
    # Told to the owner alone: how many words were changed or unknown, and other releases of these people.
    told = {"changed", "unknown", "words", "people"}
    assert told <= set(result) and not told & set(beside)
    with (command.folder / "out.csv").open(encoding="utf-8", newline="") as file:
        shown = list(csv.DictReader(file))
    assert beside["texts"] == len(shown) and beside["units"] == len({row["patient_id"] for row in shown})
    text = json.dumps(beside)
    assert not any(word in text for word in ("heart", "sharp", "p0")) and is_true(beside, 8)


@door("sanitize", "resume", REJECTED)
def test_a_file_is_not_overwritten(command: Command) -> None:
    command("out.csv", "--unit", "patient_id")
    before = (command.folder / "out.csv").read_bytes()
    status, _, said = command("out.csv", "--unit", "patient_id")
    assert status == 2 and "it exists" in said and (command.folder / "out.csv").read_bytes() == before
    assert len(People().records()) == 1


@door("sanitize", "resume", CERTIFIED)
def test_writing_a_file_again_with_other_rows_is_counted_again(command: Command) -> None:
    command("out.csv", "--unit", "patient_id")
    command.write([("the heart was bright", "p0"), ("a bad day", "p1")])
    status, result, _ = command("out.csv", "--unit", "patient_id", "--force")
    assert status == 0 and result["people"]["sanitized_files"] == 2 and len(People().records()) == 2
    assert is_true(command.beside("out.csv"), 4)


@door("sanitize", "edit", REJECTED)
def test_a_smaller_figure_beside_the_file_does_not_pass_the_gate(command: Command) -> None:
    command("out.csv", "--unit", "patient_id")
    limit = command.beside("out.csv")["guarantee"]["epsilon"]
    assert command.check("out.csv", limit * 1.01) == 0 and command.check("out.csv", limit / 2) == 1
    path = command.folder / "out.csv.privacy.json"
    beside = command.beside("out.csv")
    beside["guarantee"]["epsilon"] = 0.1
    path.write_text(json.dumps(beside), encoding="utf-8")
    assert command.check("out.csv", limit / 2) != 0, "what was spent says more"


def test_a_fixed_seed_is_an_estimate_and_recorded_apart(command: Command) -> None:
    command("out.csv", "--seed", 7)
    stated = command.beside("out.csv")["guarantee"]
    assert not stated["certified"] and Caveat.FIXED_SEED in stated["caveats"]
    (record,) = People().records()
    assert record.kind == "fixed-seed"
