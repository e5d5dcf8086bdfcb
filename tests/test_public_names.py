"""The public names are true: each can be imported, is typed, and says what it is and how it is used."""

import ast
import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import discreet
from discreet import catalog
from discreet.core.lazy import front_door

SOURCE = Path(discreet.__file__).parent
MOST = 50  # names at the top
# Packages that import their names on first use; `study` has few and imports them at once.
DOORS = [name for name in discreet._PACKAGES if name not in {"catalog", "study"}]
# What users call on the objects of the top names; the methods of protections are called by the training.
CALLED = ("TextClassifier", "PrivateTraining", "TextSource", "Corpus", "Guarantee", "Ledger", "Attack", "Rng")


def door(name: str) -> ModuleType:
    return discreet if name == "discreet" else importlib.import_module(f"discreet.{name}")


def parameters(thing: Any) -> list[str]:
    if inspect.isclass(thing) and issubclass(thing, enum.Enum):
        return []
    found = inspect.signature(thing).parameters.values()
    return [one.name for one in found if one.name not in {"self", "args", "kwargs"}]


def documentation(thing: Any) -> str:
    """Return the docstring of a function, or of a class and its constructor."""
    own = inspect.getdoc(thing) or ""
    return f"{own}\n{inspect.getdoc(thing.__init__) or ''}" if inspect.isclass(thing) else own


def described(text: str) -> dict[str, str]:
    """Return the entries of the section Args of a docstring."""
    entries: dict[str, str] = {}
    for section in re.findall(r"^Args:\n((?:    .*\n?|\n(?=    ))+)", text, re.M):
        for name, words in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section, re.M):
            entries[name] = " ".join(words.split())
    return entries


def test_the_top_has_few_names_and_each_is_what_it_is_called() -> None:
    assert len(discreet.__all__) <= MOST
    assert len(set(discreet.__all__)) == len(discreet.__all__)
    assert set(discreet.__all__) | set(discreet._PACKAGES) == set(dir(discreet))
    for name in discreet.__all__:
        assert getattr(discreet, name).__name__ == name
    for name in discreet._PACKAGES:
        assert getattr(discreet, name).__name__ == f"discreet.{name}"


@pytest.mark.parametrize("name", discreet.__all__)
def test_a_name_at_the_top_describes_its_parameters_and_has_an_example(name: str) -> None:
    thing = getattr(discreet, name)
    text = documentation(thing)
    assert text.split("\n")[0].endswith((".", ":")), "one sentence first"
    assert ">>> " in text or "```python" in text, "an example"
    assert [one for one in parameters(thing) if one not in described(text)] == []


def methods() -> Iterator[tuple[str, Any]]:
    for owner in CALLED:
        for name, value in vars(getattr(discreet, owner)).items():
            function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if inspect.isfunction(function) and not name.startswith("_"):
                yield f"{owner}.{name}", function


@pytest.mark.parametrize(("name", "method"), list(methods()), ids=[name for name, _ in methods()])
def test_a_method_that_users_call_describes_its_parameters(name: str, method: Any) -> None:
    known = described(inspect.getdoc(method) or "")
    assert [one for one in parameters(method) if one != "cls" and one not in known] == []


@pytest.mark.parametrize("name", DOORS)
def test_every_name_of_a_package_is_there_and_explains_itself(name: str) -> None:
    package = door(name)
    assert package.__all__ and set(package.__all__) <= set(dir(package))
    for public in package.__all__:
        thing = getattr(package, public)
        assert thing.__name__ == public and inspect.getdoc(thing), public
        if inspect.isfunction(thing):
            text = inspect.getdoc(thing) or ""
            assert [one for one in parameters(thing) if not re.search(rf"\b{one}\b", text)] == [], public


@pytest.mark.parametrize("name", DOORS)
def test_no_module_of_a_package_hides_a_name_of_it(name: str) -> None:
    """Importing `package.evaluate` would set an attribute of the package, and hide a function of that name."""
    folder = SOURCE / name
    modules = {one.stem for one in folder.glob("*.py")} | {one.name for one in folder.iterdir() if one.is_dir()}
    assert modules & set(door(name).__all__) == set()


def typed(name: str) -> set[tuple[str, str]]:
    """Return the modules and names that a front door imports for type checkers."""
    path = SOURCE / ("" if name == "discreet" else name) / "__init__.py"
    blocks = [
        node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    found = set()
    for node in (one for block in blocks for one in block.body):
        assert isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names:
            assert alias.asname == alias.name, "an import without `as` is not exported to type checkers"
            found.add((node.module, alias.name))
    return found


@pytest.mark.parametrize("name", ["discreet", *DOORS])
def test_type_checkers_see_the_names_that_are_there(name: str) -> None:
    package = door(name)
    table = {(module, public) for module, names in package._NAMES.items() for public in names}
    packages = {("discreet", one) for one in getattr(package, "_PACKAGES", ())}
    assert typed(name) == table | packages
    assert len(table) == len(package.__all__), "a module occurs once in the table"


def test_what_the_catalog_has_is_reached_by_one_import() -> None:
    for table, package in (
        (catalog.ATTACKS, discreet.attacks),
        (catalog.PROTECTIONS, discreet.protections),
        (catalog.AGGREGATIONS, discreet.federated),
    ):
        for entry in table.values():
            kind = entry.load()
            assert getattr(package, kind.__name__) is kind
    assert discreet.PrivateTrainer is discreet.integrations.PrivateTrainer
    for package, names in (
        (discreet.audit, {"audit", "audit_run", "audit_many_runs", "audit_one_run", "audit_sequentially"}),
        (discreet.federated, {"Federation", "federate"}),
        (discreet.training, {"TrainingPlan", "train", "SearchPlan", "tune", "evaluate", "predict"}),
    ):
        assert names <= set(package.__all__)


def test_what_moved_behind_a_package_is_not_at_the_top() -> None:
    for name in ("guarantee", "attack", "train", "tune", "Dager", "Gaussian", "no_such_name"):
        assert not hasattr(discreet, name)


def test_an_option_has_one_description() -> None:
    """The help of an option of the command line begins the description of the argument in Python."""
    compared = 0
    for name in discreet.__all__:
        thing = getattr(discreet, name)
        for one in dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ():
            if "help" in one.metadata and name != "RunRequest":
                words = described(documentation(thing))[one.name]
                assert words.startswith(" ".join(one.metadata["help"].split())), f"{name}.{one.name}"
                compared += 1
    assert compared > 70


def test_an_unknown_name_is_an_attribute_error() -> None:
    find, listed, public = front_door("discreet.core", {"discreet.core.task": ("Task",)})
    assert listed() == public == ["Task"]
    with pytest.raises(AttributeError, match=r"module 'discreet.core' has no attribute 'Tusk'"):
        find("Tusk")
    assert not hasattr(discreet.attacks, "no_such_name")
