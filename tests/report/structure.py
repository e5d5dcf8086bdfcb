"""A small validator of JSON Schema, for the keywords that our schema uses; `jsonschema` where it is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

KINDS: dict[str, Any] = {
    "object": dict, "array": list, "string": str, "boolean": bool, "null": type(None), "integer": int,
    "number": (int, float),
}  # fmt: skip
KNOWN = {
    "$schema", "$id", "title", "description", "type", "additionalProperties", "required", "properties", "const", "enum",
    "items", "minItems", "maxItems", "uniqueItems", "minimum", "maximum", "minLength", "$ref", "$defs", "if", "then",
    "else",
}  # fmt: skip


def faults(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Return every violation of a schema, by both validators where there are two."""
    own = list(_faults(value, schema, schema, "$"))
    if importlib.util.find_spec("jsonschema") is not None:
        import jsonschema

        jsonschema.Draft202012Validator.check_schema(schema)
        other = [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value)]
        assert bool(own) == bool(other), (own, other)
    return own


def _is(value: Any, kind: str) -> bool:
    return isinstance(value, KINDS[kind]) and not (isinstance(value, bool) and kind in {"integer", "number"})


def _faults(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], at: str) -> Iterator[str]:
    assert set(schema) <= KNOWN, f"{at}: teach the validator {set(schema) - KNOWN}"
    if "$ref" in schema:
        place: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            place = place[part]
        yield from _faults(value, place, root, at)
    kinds = schema.get("type")
    if kinds is not None and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        yield f"{at}: {value!r} is not {kinds}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{at}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at}: {value!r} is not one of {schema['enum']}"
    if isinstance(value, dict):
        yield from (f"{at}: no {name}" for name in schema.get("required", ()) if name not in value)
        rest = schema.get("additionalProperties", True)
        for name, inner in value.items():
            if name in schema.get("properties", {}):
                yield from _faults(inner, schema["properties"][name], root, f"{at}.{name}")
            elif rest is False:
                yield f"{at}: {name} is not expected"
            elif isinstance(rest, dict):
                yield from _faults(inner, rest, root, f"{at}.{name}")
    if isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            yield f"{at}: {len(value)} items"
        if schema.get("uniqueItems") and len({repr(one) for one in value}) < len(value):
            yield f"{at}: repeated items"
        for number, inner in enumerate(value):
            yield from _faults(inner, schema.get("items", {}), root, f"{at}[{number}]")
    if _is(value, "number") and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{at}: {value} is out of range"
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        yield f"{at}: an empty text"
    if "if" in schema:
        branch = "else" if list(_faults(value, schema["if"], root, at)) else "then"
        yield from _faults(value, schema.get(branch, {}), root, at)
