"""The law book of the command line, kept by every command: what it says fits a terminal of eighty columns."""

import re
import subprocess
import sys
from typing import cast

import pytest
import typer

from discreet.cli.main import app, main

_GROUP = cast(typer.core.TyperGroup, typer.main.get_command(app))
COMMANDS = sorted(name for name, command in _GROUP.commands.items() if not command.hidden)
OLD_NAMES = sorted(set(_GROUP.commands) - set(COMMANDS))


@pytest.fixture(autouse=True)
def eighty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")


def names_of(command: str) -> set[str]:
    group = cast(typer.core.TyperGroup, typer.main.get_command(app))
    shown = [p for p in group.commands[command].params if not getattr(p, "hidden", False)]
    return {name for p in shown for name in (*p.opts, *p.secondary_opts) if name.startswith("-")}


@pytest.mark.parametrize("command", [*COMMANDS, *OLD_NAMES])
def test_help_shows_every_option_whole(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert not re.search(r"--?[a-z-]*…", out), "a name is cut: shorten it, or give its heading fewer columns"
    words = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", out))
    assert names_of(command) <= words


@pytest.mark.parametrize("command", COMMANDS)
def test_lines_of_a_paragraph_fit_as_they_are_written(command: str) -> None:
    for paragraph in str(_GROUP.commands[command].help).split("\n\n"):
        lines = paragraph.splitlines()  # kept as they are, so that a longer one would be broken in two
        assert len(lines) == 1 or max(map(len, lines)) <= 78, paragraph


@pytest.mark.parametrize("command", COMMANDS)
def test_the_overview_has_every_command_and_its_first_sentence(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert re.search(rf"│ {command} +[A-Z]", out) and "…" not in out


def test_an_error_is_broken_between_words_in_a_terminal_and_whole_in_a_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["cost", "--noise-multiplier", "1", "--sampling-rate", "1.7"]
    assert main(command) == 2
    whole = capsys.readouterr().err
    assert whole.count("\n") == 1 and len(whole) > 80
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(command) == 2
    broken = capsys.readouterr().err
    assert broken.split() == whole.split() and max(map(len, broken.splitlines())) <= 80


def test_a_command_ends_as_python_does() -> None:
    """Other libraries check at the end that their objects were freed: nothing may keep Python from freeing them."""
    code = (
        "import sys\nclass Cycle:\n    def __init__(self): self.me = self\n"
        "    def __del__(self): sys.stdout.write('freed')\n"
        "kept = Cycle()\nsys.argv = ['discreet', '--version']\n"
        "from discreet.cli.main import entry\nentry()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.startswith("discreet ") and done.stdout.endswith("freed"), done.stderr
