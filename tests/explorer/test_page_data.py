"""What stands behind the page: a study with its protections, a run, the built-in notes, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main
from discreet.core.errors import DataError
from discreet.core.types import Trial
from discreet.explorer.menu import Menu, offer
from discreet.explorer.page_data import load_page_data
from discreet.explorer.reading import Question, read
from discreet.models.build import cache_folder
from discreet.study.store import Store
from discreet.study.sweep import FORMAT


def test_a_study_lends_its_model_texts_and_protections(
    tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], menu: Menu
) -> None:
    study = {
        "name": "toy",
        "data": {"source": str(toy_csv)},
        "model": {"encoder": str(tiny_encoder("bert")), "train": "head"},
        "release": {"train": "all", "split": "train"},
        "seeds": [3],
    }
    (tmp_path / "study.json").write_text(json.dumps({"format": FORMAT, **study}))
    with Store(tmp_path) as store:
        for number, (point, facts) in enumerate(
            [
                ({"name": "none"}, None),
                ({"name": "dp-sgd", "epsilon": 8.0, "clip_norm": 0.5}, {"name": "dp-sgd", "noise_multiplier": 0.7}),
                ({"name": "dp-ie", "epsilon": 4.0}, {"name": "dp-ie", "epsilon": 4.0}),
            ]
        ):
            of_model = {"release": {"scope": "model"}, "verdict": "It finds 2%.", "details": {"roc": {"bound": None}}}
            attacks = {"lira": of_model, "dager": {"release": {}}} if number == 0 else {}
            details = {"protection": facts, "attacks": attacks}
            store.append(str(number), Trial({**study, "protect": point}, 3, {}, details=details))
    stage = load_page_data(tmp_path)
    about = offer(menu, stage)["trained_model"]
    assert about["findings"] == [
        {"setting": "none", "attack": "lira", "verdict": "It finds 2%.", "roc": {"bound": None}}
    ]
    assert {"lira", "exposure"} <= set(about["attacks"]) and "dager" not in about["attacks"]
    assert [one.label for one in stage.settings] == [
        "none",
        "dp-sgd, epsilon 8 (of the whole training)",
        "dp-ie, epsilon 4",
    ]
    # the epsilon of a whole training is not that of one release: its noise is what counts
    assert stage.settings[1].values == {"clip_norm": 0.5, "noise_multiplier": 0.7}
    assert stage.settings[2].values == {"epsilon": 4.0}
    assert [one["number"] for one in offer(menu, stage)["settings"]] == [0, 1, 2]
    found = read(Question("the heart was calm", "dp-sgd", "embedding-rows", setting=1), stage, menu, seconds=1)
    assert found["guarantee"]["epsilon"] > 6 and "all" in found["release"]
    other = read(Question("the heart was calm", "dp-ie", "rss", setting=2), stage, menu, seconds=1)
    assert other["guarantee"]["epsilon"] == pytest.approx(4, rel=1e-3)
    # inner products of the study's texts are kept on disk, for the next start; those of a typed sentence are not
    kept = []
    for text in ("the heart was calm", "a dull pain"):
        read(Question(text, "dp-sgd", "one-of-n", setting=1), stage, menu, seconds=1)
        kept.append({path.name for path in cache_folder().iterdir()})
    assert any(name.startswith("gram-") for name in kept[0]) and kept[0] == kept[1]


def test_a_run_lends_its_model_and_how_it_was_protected(
    tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], menu: Menu, capfd: pytest.CaptureFixture[str]
) -> None:
    model = ["--model", str(tiny_encoder("bert")), "--device", "cpu", "--epochs", "1", "--batch-size", "16"]
    private = ["--protect", "dp-sgd", "--noise-multiplier", "1.5", "--train", "all"]
    assert main(["train", str(toy_csv), "--out", str(tmp_path / "a"), *model, *private]) == 0
    capfd.readouterr()
    stage = load_page_data(tmp_path / "a")
    assert stage.labels == ("clinic", "ward") and stage.settings[0].protection == "dp-sgd"
    assert stage.settings[0].values["noise_multiplier"] == 1.5
    found = read(Question("the heart was calm", "dp-sgd", "dager", setting=0), stage, menu, seconds=1)
    assert found["guarantee"]["certified"] and 2 < found["guarantee"]["epsilon"] < 4
    assert "the model of" in found["release"]


def test_public_text_has_the_columns_of_the_private_text(
    tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], menu: Menu, capfd: pytest.CaptureFixture[str]
) -> None:
    own, public = tmp_path / "own.csv", tmp_path / "public.csv"
    head, _, rows = toy_csv.read_text(encoding="utf-8").partition("\n")
    own.write_text(f"{head.replace('text', 'body')}\n{rows}", encoding="utf-8")
    public.write_text("body\n" + "".join(f"a line about plant {i} and its leaves\n" for i in range(40)))
    asked = ["--protect", "dp-ie", "--epsilon", "40", "--dimension", "3", "--public", str(public), "--epochs", "1"]
    model = ["--text", "body", "--model", str(tiny_encoder("bert")), "--device", "cpu"]
    assert main(["train", str(own), "--out", str(tmp_path / "a"), *model, *asked]) == 0
    capfd.readouterr()
    found = read(
        Question("the heart was calm", "dp-ie", "rss", setting=0),
        load_page_data(tmp_path / "a"),
        menu,
        seconds=1,
    )
    assert "3 numbers" in found["release"]


def test_another_folder_is_refused_with_a_remedy(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="Expected the folder of a run or a study, .* or none"):
            load_page_data(folder)


def test_without_a_folder_the_notes_are_there() -> None:
    assert "fictional" in load_page_data(None).title
