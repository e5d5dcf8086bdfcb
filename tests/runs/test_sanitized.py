"""A file that `discreet sanitize` rewrites is a release of the people in it, and is counted with their trainings."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.accounting.ledger import Ledger
from discreet.cli.main import main
from discreet.core.errors import OutputError
from discreet.data import tables as files
from discreet.runs.people import FIXED_SEED, SANITIZED, People

PRICE = 3.0


@pytest.fixture
def rows(tmp_path: Path, toy_rows: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISCREET_HOME", str(tmp_path / "home"))
    path = tmp_path / "notes.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        write = csv.writer(file)
        write.writerow(("text", "label", "patient_id"))
        write.writerows((text, label, f"p{i // 2}") for i, (text, label) in enumerate(toy_rows))
    return path


class Sanitize:
    """Runs the command, and returns its status, what it says and what its JSON holds."""

    def __init__(self, encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.encoder, self.capsys = str(encoder), capsys

    def __call__(self, rows: Path, out: Path, *more: object) -> tuple[int, dict, str]:
        words = ["sanitize", rows, "--out", out, "--epsilon-per-word", PRICE, "--model", self.encoder, "--json", *more]
        status = main([str(word) for word in words])
        said, err = self.capsys.readouterr()
        return status, json.loads(said) if status == 0 else {}, " ".join(err.split())

    def train(self, rows: Path, out: Path, *more: object) -> tuple[int, dict, str]:
        words = [
            "train",
            rows,
            "--out",
            out,
            "--model",
            self.encoder,
            "--train",
            "head",
            "--epochs",
            1,
            "--json",
            *more,
        ]
        status = main([str(word) for word in words])
        said, err = self.capsys.readouterr()
        return status, json.loads(said) if status == 0 else {}, " ".join(err.split())


@pytest.fixture
def sanitize(tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> Sanitize:
    return Sanitize(tiny_encoder("bert"), capsys)


def test_two_files_of_the_same_rows_add_up_and_are_listed(
    rows: Path, sanitize: Sanitize, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, one, _ = sanitize(rows, tmp_path / "a.csv")
    status, two, err = sanitize(rows, tmp_path / "b.csv")
    assert status == 0 and "1 sanitized file recorded here (replace-one)" in err
    each = one["per_text_at_delta"]["epsilon"]
    totals = [found["people"]["guarantee"]["epsilon"] for found in (one, two)]
    assert totals[0] == pytest.approx(each) and totals[1] > 1.3 * totals[0]
    assert (two["people"]["trainings"], two["people"]["sanitized_files"]) == (0, 2)
    assert {record.kind for record in People().records()} == {SANITIZED}
    assert all(record.finished and record.units == 120 for record in People().records())
    assert main(["ledger", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [len(told[key]) for key in ("trainings", "sanitized_files")] == [0, 2]
    assert main(["ledger"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The row with the largest total over 2 sanitized files (replace-one)" in said and "a.csv" in said


def test_a_budget_holds_over_files_and_trainings_and_rejects_before_anything_is_written(
    rows: Path, sanitize: Sanitize, tmp_path: Path
) -> None:
    _, one, _ = sanitize(rows, tmp_path / "a.csv")
    each = one["per_text_at_delta"]["epsilon"]
    status, _, err = sanitize(rows, tmp_path / "b.csv", "--budget", 1.2 * each)
    assert status == 2 and "BudgetError" in err and "with this file" in err and "--epsilon-per-word" in err
    assert not (tmp_path / "b.csv").exists() and len(People().records()) == 1
    protect = ["--protect", "santext", "--epsilon-per-word", PRICE, "--delta", "1e-5"]
    status, _, err = sanitize.train(rows, tmp_path / "run", *protect, "--budget", 1.2 * each)
    assert status == 2 and "BudgetError" in err
    status, done, err = sanitize.train(rows, tmp_path / "run", *protect, "--budget", 4 * each)
    assert status == 0 and "Before this training run. These rows: epsilon" in err
    assert (done["people"]["trainings"], done["people"]["sanitized_files"]) == (1, 1)
    assert "1 protected training run and 1 sanitized file" in done["people"]["sentence"]
    assert sanitize(rows, tmp_path / "b.csv", "--budget", 2.5 * each)[0] == 2
    assert sanitize(rows, tmp_path / "b.csv", "--budget", 4 * each)[0] == 0


def test_a_file_and_a_training_under_another_adjacency_add_up(rows: Path, sanitize: Sanitize, tmp_path: Path) -> None:
    _, file, _ = sanitize(rows, tmp_path / "a.csv", "--unit", "patient_id")
    protect = ["--protect", "dp-sgd", "--noise-multiplier", 5, "--unit", "patient_id"]
    each = file["people"]["guarantee"]["epsilon"]
    status, _, err = sanitize.train(rows, tmp_path / "run", *protect, "--budget", each)
    assert status == 2 and "the budget of these patients" in err and "under replace-one" in err
    status, done, _ = sanitize.train(rows, tmp_path / "run", *protect, "--budget", 2 * each)
    assert status == 0 and "Converted to replace-one: 1 release" in done["people"]["sentence"]
    total = done["people"]["guarantee"]
    assert total["adjacency"] == "replace-one" and each < total["epsilon"] <= 2 * each
    assert total["epsilon"] <= each + done["epsilon_by_adjacency"]["replace-one"] * 1.1


def test_whose_a_row_is_decides_the_cost_and_who_is_found_again(rows: Path, sanitize: Sanitize, tmp_path: Path) -> None:
    _, by_row, _ = sanitize(rows, tmp_path / "a.csv")
    _, one, _ = sanitize(rows, tmp_path / "b.csv", "--unit", "patient_id")
    told = one["people"]["guarantee"]
    assert told["unit"] == "patient" and one["people"]["other_units"] == 1
    assert told["epsilon"] > 1.3 * by_row["people"]["guarantee"]["epsilon"], "a patient has two texts"
    other = tmp_path / "other.csv"
    other.write_text("text,patient_id\nquite another text,p3\nand one more,p999\n", encoding="utf-8")
    _, found, _ = sanitize(other, tmp_path / "c.csv", "--unit", "patient_id")
    assert found["people"]["sanitized_files"] == 2
    other.write_text("text,patient_id\nquite another text,q1\n", encoding="utf-8")
    assert sanitize(other, tmp_path / "d.csv", "--unit", "patient_id")[1]["people"]["sanitized_files"] == 1


def test_rows_of_several_columns_are_found_by_each_and_cost_their_sum(
    rows: Path, sanitize: Sanitize, tmp_path: Path
) -> None:
    two = tmp_path / "two.csv"
    lines = rows.read_text(encoding="utf-8").splitlines()[1:]
    two.write_text("text,plan\n" + "".join(f"{line.split(',')[0]},the calm knee {i}\n" for i, line in enumerate(lines)))
    _, both, _ = sanitize(two, tmp_path / "a.csv", "--text", "text", "--text", "plan")
    _, one, _ = sanitize(rows, tmp_path / "b.csv")
    assert one["people"]["sanitized_files"] == 2, "the same texts, alone"
    assert both["people"]["guarantee"]["epsilon"] > one["per_text_at_delta"]["epsilon"]
    assert People().records()[0].units == 120


def test_a_fixed_seed_is_recorded_apart(rows: Path, sanitize: Sanitize, tmp_path: Path) -> None:
    _, done, _ = sanitize(rows, tmp_path / "a.csv", "--seed", 1)
    assert "recorded apart" in done["people"]["sentence"]
    (record,) = People().records()
    assert record.kind == FIXED_SEED and record.caveats == ("fixed-seed",)
    assert sanitize(rows, tmp_path / "b.csv")[1]["people"]["sanitized_files"] == 1


def test_a_named_ledger_is_spent_from_instead(rows: Path, sanitize: Sanitize, tmp_path: Path) -> None:
    shared = tmp_path / "all.jsonl"
    for name in "ab":
        assert sanitize(rows, tmp_path / f"{name}.csv", "--ledger", shared)[0] == 0
    kept = Ledger.read(shared)
    assert kept.spends == 2 and kept.adjacency == "replace-one" and People().records() == []
    assert any("number of words" in text for text in kept.guarantee(1e-5).assumptions)
    assert sanitize(rows, tmp_path / "c.csv", "--ledger", shared, "--budget", 1)[0] == 2
    assert Ledger.read(shared).spends == 2 and not (tmp_path / "c.csv").exists()


def test_what_is_not_written_is_not_counted_and_what_is_written_was_counted_before(
    rows: Path, sanitize: Sanitize, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sanitize(rows, tmp_path / "a.csv", "--unknown", "refuse")[0] == 2
    assert People().records() == []
    write, seen = files.write_whole, []

    def watched(path: Path, data: bytes, *, replace: bool = False) -> None:
        seen.append([record.spends for record in People().records()])
        write(path, data, replace=replace)

    monkeypatch.setattr(files, "write_whole", watched)
    assert sanitize(rows, tmp_path / "a.csv")[0] == 0 and seen == [[1]]

    def full(path: Path, data: bytes, *, replace: bool = False) -> None:
        raise OutputError("Expected room on the disk.")

    monkeypatch.setattr(files, "write_whole", full)
    assert sanitize(rows, tmp_path / "b.csv")[0] == 2
    assert sorted(record.finished for record in People().records()) == [False, True]


def test_lines_of_plain_text_have_no_units_and_blank_ones_cost_nothing(sanitize: Sanitize, tmp_path: Path) -> None:
    path = tmp_path / "lines.txt"
    path.write_text("the calm heart\n\nthe knee\n", encoding="utf-8")
    assert sanitize(path, tmp_path / "a.txt", "--unit", "who")[0] == 2
    status, done, _ = sanitize(path, tmp_path / "a.txt")
    assert status == 0 and done["people"]["guarantee"]["epsilon"] <= 3 * PRICE
