"""Run every trial of a study that its folder does not hold yet, and write each result as soon as it is done."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from discreet.core.errors import DataError, OutputError, SettingError, one_of, shown, whole
from discreet.core.files import write_atomic
from discreet.study.file import Goal, Study, changes
from discreet.study.frontier import unmeasured
from discreet.study.grid import Planned, plan
from discreet.study.store import Store, read_trials
from discreet.study.workers import Event, Run, Stop, run_in_processes, run_on_ray

STUDY = "study.json"
FORMAT = 2  # of the folder of a study: its file, its trials, and what they record
FAILURES = "failures.json"
ENGINES = {"processes": run_in_processes, "ray": run_on_ray}


@dataclass(frozen=True)
class Standing:
    """The progress of a sweep: how many trials there are, were done before, are done now, run, and failed."""

    total: int
    done: int
    before: int
    running: tuple[Planned, ...]
    failures: dict[str, str]
    seconds_left: float | None
    last: Event | None = None

    @property
    def missing(self) -> int:
        """How many trials were neither done nor failed."""
        return self.total - self.before - self.done - len(self.failures)


@dataclass
class _Progress:
    standing: Standing
    workers: int
    running: dict[str, tuple[Planned, float]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)

    def add(self, event: Event) -> None:
        key, done, failures = event.planned.key, self.standing.done, dict(self.standing.failures)
        if event.started:
            self.running[key] = (event.planned, time.monotonic())
        else:
            _, started = self.running.pop(key)
            self.seconds.append(time.monotonic() - started)
            if event.failure is None:
                done += 1
            else:
                failures[key] = event.failure.reason
        running = tuple(planned for planned, _ in self.running.values())
        self.standing = replace(self.standing, done=done, running=running, failures=failures, last=event)
        if self.seconds:
            left = median(self.seconds) * self.standing.missing / self.workers
            self.standing = replace(self.standing, seconds_left=left)


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
    """Run the trials of a study that its folder does not hold yet, and return the final progress.

    `run` maps a planned trial to a trial; it must be importable by its name, and depend on the settings and the seed
    alone. A crash loses the trials that were running; the same call runs only what is missing, failed trials included.
    A changed goal replaces the old one, because no trial depends on it; any other change is rejected.

    Guarantee: none beyond those of the trials; the folder holds texts that attacks read.
    """
    new_goal = check_sweep(study, out, workers=workers, on=on)
    planned = plan(study)
    if not (out / STUDY).exists():
        out.mkdir(parents=True, exist_ok=True)
        _write_study(study, out)
    with Store(out) as store:
        missing = [one for one in planned if one.key not in store.keys]
        if new_goal:  # only now: a folder in which another sweep is running was rejected above
            if not missing and study.goal is not None:
                _reject_unmeasured(study.goal, out)
            _write_study(study, out)
        progress = _Progress(Standing(len(planned), 0, len(planned) - len(missing), (), {}, None), workers)
        watch(progress.standing)
        for event in _events(on, missing, run, workers, should_stop):
            if event.trial is not None:
                store.append(event.planned.key, event.trial)
            progress.add(event)
            watch(progress.standing)
        labels = {one.key: f"{one.label}, seed {one.seed}" for one in planned}
        failures = {labels[key]: why for key, why in progress.standing.failures.items()}
        write_atomic(out / FAILURES, json.dumps(failures, indent=2) + "\n")
    return progress.standing


def _events(on: str, missing: Sequence[Planned], run: Run, workers: int, should_stop: Stop) -> Iterator[Event]:
    return ENGINES[on](missing, run, min(workers, len(missing)), should_stop) if missing else iter(())


def check_sweep(study: Study, out: Path, *, workers: int, on: str) -> bool:
    """Reject settings and folders in which no sweep can run; return whether only the goal of the study is new."""
    whole("workers", workers, 1, "Each runs one trial at a time.")
    one_of("on", on, ENGINES)
    if (out / STUDY).exists():
        stored, new = read_kept_study(out), _plain(study)
        differences = changes(_without_goal(stored), _without_goal(new))
        if differences:
            more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
            raise SettingError(
                f"Expected the study that {str(out)!r} was started with: {'; '.join(differences[:3])}{more}. Its "
                "trials are kept; run the changed study in another folder, or undo the change. Only its goal may "
                "change."
            )
        return bool(changes(stored, new))
    if out.exists() and any(out.iterdir()):
        raise OutputError(
            f"Expected a new folder, or the folder of an unfinished sweep, at {str(out)!r}. It holds something else; "
            "choose another folder."
        )
    return False


def _reject_unmeasured(goal: Goal, out: Path) -> None:
    """Reject a goal by which no trial of a finished study was measured."""
    trials = read_trials(out).values()
    leakages = sorted({leakage.metric for trial in trials for leakage in trial.leakages})
    utilities = sorted({name for trial in trials for name, value in trial.utility.items() if value is not None})
    for key, metric, known in (("leakage", goal.resolved().leakage, leakages), ("utility", goal.utility, utilities)):
        if metric is not None and metric not in known:
            raise unmeasured(f"goal.{key}", metric, known)


def _plain(study: Study) -> dict[str, object]:
    """Return a study as it is read back from its file."""
    values: dict[str, object] = json.loads(json.dumps(study.as_dict(), allow_nan=False))
    return values


def _without_goal(study: Mapping[str, object]) -> dict[str, object]:
    return {key: value for key, value in study.items() if key != "goal"}


def _write_study(study: Study, out: Path) -> None:
    write_atomic(out / STUDY, json.dumps({"format": FORMAT, **_plain(study)}, indent=2, ensure_ascii=False) + "\n")


def read_kept_study(out: Path) -> dict[str, object]:
    """Return the study that a folder's trials belong to, as plain values; a folder of another format is rejected."""
    if not (out / STUDY).exists():
        raise DataError(f"Expected a sweep at {str(out)!r}. There is no {STUDY}; run `discreet calibrate` first.")
    values = _read(out / STUDY)
    found = values.pop("format", None)
    if found != FORMAT:
        raise DataError(
            f"Expected a study of format {FORMAT} in {str(out)!r}, got {'none' if found is None else shown(found)}. "
            "Another version wrote it; read it with that version, or run the study again in another folder."
        )
    return values


def read_failures(out: Path) -> dict[str, str]:
    """Return which trials failed in the last run, and why."""
    return {str(k): str(v) for k, v in _read(out / FAILURES).items()} if (out / FAILURES).exists() else {}


def _read(path: Path) -> dict[str, object]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"Expected to read {str(path)!r}. {error.strerror}; check the folder.") from None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise DataError(f"Expected the study of a sweep in {str(path)!r}, got something else. Choose another folder.")
    return values
