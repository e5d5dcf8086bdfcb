"""Workers: what each engine reports of a trial that is done, fails, or takes its worker with it."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from discreet.core.errors import ExtraError
from discreet.study.file import Study
from discreet.study.grid import Planned, plan
from discreet.study.workers import LOST, Event, Failure, run_in_processes, run_on_ray

sys.path.insert(0, str(Path(__file__).parent))

import toy


def ended(events: list[Event]) -> dict[str, list[Event]]:
    """Return the last events of trials by what they are, and check that each trial started once before it ended."""
    running: set[str] = set()
    last: dict[str, list[Event]] = {"done": [], "failed": []}
    for event in events:
        if event.started:
            assert event.planned.key not in running
            running.add(event.planned.key)
        else:
            running.remove(event.planned.key)
            last["done" if event.failure is None else "failed"].append(event)
    assert not running
    return last


def never() -> bool:
    return False


def test_a_failure_says_why_and_whether_its_worker_is_lost(study: Study) -> None:
    planned = plan(study)
    failed = ended(list(run_in_processes(planned, toy.failing, 2, never)))["failed"]
    assert [event.failure for event in failed] == 2 * [Failure("ValueError: two is too many", worker_lost=False)]
    died = ended(list(run_in_processes(planned, toy.dying, 2, never)))
    assert [event.failure for event in died["failed"]] == [LOST, LOST]
    assert LOST.worker_lost and len(died["done"]) == len(planned) - 2


def test_a_trial_that_says_what_a_lost_worker_says_keeps_its_worker(study: Study) -> None:
    events = list(run_in_processes(plan(study), toy.imitating, 1, never))
    failures = [event.failure for event in ended(events)["failed"]]
    assert failures and not any(failure.worker_lost for failure in failures if failure is not None)
    processes = {event.trial.details["process"] for event in ended(events)["done"] if event.trial is not None}
    assert len(processes) == 1


class FakeRay(types.ModuleType):
    """Ray as far as it is used, in this process; what an actor is given and returns is pickled, as Ray does."""

    class RayError(Exception):
        """An actor died."""

    def __init__(self, dies: Callable[[Planned], bool]) -> None:
        super().__init__("ray")
        self.exceptions = types.SimpleNamespace(RayError=self.RayError)
        self.dies, self.started, self.stopped, self.results = dies, 0, 0, dict[int, Any]()

    def init(self, **options: Any) -> None:
        self.started += 1

    def shutdown(self) -> None:
        self.stopped += 1

    def remote(self, **options: Any) -> Callable[[type], Any]:
        def actor_class(kind: type) -> Any:
            def create(*given: Any) -> Any:
                actor = kind(*pickle.loads(pickle.dumps(given)))
                return types.SimpleNamespace(run=types.SimpleNamespace(remote=lambda one: self.call(actor, one)))

            return types.SimpleNamespace(remote=create)

        return actor_class

    def call(self, actor: Any, planned: Planned) -> int:
        reference = len(self.results)
        self.results[reference] = None if self.dies(planned) else pickle.dumps(actor.run(planned))
        return reference

    def wait(self, references: list[int], timeout: float) -> tuple[list[int], list[int]]:
        return references[:1], references[1:]

    def get(self, reference: int) -> Any:
        if self.results[reference] is None:
            raise self.RayError
        return pickle.loads(self.results[reference])


def test_ray_reports_the_same_events(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(study)
    ray = FakeRay(dies=lambda one: one.settings["protect"].get("epsilon") == 8.0)
    monkeypatch.setitem(sys.modules, "ray", ray)
    events = ended(list(run_on_ray(planned, toy.failing, 2, never)))
    reasons = {event.planned.label: event.failure for event in events["failed"]}
    assert reasons == {"dp-sgd, epsilon 2": Failure("ValueError: two is too many"), "dp-sgd, epsilon 8": LOST}
    here = ended(list(run_in_processes([event.planned for event in events["done"]], toy.quick, 1, never)))
    assert {e.planned.key: e.trial for e in events["done"]} == {e.planned.key: e.trial for e in here["done"]}
    assert (ray.started, ray.stopped) == (1, 1)


def test_ray_is_stopped_where_the_sweep_is(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = FakeRay(dies=lambda one: False)
    monkeypatch.setitem(sys.modules, "ray", ray)
    events: list[Event] = []
    for event in run_on_ray(plan(study), toy.quick, 1, lambda: len(events) >= 2):
        events.append(event)  # noqa: PERF402  (the sweep looks at how many there are)
    assert len(ended(events)["done"]) < len(plan(study))
    assert ray.stopped == 1


def test_a_missing_ray_names_its_extra(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ExtraError, match=r"discreet\[ray\]"):
        list(run_on_ray(plan(study), toy.quick, 1, never))
