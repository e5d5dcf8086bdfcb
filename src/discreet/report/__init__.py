"""The report of a study: one HTML file that opens offline, the same in Markdown, and a model card."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from discreet.core.errors import ExtraError
from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.report.brief import Brief as Brief
    from discreet.report.brief import brief_of as brief_of
    from discreet.report.page import Written as Written
    from discreet.report.page import write_report as write_report

_NAMES = {
    "discreet.report.brief": ("Brief", "brief_of"),
    "discreet.report.page": ("Written", "write_report"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)

_REQUIRED = ("jinja2", "markupsafe")


def check_installed() -> None:
    """Raise an error that names the extra if a library that a report needs is missing; call it before a long study."""
    missing = [name for name in _REQUIRED if importlib.util.find_spec(name) is None]
    if missing:
        raise ExtraError(f"Expected {', '.join(missing)} to write a report. Install: pip install 'discreet[report]'")
