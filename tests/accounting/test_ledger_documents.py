"""The examples in the documents of accounting, the ledger and the mechanisms run as they are printed."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from discreet.accounting.ledger import Ledger
from discreet.cli.main import main

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["accounting", "ledger", "mechanisms"])
def test_the_examples_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / f"{name}.md").read_text(), re.DOTALL | re.MULTILINE)
    assert blocks
    with Ledger.open(None, unit="note", adjacency="add/remove") as ledger:
        for block in blocks:
            exec(block, {"ledger": ledger, "vector": np.ones(3)})
        assert ledger.holds("seed 7, mean") == (name == "mechanisms")
    out = capsys.readouterr().out
    if name == "accounting":
        assert "epsilon = 6.19" in out
    if name == "ledger":
        assert out.startswith("2664\n")


def test_the_commands_run(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(r"^    discreet (.*)$", (DOCS / "accounting.md").read_text(), re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        assert main(shlex.split(command)) == 0
        assert "Certified" in capsys.readouterr().out
