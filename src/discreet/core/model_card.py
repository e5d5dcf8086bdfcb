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
    return "---\n" + "".join(f"{name}: {json.dumps(value)}\n" for name, value in values.items()) + "---"
