"""A corpus of a package of its own: Python, the command line and studies find it by its name.

Text of another package may be private, so it has none of the exceptions for built-in text.
"""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main
from discreet.core.errors import DataError
from discreet.core.guarantee import Caveat
from discreet.data.sources import TextSource, load
from discreet.study.choosing import cost_of_choosing
from discreet.study.file import Study, check

NAME = "weather"
PATH = "discreet_example.weather:weather"
pytestmark = pytest.mark.usefixtures("example")


def test_it_is_loaded_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    corpus = load(NAME)
    assert len(corpus) == 60 and corpus.split_names == ("train", "validation")
    assert TextSource(NAME).load() == corpus == load(PATH)
    assert len(load(NAME, rows=30)) == 30 and load(NAME, seed=1) != corpus
    assert main(["data", NAME, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_a_study_checks_it() -> None:
    check(Study("own", data={"source": NAME}, protect=({"name": "none"},)))


def test_it_is_not_taken_for_public_text() -> None:
    assert TextSource("notes").built_in and not TextSource(NAME).built_in
    assert load(NAME).names_read and not load(NAME, classes=("sun", "rain")).names_read
    assert cost_of_choosing({"data": {"source": "notes"}}, []).public
    assert not cost_of_choosing({"data": {"source": NAME}}, []).public


def test_a_folder_of_the_same_name_is_read_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir()
    (tmp_path / NAME / "train.csv").write_text("text,label\n" + "".join(f"word {i},{i % 2}\n" for i in range(40)))
    assert load(NAME).texts[0].startswith("word")


def test_columns_are_rejected() -> None:
    with pytest.raises(DataError, match="no column names"):
        TextSource(NAME, label="other").load()


def test_a_run_on_it_is_read_again_and_has_a_certified_figure_if_its_classes_are_set(
    tmp_path: Path, tiny_encoder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", PATH, "--model", str(tiny_encoder("bert")), "--train", "head", "--epochs", "1", "--json"]
    train += ["--protect", "dp-sgd", "--noise-multiplier", "2"]
    caveats = []
    for out, more in (("a", []), ("b", ["--classes", "sun,rain"])):
        assert main([*train, *more, "--out", str(tmp_path / out)]) == 0
        caveats.append(json.loads(capsys.readouterr().out)["guarantee"]["caveats"])
        assert main(["evaluate", str(tmp_path / out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["utility"]
    assert caveats == [[Caveat.PRIVATE_CLASSES], []]
