"""A protection of a package of its own: the command line, run folders, Python and studies find it by its name."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet import TextClassifier, TrainSettings
from discreet.catalog import protection, protection_class, protection_from_table
from discreet.cli.main import main
from discreet.runs.folder import load_run
from discreet.study.file import Study, check

NAME = "redact"
PATH = "discreet_example.redact:Redact"
pytestmark = pytest.mark.usefixtures("example")


@pytest.mark.parametrize("name", [NAME, PATH])
def test_the_command_line_trains_under_it_and_a_run_keeps_it(
    name: str, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", str(toy_csv), "--model", str(tiny_encoder("bert")), "--train", "head", "--epochs", "1", "--json"]
    assert main([*train, "--protect", name, "--mark", "*", "--out", str(tmp_path / "run")]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["guarantee"]["epsilon"] is None and "words are released" in done["guarantee"]["reason"]
    assert done["protection"] == {"name": "redact", "mark": "*"}
    assert load_run(tmp_path / "run").settings.protect == protection(name, {"mark": "*"})


def test_its_options_are_those_of_a_built_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (NAME, PATH):
        assert main(["train", "--help-protection", name]) == 0
        said = capsys.readouterr().out
        assert "--mark" in said and "What a digit is replaced by." in said and "Replaces every digit" in said
    assert main(["train", "notes", "--out", "never", "--protect", NAME, "--mark", "two"]) == 2
    assert "Expected --mark to be one character" in capsys.readouterr().err


def test_a_table_names_it_so_that_it_is_found_again() -> None:
    made = protection(PATH, {"mark": "*"})
    assert made.as_table() == {"name": NAME, "mark": "*"} and protection_from_table(made.as_table()) == made
    assert type(made) is protection_class(NAME)


def test_python_trains_under_it(tiny_encoder: Callable[[str], Path]) -> None:
    texts, labels = [f"a good film {i}" for i in range(40)], [i % 2 for i in range(40)]
    made = TextClassifier(
        str(tiny_encoder("bert")), protect=protection(NAME, {}), train="head", training=TrainSettings(epochs=1)
    )
    stated = made.fit(texts, labels).guarantee_
    assert stated is not None and not stated.exists


def test_a_study_checks_it() -> None:
    check(Study("own", data={"source": "notes"}, protect=({"name": NAME, "mark": ["#", "*"]}, {"name": PATH})))


def test_an_attack_reads_what_it_releases(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["attack", "--attack", "dager", "--data", str(toy_csv), "--model", str(tiny_encoder("bert")), "--json"]
    words += ["--examples", "1", "--max-words", "6", "--protect", PATH]
    assert main([*words, "--protect-set", "mark=*"]) == 0
    assert "words are released" in json.loads(capsys.readouterr().out)["guarantee"]["reason"]
    assert main([*words, "--protect-set", "mark=two"]) == 2
    assert "--protect-set mark=" in capsys.readouterr().err
