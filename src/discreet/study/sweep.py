"""A sweep: run every trial of a study that is not in its folder yet, and keep each as soon as it is done."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from discreet.core.checks import one_of, whole
from discreet.core.errors import DataError, OutputError, SettingError
from discreet.study.file import Goal, Study, changes
from discreet.study.frontier import scoped, unmeasured
from discreet.study.grid import Planned, plan
from discreet.study.store import Store, read_trials
from discreet.study.workers import Event, Run, Stop, in_processes

STUDY = "study.json"
FAILURES = "failures.json"
PLACES = ("processes", "ray")


@dataclass(frozen=True)
class Standing:
    """How far a sweep is: what a live table shows."""

    total: int
    done: int
    before: int
    running: tuple[Planned, ...]
    failures: dict[str, str]
    seconds_left: float | None
    last: Event | None = None


@dataclass
class _Count:
    total: int
    before: int
    workers: int
    done: int = 0
    running: dict[str, tuple[Planned, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def add(self, event: Event) -> Standing:
        key = event.planned.key
        if event.began:
            self.running[key] = (event.planned, time.monotonic())
        else:
            _, began = self.running.pop(key)
            self.seconds.append(time.monotonic() - began)
            if event.trial is not None:
                self.done += 1
            else:
                self.failures[key] = event.failure or "for no reason given"
        rest = self.total - self.before - self.done - len(self.failures)
        left = median(self.seconds) * rest / self.workers if self.seconds else None
        running = tuple(one for one, _ in self.running.values())
        return Standing(self.total, self.done, self.before, running, dict(self.failures), left, event)


def sweep(
    study: Study,
    run: Run,
    out: Path,
    *,
    workers: int = 2,
    on: str = "processes",
    watch: Callable[[Standing], None] = lambda standing: None,
    should_stop: Stop = lambda: False,
) -> Standing:
    """Run the trials of a study that its folder does not hold yet, and say how it went.

    `run` takes a planned trial to a trial; it must be importable by its name, and depend on the settings and the seed
    alone. A crash loses the trials that were running; a second start runs only what is missing, failed ones again.
    A changed goal is kept in place of the old one, as no trial depends on it; any other change is refused.

    Guarantee: none beyond those of the trials; the folder holds texts that attacks read.
    """
    whole("workers", workers, 1, "Each runs one trial at a time.")
    one_of("on", on, PLACES)
    planned = plan(study)
    new_goal = _keep_study(study, out)
    with Store(out) as store:
        missing = [one for one in planned if one.key not in store.keys]
        if new_goal:  # only now: a sweep at work in the folder would have been refused above
            if not missing and study.goal is not None:
                _refuse_unmeasured(study.goal, out)
            _write_study(study, out)
        count = _Count(len(planned), len(planned) - len(missing), workers)
        standing = Standing(count.total, 0, count.before, (), {}, None)
        watch(standing)
        if missing:
            for event in _execute(on, missing, run, min(workers, len(missing)), should_stop):
                if event.trial is not None:
                    store.append(event.planned.key, event.trial)
                standing = count.add(event)
                watch(standing)
        labels = {one.key: f"{one.label}, seed {one.seed}" for one in planned}
        _write(out / FAILURES, json.dumps({labels[k]: why for k, why in standing.failures.items()}, indent=2))
    return standing


def _execute(on: str, missing: Sequence[Planned], run: Run, workers: int, should_stop: Stop) -> Iterator[Event]:
    if on == "ray":
        from discreet.study.cluster import on_ray

        return on_ray(missing, run, workers, should_stop)
    return in_processes(missing, run, workers, should_stop)


def _keep_study(study: Study, out: Path) -> bool:
    """Keep a new study beside its trials, refuse another one in its place, and return whether its goal alone is new."""
    path = out / STUDY
    if path.exists():
        kept, mine = _read(path), _plain(study)
        differ = changes(_without_goal(kept), _without_goal(mine))
        if differ:
            more = f" and {len(differ) - 3} more" if len(differ) > 3 else ""
            raise SettingError(
                f"Expected the study that {str(out)!r} was begun with: {'; '.join(differ[:3])}{more}. Its trials are "
                "kept; give the changed study another --out, or change it back. Only its goal may change."
            )
        return bool(changes(kept, mine))
    if out.exists() and any(out.iterdir()):
        raise OutputError(
            f"Expected a new folder or a begun sweep at {str(out)!r}. It holds something else; choose another --out."
        )
    out.mkdir(parents=True, exist_ok=True)
    _write_study(study, out)
    return False


def _refuse_unmeasured(goal: Goal, out: Path) -> None:
    """Refuse a goal that no trial of a finished study was measured by."""
    trials = read_trials(out).values()
    leakages = sorted({scoped(trial, found.metric) for trial in trials for found in trial.leakages})
    utilities = sorted({name for trial in trials for name, value in trial.utility.items() if value is not None})
    for key, asked, known in (("leakage", goal.resolved().leakage, leakages), ("utility", goal.utility, utilities)):
        if asked is not None and asked not in known:
            raise unmeasured(f"goal.{key}", asked, known)


def _plain(study: Study) -> dict[str, object]:
    """Return a study as it is read back from its file."""
    values: dict[str, object] = json.loads(json.dumps(study.as_dict(), allow_nan=False))
    return values


def _without_goal(study: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in study.items() if key != "goal"}


def _write_study(study: Study, out: Path) -> None:
    _write(out / STUDY, json.dumps(_plain(study), indent=2, ensure_ascii=False))


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_kept_study(out: Path) -> dict[str, object]:
    """Return the study that a folder's trials belong to, as plain values."""
    if not (out / STUDY).exists():
        raise DataError(f"Expected a sweep at {str(out)!r}. There is no {STUDY}; run `discreet calibrate` first.")
    return _read(out / STUDY)


def read_failures(out: Path) -> dict[str, str]:
    """Return which trials failed at the last start, and why."""
    return {str(k): str(v) for k, v in _read(out / FAILURES).items()} if (out / FAILURES).exists() else {}


def _read(path: Path) -> dict[str, object]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"Expected to read {str(path)!r}. {error.strerror}; check the folder.") from None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise DataError(f"Expected the study of a sweep in {str(path)!r}, found something else. Choose another --out.")
    return values
