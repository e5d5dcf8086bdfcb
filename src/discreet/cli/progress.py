"""What shows that something is going on: a live line for training, and a spinner for whatever else takes a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from discreet.cli.output import note, stderr
from discreet.core.guarantee import in_digits

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from discreet.training.meter import Report

_SECONDS_TO_FIRST, _SECONDS_BETWEEN_LINES = 2, 10


@contextmanager
def working(words: str) -> Iterator[None]:
    """Say on stderr what is being done and for how long; off a terminal, a line every ten seconds."""
    console = stderr()
    if not console.is_terminal:
        with _every_ten_seconds(words):
            yield
        return
    with spinner(console) as bar:
        bar.add_task(words)
        yield


@contextmanager
def _every_ten_seconds(words: str) -> Iterator[None]:
    """Print what is being done and for how long, if it takes long."""
    over = threading.Event()

    def tell() -> None:
        waited = 0
        while not over.wait(_SECONDS_BETWEEN_LINES):
            waited += _SECONDS_BETWEEN_LINES
            note(f"{words}: {waited} s so far")

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


def spinner(console: Console) -> Progress:
    """Return a line with a description and the seconds so far, which is gone when it is done."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    # Results on stdout must stay there: they may go to a file.
    return Progress(*columns, console=console, transient=True, redirect_stdout=False)


@contextmanager
def training_bar(hidden: bool = False) -> Iterator[Callable[[Report], None]]:
    """Show a training on stderr while it runs."""
    console = stderr()
    if hidden or not console.is_terminal:
        yield (lambda report: None) if hidden else lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.fields[stage]}"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None, facts="", stage="training")

        def show(report: Report) -> None:
            bar.update(task, total=report.steps, completed=report.step, facts=facts(report), stage=report.stage)

        yield show


def lines(clock: Callable[[], float] = time.monotonic) -> Callable[[Report], None]:
    """Return what prints reports on stderr: one soon after a stage began, to say how long it takes, then every 10 s.

    The last report of a stage that was never announced is not printed: it was over at once.
    """
    began: dict[str, float] = {}
    printed: dict[str, float] = {}

    def show(report: Report) -> None:
        now = clock()
        start = began.setdefault(report.stage, now)
        due = printed[report.stage] + _SECONDS_BETWEEN_LINES if report.stage in printed else start + _SECONDS_TO_FIRST
        ends = report.step == report.steps and report.stage in printed
        if now < due and not ends:
            return
        printed[report.stage] = now
        # What is not a terminal may be a file: the loss of a protected run is private and stays out of it.
        shown_facts = facts(report if report.epsilon is None else replace(report, loss=None))
        unit = "text" if report.stage == "encoding" else "step"
        note(
            f"{report.stage}: {unit} {report.step:,}/{report.steps:,}  {shown_facts}  "
            f"about {report.seconds_left:.0f} s left"
        )

    return show


def facts(report: Report) -> str:
    """Return loss and speed, where steps are taken, and, for private training, the budget spent so far."""
    told = []
    if report.loss is not None:
        told.append(f"loss {report.loss:.3f}")
    if report.rows_per_second is not None:
        told.append(f"{report.rows_per_second:,.0f} rows/s")
    if report.epsilon is not None:
        unbounded = report.epsilon == float("inf")
        told.append("no guarantee" if unbounded else f"epsilon ≤ {in_digits(report.epsilon)}")
    return "  ".join(told)
