"""Front doors: packages that name what they offer and import it on first use, so that `import discreet` stays quick.

A front door has two lists of the same names: a table that `front_door` reads at run time, and imports under
`TYPE_CHECKING` that type checkers and editors read. `tests/test_public_names.py` keeps them equal.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def front_door(
    package: str, names: Mapping[str, tuple[str, ...]], packages: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names are imported on first use.

    Args:
        package: The name of the package.
        names: Its public names, by the module that defines them.
        packages: Packages and modules inside it that are reached as attributes too.

    >>> find, names, _ = front_door("discreet.core", {"discreet.core.task": ("Task",)})
    >>> names(), find("Task").__name__
    (['Task'], 'Task')
    """
    modules = {name: module for module, defined in names.items() for name in defined}

    def find(name: str) -> Any:
        if name in modules:
            return getattr(importlib.import_module(modules[name]), name)
        if name in packages:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def listed() -> list[str]:
        return sorted([*modules, *packages])

    return find, listed, list(modules)
