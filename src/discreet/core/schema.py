"""JSON Schema of frozen dataclasses that are read from TOML: the types of their fields, rules, defaults and help.

Draft 7, which editors of TOML files support. A keyword such as `minimum` applies only to values of its type, so that
one flat schema covers a value and a list of such values, and an error names the value and the rule.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

from discreet.core.rules import RULE

DRAFT = "http://json-schema.org/draft-07/schema#"
_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def table(kind: type[Any], *, without: typing.Collection[str] = ()) -> dict[str, Any]:
    """Return the schema of a table with the keys of a dataclass, where no other key is allowed.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Bread:
    ...     flour: float
    ...     salt: float = 0.02
    >>> table(Bread)["required"], table(Bread)["properties"]["salt"]
    (['flour'], {'type': 'number', 'default': 0.02})
    """
    hints = typing.get_type_hints(kind)
    fields = [one for one in dataclasses.fields(kind) if one.init and one.name not in without]
    return closed(
        {one.name: of_field(one, hints[one.name]) for one in fields},
        [one.name for one in fields if one.default is one.default_factory is dataclasses.MISSING],
    )


def closed(properties: dict[str, Any], required: typing.Sequence[str] = ()) -> dict[str, Any]:
    """Return the schema of a table that has only these keys."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, "additionalProperties": False}


def of_field(field: dataclasses.Field[Any], hint: Any, *, grid: bool = False) -> dict[str, Any]:
    """Return the schema of a setting; with `grid` its value may also be a list of values."""
    rule = field.metadata.get(RULE)
    found = of_type(hint)
    if rule is not None:
        found |= rule.schema()
    if grid:
        found = _or_list(found)
    about = field.metadata.get("help")
    default = field.default
    if default is None or default is dataclasses.MISSING:
        if "default" in field.metadata:
            about = f"{about} Default: {field.metadata['default']}."
    else:
        found["default"] = list(default) if isinstance(default, tuple) else default
    return ({} if about is None else {"description": about}) | found


def of_type(hint: Any) -> dict[str, Any]:
    """Return the schema of the values that `core.settings.parse` accepts for a type; TOML has no null.

    >>> of_type(tuple[int, ...] | None)
    {'type': 'array', 'items': {'type': 'integer'}}
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        options = [of_type(one) for one in arguments if one is not type(None)]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if origin is typing.Literal:
        return {"type": "string", "enum": list(arguments)}
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return {"type": "array", "items": of_type(arguments[0])}
        return {"type": "array", "items": [of_type(one) for one in arguments], "minItems": len(arguments)}
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return {"type": "string", "enum": [str(one) for one in hint]}
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return table(hint)
    kind = origin or hint
    return {"type": _NAMES[kind]} if kind in _NAMES else {"type": "object"} if kind is dict else {}


def _or_list(value: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a value or a list of such values.

    >>> _or_list({"type": "number", "minimum": 0})
    {'type': ['number', 'array'], 'minimum': 0, 'items': {'type': 'number', 'minimum': 0}, 'minItems': 1}
    """
    one = {key: what for key, what in value.items() if key != "enum"}
    kind = value.get("type")
    found = one | ({} if kind is None else {"type": [kind, "array"]}) | {"items": dict(value), "minItems": 1}
    if "enum" in value:  # it would apply to a list too
        found |= {"if": {"type": "string"}, "then": {"enum": value["enum"]}, "examples": value["enum"]}
    return found
