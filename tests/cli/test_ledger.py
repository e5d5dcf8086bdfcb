"""The ledger on the command line."""

import json
from pathlib import Path

import pytest

from discreet.accounting import ledger_file
from discreet.accounting.events import (
    ClippedSumDpEvent,
    GaussianDpEvent,
    NoGuaranteeDpEvent,
    PoissonSampledDpEvent,
    event_from_json,
)
from discreet.accounting.ledger import Budget, Ledger
from discreet.cli.main import main

STEP = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "ledger"
    monkeypatch.setattr(ledger_file, "_sync", lambda descriptor: None)  # a thousand syncs can take seconds
    with Ledger.open(path, unit="author", adjacency="add/remove", budget=Budget(3.0, 1e-5)) as ledger:
        for number in range(1000):
            ledger.spend(STEP, f"step {number}")
    return path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_it_says_what_was_spent_for_whom_and_what_is_left(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", str(path)]) == 0
    words = said(capsys)
    assert "for each author, under add/remove adjacency" in words
    assert "1,000 PoissonSampled(sampling_probability=0.01, event=Gaussian(noise_multiplier=1.0))" in words
    assert "Certified: differential privacy with epsilon = 1.829 and delta = 1e-05 for each author" in words
    assert "Budget: epsilon 3 at delta 1e-05, of which 1.829 is spent." in words
    assert "The budget allows 1,664 more spends of PoissonSampled" in words
    assert "truncated" not in words and "again" not in words


def test_a_budget_is_not_rounded_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger.open(tmp_path / "l", unit="author", adjacency="add/remove", budget=Budget(3.0004, 1.00004e-5)):
        pass
    assert main(["ledger", str(tmp_path / "l")]) == 0
    assert "Budget: epsilon 3.001 at delta 1.001e-05, of which 0 is spent." in said(capsys)


def test_long_events_fit_eighty_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    step = PoissonSampledDpEvent(0.16161616161616163, ClippedSumDpEvent(3.240790595015941))
    with Ledger.open(Path("ledger"), unit="author", adjacency="add/remove", budget=Budget(3.0, 1e-5)) as ledger:
        ledger.spend(step, "1")
    assert main(["ledger", "ledger"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert " ".join(out.split()).count("0.161616, event=ClippedSum(noise_multiplier=3.24079, occurrences=1)") == 2
    assert "              event=ClippedSum" in out  # under what it belongs to


def test_as_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", str(path), "--json", "--delta", "1e-6"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert (values["unit"], values["adjacency"], values["spends"]) == ("author", "add/remove", 1000)
    assert event_from_json(json.dumps(values["spent"][0]["event"])) == STEP
    assert values["guarantee"]["delta"] == 1e-6
    assert values["guarantee"]["epsilon"] > 1.829
    assert values["guarantee"]["certified"]
    assert values["budget"] == {"epsilon": 3.0, "delta": 1e-5}
    assert values["remaining"][0]["spends"] == 1664
    assert (values["spent_again"], values["torn"], values["unfinished"]) == (0, 0, False)


def test_torn_and_repeated_lines_are_told(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Ledger.open(path, unit="author", adjacency="add/remove", budget=Budget(3.0, 1e-5)) as ledger:
        ledger.spend(STEP, "step 1", secure=True)
        ledger.spend(STEP, "step 1", secure=True)
    path.write_bytes(path.read_bytes() + b'["ste')
    assert main(["ledger", str(path)]) == 0
    words = said(capsys)
    assert "1,003 Poisson" in words
    assert "Repeated ids: 2." in words
    assert "Lines truncated by a crash: 1." in words
    assert "being written now" in words


def test_it_reads_while_another_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ledger"
    with Ledger.open(path, unit="note", adjacency="replace-one") as ledger:
        assert main(["ledger", str(path)]) == 0
        assert "Nothing was spent." in said(capsys)
        ledger.spend(GaussianDpEvent(1.0), "1")
        before = path.read_bytes()
        assert main(["ledger", str(path)]) == 0
        assert "Pass --delta" in said(capsys)
        assert main(["ledger", str(path), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["guarantee"] is None
        assert path.read_bytes() == before
        ledger.spend(GaussianDpEvent(2.0), "2")
        assert main(["ledger", str(path)]) == 0
        assert "1 Gaussian(noise_multiplier=1.0) 1 Gaussian(noise_multiplier=2.0)" in said(capsys)


def test_no_guarantee_is_said_with_its_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "ledger"
    with Ledger.open(path, unit="note", adjacency="add/remove") as ledger:
        ledger.spend(NoGuaranteeDpEvent("the masks are secret, not random"), "1")
    assert main(["ledger", str(path), "--delta", "1e-5"]) == 0
    assert "No guarantee for any note: the masks are secret, not random." in said(capsys)
    assert main(["ledger", str(path), "--delta", "1e-5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["guarantee"]["epsilon"] is None


def test_what_is_no_ledger_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ledger", str(tmp_path / "missing")]) == 2
    assert "LedgerError: Expected a ledger at" in capsys.readouterr().err
    (tmp_path / "notes").write_text("some notes\n")
    assert main(["ledger", str(tmp_path / "notes")]) == 2
    assert "got a file of another kind" in capsys.readouterr().err
    assert main(["ledger", str(tmp_path / "notes"), "--delta", "x"]) == 2


def test_a_budget_at_a_larger_delta_than_any_default_is_shown_at_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "old"
    with Ledger.open(path, unit="note", adjacency="zero-out", budget=Budget(3.0, 5e-5)) as ledger:
        for number in range(3):
            ledger.spend(STEP, f"step {number}")
    assert main(["ledger", str(path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    then, now = values["guarantee"], values["guarantee_at_default_delta"]
    assert (then["delta"], now["delta"]) == (5e-5, 1e-5) and then["epsilon"] < now["epsilon"]
    assert main(["ledger", str(path)]) == 0
    assert "At delta 1e-05, the largest default delta of new runs: epsilon" in said(capsys)
    assert main(["ledger", str(path), "--delta", "5e-5"]) == 0
    assert "largest default delta" not in said(capsys)
