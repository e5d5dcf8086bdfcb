"""The commands of the README run when pasted: all of them parse, their files are there, the fast ones are run."""

import shlex
from pathlib import Path

import pytest
import typer

from discreet.cli.main import app, main
from discreet.data.sources import Columns, load

ROOT = Path(__file__).parents[2]
LETTERS = "examples/letters.csv"
FAST = ("data", "cost")


def commands() -> list[list[str]]:
    """Return the words of every `discreet` command in the README's block of commands."""
    block = (ROOT / "README.md").read_text(encoding="utf-8").partition("## On the command line")[2].split("```")[1]
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    found = [line[line.index("discreet") + 1 :] for line in lines if "discreet" in line]
    assert len(found) > 15
    return found


COMMANDS = commands()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_parses_and_its_files_are_there(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    name, *arguments = words
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, list(arguments)) as context:
        assert context.params is not None
    outputs = {arguments[i + 1] for i, word in enumerate(arguments) if word == "--out"}
    for word in arguments:
        if word.endswith((".csv", ".toml")) and word not in outputs:
            assert (ROOT / word).is_file(), word


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] in FAST], ids=" ".join)
def test_a_fast_command_succeeds(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert main(words) == 0
    assert capsys.readouterr().out


def test_the_letters_are_what_the_readme_says() -> None:
    corpus = load(ROOT / LETTERS, Columns("body", label="outcome", unit="patient_id"))
    assert (len(corpus), corpus.unit_count, corpus.classes) == (420, 140, 3)
    assert set(corpus.split_names) == {"train", "validation"}
