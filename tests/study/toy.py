"""Trials without a model, importable by name as worker processes need it."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from discreet.core.settings import parse
from discreet.core.types import Leakage, Trial
from discreet.study.file import Study
from discreet.study.grid import Planned
from discreet.study.sweep import sweep
from discreet.study.workers import LOST


def quick(planned: Planned) -> Trial:
    epsilon = planned.settings["protect"].get("epsilon", 100.0)
    leak = min(1.0, epsilon / 10)
    return Trial(
        settings=planned.settings,
        seed=planned.seed,
        utility={"accuracy": 0.9 - 0.1 / epsilon},
        leakages=(Leakage("one-of-n/identified", leak, max(0, leak - 0.1), min(1.0, leak + 0.1), 10, 0.1),),
        details={
            "scopes": {"one-of-n/identified": "training"},
            "bounds": {"one-of-n/identified": min(1.0, leak + 0.1)},
        },
    )


def slow(planned: Planned) -> Trial:
    time.sleep(0.03)
    return quick(planned)


def failing(planned: Planned) -> Trial:
    if planned.settings["protect"].get("epsilon") == 2.0:
        raise ValueError("two is too many")
    return quick(planned)


def dying(planned: Planned) -> Trial:
    if planned.settings["protect"].get("epsilon") == 2.0:
        os._exit(9)
    return quick(planned)


def imitating(planned: Planned) -> Trial:
    """Fail with the words of a lost worker."""
    if planned.settings["protect"].get("epsilon") == 2.0:
        raise RuntimeError(LOST.reason)
    trial = quick(planned)
    return replace(trial, details={**trial.details, "process": os.getpid()})


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    import toy

    study = parse(Study, json.loads(Path(sys.argv[1]).read_text()))
    sweep(study, toy.slow, Path(sys.argv[2]), workers=2)
