"""What pyproject.toml asks for: ranges that can be tested at both ends, extras that differ, pins for all of it."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from tests.versions import NEEDS_FLOWER, SETS, requirements
from tests.wheel import first_commands

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
SELF = "discreet["


def asked_for(listed: Iterable[str]) -> list[Requirement]:
    return [Requirement(one) for one in listed if not one.startswith(SELF)]


ALL = asked_for(one for listed in (PROJECT["dependencies"], *EXTRAS.values()) for one in listed)


def test_no_two_extras_are_the_same_and_the_tools_include_all() -> None:
    contents = [tuple(sorted(one.name for one in asked_for(listed))) for listed in EXTRAS.values()]
    assert len(set(contents)) == len(contents)
    (all_extras,) = (one for one in EXTRAS["dev"] if one.startswith(SELF))
    assert set(all_extras.removeprefix(SELF).removesuffix("]").split(",")) == EXTRAS.keys() - {"dev"}


def test_the_readme_names_every_extra() -> None:
    install = (ROOT / "README.md").read_text(encoding="utf-8").split("## Install", 1)[1].split("\n## ", 1)[0]
    assert set(re.findall(r"`([a-z]+)`", install)) >= EXTRAS.keys() - {"dev"}


def test_no_package_is_asked_for_twice() -> None:
    names = [one.name for one in ALL]
    assert sorted(names) == sorted(set(names)), "a bound is written once"


def test_every_package_has_a_pin_that_its_range_allows() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.lower().replace("_", "-").split("==") for line in lines if not line.startswith("#"))
    assert {one.name: pins.get(one.name) for one in ALL if pins.get(one.name, "") not in one.specifier} == {}


@pytest.mark.parametrize("one", SETS, ids=lambda one: one.name)
def test_a_set_of_versions_holds_all_but_what_it_is_without(one: Any) -> None:
    names = {each.name for each in asked_for(requirements(PROJECT, one))}
    assert names == {each.name for each in ALL} - {one.without}


def test_the_oldest_set_is_the_lower_bounds_themselves() -> None:
    oldest = {each.name: str(each.specifier) for each in asked_for(requirements(PROJECT, SETS[0]))}
    bounds = asked_for(one for name in EXTRAS if name != "dev" for one in EXTRAS[name])
    for each in [*bounds, *asked_for(PROJECT["dependencies"])]:
        (bound,) = each.specifier
        assert bound.operator in ("==", ">="), f"{each}: an exact version or a lower bound"
        assert oldest[each.name] == f"=={bound.version}"


def test_the_tests_that_need_flower_are_there() -> None:
    assert [place for place in NEEDS_FLOWER if not (ROOT / place).exists()] == []


def test_a_build_of_torch_can_be_named() -> None:
    chosen = requirements(PROJECT, SETS[0], "torch==2.13.0+cpu")
    assert [one for one in chosen if one.startswith("torch")] == ["torch==2.13.0+cpu"]


def test_the_first_commands_of_the_readme_train_and_use_a_private_run() -> None:
    commands = first_commands()
    assert any("train notes" in one and "--protect dp-sgd --epsilon 3" in one for one in commands)
    for word in ("--help", "evaluate", "predict", "ledger", "statement"):
        assert any(f"discreet {word}" in one for one in commands), word
