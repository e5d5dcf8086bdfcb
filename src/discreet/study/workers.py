"""Run trials in parallel: worker processes on this machine, or actors on a Ray cluster."""

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
from typing import Any

from discreet.core.errors import ExtraError
from discreet.core.types import Trial
from discreet.study.grid import Planned

Run = Callable[[Planned], Trial]
Stop = Callable[[], bool]

# One thread per trial: sums in another order differ in their last digits, and no figure may depend on how many run.
THREADS = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}


@dataclass(frozen=True)
class Failure:
    """Why a trial has no result; `worker_lost` says that its worker ended before it returned anything."""

    reason: str
    worker_lost: bool = False


LOST = Failure("its worker ended without a result: it was killed, or memory ran out", worker_lost=True)


@dataclass(frozen=True)
class Event:
    """A change of a trial's state: it started (neither trial nor failure), it finished, or it failed."""

    planned: Planned
    trial: Trial | None = None
    failure: Failure | None = None

    @property
    def started(self) -> bool:
        """Whether the trial has only started."""
        return self.trial is None and self.failure is None


def run_in_processes(planned: Sequence[Planned], run: Run, workers: int, should_stop: Stop) -> Iterator[Event]:
    """Run trials in worker processes and yield their events; `run` must be importable by its name.

    Workers import once and run one trial at a time. A worker that dies costs its trial and is replaced. Workers end
    when the sweep does, even if it is killed.
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
                if event.failure is not None and event.failure.worker_lost:
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
        except (BrokenPipeError, ConnectionResetError):  # it died while idle; `take` reports it
            return

    def take(self) -> Event:
        planned, self.busy = self.busy, None
        assert planned is not None
        try:
            return _ended(planned, self.pipe.recv())
        except (EOFError, ConnectionResetError):
            return Event(planned, failure=LOST)

    def end(self) -> None:
        self.pipe.close()
        self.process.kill()  # it keeps nothing: its results are here, and Python takes a second to free torch
        self.process.join()


def _work(pipe: Connection, run: Run) -> None:
    """Run one trial after another until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep decides when to stop
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    while True:
        try:
            planned = pipe.recv()
        except (EOFError, OSError):
            return
        result = _attempt(run, planned)
        try:
            pipe.send(result)
        except OSError:
            return


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def _attempt(run: Run, planned: Planned) -> Trial | Failure:
    try:
        return run(planned)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}")


def _ended(planned: Planned, result: Trial | Failure) -> Event:
    return Event(planned, trial=result) if isinstance(result, Trial) else Event(planned, failure=result)


def run_on_ray(planned: Sequence[Planned], run: Run, workers: int, should_stop: Stop) -> Iterator[Event]:
    """Run trials on Ray, one actor per worker, and yield their events; without RAY_ADDRESS on this machine alone.

    On a cluster every machine needs the package and, where the data are files, the same paths.
    """
    ray = _ray()
    address = os.environ.get("RAY_ADDRESS")
    local = {} if address else {"num_cpus": workers, "include_dashboard": False, "address": "local"}
    ray.init(log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": THREADS}, **local)
    try:
        actor = ray.remote(max_restarts=-1, num_cpus=1)(_Actor)
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
            for reference in ready:
                worker, one = running.pop(reference)
                idle.append(worker)
                try:
                    event = _ended(one, ray.get(reference))
                except ray.exceptions.RayError:
                    event = Event(one, failure=LOST)
                yield event
    finally:
        ray.shutdown()


class _Actor:
    def __init__(self, run: Run) -> None:
        self.function = run

    def run(self, planned: Planned) -> Trial | Failure:
        return _attempt(self.function, planned)


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a study leaves the machine
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise ExtraError("Expected Ray for on='ray'. Install it: pip install 'discreet[ray]'.") from None
    return ray
