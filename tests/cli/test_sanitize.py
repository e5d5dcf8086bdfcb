import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main

ROWS = 'id,text,label\n1,"the film, was good",x\n2,"sharp, pain!",y\n'


@pytest.fixture
def encoder(tiny_encoder: Callable[[str], Path]) -> str:
    return str(tiny_encoder("bert"))


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    path = tmp_path / "notes.csv"
    path.write_text(ROWS, encoding="utf-8")
    return path


def say(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = main(["sanitize", *map(str, arguments)])
    out, err = capsys.readouterr()
    return status, out, err


def test_columns_are_kept_and_the_account_is_short(
    capsys: pytest.CaptureFixture[str], notes: Path, encoder: str
) -> None:
    out = notes.with_name("clean.csv")
    status, said, err = say(capsys, notes, "--epsilon-per-word", 8, "--out", out, "--model", encoder)
    assert status == 0
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [(row["id"], row["label"]) for row in rows] == [("1", "x"), ("2", "y")]
    assert [len(row["text"].split()) for row in rows] == [5, 4]
    assert "words" in err
    for words in (
        "of 9 words",
        "Certified: replacing one word by any other has epsilon = 8",
        "40 for the longest",
        "id, label",
    ):
        assert words in said
    assert len(said.splitlines()) <= 7
    files = sorted(path.name for path in notes.parent.iterdir())
    assert files == ["clean.csv", "clean.csv.privacy.json", "notes.csv"]


def test_prices_are_rounded_up(capsys: pytest.CaptureFixture[str], notes: Path, encoder: str) -> None:
    out = notes.with_name("clean.csv")
    said = say(capsys, notes, "--epsilon-per-word", 8.0000041, "--out", out, "--model", encoder)[1]
    assert "has epsilon = 8.00001 and" in said  # and not 8
    assert "40.0001 for the longest" in said


def test_json_has_the_guarantees(capsys: pytest.CaptureFixture[str], notes: Path, encoder: str) -> None:
    out = notes.with_name("clean.jsonl")
    options = ("--epsilon-per-word", 0.5, "--out", out, "--model", encoder, "--json", "--seed", 3)
    status, said, _ = say(capsys, notes, *options)
    facts = json.loads(said)
    assert status == 0
    assert facts["per_word"]["epsilon"] == 0.5
    assert facts["per_text"]["epsilon"] == 2.5
    assert facts["per_word"]["certified"] is False
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert list(lines[0]) == ["id", "text", "label"]
    assert say(capsys, notes, *options, "--force")[0] == 0
    assert [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] == lines


@pytest.mark.parametrize("ending", ["tsv", "jsonl", "json", "parquet", "txt"])
def test_each_format_is_read_again_as_it_was_written(
    capsys: pytest.CaptureFixture[str], notes: Path, encoder: str, ending: str
) -> None:
    rich = ("--epsilon-per-word", 1e6, "--model", encoder)
    first, second = notes.with_name(f"a.{ending}"), notes.with_name(f"b.{ending}")
    if ending == "txt":
        first.write_text("the film\n\nsharp pain\n", encoding="utf-8")
    else:
        assert say(capsys, notes, *rich, "--out", first)[0] == 0
    assert say(capsys, first, *rich, "--out", second)[0] == 0
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("--epsilon-per-word", "0"), "Expected --epsilon-per-word to be > 0"),
        (("--epsilon-per-word", "nan"), "epsilon-per-word"),
        (("--text", "body"), "column 'body'"),
        (("--mechanism", "santxt"), "Did you mean 'santext'"),
        (("--mechanism", "santext+"), "--sensitive"),
        (("--unknown", "refuse"), "word 2 of text 2 is not"),
        (("--model", "/nowhere"), "/nowhere"),
        (("--format", "xml"), "Expected --format to be"),
        (("--out", "/tmp/never-written.txt"), "one column to write a text file"),
    ],
)
def test_bad_settings_leave_no_file(
    capsys: pytest.CaptureFixture[str], notes: Path, encoder: str, change: tuple[str, str], words: str
) -> None:
    notes.write_text(ROWS.replace("sharp", "sharp zebra"), encoding="utf-8")
    options = {"--epsilon-per-word": "8", "--model": encoder, "--out": str(notes.with_name("clean.csv"))}
    options |= {change[0]: change[1]}
    status, _, err = say(capsys, notes, *[part for pair in options.items() for part in pair])
    assert status == 2
    assert words in err
    assert list(notes.parent.iterdir()) == [notes]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"id,text\n", "got none"),
        (b"id,text\n1,\n", "row 1"),
        (b"id,text\n1,\xff\n", "UTF-8"),
        (b"id,text,text\n1,a,b\n", "text"),
    ],
)
def test_bad_files_are_refused(
    capsys: pytest.CaptureFixture[str], notes: Path, encoder: str, content: bytes, words: str
) -> None:
    notes.write_bytes(content)
    out = notes.with_name("clean.csv")
    status, _, err = say(capsys, notes, "--epsilon-per-word", 8, "--out", out, "--model", encoder)
    assert status == 2
    assert words in err
    assert not out.exists()


