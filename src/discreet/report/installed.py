"""Whether the libraries that write a report are there, asked before hours are spent on what it would show."""

from __future__ import annotations

import importlib.util

from discreet.core.errors import ExtraError

_NEEDED = ("jinja2", "markupsafe")


def check_installed() -> None:
    """Refuse to go on without the libraries that write a report, and name the extra that brings them."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ExtraError(
            f"Expected {', '.join(missing)}, with which a report is written. Install: pip install 'discreet[report]'"
        )
