"""The cap on rows per unit on the command line, and the warning where no unit was named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.statement.releases import rows_with_people

from discreet.cli.main import main


@pytest.fixture
def rows(tmp_path: Path, toy_rows: list[tuple[str, str]]) -> Path:
    return rows_with_people(tmp_path / "rows.csv", toy_rows)


def test_a_cap_is_written_and_stated(
    rows: Path, tmp_path: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["train", str(rows), "--out", str(out), "--model", str(tiny_encoder("bert")), "--train", "head"]
    command += ["--protect", "dp-sgd", "--noise-multiplier", "1", "--epochs", "1", "--device", "cpu", "--json"]
    assert main([*command, "--unit", "patient_id", "--max-per-unit", "2"]) == 0
    printed, said = capsys.readouterr()
    cap = "at most 2 rows of each patient"
    assert any(cap in text for text in json.loads(printed)["guarantee"]["assumptions"])
    assert "at most 2 of each patient" in said and "Warning: the column" not in said
    assert "max_per_unit = 2" in (out / "settings.toml").read_text() and cap in (out / "README.md").read_text()
    assert cap in (out / "ledger.jsonl").read_text()


def test_no_unit_was_named(rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", str(rows), "--out", str(tmp_path / "run"), "--max-per-unit", "2"]) == 2
    said = capsys.readouterr().err
    assert "Expected --max-per-unit to be used with a column that names units" in said and "--unit" in said
    assert main(["train", str(rows), "--out", str(tmp_path / "run"), "--max-per-unit", "0"]) == 2
    capsys.readouterr()
    assert main(["data", str(rows)]) == 0
    assert "--unit patient_id" in " ".join(capsys.readouterr().out.split())
