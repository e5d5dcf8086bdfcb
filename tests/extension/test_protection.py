"""Adding a protection takes two files besides its test: the protection, and one entry of the catalog.

Nothing else is told of it: the command line, run folders, Python and studies find it by its name.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.extension.redact import Redact

from discreet import TextClassifier, TrainSettings, catalog
from discreet.catalog import Entry
from discreet.cli.main import main
from discreet.runs.folder import load_run
from discreet.study.file import Study, check

ENTRY = Entry("tests.extension.redact:Redact", "redaction", "Replaces every digit.")


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the entry."""
    monkeypatch.setitem(catalog.PROTECTIONS, Redact.name, ENTRY)


def test_the_command_line_trains_under_it_and_a_run_keeps_it(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", str(toy_csv), "--model", str(tiny_encoder("bert")), "--train", "head", "--epochs", "1", "--json"]
    assert main([*train, "--protect", Redact.name, "--out", str(tmp_path / "run")]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["guarantee"]["epsilon"] is None and "words are released" in done["guarantee"]["reason"]
    assert done["protection"] == {"name": "redact"}
    assert load_run(tmp_path / "run").settings.protect == Redact()


def test_python_trains_under_it(tiny_encoder: Callable[[str], Path]) -> None:
    texts, labels = [f"a good film {i}" for i in range(40)], [i % 2 for i in range(40)]
    made = TextClassifier(str(tiny_encoder("bert")), protect=Redact(), train="head", training=TrainSettings(epochs=1))
    stated = made.fit(texts, labels).guarantee_
    assert stated is not None and not stated.exists


def test_a_study_checks_it() -> None:
    check(Study("own", data={"source": "notes"}, protections=({"name": Redact.name},)))
