"""Adding a metric takes one file: its function and its entry stand in the same table.

Nothing else is told of it: attacks on the command line, and the labels of reports, find it by its name.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main
from discreet.metrics.table import METRICS, Compares, Metric, label_of, short_label_of
from discreet.report.words import metric_words

NAME = "first_word"


def first_word(guess: str, truth: str) -> float:
    """Return 1 if the first words are the same."""
    return float(guess.split()[:1] == truth.split()[:1])


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the entry."""
    monkeypatch.setitem(
        METRICS, NAME, Metric(NAME, "first words read", "first", Compares.TEXTS, first_word, is_rate=True)
    )


def test_an_attack_is_measured_by_it(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["attack", "--attack", "dager", "--data", str(toy_csv), "--model", str(tiny_encoder("bert"))]
    assert main([*usual, "--examples", "4", "--metric", NAME, "--json"]) == 0
    (leakage,) = json.loads(capsys.readouterr().out)["leakage"]
    assert leakage["metric"] == NAME and 0 <= leakage["low"] <= leakage["value"] <= leakage["high"] <= 1
    assert main([*usual, "--examples", "4", "--metric", NAME]) == 0
    assert "first" in capsys.readouterr().out


def test_tables_and_reports_have_its_label() -> None:
    assert label_of(NAME) == "first words read" and short_label_of(NAME) == "first"
    assert metric_words(f"dager/{NAME}") == "dager: first words read"
