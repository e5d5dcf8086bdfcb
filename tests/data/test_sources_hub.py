import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from discreet.core.errors import DataError, ExtraError
from discreet.data.sources import Columns, load


class Part:
    """As much of a data set of the `datasets` library as is used."""

    def __init__(self, columns: dict[str, list[Any]], classes: list[str] | None = None) -> None:
        self.columns = columns
        self.features = {name: SimpleNamespace() for name in columns}
        if classes:
            self.features["label"] = SimpleNamespace(names=classes)
        self.column_names = list(columns)
        self.num_rows = len(columns["sentence"])

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def pretend(monkeypatch: pytest.MonkeyPatch, load_dataset: Any) -> None:
    module = ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def glue(path: str, config: str | None) -> dict[str, Part]:
    assert (path, config) == ("nyu-mll/glue", "sst2")
    texts = [f"text {i}" for i in range(6)]
    classes = ["positive", "negative"]
    return {
        "train": Part({"sentence": texts, "label": [0, 1, 0, 1, 1, 0]}, classes),
        "validation": Part({"sentence": texts[:2], "label": [1, 0]}, classes),
        "test": Part({"sentence": texts[:3], "label": [-1, -1, -1]}, classes),
    }


def test_a_data_set_is_read_with_its_classes_and_without_hidden_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, glue)
    corpus = load("hub:nyu-mll/glue:sst2", Columns(text="sentence"))
    assert corpus.label_names == ("positive", "negative")
    assert corpus.labels == (0, 1, 0, 1, 1, 0, 1, 0)
    assert corpus.split_names == ("train", "validation")
    assert "the split test was left out" in corpus.remarks[0]


def test_the_columns_of_a_data_set_are_named_when_one_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, glue)
    with pytest.raises(DataError, match="column 'text' for text in .*'sentence', 'label'"):
        load("hub:nyu-mll/glue:sst2")


def test_an_answer_hidden_in_a_split_that_is_used_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda path, config: {"train": Part({"sentence": ["a", "b"], "label": [0, -1]}, ["x", "y"])})
    with pytest.raises(DataError, match="label in row 2"):
        load("hub:any", Columns(text="sentence"))


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ExtraError, match=r"pip install 'discreet\[hub\]'"):
        load("hub:nyu-mll/glue:sst2")


def test_without_a_connection_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(path: str, config: str | None) -> None:
        raise ConnectionError("Couldn't reach the hub\nand a long trace")

    pretend(monkeypatch, offline)
    with pytest.raises(DataError, match="ConnectionError: Couldn't reach the hub. Check the name and the connection"):
        load("hub:any")


def test_a_name_is_needed_and_a_training_split(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, lambda path, config: {"test": Part({"sentence": ["a"], "label": [0]})})
    with pytest.raises(DataError, match="after 'hub:'"):
        load("hub:")
    with pytest.raises(DataError, match="Expected a split 'train'"):
        load("hub:any")


def test_the_library_reads_a_folder_offline(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    rows = "".join(f"a text of number {i},{i % 2}\n" for i in range(20))
    for split in ("train", "validation"):
        (tmp_path / f"{split}.csv").write_text("sentence,label\n" + rows, encoding="utf-8")
    code = (
        "import sys\nfrom discreet.data.sources import Columns, load\n"
        "corpus = load('hub:' + sys.argv[1], Columns(text='sentence', label='label'))\n"
        "print(len(corpus.texts), corpus.texts[0], corpus.labels[:3], corpus.label_names)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"HF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "40 a text of number 0 (0, 1, 0) ('0', '1')\n", done.stderr
