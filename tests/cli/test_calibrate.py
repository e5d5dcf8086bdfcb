from __future__ import annotations

from pathlib import Path

import pytest

from discreet.cli.main import main

STUDY = """
name = "small"
[data]
source = "notes"
rows = 60
[model]
train = "head"
[[protections]]
name = "none"
[[protections]]
name = "dp-sgd"
epsilon = [8.0]
[[attacks]]
name = "one-of-n"
candidates = 4
[goal]
leakage = "one-of-n/identified"
ceiling = 0.9
"""


def run(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    (folder / "study.toml").write_text(text)
    status = main(["calibrate", str(folder / "study.toml"), "--out", str(folder / "s")])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rows = 60", "row = 60", "Did you mean 'rows'"),
        ('train = "head"', 'tarin = "head"', "Did you mean 'train'"),
        ("epsilon = [8.0]", "epsilon = []", "An empty grid has no trial"),
        ("epsilon = [8.0]", "epsilno = [8.0]", "Did you mean 'epsilon'"),
        ("epsilon = [8.0]", "epsilon = [-1.0]", "epsilon=-1.0"),
        ('name = "dp-sgd"', 'name = "dp-sdg"', "Did you mean 'dp-sgd'"),
        ('name = "one-of-n"', 'name = "one-of-m"', "one-of-n"),
        ("candidates = 4", "candidate = 4", "Did you mean 'candidates'"),
        ("ceiling = 0.9", "ceiling = 0.9\nfloor = 0.5", "either a ceiling or a floor"),
        ('[[protections]]\nname = "none"\n', "", None),
    ],
)
def test_a_bad_study_is_said_in_a_sentence_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str | None
) -> None:
    text = STUDY.replace(old, new, 1)
    if said is None:  # an attack on vectors, and only gradients protected
        text = text.replace('name = "one-of-n"\ncandidates = 4', 'name = "rss"').replace("one-of-n/", "rss/")
        said = "Expected an attack that fits a release"
    status, error = run(tmp_path, text, capsys)
    assert status == 2, error
    assert said in error
    assert "Traceback" not in error
    assert not (tmp_path / "s").exists()


def test_a_report_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "discreet calibrate" in capsys.readouterr().err
    assert main(["calibrate", str(tmp_path / "no.toml"), "--out", str(tmp_path / "s")]) == 2


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "studies").glob("*.toml")), ids=lambda p: p.stem)
def test_every_ready_study_is_one_that_would_run(path: Path) -> None:
    from discreet.calibration.grid import plan
    from discreet.calibration.study import read_study
    from discreet.cli.catalog import attack_of
    from discreet.experiment.study import check

    study = read_study(path)
    check(study, attack_of)
    assert plan(study)
