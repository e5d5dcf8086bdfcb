"""An attack of a package of its own: the command line, studies and the explorer find it by its name."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from discreet.catalog import ATTACKS, attack_class
from discreet.cli.main import main
from discreet.core.errors import SettingError
from discreet.study.file import Study, check

NAME = "frequent-words"
pytestmark = pytest.mark.usefixtures("example")


def test_the_command_line_runs_it(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    usual = ["attack", "--data", str(toy_csv), "--model", str(tiny_encoder("bert")), "--examples", "4", "--json"]
    assert main([*usual, "--attack", NAME, "--set", "words=3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["attack"] == NAME and {leak["metric"] for leak in found["leakage"]} >= {"bag_recall", "jaccard"}
    assert all(len(example["guess"].split()) == 3 for example in found["examples"])
    assert main([*usual, "--attack", NAME, "--set", "words=0"]) == 2


@pytest.mark.parametrize("words", [3, 0])
def test_a_study_checks_it(words: int) -> None:
    study = Study(
        "own",
        data={"source": "notes"},
        protect=({"name": "none"},),
        attack=({"name": NAME, "words": words},),
    )
    with nullcontext() if words else pytest.raises(SettingError, match="words to be .*, got 0"):
        check(study)


def test_the_explorer_offers_it_in_its_own_words() -> None:
    from discreet.cli.serve import menu_of_catalog

    attack = menu_of_catalog(6.0).attacks[NAME]
    assert isinstance(attack, attack_class(NAME)) and attack.summary == ATTACKS[NAME].help
    assert (attack.label, attack.summary) == ("frequent words", "Guesses the most frequent words of public text.")
