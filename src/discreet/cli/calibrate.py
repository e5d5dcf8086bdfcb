"""`discreet calibrate`: run a study's trials, all that are not done yet, and say what they recommend."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.options import Json
from discreet.cli.output import as_json, line, note, paragraph, stderr, stop_on_interrupt
from discreet.core.errors import SettingError

if TYPE_CHECKING:
    from discreet.core.types import Trial
    from discreet.study.file import Goal
    from discreet.study.grid import Planned
    from discreet.study.sweep import Standing


def run(planned: Planned) -> Trial:
    """Run one trial with the attacks of the catalog; worker processes import this by its name."""
    from discreet.catalog import attack_of
    from discreet.study.trial import run_trial

    return run_trial(planned, attack_of)


def calibrate(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="A study file, such as studies/demo.toml.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for the trials; a begun one goes on.")],
    workers: Annotated[
        int | None, typer.Option(help="Trials at the same time; as many as cores, each on one thread.")
    ] = None,
    on: Annotated[str, typer.Option("--on", help="processes of this machine, or ray (a cluster).")] = "processes",
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report when all is done.")] = True,
    json: Json = False,
) -> None:
    """Run protections over their noise, attack every one, and recommend.

    Every trial is kept as soon as it is done; the same command goes on where it stopped, and runs only what is missing.
    """
    from discreet.catalog import attack_of
    from discreet.report.installed import check_installed
    from discreet.study.file import read_study
    from discreet.study.keys import said_in_keys
    from discreet.study.sweep import sweep
    from discreet.study.tables import check

    if report:
        check_installed()
    asked = read_study(study)
    with said_in_keys():
        check(asked, attack_of)
        if not str(asked.data["source"]).startswith("hub:"):
            from discreet.study.shared import corpus_of

            corpus_of(asked.data)  # a column that is not there is said once, and not by every trial
    limited = [f"{table['name']} ({table['seconds']:g} s)" for table in asked.attacks if "seconds" in table]
    if limited:
        note(
            f"The study limits the time of {', '.join(limited)}. A search that the limit stops gives other figures on "
            "another machine; leave seconds out of the study, and searches count their steps."
        )
    goal = asked.goal
    if goal is not None and goal.release is None and goal.identifies:
        note(
            f'The goal names no release: {goal.scope} is meant. Set release = "update", "training" or "model" '
            "in [goal] to say what leaves."
        )
    from discreet.training.people import People, record_study

    record_study(People(), out, str(asked.data["source"]))
    with stop_on_interrupt() as stop, _table(hidden=json) as watch:
        done = sweep(
            asked,
            run,
            out,
            workers=workers or len(os.sched_getaffinity(0)),
            on=on,
            watch=watch,
            should_stop=lambda: bool(stop),
        )
    from discreet.training.encode import cached

    if done.done and cached().files:
        note(cached().sentence())
    for key, why in done.failures.items():
        note(f"Failed, {key}: {why}")
    left = done.total - done.before - done.done - len(done.failures)
    if done.failures:
        if report and done.done + done.before:
            from discreet.report.page import write_report

            note(f"Report of what is done: {write_report(out).page}")
        first = next(iter(done.failures.values()))
        raise SettingError(
            f"Expected every trial to run, {len(done.failures)} of {done.total} failed: {first} What is done is kept "
            f"in {str(out)!r}; the same command runs only what is missing."
        )
    if left:
        note(f"Stopped with {left} of {done.total} trials left. The same command goes on.")
        raise typer.Exit(130)
    _weigh_risk(out, asked.goal)
    facts = {"out": str(out), "trials": done.total, "run": done.done, "kept": done.before, "report": None}
    if report:
        from discreet.report.page import write_report

        written = write_report(out)
        facts |= {"report": str(written.page), "verdict": list(written.verdict)}
        if not json:
            paragraph(" ".join(written.verdict))
            line(f"Report: {written.page}")
    if json:
        as_json(facts)
    elif not report:
        line(f"{done.total} trials in {out}. Read them with: discreet report {out}")


def _weigh_risk(out: Path, goal: Goal | None) -> None:
    """Write beside the trials which noise a ceiling on 1-of-n asks for, by theory and by measurement; once for each."""
    import json

    from discreet.report.findings import RISK, read_risk
    from discreet.study.noise_for_risk import noise_for_study
    from discreet.study.store import read_trials
    from discreet.study.sweep import read_kept_study

    if not read_risk(out, goal):
        found = noise_for_study(read_kept_study(out), read_trials(out).values())
        partial = out / f"{RISK}.partial"
        partial.write_text(json.dumps([one.as_dict() for one in found], indent=1), encoding="utf-8")
        partial.replace(out / RISK)


@contextmanager
def _table(hidden: bool) -> Iterator[Callable[[Standing], None]]:
    """Show how far a sweep is, on stderr: a table in a terminal, otherwise a line for each trial."""
    console = stderr()
    if hidden or not console.is_terminal:

        def told(standing: Standing) -> None:
            event = standing.last
            if event is not None and not event.started and not hidden:
                state = "failed" if event.trial is None else f"{event.trial.seconds:.0f} s"
                done = standing.done + standing.before
                which = f"{event.planned.label}, seed {event.planned.seed}"
                note(f"{done}/{standing.total}  {which}  {state}{left_of(standing)}")

        yield told
        return
    from rich.live import Live
    from rich.table import Table

    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def show(standing: Standing) -> None:
            table = Table("trials", "", box=None, pad_edge=False)
            done = f"{standing.done + standing.before} of {standing.total}"
            table.add_row("done", f"{done} ({standing.before} from before)" if standing.before else done)
            table.add_row("running", "\n".join(f"{one.label}, seed {one.seed}" for one in standing.running) or "none")
            table.add_row("failed", str(len(standing.failures)))
            table.add_row("time left", left_of(standing).strip() or "not known yet")
            live.update(table)

        yield show


def left_of(standing: Standing) -> str:
    """Return the time left in words, once there is something to tell it from."""
    if standing.seconds_left is None:
        return ""
    seconds = standing.seconds_left
    return f"  {seconds / 60:.0f} min left" if seconds >= 120 else f"  {seconds:.0f} s left"
