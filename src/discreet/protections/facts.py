"""What a protection says of itself in public: its name and its settings, never its secrets."""

from __future__ import annotations

import dataclasses
from typing import Any


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
