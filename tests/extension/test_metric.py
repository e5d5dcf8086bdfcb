"""A metric of a package of its own: attacks on the command line, and the labels of reports, find it by its name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.metrics.table import label_of, short_label_of, text_leakage
from discreet.report.words import metric_words

NAME = "first_word"
PATH = "discreet_example.first_word:FIRST_WORD"
pytestmark = pytest.mark.usefixtures("example")


@pytest.mark.parametrize("name", [NAME, PATH])
def test_an_attack_is_measured_by_it(
    name: str, toy_csv: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["attack", "--attack", "dager", "--data", str(toy_csv), "--model", str(tiny_encoder("bert"))]
    assert main([*usual, "--examples", "4", "--metric", name, "--json"]) == 0
    (leakage,) = json.loads(capsys.readouterr().out)["leakage"]
    assert leakage["metric"] == name and 0 <= leakage["low"] <= leakage["value"] <= leakage["high"] <= 1
    assert main([*usual, "--examples", "4", "--metric", name]) == 0
    assert "first" in capsys.readouterr().out


def test_tables_and_reports_have_its_label() -> None:
    assert label_of(NAME) == "first words read" and short_label_of(NAME) == "first"
    assert metric_words(f"dager/{NAME}") == "dager: first words read"


def test_python_measures_it() -> None:
    measured = text_leakage(NAME, ["a b", "c d"], ["a x", "e d"], rng=Rng(0))
    assert (measured.metric, measured.value) == (NAME, 0.5)


def test_a_misspelled_name_is_answered_with_it() -> None:
    with pytest.raises(SettingError, match="Did you mean 'first_word'"):
        text_leakage("first_wrod", ["a b"], ["a x"], rng=Rng(0))
