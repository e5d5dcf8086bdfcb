"""Whether a study gives the same figures on another processor: it is run twice, under two sets of instructions.

python -m tools.same_figures              studies/demo.toml, SSE against AVX2, about five minutes
python -m tools.same_figures STUDY --first avx2 --second native --threads 2

Each run has a cache of its own, so that everything is computed twice. Printed is the largest difference of every kind
of figure over all trials, and which one it is; `texts` counts the readings that differ. With --most it fails above a
bound.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.matrix import AVX2, NATIVE, ROOT, SSE, settings_of

from discreet.core.types import Trial
from discreet.study.store import read_trials

INSTRUCTIONS = {"sse": SSE, "avx2": AVX2, "native": NATIVE}
_TIMES = ("seconds", "stopped_by_time_limit")  # of details, what is no figure


def run(study: Path, instructions: str, threads: int, workers: int, folder: Path) -> dict[str, Trial]:
    """Run a study in processes of one set of instructions and return its trials by their keys."""
    out = folder / f"{instructions}-{threads}"
    environment = settings_of(INSTRUCTIONS[instructions], threads)
    environment |= {"DISCREET_CACHE": str(out / "cache"), "PYTHONPATH": f"{ROOT / 'src'}", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "discreet", "calibrate", str(study), "--out", str(out / "study"), "--no-report"]
    subprocess.run([*command, "--workers", str(workers)], env=environment, check=True, stdout=subprocess.DEVNULL)
    return dict(read_trials(out / "study"))


def figures(trial: Trial) -> Iterator[tuple[str, str, float]]:
    """Yield every figure of a trial: its kind, its name and its value."""
    for name, value in trial.utility.items():
        yield "utility", name, value
    for leakage in trial.leakages:
        yield "leakage", leakage.metric, leakage.value
        yield "interval", f"{leakage.metric} low", leakage.low
        yield "interval", f"{leakage.metric} high", leakage.high
        if leakage.chance is not None:
            yield "chance", leakage.metric, leakage.chance
    if trial.guarantee is not None:
        yield "guarantee", "epsilon", trial.guarantee.epsilon
    for name, value in trial.details.get("bounds", {}).items():
        yield "bound", name, value
    for name, value in _numbers(trial.details.get("roc", {}), "roc"):
        yield "roc", name, value


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key not in _TIMES:
                yield from _numbers(part, f"{name}.{key}")
    elif isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from _numbers(part, f"{name}.{number}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def compared(first: Mapping[str, Trial], second: Mapping[str, Trial]) -> dict[str, dict[str, Any]]:
    """Return by kind how many figures there are, how many differ, the largest difference, and where it is."""
    if first.keys() != second.keys():
        raise SystemExit(f"Expected the same trials, found {sorted(first.keys() ^ second.keys())} in one run alone.")
    found: dict[str, dict[str, Any]] = {}
    for key, trial in first.items():
        pairs = list(zip(figures(trial), figures(second[key]), strict=True))
        for (kind, name, one), (other_kind, other_name, other) in pairs:
            assert (kind, name) == (other_kind, other_name)
            row = found.setdefault(kind, {"figures": 0, "different": 0, "largest": 0.0, "where": ""})
            same = one == other or (math.isnan(one) and math.isnan(other))
            away = 0.0 if same else abs(one - other)
            row["figures"] += 1
            row["different"] += not same
            if away > row["largest"]:
                row |= {"largest": away, "where": f"{key} {name}: {one:.6g} and {other:.6g}"}
        texts = [[text["guess"] for text in one.details.get("texts", ())] for one in (trial, second[key])]
        row = found.setdefault("texts", {"figures": 0, "different": 0, "largest": 0.0, "where": ""})
        for one, other in zip(*texts, strict=True):
            row["figures"] += 1
            if one != other:
                row["different"] += 1
                row |= {"largest": math.inf, "where": row["where"] or f"{key}: {one!r} and {other!r}"}
    return found


def main() -> int:
    """Run a study twice, print how far its figures lie apart, and return 1 if that is more than was allowed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", type=Path, default=ROOT / "studies" / "demo.toml")
    parser.add_argument("--first", choices=INSTRUCTIONS, default="sse")
    parser.add_argument("--second", choices=INSTRUCTIONS, default="avx2")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--most", type=float, default=math.inf, help="Largest difference of a figure that is allowed.")
    parser.add_argument("--out", type=Path, help="Folder to keep the trials in.")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.out or Path(temporary)
        runs = [run(asked.study, name, asked.threads, asked.workers, folder) for name in (asked.first, asked.second)]
    found = compared(*runs)
    print(
        json.dumps(
            {"study": asked.study.stem, "runs": [asked.first, asked.second], "trials": len(runs[0]), **found}, indent=1
        )
    )
    return int(any(row["largest"] > asked.most for row in found.values()))


if __name__ == "__main__":
    sys.exit(main())
