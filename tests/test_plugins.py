"""Names of other packages: what is looked up when, and what is said of a plug-in that cannot be used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.extension.conftest import add as add  # a fixture
from tests.extension.installing import installed, written

from discreet import plugins
from discreet.catalog import ATTACKS, CORPORA, PROTECTIONS, attack_of, metrics, protection_class
from discreet.cli.main import main
from discreet.core.errors import DataError, SettingError
from discreet.data.sources import TextSource
from discreet.plugins import PlugInError, is_of_package, name_of
from discreet.protections.dp_sgd import DPSGD

MODULE = '''"""Attacks that are none, and one that is."""
from dataclasses import dataclass
from typing import ClassVar

from discreet.attacks.base import Attack, VectorAttack
from discreet.core.types import Guess, RepresentationRelease
from discreet.metrics.table import Compares, Metric


@dataclass(frozen=True)
class Good(VectorAttack):
    """Guesses nothing."""

    name: ClassVar[str] = "good"

    def run(self, seen, knows, rng):
        return Guess(texts=("",) * len(seen.vectors))


@dataclass(frozen=True)
class Unfinished(VectorAttack):
    name: ClassVar[str] = "unfinished"


@dataclass(frozen=True)
class SeesNothing(Attack):
    name: ClassVar[str] = "sees-nothing"

    def run(self, seen, knows, rng):
        return Guess(texts=())


class Ordinary(VectorAttack):
    name: ClassVar[str] = "ordinary"

    def run(self, seen, knows, rng):
        return Guess(texts=())


@dataclass
class Changing(Ordinary):
    name: ClassVar[str] = "changing"


class Alone:
    """Subclasses nothing."""


def function():
    """Return nothing."""


def no_corpus(seed=0, count=3):
    """Return no corpus."""
    return ["a text"]


EMPTY = Metric("empty", "empty", "empty", Compares.TEXTS)
'''
POINTS = {
    "discreet.attacks": {
        "good": "plug_in:Good",
        "unfinished": "plug_in:Unfinished",
        "sees-nothing": "plug_in:SeesNothing",
        "ordinary": "plug_in:Ordinary",
        "changing": "plug_in:Changing",
        "alone": "plug_in:Alone",
        "function": "plug_in:function",
        "missing": "plug_in:Missing",
        "renamed": "plug_in:Good",
        "module": "plug_in",
        "nowhere": "plug_in_of_nobody:Good",
        "dager": "plug_in:Good",
    },
    "discreet.protections": {"good": "plug_in:Good"},
    "discreet.metrics": {"empty": "plug_in:EMPTY", "function": "plug_in:function"},
    "discreet.corpora": {"function": "plug_in:function", "no-corpus": "plug_in:no_corpus", "alone": "plug_in:Alone"},
}
# What the sentence about a plug-in says besides its name and its package.
FAULTS = {
    "unfinished": "to be complete, got a class without run",
    "sees-nothing": "does not declare `sees`",
    "ordinary": "a frozen dataclass",
    "changing": "a dataclass that is not frozen",
    "alone": "a subclass of discreet.attacks.base.Attack, got the class Alone",
    "function": "a subclass of discreet.attacks.base.Attack, got a function",
    "missing": "importable, got AttributeError",
    "renamed": "named like its entry point, got the name 'good'",
    "module": "of the form module:Name",
    "nowhere": "importable, got ModuleNotFoundError",
    "dager": "'dager' is built in",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which a package with good and bad plug-ins is installed."""
    here = tmp_path_factory.mktemp("bad")
    return installed(written(here / "source", "plug-in", MODULE, POINTS, "2.1"), here)


@pytest.fixture
def bad(folder: Path, add: Callable[[Path], None]) -> None:
    """The package in this process."""
    add(folder)


