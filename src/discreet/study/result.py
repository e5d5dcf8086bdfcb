"""Run a study and read its result: the settings compared, the recommended one, and the noise that keeps its ceiling."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discreet.core.errors import DataError, DiscreetError, invalid, shown, spelled
from discreet.core.files import write_atomic
from discreet.core.settings import as_toml, parse
from discreet.core.task import Task
from discreet.core.types import Trial
from discreet.study.choosing import Choosing, cost_of_choosing
from discreet.study.file import Goal, Study, check, in_study_file, read_study
from discreet.study.frontier import Point, best, points_of
from discreet.study.grid import points as grid_points
from discreet.study.store import read_trials
from discreet.study.sweep import Standing, check_sweep, read_failures, read_kept_study, sweep
from discreet.study.workers import Stop

RISK = "risk.json"


class IncompleteError(DiscreetError):
    """Not every trial of a study was run: some failed, or it was stopped; `standing` says which and how many."""

    def __init__(self, folder: Path, standing: Standing) -> None:
        """Say how many trials are missing, why the first one failed, and how to resume."""
        self.folder, self.standing = folder, standing
        failed, total = len(standing.failures), standing.total
        state = f"{failed} of {total} failed: {next(iter(standing.failures.values()))}" if failed else ""
        super().__init__(
            f"Expected every trial to run, {state or f'{standing.missing} of {total} are missing.'} Finished trials "
            f"are kept in {str(folder)!r}; run it again to run only what is missing."
        )


@dataclass(frozen=True)
class StudyResult:
    """The result of a study, from the trials in its folder.

    `points` are the settings with their utility and leakage over all seeds, `utility` the metric that they are compared
    by, `recommended` the one that meets the goal best (None if none does), `failures` the trials that failed in the
    last run, and `noise` the noise multipliers that keep a ceiling on 1-of-n, by proof and by measurement.
    """

    folder: Path
    study: Mapping[str, Any]
    trials: Mapping[str, Trial] = field(repr=False)
    points: Sequence[Point]
    goal: Goal | None
    utility: str
    recommended: Point | None
    failures: Mapping[str, str]
    noise: Sequence[Mapping[str, Any]]

    @property
    def leakages(self) -> list[str]:
        """The names of all leakages, the goal's first."""
        names = list(dict.fromkeys(name for point in self.points for name in point.leakage))
        if self.goal is not None and self.goal.leakage in names:
            names.remove(self.goal.leakage)
            names.insert(0, self.goal.leakage)
        return names

    @property
    def choosing(self) -> Choosing:
        """The cost of choosing the recommended setting by these trials."""
        return cost_of_choosing(self.study, self.trials.values())

    @property
    def toml(self) -> str:
        """The study as a TOML file, with the release of its goal named."""
        named = dict(self.study)
        if self.goal is not None:
            named["goal"] = {**named["goal"], "release": self.goal.scope}
        return as_toml(named)

    @property
    def title(self) -> str:
        """The study's title."""
        return str(self.study.get("title") or self.study["name"])


def run(
    study: str | Path | Study,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    on: str = "processes",
    watch: Callable[[Standing], None] = lambda standing: None,
    should_stop: Stop = lambda: False,
) -> StudyResult:
    """Run the trials of a study that its folder does not hold yet, and return the result.

    `study` is a TOML file, as for `discreet calibrate`, or a `Study`. `out` is the folder of its trials; by default it
    stands beside the file, named after it: `clinic.toml` has `clinic-trials`. The same call resumes an unfinished study
    and runs nothing again in a finished one. `workers` trials run at the same time, by default one per core, on one
    thread each; `on` is "processes" or "ray". `watch` is called after every change with the progress, and no further
    trial starts once `should_stop` returns true. Write the report with `discreet.report.write_report(result.folder)`.

    Raises `IncompleteError` where a trial failed or the study was stopped; finished trials are kept.

    Guarantee: none for the trials themselves, whose noise has fixed seeds; each has the guarantee of its setting. The
        folder holds texts that attacks read: keep it as private as the corpus.
    """
    from discreet.runs.people import People, record_study
    from discreet.study.trial import check_rows, corpus_of, run_trial

    folder = _folder_of(study, out)
    values = study if isinstance(study, Study) else read_study(Path(study))
    with spelled(in_study_file):
        check(values)
        if not str(values.data["source"]).startswith("hub:"):
            # A missing column, or an attack on more texts than there are, is reported before any trial trains.
            check_rows(values, corpus_of(values.data))
    workers = len(os.sched_getaffinity(0)) if workers is None else workers
    check_sweep(values, folder, workers=workers, on=on)  # a rejected study is not recorded
    record_study(People(), folder, str(values.data["source"]))
    standing = sweep(
        values,
        run_trial,
        folder,
        workers=workers,
        on=on,
        watch=watch,
        should_stop=should_stop,
    )
    if standing.failures or standing.missing:
        raise IncompleteError(folder, standing)
    _write_noise(folder, values.goal)
    return read_result(folder)


