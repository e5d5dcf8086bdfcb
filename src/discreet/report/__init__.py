"""The report of a study: one HTML file that opens offline, the same in Markdown, and a model card."""

from __future__ import annotations

import importlib.util

from discreet.core.errors import ExtraError

_REQUIRED = ("jinja2", "markupsafe")


def check_installed() -> None:
    """Raise an error that names the extra if a library that a report needs is missing; call it before a long study."""
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        raise ExtraError(f"Expected {', '.join(missing)} to write a report. Install: pip install 'discreet[report]'")