def test_nothing_is_overwritten_silently(capsys: pytest.CaptureFixture[str], notes: Path, encoder: str) -> None:
    out = notes.with_name("clean.csv")
    out.write_text("mine", encoding="utf-8")
    for place, words in ((out, "--force"), (notes, "differ from the input"), (notes.parent, "folder")):
        status, _, err = say(capsys, notes, "--epsilon-per-word", 8, "--out", place, "--model", encoder)
        assert status == 2
        assert words in err
    assert (out.read_text(encoding="utf-8"), notes.read_text(encoding="utf-8")) == ("mine", ROWS)
    assert say(capsys, notes, "--epsilon-per-word", 8, "--out", out, "--model", encoder, "--force")[0] == 0
    assert out.read_text(encoding="utf-8").startswith("id,text,label\n")


def test_a_full_disk_is_said_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], notes: Path, encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("discreet.core.files.os.fsync", full)
    out = notes.with_name("clean.csv")
    status, _, err = say(capsys, notes, "--epsilon-per-word", 8, "--out", out, "--model", encoder)
    assert status == 2
    assert "No space left" in err
    assert list(notes.parent.iterdir()) == [notes]


def test_santext_plus_takes_a_list_or_public_text(
    capsys: pytest.CaptureFixture[str], notes: Path, encoder: str
) -> None:
    words = notes.with_name("words.txt")
    words.write_text("pain\nheart\nknee\n", encoding="utf-8")
    out = notes.with_name("clean.csv")
    options = ("--epsilon-per-word", 8, "--mechanism", "santext+", "--model", encoder, "--out", out, "--force")
    status, said, _ = say(capsys, notes, *options, "--sensitive", words)
    assert status == 0
    assert "one sensitive word" in said
    assert "no guarantee for a whole text: words that do not count as sensitive" in said
    assert say(capsys, notes, *options, "--public", words)[0] == 0
    assert say(capsys, notes, *options, "--public", words, "--sensitive", words)[0] == 2


@pytest.mark.slow
def test_stdin_and_stdout(encoder: str) -> None:
    base = [sys.executable, "-m", "discreet", "sanitize", "-", "--out", "-", "--model", encoder]
    base += ["--epsilon-per-word", "1e6"]
    run = subprocess.run([*base, "--format", "csv"], input=ROWS, capture_output=True, text=True, check=True)
    assert run.stdout == 'id,text,label\n1,"the film , was good",x\n2,"sharp , pain !",y\n'
    assert "words" in run.stderr
    run = subprocess.run(base, input="the film\n", capture_output=True, text=True, check=True)
    assert run.stdout == "the film\n"
    run = subprocess.run(base, input="", capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "")


def test_a_training_reads_rewritten_text_and_counts_its_wordiest_row(
    capsys: pytest.CaptureFixture[str], encoder: str, toy_csv: Path, tmp_path: Path
) -> None:
    arguments = ["train", str(toy_csv), "--model", encoder, "--train", "head", "--epochs", "1", "--json"]
    arguments += ["--protect", "santext", "--out", str(tmp_path / "run")]
    assert main([*arguments, "--epsilon-per-word", "2"]) == 0
    promise = json.loads(capsys.readouterr().out)["guarantee"]
    assert promise["epsilon"] == pytest.approx(12, rel=1e-3)  # "the … heart was … 17" has six words
    assert (promise["certified"], promise["adjacency"]) == (True, "replace-one")
    assert "each word alone has epsilon = 2" in promise["sentence"]
    assert (tmp_path / "run" / "ledger.jsonl").is_file()
    arguments[-1] = str(tmp_path / "other")
    for price, words in (
        ("0", "Expected --epsilon-per-word to be > 0 and finite, got 0.0"),
        (None, "Expected --epsilon-per-word"),
    ):
        assert main([*arguments, *(("--epsilon-per-word", price) if price else ())]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_an_epsilon_that_protects_nothing_is_called_so(
    capsys: pytest.CaptureFixture[str], notes: Path, encoder: str
) -> None:
    for price, warned in ((1, False), (50, True)):
        out = notes.with_name(f"{price}.csv")
        status, said, _ = say(capsys, notes, "--epsilon-per-word", price, "--out", out, "--model", encoder)
        assert status == 0 and ("An epsilon above 100 is no practical protection." in said) is warned
