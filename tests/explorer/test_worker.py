"""The newest request wins, what runs can be stopped, and nothing ends the worker but its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from discreet.core.errors import DataError
from discreet.explorer.worker import (
    CANCELLED,
    DONE,
    FAILED,
    REFUSED,
    RUNNING,
    SUPERSEDED,
    WAITING,
    Job,
    Stopped,
    Stops,
    Worker,
)

Note = Callable[[str], None]


@pytest.fixture
def worker() -> Iterator[Worker]:
    made = Worker()
    yield made
    made.close()


def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.002)


def endless(note: Note) -> dict[str, int]:
    note("turning")
    while True:  # as an attack does: torch functions, again and again
        torch.ones(2) + torch.ones(2)


def without_gradients(note: Note) -> dict[str, int]:
    note("turning")
    while True:  # as the encoding of texts does
        with torch.no_grad():
            torch.ones(2)


def test_work_is_done_and_its_result_kept(worker: Worker) -> None:
    job = worker.submit(lambda note: {"sum": float(torch.ones(3).sum())})
    until(lambda: job.ended)
    assert (job.state, job.result, job.error) == (DONE, {"sum": 3.0}, "")


def test_a_newer_request_supersedes_what_runs_and_what_waits(worker: Worker) -> None:
    hold = threading.Event()
    first = worker.submit(lambda note: {"held": hold.wait(5)})  # it calls no torch function and cannot be stopped
    until(lambda: first.state == RUNNING)
    second = worker.submit(lambda note: {"n": 2})
    assert second.state == WAITING and worker.busy
    third = worker.submit(lambda note: {"n": 3})
    assert second.state == SUPERSEDED
    hold.set()
    until(lambda: third.ended)
    assert first.state == SUPERSEDED and third.result == {"n": 3}


def test_what_runs_stops_at_its_next_step(worker: Worker) -> None:
    job = worker.submit(endless)
    until(lambda: job.state == RUNNING and job.stage == "turning")
    job.end(CANCELLED)
    until(lambda: job.ended)
    assert job.state == CANCELLED and job.result is None
    after = worker.submit(endless)
    until(lambda: after.state == RUNNING)
    last = worker.submit(lambda note: {"n": 1})
    until(lambda: last.ended)
    assert (after.state, last.state) == (SUPERSEDED, DONE)


def test_what_takes_too_long_is_refused_with_a_remedy(worker: Worker) -> None:
    job = worker.submit(endless, patience=0.05)
    until(lambda: job.ended)
    assert job.state == REFUSED and "within 0.05 s" in job.error and "discreet attack" in job.error


def test_errors_end_the_job_and_not_the_worker(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    def refuse(note: Note) -> dict[str, int]:
        raise DataError("Expected a sentence, found none. Type one.")

    def fail(note: Note) -> dict[str, int]:
        raise ValueError("the heart of Anna Novak")

    with caplog.at_level(logging.DEBUG):
        refused = worker.submit(refuse)
        until(lambda: refused.ended)
        failed = worker.submit(fail)
        until(lambda: failed.ended)
    assert (refused.state, refused.error) == (REFUSED, "Expected a sentence, found none. Type one.")
    assert failed.state == FAILED and "ValueError" in failed.error
    assert "Anna" not in failed.error + caplog.text  # what it held is told to nobody
    fine = worker.submit(lambda note: {})
    until(lambda: fine.ended)
    assert fine.state == DONE


def test_a_job_that_ended_holds_its_question_no_longer(worker: Worker) -> None:
    secret = "the heart of Anna Novak"
    job = worker.submit(lambda note: {"length": len(secret)})
    until(lambda: job.ended)
    assert not getattr(job.work, "__closure__", None)


def test_closing_stops_what_runs_and_refuses_more() -> None:
    worker = Worker()
    job = worker.submit(endless)
    until(lambda: job.state == RUNNING)
    worker.close()
    assert job.state == CANCELLED
    late = worker.submit(endless)
    assert isinstance(late, Job) and late.state == CANCELLED


def test_what_is_stopped_without_gradients_leaves_them_on_for_the_next(worker: Worker) -> None:
    for number in range(20):  # it stops now within, now at the end of the block
        job = worker.submit(without_gradients)
        until(lambda job=job: job.stage == "turning")
        time.sleep(0.0007 * number)
        job.end(CANCELLED)
        until(lambda job=job: job.ended)
        after = worker.submit(lambda note: {"on": torch.is_grad_enabled()})
        until(lambda after=after: after.ended)
        assert after.result == {"on": True}


def test_a_stop_lets_what_tidies_up_call_torch() -> None:
    tidied: list[float] = []

    def tidy() -> None:
        try:
            torch.ones(1)
        finally:
            tidied.append(float(torch.zeros(1).sum()))

    with Stops(lambda: "now"), pytest.raises(Stopped):
        tidy()
    assert tidied == [0.0]


def test_gradients_are_switched_on_again_on_the_way_out() -> None:
    reason: list[str] = []
    with pytest.raises(Stopped), Stops(lambda: reason[0] if reason else None), torch.no_grad():
        reason.append("now")
        torch.ones(1)
    assert torch.is_grad_enabled()
    reason.clear()
    with Stops(lambda: reason[0] if reason else None), torch.no_grad():
        reason.append("now")  # the next call of torch is the end of the block
    assert torch.is_grad_enabled()
