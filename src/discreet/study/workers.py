"""Trials on one machine: worker processes that import once and stay, one trial each at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from discreet.core.types import Trial
from discreet.study.grid import Planned

Run = Callable[[Planned], Trial]
Stop = Callable[[], bool]

# One thread a trial: sums in another order differ in their last digits, and no figure may depend on how many run.
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
_LOST = "its process ended without an answer: it was killed, or memory ran out"


@dataclass(frozen=True)
class Event:
    """Something that happened to a trial: it began (neither trial nor failure), it is done, or it failed."""

    planned: Planned
    trial: Trial | None = None
    failure: str | None = None

    @property
    def began(self) -> bool:
        """Whether the trial has only begun."""
        return self.trial is None and self.failure is None


def in_processes(planned: Sequence[Planned], run: Run, workers: int, should_stop: Stop) -> Iterator[Event]:
    """Run trials in worker processes and yield what happens; `run` must be importable by its name.

    A worker that dies costs its trial and is replaced. Workers end when the sweep does, even if it is killed.
    """
    waiting = list(reversed(planned))
    pool: list[_Worker] = []
    try:
        while True:
            stopping = should_stop()
            while waiting and not stopping and len(pool) < workers:
                pool.append(_Worker(run))
            for worker in pool:
                if worker.busy is None and waiting and not stopping:
                    one = waiting.pop()
                    worker.give(one)
                    yield Event(one)
            busy = [worker for worker in pool if worker.busy is not None]
            if not busy:
                return
            for ready in wait([worker.pipe for worker in busy], timeout=0.5):
                worker = next(w for w in busy if w.pipe is ready)
                event = worker.take()
                if event.failure == _LOST:
                    worker.end()
                    pool.remove(worker)
                yield event
    finally:
        for worker in pool:
            worker.end()


class _Worker:
    def __init__(self, run: Run) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        before = {name: os.environ.get(name) for name in THREADS}
        os.environ.update(THREADS)  # a spawned process reads them when it imports torch
        try:
            self.process: BaseProcess = context.Process(target=_work, args=(other, run), daemon=True)
            self.process.start()
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
        other.close()
        self.busy: Planned | None = None

    def give(self, planned: Planned) -> None:
        self.busy = planned
        try:
            self.pipe.send(planned)
        except (BrokenPipeError, ConnectionResetError):  # it died while idle; `take` will say so
            return

    def take(self) -> Event:
        planned, self.busy = self.busy, None
        assert planned is not None
        try:
            answer = self.pipe.recv()
        except (EOFError, ConnectionResetError):
            return Event(planned, failure=_LOST)
        if isinstance(answer, Trial):
            return Event(planned, trial=answer)
        return Event(planned, failure=str(answer))

    def end(self) -> None:
        self.pipe.close()
        if self.busy is not None or self.process.exitcode is not None:
            self.process.kill()
        self.process.join(timeout=5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def _work(pipe: Connection, run: Run) -> None:
    """Answer one trial after another until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep decides when to stop
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            planned = pipe.recv()
        except (EOFError, OSError):
            return
        answer = attempt(run, planned)
        try:
            pipe.send(answer)
        except OSError:
            return


def attempt(run: Run, planned: Planned) -> Trial | str:
    """Return a trial, or in words why it failed."""
    try:
        return run(planned)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)
