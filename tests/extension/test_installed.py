"""A package of its own, installed with pip: used from the commands, a study with two workers, and Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.extension.installing import installed, written

from discreet.core.guarantee import Caveat
from discreet.study.store import read_trials

QUIET = '''"""A protection that says it is DP-SGD, and halves the noise."""

from dataclasses import dataclass
from typing import ClassVar

from discreet.protections.dp_sgd import DPSGD


@dataclass(frozen=True)
class Quiet(DPSGD):
    """Clips as DP-SGD does, and adds half of its noise."""

    name: ClassVar[str] = "quiet"

    def releaser(self, source):
        release = super().releaser(source)

        def halved(sums, step):
            before = {name: value.clone() for name, value in sums.items()}
            return {name: (before[name] + value) / 2 for name, value in release(sums, step).items()}

        return halved
'''
STUDY = """
name = "plug-ins"
[data]
source = "notes"
rows = 90
[model]
encoder = "{encoder}"
train = "head"
[training]
epochs = 1
[[protect]]
name = "none"
[[protect]]
name = "discreet_quiet:Quiet"
noise_multiplier = 2.0
[[attack]]
name = "frequent-words"
words = 3
examples = 4
[[attack]]
name = "rss"
examples = 4
metrics = ["first_word"]
"""


@pytest.fixture(scope="module")
def path(site: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folders of the example package and of a protection with a guarantee, for PYTHONPATH."""
    folder = tmp_path_factory.mktemp("quiet")
    quiet = written(
        folder / "source", "discreet-quiet", QUIET, {"discreet.protections": {"quiet": "discreet_quiet:Quiet"}}
    )
    return os.pathsep.join(map(str, (site, installed(quiet, folder))))


@pytest.fixture
def run(path: str, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """A function that runs Python in a process of its own, in which the packages are installed."""
    environment = {**os.environ, "PYTHONPATH": path, "DISCREET_HOME": str(tmp_path / "home")}

    def command(*words: object) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, *map(str, words)]
        return subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False, cwd=tmp_path)

    return command


def test_a_run_is_trained_under_it_attacked_by_it_and_measured_by_it(
    run: Callable[..., subprocess.CompletedProcess[str]],
    toy_csv: Path,
    tiny_encoder: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    encoder, out = tiny_encoder("bert"), tmp_path / "run"
    train = [
        "train",
        toy_csv,
        "--model",
        encoder,
        "--train",
        "head",
        "--epochs",
        1,
        "--json",
        "--classes",
        "clinic,ward",
    ]
    said = run("-m", "discreet", *train, "--protect", "quiet", "--noise-multiplier", 2, "--out", out)
    assert said.returncode == 0, said.stderr
    done = json.loads(said.stdout)
    assert done["protection"]["name"] == "quiet" and done["guarantee"]["caveats"] == [Caveat.THIRD_PARTY_PROTECTION]
    assert done["guarantee"]["epsilon"] > 0 and "Estimate, not a bound" in done["guarantee"]["sentence"]
    attack = ["attack", "--model", encoder, "--data", toy_csv, "--examples", 4, "--json"]
    said = run("-m", "discreet", *attack, "--attack", "frequent-words")
    assert said.returncode == 0 and json.loads(said.stdout)["attack"] == "frequent-words", said.stderr
    code = f"""
from pathlib import Path
from discreet import load_run
from discreet.catalog import attack_of, metrics
protect = load_run(Path({str(out)!r})).settings.protect
print(type(protect).__module__, protect.noise_multiplier, attack_of("frequent-words").words)
print(metrics()["first_word"].score("a b", "a c"))
"""
    said = run("-c", code)
    assert said.stdout.split() == ["discreet_quiet", "2.0", "5", "1.0"], said.stderr


def test_a_study_with_two_workers_finds_it(
    run: Callable[..., subprocess.CompletedProcess[str]], tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "study.toml").write_text(STUDY.format(encoder=tiny_encoder("bert")), encoding="utf-8")
    said = run("-m", "discreet", "calibrate", "study.toml", "--out", "s", "--workers", 2, "--no-report", "--json")
    assert said.returncode == 0, said.stderr
    trials = {trial.settings["protect"]["name"]: trial for trial in read_trials(tmp_path / "s").values()}
    guarantee = trials["discreet_quiet:Quiet"].guarantee
    assert guarantee is not None and guarantee.caveats == {Caveat.THIRD_PARTY_PROTECTION}
    measured = {leak.metric for leak in trials["none"].leakages}
    assert {"rss/first_word", "frequent-words/bag_recall"} <= measured


def test_a_run_whose_protection_is_not_installed_says_so(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    code = """
from discreet.catalog import protection_from_table
from discreet.core.errors import SettingError
for name in ("redacted-otherwise", "no_such_package.module:Redact"):
    try:
        protection_from_table({"name": name})
    except SettingError as error:
        print(error)
"""
    first, second = run("-c", code).stdout.splitlines()
    assert "No installed package has a protection of this name." in first
    assert "install its package, or put its folder on PYTHONPATH" in second
