"""A study: which data, model, protections, attacks and seeds, and how much leakage is too much."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from discreet.core.checks import one_of, refuse
from discreet.core.errors import SettingError
from discreet.core.settings import as_dict, parse, read_values
from discreet.core.types import RELEASES, TRAINING, UPDATE

Table = Mapping[str, Any]
IDENTIFIED = "one-of-n/identified"  # from all updates of the training
OF_UPDATE = "_update"  # ends the name of the same metric of one update


@dataclass(frozen=True)
class Goal:
    """What is asked of the recommendation: the best utility under a ceiling of leakage, or the least leakage above a
    floor of utility.

    `leakage` names an attack and its metric, such as `one-of-n/identified`; `utility` a metric of the task. `release`
    says what leaves: one `update`, all updates of the whole `training`, or the final `model`, which follows from the
    updates, so that what holds for all of them holds for it.
    """

    leakage: str
    ceiling: float | None = None
    utility: str | None = None
    floor: float | None = None
    release: str | None = None

    def __post_init__(self) -> None:
        """Refuse a goal that asks for nothing."""
        if "/" not in self.leakage:
            raise refuse("goal.leakage", self.leakage, "ATTACK/METRIC", "For example one-of-n/identified.")
        if (self.ceiling is None) == (self.floor is None):
            raise SettingError(
                "Expected either a ceiling or a floor in goal. A ceiling of leakage asks for the best utility under "
                "it, a floor of utility for the least leakage above it."
            )
        if self.release is not None:
            one_of("goal.release", self.release, RELEASES)
            if self.release != UPDATE and not self.identifies:
                remedy = "Only 1-of-n is measured on all updates of a training; other attacks read one release."
                raise refuse("goal.release", self.release, f"{UPDATE!r} for {self.leakage}", remedy)
            if self.release != UPDATE and self.leakage.endswith(OF_UPDATE):
                raise refuse("goal.release", self.release, f"{UPDATE!r} for {self.leakage}", "Leave _update out.")

    @property
    def identifies(self) -> bool:
        """Whether the leakage is 1-of-n identification, which is measured on one update and on all of a training."""
        return self.leakage in (IDENTIFIED, IDENTIFIED + OF_UPDATE)

    @property
    def scope(self) -> str:
        """The release that is meant: the whole training where nothing was said and the attack can be run on it."""
        if self.release is not None:
            return self.release
        return TRAINING if self.leakage == IDENTIFIED else UPDATE

    def resolved(self) -> Goal:
        """Return the goal with its release named, and its leakage as the trials name that of the release."""
        leakage = self.leakage
        if self.identifies:
            leakage = IDENTIFIED + (OF_UPDATE if self.scope == UPDATE else "")
        return replace(self, leakage=leakage, release=self.scope)


@dataclass(frozen=True)
class Study:
    """What a study file says, with every list of a protection still a grid."""

    name: str
    data: dict[str, Any]
    protections: tuple[dict[str, Any], ...]
    attacks: tuple[dict[str, Any], ...] = ()
    goal: Goal | None = None
    seeds: tuple[int, ...] = (0,)
    title: str | None = None
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    release: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a study that has nothing to run."""
        if not self.name.strip():
            raise refuse("name", self.name, "a name", "It is the title of the report.")
        for what in ("protections", "attacks"):
            for number, table in enumerate(getattr(self, what)):
                if not isinstance(table.get("name"), str):
                    raise SettingError(f"Expected key 'name' in {what}[{number}]. It says which one is meant.")
        if not self.protections:
            raise refuse("protections", [], "at least one", 'Add [[protections]] with name = "none" to begin with.')
        if not self.seeds:
            raise refuse("seeds", [], "at least one seed", "Several seeds give intervals.")
        if len(set(self.seeds)) != len(self.seeds):
            raise refuse("seeds", list(self.seeds), "each once", "A repeated seed repeats the trial.")
        if self.goal is not None and self.attacks:
            named = [str(table["name"]) for table in self.attacks]
            attack = self.goal.leakage.partition("/")[0]
            if attack not in named:
                raise refuse("goal.leakage", self.goal.leakage, f"of an attack in {', '.join(named)}", "Name one.")

    def as_dict(self) -> dict[str, Any]:
        """Return the study as plain values."""
        return as_dict(self)


def read_study(path: Path) -> Study:
    """Return the study in a TOML file, refusing unknown keys by name."""
    return parse(Study, read_values(path, "study"), path.name)


def changes(before: Table, after: Table, where: str = "") -> list[str]:
    """Return in words every value that differs between two studies as plain values.

    >>> changes({"seeds": [0], "data": {"rows": 5}}, {"seeds": [0], "data": {"rows": 6}})
    ['data.rows was 5 and is 6']
    """
    found: list[str] = []
    for key in [*before, *(k for k in after if k not in before)]:
        name = f"{where}{key}"
        if key not in after:
            found.append(f"{name} was {_short(before[key])} and is gone")
        elif key not in before:
            found.append(f"{name} is new: {_short(after[key])}")
        elif isinstance(before[key], Mapping) and isinstance(after[key], Mapping):
            found += changes(before[key], after[key], f"{name}.")
        elif json.dumps(before[key]) != json.dumps(after[key]):
            found.append(f"{name} was {_short(before[key])} and is {_short(after[key])}")
    return found


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"


def as_toml(study: Table) -> str:
    """Return a study's plain values as a TOML file; a value of None is left out, as is a table with nothing in it.

    >>> print(as_toml({"name": "a", "data": {"source": "notes", "rows": None}, "attacks": [{"name": "dager"}]}))
    name = "a"
    <BLANKLINE>
    [data]
    source = "notes"
    <BLANKLINE>
    [[attacks]]
    name = "dager"
    """
    parts = [_pairs({key: value for key, value in study.items() if not _is_table(value)})]
    for key, value in study.items():
        if isinstance(value, Mapping):
            parts.append(f"[{_key(key)}]\n{_pairs(value)}" if _pairs(value) else "")
        elif _is_table(value):
            parts += [f"[[{_key(key)}]]\n{_pairs(table)}" for table in value]
    return "\n\n".join(part for part in parts if part)


def _is_table(value: Any) -> bool:
    rows = isinstance(value, list | tuple) and bool(value) and all(isinstance(one, Mapping) for one in value)
    return isinstance(value, Mapping) or rows


def _pairs(table: Table) -> str:
    return "\n".join(f"{_key(key)} = {_toml(value)}" for key, value in table.items() if value is not None)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, str):  # TOML escapes as JSON does, and the delete character besides
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool | int):
        return json.dumps(value)
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(one) for one in value) + "]"
    raise refuse("study", type(value).__name__, "text, numbers, lists and tables", "A study file holds nothing else.")
