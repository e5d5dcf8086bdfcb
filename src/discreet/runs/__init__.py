"""What a run is on disk: its settings, checkpoints, folder and card, and this machine's record of people."""

from typing import TYPE_CHECKING

from discreet.core.lazy import front_door

if TYPE_CHECKING:
    from discreet.runs.folder import Run as Run
    from discreet.runs.folder import RunSettings as RunSettings
    from discreet.runs.folder import load_run as load_run
    from discreet.runs.people import Total as Total
    from discreet.runs.people import people_totals as people_totals

_NAMES = {
    "discreet.runs.folder": ("Run", "RunSettings", "load_run"),
    "discreet.runs.people": ("Total", "people_totals"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = front_door(__name__, _NAMES)
