"""What the trials of a sweep say together, before it is put on a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from discreet.core.checks import shown
from discreet.core.errors import DataError
from discreet.core.settings import parse
from discreet.core.types import Trial
from discreet.metrics.utility import MAIN
from discreet.report.words import verdict
from discreet.study.file import IDENTIFIED, OF_UPDATE, Goal, as_toml
from discreet.study.frontier import Point, best, points_of
from discreet.study.grid import points as grid_points
from discreet.study.store import read_trials
from discreet.study.sweep import read_failures, read_kept_study

RISK = "risk.json"


@dataclass(frozen=True)
class Findings:
    """All that a report says, before it is put on a page."""

    study: Mapping[str, Any]
    trials: Mapping[str, Trial]
    points: Sequence[Point]
    goal: Goal | None
    utility: str
    chosen: Point | None
    verdict: tuple[str, str, str]
    failures: Mapping[str, str]
    risk: Sequence[Mapping[str, Any]]

    @property
    def leakages(self) -> list[str]:
        """The names of all leakages, the goal's first."""
        names = list(dict.fromkeys(name for point in self.points for name in point.leakage))
        if self.goal is not None and self.goal.leakage in names:
            names.remove(self.goal.leakage)
            names.insert(0, self.goal.leakage)
        return names

    @property
    def toml(self) -> str:
        """The study as a file that `discreet calibrate` reads, with the release of its goal named."""
        named = dict(self.study)
        if self.goal is not None:
            named["goal"] = {**named["goal"], "release": self.goal.scope}
        return as_toml(named)

    @property
    def title(self) -> str:
        """The study's title."""
        return str(self.study.get("title") or self.study["name"])


def findings(folder: Path) -> Findings:
    """Return what the trials of a folder say."""
    study, trials = read_kept_study(folder), read_trials(folder)
    if not trials:
        raise DataError(f"Expected trials in {str(folder)!r}. None is done yet; run `discreet calibrate` again.")
    for key, trial in trials.items():
        if not isinstance(trial.settings["protection"].get("name"), str):
            raise DataError(f"Expected the name of a protection in trial {shown(key)}, found none. Remove the trial.")
    points = in_order(study, points_of(trials.values()))
    goal = _goal_of(study)
    known = list(dict.fromkeys(name for point in points for name in point.utility))
    asked = None if goal is None else goal.utility
    utility = asked or next((name for name in MAIN.values() if name in known), known[0] if known else "")
    if utility not in known:
        raise DataError(f"Expected utility {utility!r} in the trials. They have {', '.join(known) or 'none'}.")
    chosen = None if goal is None or _earlier(points, goal) else best(points, goal, utility)
    risk = read_risk(folder, goal)
    told = verdict(points, chosen, goal, utility, risk)
    return Findings(study, trials, points, goal, utility, chosen, told, read_failures(folder), risk)


def _earlier(points: Sequence[Point], goal: Goal) -> bool:
    """Whether the trials are of an earlier version, which identified from one update only, and the goal is not."""
    names = {name for point in points for name in point.leakage}
    return goal.leakage == IDENTIFIED and goal.leakage not in names and goal.leakage + OF_UPDATE in names


def _goal_of(study: Mapping[str, Any]) -> Goal | None:
    value = study.get("goal")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise DataError(f"Expected the goal of the study as a table, found {shown(value)}.")
    return parse(Goal, value, "goal").resolved()


def read_risk(folder: Path, goal: Goal | None) -> list[Mapping[str, Any]]:
    """Return the noise that a goal's ceiling on 1-of-n asks for, where it was weighed for this very ceiling."""
    if goal is None or not goal.identifies or not (folder / RISK).exists():
        return []
    try:
        kept: list[Mapping[str, Any]] = json.loads((folder / RISK).read_text(encoding="utf-8"))
        return [row for row in kept if row["ceiling"] == goal.ceiling]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"Expected {RISK} in {str(folder)!r} as `discreet calibrate` wrote it: {shown(error)}. Delete the file and "
            "run the same command again."
        ) from None


def in_order(study: Mapping[str, Any], points: Sequence[Point]) -> list[Point]:
    """Return points in the order in which the study names them, whichever trial was done first."""
    tables = study.get("protections")
    named = [one for table in tables for one in grid_points(table)] if isinstance(tables, list) else []
    place = {json.dumps(one, sort_keys=True): number for number, one in enumerate(named)}
    return sorted(points, key=lambda point: place.get(json.dumps(point.protection, sort_keys=True), len(place)))
