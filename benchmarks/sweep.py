"""A sweep of many head-only trials: how long it takes, and whether Ray gives the same figures.

python -m benchmarks.sweep --trials 200 --workers 2 --out FOLDER
python -m benchmarks.sweep --trials 200 --workers 2 --out FOLDER --on ray      # then compares with FOLDER/processes
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from discreet.study.file import Study, check
from discreet.study.store import read_trials
from discreet.study.sweep import Standing, sweep
from discreet.study.trial import run_trial

POINTS = 20


def study_of(trials: int, source: str, rows: int | None) -> Study:
    noises = [round(0.3 * 1.17**i, 4) for i in range(POINTS)]
    return Study(
        name="head only",
        data={"source": source} | ({} if rows is None else {"rows": rows}),
        model={"train": "head"},
        training={"epochs": 20},
        release={"train": "head", "embeddings": False},
        protect=({"name": "dp-sgd", "noise_multiplier": noises},),
        attack=({"name": "one-of-n", "candidates": 64, "draws": 2000},),
        seeds=tuple(range(-(-trials // POINTS))),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--on", default="processes", choices=("processes", "ray"))
    parser.add_argument("--data", default="notes")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    study = study_of(asked.trials, asked.data, asked.rows)
    check(study)

    def watch(standing: Standing) -> None:
        if standing.last is not None and not standing.last.started and standing.done % 20 == 0:
            print(f"{standing.done}/{standing.total} {standing.seconds_left or 0:.0f} s left", flush=True)

    began = time.monotonic()
    done = sweep(study, run_trial, asked.out / asked.on, workers=asked.workers, on=asked.on, watch=watch)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = spent.ru_utime + spent.ru_stime
    print(f"{done.done} trials on {asked.workers} workers ({asked.on}): {time.monotonic() - began:.0f} s")
    print(f"processor time of the workers: {processor:.0f} s; failures: {len(done.failures)}")
    if (asked.out / "processes").exists() and (asked.out / "ray").exists():
        print(f"largest difference between the two: {difference(asked.out / 'processes', asked.out / 'ray'):g}")


def difference(first: Path, second: Path) -> float:
    """Return the largest difference of any utility or leakage between two sweeps of the same trials."""
    a, b = read_trials(first), read_trials(second)
    assert set(a) == set(b), "the sweeps hold different trials"
    worst = 0.0
    for key, trial in a.items():
        pairs = [(trial.utility[name], b[key].utility[name]) for name in trial.utility]
        pairs += [(x.value, y.value) for x, y in zip(trial.leakages, b[key].leakages, strict=True)]
        worst = max(worst, *(abs(x - y) for x, y in pairs))
    return worst


if __name__ == "__main__":
    main()
