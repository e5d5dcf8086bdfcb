"""The JSON schema of study files, from the classes that read them; editors complete and check a study by it.

`study.schema.json` beside this file is a copy of it: `python -m discreet.study.schema` writes it again.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from discreet.catalog import ATTACKS, PROTECTIONS, attack_class, metrics, protection_class, settings_of_protection
from discreet.core.schema import DRAFT, closed, of_field, of_type, table
from discreet.study.file import NONE, REQUEST_KEYS, TABLES, Goal, Study

FILE = "study.schema.json"
_NAME, _REQUEST = "name", "request"
_Kind = tuple[str, dict[str, Any]]  # a protection or an attack: its help, and the schema of each of its keys


def study_schema(plug_ins: bool = False) -> dict[str, Any]:
    """Return the JSON schema of a study file: its keys with their types, ranges, defaults and help.

    Args:
        plug_ins: Whether protections, attacks and metrics of other installed packages are in it.
    """
    of_protection = PROTECTIONS.usable() if plug_ins else PROTECTIONS
    of_attack = ATTACKS.usable() if plug_ins else ATTACKS
    measured = metrics().usable() if plug_ins else metrics()
    hints = typing.get_type_hints(Study)
    fields = {one.name: one for one in dataclasses.fields(Study)}
    keys = {name: of_field(one, hints[name]) for name, one in fields.items()}
    protections: dict[str, _Kind] = {NONE: ("No protection: the baseline.", {})}
    protections |= {name: (entry.help, _of_protection(name)) for name, entry in of_protection.items()}
    attacks = {name: (entry.help, _of_attack(name)) for name, entry in of_attack.items()}
    tables = {
        **{key: _about(keys[key]) | table(kind) for key, kind in TABLES.items()},
        "protect": keys["protect"] | {"items": _by_name(protections, "protect")},
        "attack": keys["attack"] | {"items": _by_name(attacks, "attack")},
        "goal": _about(keys["goal"]) | _of_goal(attacks),
    }
    named = {f"{_REQUEST}-{key}": value for key, value in _request_keys(measured).items()}
    named |= {f"protect-{name}": _named(name, *one) for name, one in protections.items()}
    named |= {f"attack-{name}": _named(name, *one) for name, one in attacks.items()}
    needed = [name for name, one in fields.items() if one.default is one.default_factory is dataclasses.MISSING]
    about = {
        "$schema": DRAFT,
        "title": "A study of discreet",
        "description": "Trains with each protection, attacks every result, and compares utility with leakage.",
    }
    return about | closed(keys | tables, needed) | {"definitions": named}


def schema_text(plug_ins: bool = False) -> str:
    """Return the schema as the text of a file."""
    return json.dumps(study_schema(plug_ins), indent=1, ensure_ascii=False) + "\n"


def shipped() -> str:
    """Return the copy of the schema in the package, which needs no import of protections and attacks."""
    return resources.files("discreet.study").joinpath(FILE).read_text(encoding="utf-8")


def _about(key: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": key["description"]}


def _of_goal(attacks: Iterable[str]) -> dict[str, Any]:
    from discreet.metrics.utility import UTILITIES

    found = table(Goal)
    known = "|".join(attacks)
    found["properties"]["leakage"]["pattern"] = f"^({known})/.+$"
    found["properties"]["utility"]["enum"] = list(UTILITIES)
    one_of_both = {"if": {"required": ["ceiling"]}, "then": {"not": {"required": ["floor"]}}}
    return found | one_of_both | {"else": {"required": ["floor"]}}


def _of_protection(name: str) -> dict[str, Any]:
    hints = typing.get_type_hints(protection_class(name))
    fields = settings_of_protection(name)
    return {key: of_field(one, hints[key], grid=True) for key, one in fields.items()}


def _of_attack(name: str) -> dict[str, Any]:
    kind: type[Any] = attack_class(name)
    hints = typing.get_type_hints(kind)
    fields = [one for one in dataclasses.fields(kind) if one.init and one.name not in REQUEST_KEYS]
    request = {key: {"$ref": f"#/definitions/{_REQUEST}-{key}"} for key in REQUEST_KEYS}
    return request | {one.name: of_field(one, hints[one.name]) for one in fields}


def _request_keys(measured: Iterable[str]) -> dict[str, Any]:
    from discreet.experiment.attack.request import AttackRequest

    hints = typing.get_type_hints(AttackRequest)
    fields = {one.name: one for one in dataclasses.fields(AttackRequest)}
    keys = {key: {"description": about} | of_field(fields[key], hints[key]) for key, about in REQUEST_KEYS.items()}
    keys["metrics"] |= {"items": of_type(str) | {"enum": list(measured)}, "minItems": 1}
    return keys


def _named(name: str, about: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": about} | closed({_NAME: {"const": name}, **keys}, [_NAME])


def _by_name(kinds: Mapping[str, _Kind], where: str) -> dict[str, Any]:
    """Return the schema of a table whose key `name` says which keys it may have.

    A table is checked by the schema of its own name alone, so that an error names a key and not all alternatives. The
    keys of all names are listed, because editors complete only keys that stand there unconditionally.
    """
    every: dict[str, list[tuple[str, str]]] = {}
    for name, (_, keys) in kinds.items():
        for key, value in keys.items():
            every.setdefault(key, []).append((name, REQUEST_KEYS.get(key) or value.get("description", "")))
    return {
        "type": "object",
        "properties": {
            _NAME: {"description": _lines((name, about) for name, (about, _) in kinds.items()), "enum": list(kinds)},
            **{key: {"description": _grouped(uses)} for key, uses in every.items()},
        },
        "required": [_NAME],
        "allOf": [
            {
                "if": {"properties": {_NAME: {"const": name}}, "required": [_NAME]},
                "then": {"$ref": f"#/definitions/{where}-{name}"},
            }
            for name in kinds
        ],
    }


def _grouped(uses: Iterable[tuple[str, str]]) -> str:
    """Return what a key means: with the names that have it, one line for each meaning, unless there is only one."""
    names: dict[str, list[str]] = {}
    for name, about in uses:
        names.setdefault(about, []).append(name)
    if len(names) == 1 and "" not in names:
        return next(iter(names))
    return _lines((", ".join(group), about) for about, group in names.items())


def _lines(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{names}: {about}" if about else names for names, about in pairs)


if __name__ == "__main__":
    Path(__file__).with_name(FILE).write_text(schema_text(), encoding="utf-8")
