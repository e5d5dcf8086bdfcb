"""Adding a corpus takes two files besides its test: what makes it, and one entry of the catalog.

Nothing else is told of it: Python, the command line and studies find it by its name.
"""

import json

import pytest

from discreet import catalog
from discreet.catalog import CorpusEntry
from discreet.cli.main import main
from discreet.data.sources import TextSource, load
from discreet.study.file import Study, check

NAME = "weather"
ENTRY = CorpusEntry("tests.extension.weather:weather", "weather reports", "Made-up weather reports.", generated=True)


@pytest.fixture(autouse=True)
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the entry."""
    monkeypatch.setitem(catalog.CORPORA, NAME, ENTRY)


def test_it_is_loaded_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    corpus = load(NAME)
    assert len(corpus) == 60 and "train" in corpus.split_names
    assert TextSource(NAME).built_in and TextSource(NAME).load() == corpus
    assert main(["data", NAME, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_study_checks_it() -> None:
    check(Study("own", data={"source": NAME}, protect=({"name": "none"},)))
