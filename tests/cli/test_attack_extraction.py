"""Canaries in `discreet train`, and the attacks on memorization and on people in `discreet attack`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main
from discreet.data.canaries import canaries_path

Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main([*map(str, arguments)])
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture(scope="module")
def runs(tiny_encoder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain run with canaries, and a private one without."""
    folder = tmp_path_factory.mktemp("runs")
    usual = ["train", "notes", "--rows", "60", "--model", str(tiny_encoder("bert")), "--train", "head", "--epochs", "1"]
    usual += ["--device", "cpu"]
    canaries = ["--canaries", "3", "--copies", "1,5", "--canary-digits", "2"]
    assert main([*usual, *canaries, "--out", str(folder / "plain")]) == 0
    assert main([*usual, "--protect", "dp-sgd", "--epsilon", "8", "--out", str(folder / "private")]) == 0
    return folder


def test_exposure_in_a_table_of_eighty_columns_and_as_json(runs: Path, say: Say) -> None:
    status, out, _ = say("attack", runs / "plain", "--attack", "exposure")
    flat = " ".join(out.split())
    assert status == 0 and max(map(len, out.splitlines())) <= 80
    assert "exposure (bits)" in out and "copies" in out and "Mean exposure of a secret" in flat
    status, out, _ = say("attack", runs / "plain", "--attack", "exposure", "--json")
    values = json.loads(out)
    assert status == 0 and values["leakage"][0]["metric"] == "exposure" and values["leakage"][0]["n"] == 6
    assert [row["copies"] for row in values["details"]["exposure"]] == [1, 5]
    assert canaries_path(runs / "plain").exists() and not canaries_path(runs / "private").exists()


def test_a_run_without_canaries_and_a_classifier_are_rejected_with_the_remedy(runs: Path, say: Say) -> None:
    status, _, err = say("attack", runs / "private", "--attack", "exposure")
    assert status == 2 and "--canaries 10" in " ".join(err.split())
    status, _, err = say("attack", runs / "plain", "--attack", "extraction")
    assert status == 2 and "causal language model" in " ".join(err.split())
    status, _, err = say("attack", runs / "private", "--attack", "class-inversion", "--set", "class_name=oncology")
    assert status == 2 and "one of cardiology, gastroenterology, neurology, orthopaedics" in " ".join(err.split())


def test_inversion_of_a_private_run_is_that_of_its_classes(runs: Path, say: Say) -> None:
    quick = ["--set", "words=3", "--set", "steps=1", "--set", "restarts=1"]
    status, out, err = say("attack", runs / "private", "--attack", "inversion", *quick)
    assert status == 0 and "class-inversion is used" in " ".join(err.split())
    assert "cardiology (" in out and "class words" in out


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["--copies", "3"], "used with --canaries"),
        (["--canaries", "2", "--copies", "a"], "numbers separated by commas"),
        (["--canaries", "2", "--copies", "0"], "an integer >= 1"),
        (["--canaries", "80", "--canary-digits", "2"], "half the space of secrets"),
        (["--canaries", "2", "--canary-kind", "names"], "one of secrets, labels"),
    ],
)
def test_bad_settings_of_canaries(
    arguments: list[str], rule: str, say: Say, tmp_path: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    model = ["--model", tiny_encoder("bert"), "--rows", "40"]
    status, _, err = say("train", "notes", *model, *arguments, "--out", tmp_path / "a")
    assert status == 2 and rule in " ".join(err.split())
    assert not (tmp_path / "a").exists()


def test_people_behind_notes_are_named(say: Say, tiny_encoder: Callable[[str], Path]) -> None:
    usual = [
        "--data",
        "notes",
        "--rows",
        "200",
        "--split",
        "train",
        "--examples",
        "20",
        "--model",
        tiny_encoder("bert"),
    ]
    status, out, _ = say("attack", "--attack", "linkage", *usual)
    flat = " ".join(out.split())
    assert status == 0 and "people named" in out and "texts without names; guessing names" in flat
    assert max(map(len, out.splitlines())) <= 80
    status, out, _ = say("attack", "--attack", "pseudonyms", *usual, "--set", "scheme=md5", "--json")
    assert status == 0 and json.loads(out)["leakage"][0]["value"] == 1.0
    status, out, _ = say("attack", "--attack", "attribute", *usual, "--set", "attribute=sex", "--json")
    assert status == 0 and json.loads(out)["details"]["classes"] == ["man", "woman"]
    status, _, err = say("attack", "--attack", "linkage", *usual, "--noise-multiplier", "1")
    assert status == 2 and "dp-sgd releases gradients" in " ".join(err.split())
