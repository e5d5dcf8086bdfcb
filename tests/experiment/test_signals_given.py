"""Finished runs as reference models: what they were trained on, and which of them an attack must not use."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.doors.edits import restated

from discreet.attacks.membership.likelihood import Lira, ReferenceThreshold, Rmia
from discreet.attacks.membership.shadow import ShadowClassifier
from discreet.catalog import attack_of
from discreet.cli.main import main
from discreet.core.errors import DataError, ModelError, SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.sources import TextSource
from discreet.experiment import AttackRequest, RunRequest, SceneRequest, attack_once, load_scene, train_once
from discreet.experiment.attack.scene import Scene
from discreet.experiment.attack.signals import GivenReferences, runs_in, trained_on
from discreet.models.classifier import ModelSettings
from discreet.models.settings import TrainSettings
from discreet.runs.folder import load_run

WORDS = ("heart", "knee", "lung", "hand", "scan", "dose", "cough", "fever", "nurse", "doctor", "pain", "rest")
OWN = [f"the {a} and the {b} of {c}" for a in WORDS[:6] for b in WORDS[6:] for c in ("two", "one")]
OTHER = [f"a {a} with {b} and {c}" for a in WORDS[:6] for b in WORDS[6:] for c in ("ten", "two")]
SILENT = lambda stage, done, total: None  # noqa: E731


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path]) -> Path:
    """Return a folder of runs: the target `a`, six halves of its text, and two runs on other text."""
    folder = tmp_path_factory.mktemp("references")
    model = ModelSettings(encoder=str(tiny_encoder("bert")), train="head", dropout=0.0)
    loop = TrainSettings(epochs=3, batch_size=16, learning_rate=0.1)
    chosen = {"a": OWN[::2], "held-out": OWN[1::2], "x": OTHER[::2], "y": OTHER[1::2]}
    for number in range(1, 7):
        chosen[f"h{number}"] = [OWN[row] for row in Rng(number).permutation(len(OWN)).tolist()[: len(OWN) // 2]]
    for name, texts in chosen.items():
        rows = "".join(f"{text},{'yes' if len(text) % 2 else 'no'}\n" for text in texts)
        (folder / f"{name}.csv").write_text("text,label\n" + rows, encoding="utf-8")
    for name in chosen.keys() - {"held-out"}:
        apart = str(folder / "held-out.csv") if name == "a" else None
        data = TextSource(str(folder / f"{name}.csv"), text="text", label="label", validation=apart)
        train_once(RunRequest(data, model, loop), folder / ("others" if name in "xy" else "runs") / name)
    return folder


@pytest.fixture(scope="module")
def scene(runs: Path) -> Scene:
    return load_scene(SceneRequest(run=runs / "runs/a", device="cpu"))


def request_for(name: str, folders: tuple[Path, ...], **changes: Any) -> AttackRequest:
    return AttackRequest(attack_of(name), name=name, references_from=folders, **changes)


def test_the_training_rows_of_a_run_are_read_again(runs: Path, scene: Scene) -> None:
    assert scene.target is not None
    corpus = scene.target.corpus
    inside = trained_on(load_run(runs / "runs/a"), runs / "runs/a", corpus)
    assert inside.tolist() == [split == "train" for split in corpus.splits]
    half = trained_on(load_run(runs / "runs/h1"), runs / "runs/h1", corpus)
    assert 0.2 < (half & inside).sum() / inside.sum() < 0.8 and (half & ~inside).any()
    texts = (runs / "h1.csv").read_text(encoding="utf-8")
    assert all(text in texts for text, is_in in zip(corpus.texts, half, strict=True) if is_in)
    assert not trained_on(load_run(runs / "others/x"), runs / "others/x", corpus).any()


@pytest.mark.parametrize("name", ["lira", "mia", "rmia", "mia-r"])
def test_random_halves_of_the_same_text_are_reference_models(name: str, runs: Path, scene: Scene) -> None:
    halves = runs_in([runs / "runs"], runs / "runs/a")
    assert [one.name for one in halves] == [f"h{seed}" for seed in range(1, 7)]
    result = attack_once(request_for(name, halves), scene)
    assert 0 <= result.leakages[0].value <= 1
    assert any("6 reference models of its own, which saw some of the texts" in one for one in result.release["given"])


def test_runs_on_other_text_serve_offline_attacks(runs: Path, scene: Scene) -> None:
    others = runs_in([runs / "others"])
    for name in ("lira", "rmia", "mia-r"):
        result = attack_once(request_for(name, others), scene)
        assert any(
            "2 reference models of its own, which saw none of the texts" in one for one in result.release["given"]
        )
    with pytest.raises(UnsupportedError, match="trained on some of the examples for mia"):
        attack_once(request_for("mia", others), scene)


def test_attacks_take_the_form_that_the_reference_models_allow() -> None:
    none, one, two = (np.arange(4)[:, None] < np.array([count, 2]) for count in (0, 1, 2))
    assert Lira().for_references(two) == Lira() and Lira().for_references(one) == Lira(online=False)
    assert Rmia().for_references(one) == Rmia() and Rmia().for_references(none) == Rmia(online=False)
    assert ReferenceThreshold().for_references(none) == ReferenceThreshold()
    assert ShadowClassifier().for_references(none) == ShadowClassifier()
    with pytest.raises(UnsupportedError):
        ShadowClassifier().for_references(np.zeros((4, 2), dtype=bool))


def test_runs_that_were_trained_on_the_members_are_rejected(runs: Path, scene: Scene) -> None:
    with pytest.raises(DataError, match=r"own members, but .*a' was trained on (\d+) of \1 members and on 0 of"):
        attack_once(request_for("lira", (runs / "runs/a", runs / "runs/h1")), scene)


def test_an_overlap_that_chance_explains_is_accepted() -> None:
    members, others = np.arange(500), np.arange(500, 1000)
    few = np.zeros((1, 1000), dtype=bool)
    few[0, :5] = True
    GivenReferences(("a",), (), few).check(members, others)
    few[0, 5:20] = True
    with pytest.raises(DataError, match="trained on 20 of 500 members and on 0 of 500 non-members"):
        GivenReferences(("a",), (), few).check(members, others)
    assert GivenReferences(("a", "b"), (), np.array([[True, False], [False, False]])).usable(np.arange(2)).tolist() == [
        False, True,
    ]  # fmt: skip


def test_bad_references_are_rejected(runs: Path, scene: Scene, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a folder with runs"):
        runs_in([tmp_path])
    with pytest.raises(SettingError, match="at least 2 runs"):
        runs_in([runs / "runs/h1"])
    with pytest.raises(SettingError, match="different folders"):
        runs_in([runs / "runs/h1", runs / "runs"])
    halves = runs_in([runs / "runs"], runs / "runs/a")
    with pytest.raises(SettingError, match="left out for loss"):
        attack_once(request_for("loss", halves), scene)
    for changes in ({"references": 4}, {"references_protected": False}):
        with pytest.raises(SettingError, match="left out with references_from"):
            request_for("lira", halves, **changes)
    moved = tmp_path / "moved"
    shutil.copytree(runs / "runs/h1", moved)
    settings = (moved / "settings.toml").read_text(encoding="utf-8")
    (moved / "settings.toml").write_text(settings.replace("h1.csv", "shorter.csv"), encoding="utf-8")
    restated(moved, json.loads((moved / "metrics.json").read_text(encoding="utf-8")))
    rows = (runs / "h1.csv").read_text(encoding="utf-8").splitlines()[:20]
    (runs / "shorter.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    with pytest.raises(DataError, match="now gives"):
        attack_once(request_for("lira", (moved, runs / "runs/h2")), scene)


def test_the_command_names_runs(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attack = ["attack", str(runs / "runs/a"), "--attack", "lira", "--device", "cpu", "--references-from"]
    assert main([*attack, str(runs / "runs"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["leakage"][0]["metric"] == "auc" and any(
        "6 reference models" in one for one in found["release"]["given"]
    )
    assert main([*attack, str(runs / "runs/h1")]) == 2
    assert "--references-from to be at least 2 runs" in " ".join(capsys.readouterr().err.split())
