import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main


def say(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["data", *arguments])
    out, err = capsys.readouterr()
    return status, out, err


def csv(folder: Path, content: str) -> str:
    path = folder / "a.csv"
    path.write_text(content, encoding="utf-8")
    return str(path)


def test_it_shows_sizes_splits_units_and_three_examples_in_eighty_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = say(capsys, "notes")
    assert (status, err) == (0, "")
    assert "notes: 2,000 rows, 4 classes, 440 patient units" in out
    for words in ("words per row: 16 to 40", "train", "validation", "cardiology", "held out"):
        assert words in out
    assert out.count("\nrow ") == 3
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_one_object_with_the_same_facts(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = say(capsys, "notes", "--rows", "100", "--json")
    facts = json.loads(out)
    assert (status, err) == (0, "")
    assert facts["rows"] == 100
    assert sum(facts["classes"].values()) == 100
    assert facts["splits"]["train"]["rows"] + facts["splits"]["validation"]["rows"] == 100
    assert facts["unit"] == "patient"
    assert len(facts["examples"]) == 3
    assert {"row", "split", "text", "label", "unit"} == set(facts["examples"][0])


def test_pairs_and_scores(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = say(capsys, "notes-pairs-scores", "--rows", "40")
    assert status == 0
    assert "40 rows of pairs, scores" in out
    assert "\nand: " in out
    assert "scores: 0 to 5" in out


def test_the_columns_of_a_file_can_be_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = "".join(f"sentence {i},{'ab'[i % 2]},p{i // 2}\n" for i in range(40))
    path = csv(tmp_path, "body,kind,patient_id\n" + rows)
    status, out, _ = say(capsys, path, "--text", "body", "--label", "kind", "--unit", "patient_id", "--examples", "0")
    assert status == 0
    assert "20 patient units" in " ".join(out.split())
    assert "sentence" not in out


def test_many_classes_and_long_or_hostile_texts_stay_readable(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = "".join(f"[red]\x1b[31m {'word ' * 500},[bold]class {i % 30}\n" for i in range(120))
    status, out, _ = say(capsys, csv(tmp_path, "text,label\n" + rows))
    assert status == 0
    assert "and 18 more classes" in out
    assert "[red]" in out
    assert "\x1b[31m" not in out
    assert len(out) < 5000


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("text,label\nsecret,\n", "missing or NaN"),
        ("text,label\nsecret,1\nsecret,1\n", "at least 2 classes"),
        ("body,label\nsecret,1\n", "column 'text' for text"),
        ("text,label\n,1\nsecret,0\n", "row 1"),
        ("", "empty"),
    ],
)
def test_bad_data_is_refused_with_status_two(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, says: str
) -> None:
    status, out, err = say(capsys, csv(tmp_path, content))
    assert (status, out) == (2, "")
    assert err.startswith("DataError: Expected")
    assert says in err
    assert "secret" not in err


def test_a_missing_file_is_refused_with_status_two(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = say(capsys, "nothing/here.csv")
    assert status == 2
    assert "but there is none. Check the path" in err


def test_doubts_and_unknown_characters_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for split, count in (("train", 30), ("validation", 6)):
        rows = "".join(f"我被重复收费了 {i},{i % 2},c{i}\n" for i in range(count))
        (tmp_path / f"{split}.csv").write_text("text,label,who\n" + rows, encoding="utf-8")
    status, out, _ = say(capsys, str(tmp_path), "--unit", "who", "--json")
    said = " ".join(json.loads(out)["doubts"])
    assert status == 0
    assert "6 of 30 who units are in both train and validation" in said
    assert "6 of 6 validation texts are also training texts" in said
    assert "of the tokens are unknown to minilm" in said


def test_what_train_says_of_private_rows_is_not_in_the_run_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    for split, count in (("train", 30), ("validation", 6)):
        first = 0 if split == "train" else 25  # one of the six texts is no training text
        rows = "".join(f"我被重复收费了 {i},{i % 2},{split} {i}\n" for i in range(first, first + count))
        (tmp_path / f"{split}.csv").write_text("text,label,who\n" + rows, encoding="utf-8")
    command = ["train", tmp_path, "--unit", "who", "--model", tiny_encoder("bert"), "--out", tmp_path / "run"]
    private = ["--train", "head", "--protect", "dp-sgd", "--epsilon", "8", "--epochs", "1", "--noise-seed", "1"]
    assert main([*map(str, command), *private, "--json"]) == 0
    out, err = capsys.readouterr()
    for words in ("5 of 6 validation texts", "of the tokens are unknown"):
        assert "Private detail, do not share this line: " in err and words in err
        assert words not in out
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.suffix in {".json", ".toml", ".md"}]
    assert written
    for content in written:
        assert b"units stand" not in content and b"unknown to" not in content and b"truncated" not in content


def test_what_cannot_be_divided_is_shown_undivided_and_that_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = "".join(f"sentence {i},{'ab'[i % 2]}\n" for i in range(60))
    path = csv(tmp_path, "text,label\n" + rows + "one of its kind,rare\n")
    status, out, _ = say(capsys, path, "--examples", "0")
    words = " ".join(out.split())
    assert status == 0 and "train rejects this" in words and "merge or remove rare classes" in words
    assert "The table above shows all rows of the file, with none held out." in words
    _, out, _ = say(capsys, csv(tmp_path, "text,label\n" + rows), "--examples", "0")
    assert "The table above" not in out
