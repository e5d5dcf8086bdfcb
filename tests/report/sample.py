"""A sweep's folder made up for tests of the report: as many settings and seeds as wanted, with hostile texts."""

from __future__ import annotations

import json
import math
from pathlib import Path

from discreet.core.guarantee import Adjacency, Guarantee
from discreet.core.types import Leakage, Trial
from discreet.report.words import verdict_of
from discreet.study.file import Goal
from discreet.study.frontier import Point
from discreet.study.grid import key_of
from discreet.study.result import StudyResult
from discreet.study.store import NAME, trial_as_dict
from discreet.study.sweep import FORMAT

HOSTILE = (
    '</script><script>window.hacked = 1</script> <img src=x onerror="window.hacked = 2"> '
    "<svg onload='window.hacked = 3'> {{ 7 * 7 }} javascript:alert(1) | `x` <a href='http://evil.example/'>a</a>"
)
NOTE = "ingrid bielski ( record 2469012 ), a teacher, came in on 2021 - 11 - 24. tel. 629 - 555 - 0134."
NOISES = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)


def verdict(points: list[Point], chosen: Point | None, goal: Goal) -> tuple[str, str, str]:
    """Return the verdict on these settings, compared by accuracy."""
    return verdict_of(StudyResult(Path(), {}, {}, points, goal, "accuracy", chosen, {}, ()))


def trial(protection: dict[str, object], noise: float | None, seed: int, texts: bool = True) -> Trial:
    leak = 0.98 if noise is None else max(0.017, min(0.98, 0.25 / noise**1.7))
    bound = None if noise is None else min(1.0, leak * 1.6 + 0.01)
    name = "none" if noise is None else str(protection["name"])
    read = NOTE if noise is None else HOSTILE if noise == NOISES[0] else ""
    rates = [0.001, 0.01, 0.1, 0.5, 1.0]
    promise = None
    if noise is not None:
        promise = Guarantee(
            6 / noise,
            1e-5,
            "patient",
            Adjacency.ADD_REMOVE if name == "dp-sgd" else Adjacency.REPLACE_ONE,
            "pld",
            assumptions=("noise is secret", "batches are secret"),
        )
    shift = 0.01 * math.sin(seed + (noise or 0))
    words = [
        {"attack": "dager", "truth": NOTE, "guess": read, "batch": 0},
        {"attack": "dager", "truth": HOSTILE, "guess": HOSTILE + " and more", "batch": 1},
    ]
    return Trial(
        settings={"data": {"source": "notes"}, "protect": protection},
        seed=seed,
        utility={"accuracy": 0.91 - (0 if noise is None else 0.05 * noise) + shift},
        leakages=(
            Leakage("one-of-n/identified", leak, max(0, leak - 0.01), min(1, leak + 0.01), 20000, 1 / 64),
            Leakage("dager/rouge_l", 1.0 if noise is None else 0.02, 0.0, 1.0, 3, 0.1),
        ),
        guarantee=promise,
        seconds=3.0,
        details={
            "evaluated_rows": 200,
            "steps": 300,
            "baselines": {"accuracy": 0.4},
            "scopes": {"one-of-n/identified": "training", "dager/rouge_l": "update"},
            "bounds": {} if bound is None else {"one-of-n/identified": bound},
            "protection": None if noise is None else {"name": name, "noise_multiplier": noise},
            "epsilon_over_training": []
            if noise is None
            else [[s, 6 / noise * math.sqrt(s / 300)] for s in range(10, 301, 10)],
            "roc": {
                "false_positives": rates,
                "true_positives": [min(1, 1.5 * r) for r in rates],
                "measured": {f"{r:g}": [min(1, 1.5 * r), r, min(1, 2 * r)] for r in rates[:3]},
                "bound": None if noise is None else [min(1, 4 * r / noise + r) for r in rates],
                "members": 1800,
                "others": 200,
            },
            "attacks": {
                "dager": {
                    "release": {
                        "kind": "gradient",
                        "parameters": "all 103 tensors, 22.6 M numbers",
                        "batch_size": 1,
                        "model": "a fresh minilm",
                    },
                    "guarantee": None if promise is None else {**promise.as_dict(), "sentence": promise.sentence()},
                    "epsilon_by_adjacency": {}
                    if noise is None
                    else {"add/remove": 4.4 / noise, "zero-out": 4.4 / noise, "replace-one": 9.9 / noise},
                }
            },
            "texts": words if texts else [],
        },
    )


def write_sample(folder: Path, seeds: int = 2, protections: tuple[str, ...] = ("dp-sgd", "dir-dp-sgd")) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    study = {
        "name": "sample <b>",
        "title": "Clinic notes: may a classifier be trained on them? <script>window.hacked = 4</script>",
        "data": {"source": "notes"},
        "model": {"train": "head"},
        "protect": [{"name": name} for name in protections],
        "goal": {"leakage": "one-of-n/identified", "ceiling": 0.1, "utility": "accuracy"},
    }
    (folder / "study.json").write_text(json.dumps({"format": FORMAT, **study}))
    with (folder / NAME).open("w") as file:
        for seed in range(seeds):
            settings: list[tuple[dict[str, object], float | None]] = [({"name": "none"}, None)]
            settings += [({"name": name, "noise_multiplier": noise}, noise) for name in protections for noise in NOISES]
            for protection, noise in settings:
                made = trial(protection, noise, seed)
                file.write(json.dumps({"key": key_of(made.settings, seed), **trial_as_dict(made)}) + "\n")
