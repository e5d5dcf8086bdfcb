"""Training on representations that leave hidden or noisy, as its user sees it on the command line."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from discreet.accounting.ledger import Ledger
from discreet.cli.main import main


@pytest.fixture
def command(toy_csv: Path, tiny_encoder: Callable[[str], Path]) -> list[str]:
    return [
        "train",
        str(toy_csv),
        "--model",
        str(tiny_encoder("bert")),
        "--device",
        "cpu",
        "--no-cache",
        "--classes",
        "clinic,ward",
    ]


def told(capfd: pytest.CaptureFixture[str], *words: object, status: int = 0) -> tuple[str, str]:
    assert main([str(word) for word in words]) == status
    return capfd.readouterr()


def test_texthide_says_that_nothing_is_guaranteed_and_leaves_no_secret(
    command: list[str], toy_csv: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = [
        "--protect",
        "texthide",
        "--train",
        "all",
        "--masks",
        4,
        "--mix",
        2,
        "--epochs",
        15,
        "--learning-rate",
        5e-3,
    ]
    out, err = told(capfd, *command, *words, "--out", tmp_path / "a", "--json")
    done = json.loads(out)
    assert done["guarantee"]["epsilon"] is None and "absolute value" in done["guarantee"]["sentence"]
    assert done["utility"]["accuracy"] > 0.9 and done["utility_averaged"]["accuracy"] > 0.9
    folder = tmp_path / "a"
    assert not {"secret", "checkpoint.safetensors"} & {path.name for path in folder.iterdir()}
    assert not any("mask" in name or name.startswith("query") for name in load_file(folder / "model.safetensors"))
    kept = tomllib.loads((folder / "settings.toml").read_text(encoding="utf-8"))["protect"]
    assert kept == {"name": "texthide", "masks": 4, "mix": 2, "fresh_masks": False, "public_label": "dropped"}
    assert "No guarantee" in (folder / "README.md").read_text(encoding="utf-8")
    assert "loss" not in err
    # the folder predicts through the mask that was folded into its head
    out, _ = told(capfd, "evaluate", folder, toy_csv, "--json")
    assert json.loads(out)["utility"]["accuracy"] == done["utility"]["accuracy"]


def test_dp_ie_releases_once_and_its_model_is_read_back(
    command: list[str], toy_csv: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--protect", "dp-ie", "--epsilon", 40]
    out, err = told(capfd, *command, *words, "--out", tmp_path / "a", "--json")
    done = json.loads(out)
    assert "rows/s" not in err, "its head is solved at once: no step reads a row"
    assert done["guarantee"]["certified"] and 39 < done["guarantee"]["epsilon"] <= 40
    assert done["guarantee"]["adjacency"] == "replace-one"
    assert any("labels are public" in said for said in done["guarantee"]["assumptions"])
    assert Ledger.read(tmp_path / "a" / "ledger.jsonl").spends == 1
    out, _ = told(capfd, "evaluate", tmp_path / "a", toy_csv, "--json")
    assert json.loads(out)["utility"]["accuracy"] == done["utility"]["accuracy"]


def test_dp_ie_projects_by_public_text_and_keeps_labels_noisy(
    command: list[str], toy_csv: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    public = tmp_path / "public.csv"
    lines = [f"the {'heart' if i % 2 else 'knee'} of day {i},{'ward' if i % 2 else 'clinic'}" for i in range(40)]
    public.write_text("text,label\n" + "\n".join(lines) + "\n", encoding="utf-8")
    words = ["--protect", "dp-ie", "--epsilon", 60, "--public", public, "--dimension", 4, "--labels", "noisy"]
    out, err = told(capfd, *command, *words, "--out", tmp_path / "a", "--json")
    done = json.loads(out)
    assert "Public text: 0 of 40 rows were removed" in err
    assert done["guarantee"]["certified"] and done["guarantee"]["epsilon"] <= 60
    assert not any("labels" in said for said in done["guarantee"]["assumptions"])
    weights = load_file(tmp_path / "a" / "model.safetensors")
    assert weights["head.weight"].shape == (2, 4) and weights["query.matrix"].shape == (4, 16)
    out, _ = told(capfd, "evaluate", tmp_path / "a", toy_csv, "--json")
    assert json.loads(out)["utility"]["accuracy"] == done["utility"]["accuracy"]


def test_the_paper_s_calibration_and_a_trained_encoder_are_estimates(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--protect", "dp-ie", "--epsilon", 4, "--calibration", "paper"]
    out, _ = told(capfd, *command, *words, "--out", tmp_path / "a", "--json")
    promise = json.loads(out)["guarantee"]
    assert (
        not promise["certified"] and promise["epsilon"] == 4.0 and "the epsilon of this noise is" in promise["reason"]
    )
    words = ["--protect", "dp-ie", "--epsilon", 4, "--train", "all", "--epochs", 2, "--mix", 2, "--batch-size", 16]
    out, _ = told(capfd, *command, *words, "--out", tmp_path / "b", "--json")
    promise = json.loads(out)["guarantee"]
    assert not promise["certified"] and "encoder was trained on private text" in promise["reason"]
    assert promise["epsilon"] <= 4.0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--protect", "texthide", "--mix", "64"], "Expected --mix to be <= 32, the rows of a batch"),
        (
            ["--protect", "texthide", "--masks", "0", "--fresh-masks"],
            "--masks to be left out with fresh masks",
        ),
        (
            ["--protect", "texthide", "--kappa", "3"],
            "Expected --kappa to be left out for texthide",
        ),
        (["--protect", "texthide", "--accumulate", "2"], "Expected --accumulate to be 1 with texthide"),
        (["--protect", "dp-ie", "--epsilon", "0"], "Expected --epsilon to be > 0"),
        (["--protect", "dp-ie"], "Expected --epsilon for dp-ie"),
        (["--masks", "4"], "Expected --masks to be used with --protect"),
        (["--rows", "1000000000000"], "Expected --rows to be <= 100000000"),
    ],
)
def test_what_does_not_go_is_refused(
    command: list[str], words: list[str], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    _, err = told(capfd, *command, *words, "--out", tmp_path / "a", status=2)
    assert message in err
    assert not (tmp_path / "a").exists()


def test_a_public_corpus_of_pairs_is_refused_beside_single_texts(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--protect", "texthide", "--public", "notes-pairs", "--out", tmp_path / "a"]
    _, err = told(capfd, *command, *words, status=2)
    assert "Expected single texts in the public corpus" in err


def test_fewer_rows_than_asked_for_are_said(
    command: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--rows", 5000, "--train", "head", "--epochs", 1, "--out", tmp_path / "a"]
    assert "Only 106 training rows are available" in told(capfd, *command, *words)[1]


@pytest.mark.parametrize("masks", [["--masks", 4], ["--fresh-masks"]])
def test_what_texthide_hid_is_attacked_as_it_was_hidden(
    command: list[str], masks: list[object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    told(capfd, *command, "--protect", "texthide", "--mix", 2, *masks, "--epochs", 1, "--out", tmp_path / "a")
    out, err = told(capfd, "attack", tmp_path / "a", "--attack", "rss", "--device", "cpu", "--json")
    assert "protected by texthide, like the run's training" in err
    defence = json.loads(out)["release"]["protection"]
    assert defence["mix"] == 2 and defence["masks"] == (4 if "--masks" in masks else 0)


@pytest.fixture
def columned(toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path) -> list[str]:
    """A training on text whose columns have names of their own."""
    lines = toy_csv.read_text(encoding="utf-8").splitlines()
    assert lines[0].split(",")[:2] == ["text", "label"]
    own = tmp_path / "own.csv"
    own.write_text("\n".join([lines[0].replace("text", "body").replace("label", "place"), *lines[1:]]) + "\n")
    model = ["--model", str(tiny_encoder("bert")), "--device", "cpu", "--no-cache", "--epochs", "1"]
    return ["train", str(own), "--text", "body", "--label", "place", *model, "--out", str(tmp_path / "a")]


@pytest.mark.parametrize("protect", [["texthide", "--mix", 2], ["dp-ie", "--epsilon", 40, "--dimension", 3]])
def test_public_text_needs_no_labels(
    columned: list[str], protect: list[object], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    public = tmp_path / "public.csv"
    public.write_text("body\n" + "".join(f"a public line about plant {i} and its leaves\n" for i in range(40)))
    told(capfd, *columned, "--protect", *protect, "--public", public)
    out, _ = told(capfd, "attack", tmp_path / "a", "--attack", "rss", "--device", "cpu", "--json")
    dimension = 3 if "dp-ie" in protect else 16
    assert json.loads(out)["release"]["width"] == dimension


def test_public_text_that_is_built_in_has_columns_of_its_own(
    columned: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    _, err = told(capfd, *columned, "--protect", "texthide", "--public", "notes-pairs", status=2)
    assert "Expected single texts in the public corpus" in err
