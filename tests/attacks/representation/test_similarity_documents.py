"""The example in the document on attacks on representations runs as it is printed."""

import re
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[3] / "docs" / "representation_attacks.md"


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exec(block, {})
    out = capsys.readouterr().out
    assert out.startswith("(0, 1, 2)\nidentity 1.000")
