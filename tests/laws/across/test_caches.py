"""What is left of private text: nothing by default where a run is protected, and for its owner only elsewhere."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main
from discreet.models.build import cache_folder, cached

PROTECTIONS = {
    "none": [],
    "dp-sgd": ["--protect", "dp-sgd", "--noise-multiplier", "1"],
    "dp-ie": ["--protect", "dp-ie", "--epsilon", "8"],
    "ldp": ["--protect", "ldp", "--epsilon", "8", "--dimension", "8", "--query-dimension", "8"],
}


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISCREET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def train(toy_csv: Path, encoder: Path, out: Path, *more: str) -> int:
    model = ["--model", str(encoder), "--train", "head", "--epochs", "1", "--batch-size", "20"]
    return main(["train", str(toy_csv), "--out", str(out), *model, *more])


@pytest.mark.parametrize("name", list(PROTECTIONS))
def test_a_protected_run_keeps_no_vector_unless_asked(
    name: str, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "public.csv"
    other.write_text("text,label\n" + "".join(f"a slow film {i},{i % 2}\n" for i in range(40)), encoding="utf-8")
    public = ["--public", str(other)] if name == "ldp" else []
    for out, more in (("default", []), ("asked", ["--cache"])):
        kept = cached().files
        assert train(toy_csv, tiny_encoder("bert"), tmp_path / out, *PROTECTIONS[name], *public, *more) == 0
        shown = capsys.readouterr().err
        asked = name == "none" or out == "asked"
        assert (str(cache_folder()) in shown and "discreet cache clear" in shown) is asked
        # Public text is kept in any case; of the private text, train and validation vectors are two files.
        assert (cached().files - kept >= 2) is asked or (name == "none" and kept)


def test_what_is_kept_is_for_its_owner_only_and_can_be_cleared(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(toy_csv, tiny_encoder("bert"), tmp_path / "run") == 0
    folder = cache_folder()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    files = list(folder.glob("*.safetensors"))
    assert files and {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    (folder / "notes.txt").write_text("not the cache's own")
    assert main(["cache"]) == 0
    assert str(folder) in capsys.readouterr().out.replace("\n", "")
    assert main(["cache", "clear"]) == 0
    assert cached().files == 0 and [path.name for path in folder.iterdir()] == ["notes.txt"]
    assert main(["cache", "burn"]) == 2


def test_no_figure_about_the_rows_of_a_protected_run_is_printed(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    protected, plain = tmp_path / "protected", tmp_path / "plain"
    assert train(toy_csv, tiny_encoder("bert"), protected, *PROTECTIONS["dp-sgd"]) == 0
    assert train(toy_csv, tiny_encoder("bert"), plain) == 0
    same = [str(toy_csv)]
    for options in (["--split", "train"], ["--seed", "5"], ["--text", "label"]):
        capsys.readouterr()
        assert main(["evaluate", str(protected), *same, *options]) == 2
        shown = capsys.readouterr()
        assert "protected" in shown.err or "that of the run" in shown.err
        assert "accuracy" not in shown.out
    assert main(["evaluate", str(protected), *same]) == 0
    assert main(["evaluate", str(protected), *same, "--seed", "0", "--text", "text"]) == 0
    assert main(["evaluate", str(plain), *same, "--split", "train"]) == 0


def test_a_run_without_held_out_rows_is_not_evaluated_on_its_own_data(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert train(toy_csv, tiny_encoder("bert"), out, *PROTECTIONS["dp-sgd"], "--validation", "0") == 0
    capsys.readouterr()
    assert main(["evaluate", str(out), str(toy_csv)]) == 2
    assert "accuracy" not in capsys.readouterr().out
