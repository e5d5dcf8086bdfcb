"""Trials on a cluster: the same work through Ray, one actor a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from discreet.core.errors import ExtraError
from discreet.core.types import Trial
from discreet.study.grid import Planned
from discreet.study.workers import THREADS, Event, Run, Stop, attempt

_LOST = "its worker ended without an answer: it was killed, or memory ran out"


def on_ray(planned: Sequence[Planned], run: Run, workers: int, should_stop: Stop) -> Iterator[Event]:
    """Run trials on Ray and yield what happens; without RAY_ADDRESS on this machine alone.

    On a cluster every machine needs the package and, where the data are files, the same paths.
    """
    ray = _ray()
    address = os.environ.get("RAY_ADDRESS")
    here = {} if address else {"num_cpus": workers, "include_dashboard": False, "address": "local"}
    ray.init(log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": THREADS}, **here)
    try:
        actor = ray.remote(max_restarts=-1, num_cpus=1)(_Runner)
        idle = [actor.remote(run) for _ in range(min(workers, len(planned)))]
        waiting, running = list(reversed(planned)), dict[Any, tuple[Any, Planned]]()
        while True:
            while waiting and idle and not should_stop():
                worker, one = idle.pop(), waiting.pop()
                running[worker.run.remote(one)] = (worker, one)
                yield Event(one)
            if not running:
                return
            ready, _ = ray.wait(list(running), timeout=0.5)
            for answer in ready:
                worker, one = running.pop(answer)
                idle.append(worker)
                try:
                    found = ray.get(answer)
                except ray.exceptions.RayError:
                    yield Event(one, failure=_LOST)
                    continue
                yield Event(one, trial=found) if isinstance(found, Trial) else Event(one, failure=str(found))
    finally:
        ray.shutdown()


class _Runner:
    def __init__(self, run: Run) -> None:
        self.function = run

    def run(self, planned: Planned) -> Trial | str:
        return attempt(self.function, planned)


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a study leaves the machine
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ExtraError("Expected Ray for --on ray. Install it: pip install 'discreet[ray]'.") from None
    return ray
