"""The front matter of model and data cards, which the Hugging Face hub reads: YAML whose values are JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from discreet.core.guarantee import Guarantee

STATED = ("epsilon", "delta", "unit", "adjacency", "accountant", "certified", "caveats")  # in a card
_PIPELINES = {"lm": "text-generation", "text": None}


def front_matter(task: str, guarantee: Guarantee | None, library: str | None = "discreet") -> str:
    """Return the front matter of a card; the task "text" is that of a data card.

    >>> print(front_matter("classification", None))
    ---
    library_name: "discreet"
    pipeline_tag: "text-classification"
    tags: ["discreet"]
    ---
    """
    return in_yaml(card_values(task, guarantee, library))


def card_values(task: str, guarantee: Guarantee | None, library: str | None = "discreet") -> dict[str, Any]:
    """Return the values of the front matter by name."""
    pipeline = _PIPELINES.get(task, "text-classification")
    values: dict[str, Any] = {} if library is None else {"library_name": library}
    values |= {} if pipeline is None else {"pipeline_tag": pipeline}
    values["tags"] = ["discreet"]
    if guarantee is not None and guarantee.exists:
        stated = guarantee.as_dict()
        values["tags"] += ["differential-privacy", "differential_privacy"]
        values["differential_privacy"] = {name: stated[name] for name in STATED}
    return values


def in_yaml(values: Mapping[str, Any]) -> str:
    """Return front matter with these values."""
    return "---\n" + "".join(f"{name}: {_value(value)}\n" for name, value in values.items()) + "---"


def _value(value: Any) -> str:
    """Return a value as JSON that is YAML too, where 1e-05 would be a text and 1.0e-05 is a number.

    >>> _value({"delta": 1e-05, "caveats": ["1e-05"]})
    '{"delta": 1.0e-05, "caveats": ["1e-05"]}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(name)}: {_value(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    text = json.dumps(value)
    return text.replace("e", ".0e") if isinstance(value, float) and "e" in text and "." not in text else text
