"""The commands of the README run when pasted: all of them parse, their files are there, the fast ones are run.

So does the loop on a module that is not ours.
"""

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
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


def test_the_loop_of_your_own_runs_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = (ROOT / "README.md").read_text(encoding="utf-8").partition("## In Python")[2].split("```python\n")[1:]
    (code,) = [block.partition("```")[0] for block in blocks if "make_private" in block]
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(320, 8, generator=generator)
    rows = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
    made_up = [(torch.randn(8, generator=generator), torch.tensor(row % 2)) for row in range(8)]
    names: dict[str, Any] = {"rows": rows, "made_up": made_up}
    exec(code, names)
    guarantee = names["private"].guarantee
    assert guarantee.certified and 7.5 < guarantee.epsilon <= 8
    assert "Certified" in capsys.readouterr().out
    right = (names["model"](inputs).argmax(1) == rows.tensors[1]).float().mean()
    assert right > 0.7
