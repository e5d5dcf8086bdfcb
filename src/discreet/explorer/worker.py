"""One worker that does the computing: the newest request wins, and what runs can be stopped."""

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
PATIENCE = 180.0  # seconds after which a reading is given up
_SWITCHES = frozenset({"_set_grad_enabled"})  # were it stopped, gradients would stay switched off for good
_LOG = logging.getLogger("discreet.explorer")

Work = Callable[[Callable[[str], None]], Mapping[str, Any]]


class Stopped(BaseException):
    """Raised inside work that is to stop; no handler of ordinary errors catches it."""


class Stops(TorchFunctionMode):
    """Within it, the next call of a torch function raises `Stopped`, one time, when `reason` gives one.

    Attacks are loops of such calls, so that they end within a fraction of a second, and always between two of them.
    What tidies up on the way out may call torch again, and the end of `no_grad` is such a call: both are let through.

    >>> import torch
    >>> with Stops(lambda: None):
    ...     float(torch.ones(2).sum())
    2.0
    """

    def __init__(self, reason: Callable[[], object]) -> None:
        """Ask this before every call."""
        super().__init__()
        self.reason, self.raised = reason, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, unless the work is to stop."""
        if not self.raised and getattr(func, "__name__", "") not in _SWITCHES and self.reason() is not None:
            self.raised = True
            raise Stopped
        return func(*args, **(kwargs or {}))


class Job:
    """One request on its way: its state, what is being done, and in the end its result or the reason for none."""

    def __init__(self, work: Work, patience: float = PATIENCE) -> None:
        """Hold work that is not yet begun."""
        self.work, self.patience = work, patience
        self.state, self.stage = WAITING, ""
        self.result: Mapping[str, Any] | None = None
        self.error = ""
        self.began = time.monotonic()
        self.stop: str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in ENDED

    @property
    def seconds(self) -> float:
        """How long ago it was asked for."""
        return time.monotonic() - self.began

    def end(self, how: str) -> None:
        """Ask it to end, as cancelled or as superseded; what waits ends at once, what runs at its next step."""
        if self.stop is None:
            self.stop = how
        if self.state == WAITING:
            self.state = self.stop

    def why_stop(self) -> str | None:
        """Return why it should stop, or None."""
        if self.stop is None and self.seconds > self.patience:
            return "late"
        return self.stop

    def note(self, words: str) -> None:
        """Say what is being done, and stop here if it should."""
        self.stage = words
        if self.why_stop() is not None:
            raise Stopped


class Worker:
    """A thread that does one job at a time and keeps only the newest waiting."""

    def __init__(self) -> None:
        """Start with nothing to do."""
        self._bell = threading.Condition()
        self._running: Job | None = None
        self._waiting: Job | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="discreet-explorer", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether it works on something."""
        return self._running is not None

    def submit(self, work: Work, patience: float = PATIENCE) -> Job:
        """Return the job of new work; what runs or waits before it is superseded."""
        job = Job(work, patience)
        with self._bell:
            if self._closed:
                job.state, job.error = CANCELLED, "The server is ending."
                return job
            for older in (self._running, self._waiting):
                if older is not None:
                    older.end(SUPERSEDED)
            self._waiting = job
            self._bell.notify()
        return job

    def close(self, seconds: float = 5.0) -> None:
        """Stop what runs and end the thread."""
        with self._bell:
            self._closed = True
            for job in (self._running, self._waiting):
                if job is not None:
                    job.end(CANCELLED)
            self._bell.notify()
        self._thread.join(seconds)

    def _loop(self) -> None:
        while True:
            with self._bell:
                self._running = None
                while self._waiting is None and not self._closed:
                    self._bell.wait()
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
            with torch.enable_grad(), Stops(job.why_stop):  # whatever the job before left switched off
                job.result = job.work(job.note)
            state = DONE if job.stop is None else job.stop
        except Stopped:
            if job.stop is None:
                job.error = (
                    f"Expected an answer within {job.patience:g} s, and there is none yet. Shorten the sentence, or "
                    "use `discreet attack`, which takes its time."
                )
            state = job.stop or REFUSED
        except DiscreetError as error:
            job.error, state = str(error), REFUSED
        except Exception as error:
            _LOG.error("A reading failed with %s.", type(error).__name__)  # never what it held
            job.error = (
                f"The reading failed with {type(error).__name__}. The server is still running; try another setting."
            )
            state = FAILED
        job.work = _nothing  # the sentence goes with it
        job.state = state


def _nothing(note: Callable[[str], None]) -> Mapping[str, Any]:
    return {}