@pytest.mark.usefixtures("bad")
@pytest.mark.parametrize("name", FAULTS)
def test_a_bad_plug_in_is_reported_in_one_sentence_with_its_name_and_package(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = {one.plug_in.name: one for one in ATTACKS.listed()}
    assert FAULTS[name] in listed[name].fault and listed[name].entry is None
    assert f"the attack {name!r} of the package plug-in 2.1" in listed[name].fault
    if not ATTACKS.owns(name):
        with pytest.raises(PlugInError) as raised:
            attack_of(name)
        assert str(raised.value) == listed[name].fault
        assert main(["attack", "--attack", name]) == 2
        assert f"PlugInError: Expected the attack {name!r}" in capsys.readouterr().err


@pytest.mark.usefixtures("bad")
def test_nothing_else_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    assert {*ATTACKS.usable()} == {*ATTACKS, "good"} and type(attack_of("dager")).__name__ == "Dager"
    assert attack_of("good").label == "good" and attack_of("good").summary == "Guesses nothing."
    assert main(["names"]) == 0
    said = capsys.readouterr()
    assert "plug-in 2.1\tGuesses nothing." in said.out and "DP-SGD" not in said.err
    assert all(fault in said.err.replace("\n", " ") for fault in FAULTS.values())
    for command in (["attack", "--help"], ["train", "--help"], ["train", "--help-all"], ["data", "notes", "--json"]):
        assert main(command) == 0
    with pytest.raises(SettingError, match="'god'. Did you mean 'good'"):
        attack_of("god")


@pytest.mark.usefixtures("bad")
def test_every_kind_says_what_it_is_not() -> None:
    with pytest.raises(PlugInError, match="a subclass of discreet.protections.base.Protection, got the class Good"):
        protection_class("good")
    for name, said in (("empty", "a metric without a function"), ("function", "discreet.metrics.table.Metric")):
        with pytest.raises(PlugInError, match=said):
            metrics()[name]
    for name in ("function", "alone"):
        with pytest.raises(PlugInError, match="takes `seed` and `count`"):
            CORPORA[name]
    with pytest.raises(DataError, match="Expected a Corpus from plug_in:no_corpus, got list"):
        TextSource("no-corpus").load()


def test_two_packages_with_the_same_name_are_both_named(
    tmp_path: Path, folder: Path, add: Callable[[Path], None]
) -> None:
    points = {"discreet.attacks": {"good": "other:Good"}}
    add(folder)
    add(installed(written(tmp_path / "source", "other", MODULE, points), tmp_path))
    with pytest.raises(PlugInError, match=r"got other 1.0 and plug-in 2.1\. Uninstall one of them, or name the class"):
        attack_of("good")
    assert type(attack_of("plug_in:Good")).__module__ == "plug_in"


def test_a_module_that_raises_when_it_is_imported_breaks_nothing(tmp_path: Path, add: Callable[[Path], None]) -> None:
    points = {"discreet.attacks": {"raising": "raising:Any"}}
    add(installed(written(tmp_path / "source", "raising", "raise SystemExit('two\\nlines')\n", points), tmp_path))
    with pytest.raises(PlugInError, match="importable, got SystemExit: two. Fix or uninstall"):
        attack_of("raising")
    assert ATTACKS.known("raising") is None and "raising" not in ATTACKS.usable()


def test_a_class_is_named_by_its_module() -> None:
    assert attack_of("discreet.attacks.span.dager:Dager") == attack_of("dager")
    for name, said in (
        ("no_such_module_of_anybody:Any", "install its package, or put its folder on PYTHONPATH"),
        ("discreet.core.errors:whole", "a subclass of"),
        ("antigravity:fly", "the standard-library module 'antigravity'"),
    ):
        with pytest.raises(PlugInError, match=said):
            attack_of(name)
    assert "antigravity" not in sys.modules
    assert is_of_package(DPSGD) and name_of(DPSGD, "protection", "dp-sgd") == "dp-sgd"


def test_a_module_of_the_working_folder_is_not_imported_by_its_name_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted_here.py").write_text("raise AssertionError('it was imported')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(PlugInError, match="in a folder of PYTHONPATH, or installed"):
        attack_of("planted_here:Any")
    (tmp_path / "mpmath.py").write_text("raise AssertionError('it was imported')\n")
    monkeypatch.delitem(sys.modules, "mpmath", raising=False)
    with pytest.raises(PlugInError, match="in a folder of PYTHONPATH, or installed"):
        attack_of("mpmath:Any")  # it stands before the installed package of its name
    assert {"planted_here", "mpmath"}.isdisjoint(sys.modules)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(PlugInError, match="it was imported"):
        attack_of("planted_here:Any")


def test_entry_points_are_read_only_for_names_that_are_not_built_in(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(plugins, "plug_ins", lambda kind: read.append(kind) or ())
    assert ATTACKS["dager"] and "dager" in ATTACKS and PROTECTIONS.check("protect", "dp-sgd")
    assert "rows.csv" not in CORPORA and "hub:imdb" not in CORPORA and "data/rows" not in CORPORA
    assert attack_of("lamp") and [*metrics()] and not ATTACKS.owns("god") and read == []
    assert "god" not in ATTACKS and read == ["attack"]


def test_import_and_help_read_no_entry_points() -> None:
    code = (
        "import importlib.metadata as metadata\n"
        "def never(**given): raise AssertionError('entry points were read')\n"
        "metadata.entry_points = never\n"
        "import discreet\nfrom discreet.cli.main import main\n"
        "assert main(['--help']) == 0 and main(['train', '--help']) == 0 and main(['attack', '--help']) == 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
