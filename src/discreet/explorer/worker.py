"""A worker thread that runs one job at a time; a new job replaces the previous one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from discreet.core.errors import DiscreetError

WAITING, RUNNING, DONE, REFUSED, CANCELLED, SUPERSEDED, FAILED = (
    "waiting",
    "running",
    "done",
    "refused",
    "cancelled",
    "superseded",
    "failed",
)
ENDED = frozenset({DONE, REFUSED, CANCELLED, SUPERSEDED, FAILED})
PATIENCE = 180.0  # seconds after which a job is stopped
_SWITCHES = frozenset({"_set_grad_enabled"})  # if interrupted, gradients would stay disabled
_LOG = logging.getLogger("discreet.explorer")

Work = Callable[[Callable[[str], None]], Mapping[str, Any]]


class Stopped(BaseException):
    """Raised inside a job that must stop; `except Exception` does not catch it."""


class Stops(TorchFunctionMode):
    """Raise `Stopped` once, at the next torch function call after `reason` returns a value.

    Attacks are loops of torch calls, so they stop within a fraction of a second, between two calls. Cleanup code may
    call torch again, and so does the exit of `no_grad`: these calls are not interrupted.

    >>> import torch
    >>> with Stops(lambda: None):
    ...     float(torch.ones(2).sum())
    2.0
    """

    def __init__(self, reason: Callable[[], object]) -> None:
        """Check `reason` before every call."""
        super().__init__()
        self.reason, self.raised = reason, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, or raise `Stopped`."""
        if not self.raised and getattr(func, "__name__", "") not in _SWITCHES and self.reason() is not None:
            self.raised = True
            raise Stopped
        return func(*args, **(kwargs or {}))


class Job:
    """A job: its state, current stage, and finally its result or error."""

    def __init__(self, work: Work, patience: float = PATIENCE) -> None:
        """Create a waiting job."""
        self.work, self.patience = work, patience
        self.state, self.stage = WAITING, ""
        self.result: Mapping[str, Any] | None = None
        self.error = ""
        self.began = time.monotonic()
        self.stop: str | None = None

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDED

    @property
    def seconds(self) -> float:
        """Seconds since the job was submitted."""
        return time.monotonic() - self.began

    def end(self, how: str) -> None:
        """Stop as cancelled or superseded: at once if waiting, at the next torch call if running."""
        if self.stop is None:
            self.stop = how
        if self.state == WAITING:
            self.state = self.stop

    def why_stop(self) -> str | None:
        """Return why the job should stop, or None."""
        if self.stop is None and self.seconds > self.patience:
            return "late"
        return self.stop

    def note(self, words: str) -> None:
        """Set the current stage, and raise `Stopped` if the job should stop."""
        self.stage = words
        if self.why_stop() is not None:
            raise Stopped


class Worker:
    """A thread that runs one job at a time and queues only the newest."""

    def __init__(self) -> None:
        """Start the thread."""
        self._condition = threading.Condition()
        self._running: Job | None = None
        self._waiting: Job | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="discreet-explorer", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a job is running."""
        return self._running is not None

    def submit(self, work: Work, patience: float = PATIENCE) -> Job:
        """Submit work and return its job; running and waiting jobs are superseded."""
        job = Job(work, patience)
        with self._condition:
            if self._closed:
                job.state, job.error = CANCELLED, "The server is shutting down."
                return job
            for older in (self._running, self._waiting):
                if older is not None:
                    older.end(SUPERSEDED)
            self._waiting = job
            self._condition.notify()
        return job

    def close(self, seconds: float = 5.0) -> None:
        """Cancel all jobs and join the thread."""
        with self._condition:
            self._closed = True
            for job in (self._running, self._waiting):
                if job is not None:
                    job.end(CANCELLED)
            self._condition.notify()
        self._thread.join(seconds)

    def _loop(self) -> None:
        while True:
            with self._condition:
                self._running = None
                while self._waiting is None and not self._closed:
                    self._condition.wait()
                if self._closed:
                    return
                job, self._waiting = self._waiting, None
                if job is None or job.ended:
                    continue
                job.state = RUNNING
                self._running = job
            self._do(job)

    def _do(self, job: Job) -> None:
        try:
            with torch.enable_grad(), Stops(job.why_stop):  # in case the previous job left gradients disabled
                job.result = job.work(job.note)
            state = DONE if job.stop is None else job.stop
        except Stopped:
            if job.stop is None:
                job.error = (
                    f"Expected a result within {job.patience:g} s, but the attack is not finished. Shorten the "
                    "sentence, or use `discreet attack`, which has no such limit."
                )
            state = job.stop or REFUSED
        except DiscreetError as error:
            job.error, state = str(error), REFUSED
        except Exception as error:
            _LOG.error("An attack failed with %s.", type(error).__name__)  # never its message, which may hold text
            job.error = (
                f"The attack failed with {type(error).__name__}. The server is still running; try another setting."
            )
            state = FAILED
        job.work = lambda note: {}  # drops the reference to the sentence
        job.state = state
