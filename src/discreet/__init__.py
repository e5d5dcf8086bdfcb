"""Use language models on sensitive text without giving the text away."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Public name -> where it lives. Imported on first use, so that `import discreet` stays quick.
_PUBLIC = {
    "Adjacency": "discreet.core.guarantee",
    "Guarantee": "discreet.core.guarantee",
    "Leakage": "discreet.core.types",
    "Rng": "discreet.core.randomness",
}

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'discreet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
