"""What a protection says of itself in public: its name and its settings, never its secrets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from discreet.core.guarantee import in_digits

_DIGITS = 6
_PRICES = ("epsilon", "delta")


def public_facts(protect: Any) -> dict[str, Any]:
    """Return the name and the plain public settings of a protection, those that are set.

    They are what its `facts` say, where it has any, or else the fields of its repr.

    >>> from discreet.protections.dp_sgd import DPSGD
    >>> public_facts(DPSGD(noise_multiplier=1.0, clip_norm=0.5))
    {'name': 'dp-sgd', 'noise_multiplier': 1.0, 'clip_norm': 0.5, 'clipping': 'flat'}
    """
    told = getattr(protect, "facts", None)
    if told is None:
        told = {field.name: getattr(protect, field.name) for field in dataclasses.fields(protect) if field.repr}
    plain = {name: value for name, value in told.items() if isinstance(value, int | float | str) and value != ""}
    return {"name": getattr(protect, "name", type(protect).__name__), **plain}


def in_words(facts: Mapping[str, Any]) -> str:
    """Return public facts in words; what is off is left out, and prices are rounded up.

    >>> in_words({"name": "ldp", "mechanism": "gaussian", "epsilon": 7.000002, "pairs": False})
    'ldp (mechanism gaussian, epsilon 7.00001)'
    """
    shown = {name: value for name, value in facts.items() if name != "name" and value is not False}
    settings = ", ".join(f"{name.replace('_', ' ')} {_plain(name, value)}" for name, value in shown.items())
    return f"{facts['name']} ({settings})" if settings else str(facts["name"])


def _plain(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return in_digits(value, _DIGITS) if any(price in name for price in _PRICES) else f"{value:g}"