def _folder_of(study: str | Path | Study, out: str | Path | None) -> Path:
    if out is not None:
        return Path(out)
    if isinstance(study, Study):
        raise invalid("out", out, "a folder where the study is not a file", "Name the folder for its trials.")
    return Path(study).with_name(f"{Path(study).stem}-trials")


def read_result(folder: str | Path) -> StudyResult:
    """Return the result of a study from the trials in its folder, whether or not all of them are done."""
    folder = Path(folder)
    study, trials = read_kept_study(folder), read_trials(folder)
    if not trials:
        raise DataError(f"Expected trials in {str(folder)!r}. None is done yet; run `discreet calibrate` again.")
    for key, trial in trials.items():
        if not isinstance(trial.settings["protect"].get("name"), str):
            raise DataError(f"Expected the name of a protection in trial {shown(key)}, got none. Remove the trial.")
    points = in_order(study, points_of(trials.values()))
    goal = _goal_of(study)
    known = list(dict.fromkeys(name for point in points for name in point.utility))
    wanted = None if goal is None else goal.utility
    utility = wanted or next(
        (task.main for task in Task if task.is_trained and task.main in known), known[0] if known else ""
    )
    if utility not in known:
        raise DataError(f"Expected utility {utility!r} in the trials. They have {', '.join(known) or 'none'}.")
    recommended = None if goal is None else best(points, goal, utility)
    noise = read_noise(folder, goal)
    return StudyResult(folder, study, trials, points, goal, utility, recommended, read_failures(folder), noise)


def _goal_of(study: Mapping[str, Any]) -> Goal | None:
    value = study.get("goal")
    if value is None:
        return None
    if not isinstance(value, dict):
        raise DataError(f"Expected the goal of the study to be a table, got {shown(value)}.")
    return parse(Goal, value, "goal").resolved()


def in_order(study: Mapping[str, Any], points: Sequence[Point]) -> list[Point]:
    """Return points in the order of the study, whichever trial was done first."""
    tables = study.get("protect")
    named = [one for table in tables for one in grid_points(table)] if isinstance(tables, list) else []
    place = {json.dumps(one, sort_keys=True): number for number, one in enumerate(named)}
    return sorted(points, key=lambda point: place.get(json.dumps(point.protection, sort_keys=True), len(place)))


def read_noise(folder: Path, goal: Goal | None) -> list[Mapping[str, Any]]:
    """Return the noise that keeps a goal's ceiling on 1-of-n, where it was computed for this very ceiling."""
    if goal is None or not goal.identifies or not (folder / RISK).exists():
        return []
    try:
        rows: list[Mapping[str, Any]] = json.loads((folder / RISK).read_text(encoding="utf-8"))
        return [row for row in rows if row["ceiling"] == goal.ceiling]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f"Expected {RISK} in {str(folder)!r} as `discreet calibrate` wrote it: {shown(error)}. Delete the file and "
            "run the same command again."
        ) from None


def _write_noise(folder: Path, goal: Goal | None) -> None:
    """Write beside the trials the noise that keeps a ceiling on 1-of-n, unless it is there."""
    from discreet.study.noise_for_risk import noise_for_study

    if not read_noise(folder, goal):
        rows = noise_for_study(read_kept_study(folder), read_trials(folder).values())
        write_atomic(folder / RISK, json.dumps([row.as_dict() for row in rows], indent=1))
