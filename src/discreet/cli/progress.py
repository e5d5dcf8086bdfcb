"""What shows that something is going on: a live line for training, and a spinner for whatever else takes a while."""

from __future__ import annotations

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


@contextmanager
def working(words: str) -> Iterator[None]:
    """Say on stderr what is being done and for how long; say nothing where there is no terminal."""
    console = stderr()
    if not console.is_terminal:
        yield
        return
    with spinner(console) as bar:
        bar.add_task(words)
        yield


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
        yield _lines(hidden)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("training"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bar:
        task = bar.add_task("", total=None, facts="")

        def show(report: Report) -> None:
            bar.update(task, total=report.steps, completed=report.step, facts=facts(report))

        yield show


def _lines(hidden: bool) -> Callable[[Report], None]:
    shown: set[int] = set()

    def show(report: Report) -> None:
        tenth = 10 * report.step // report.steps
        if not hidden and tenth not in shown:
            shown.add(tenth)
            # What is not a terminal may be a file: the loss of a protected run is private and stays out of it.
            shown_facts = facts(report if report.epsilon is None else replace(report, loss=None))
            note(f"step {report.step}/{report.steps}  {shown_facts}  {report.seconds_left:.0f} s left")

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
