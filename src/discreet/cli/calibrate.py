"""`discreet calibrate`: run the missing trials of a study and print the recommendation.

`discreet report`: write the report of a study.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from discreet.cli.options import Json
from discreet.cli.output import as_json, document, line, note, paragraph, stderr, stop_on_interrupt, working

if TYPE_CHECKING:
    from discreet.report.page import Written
    from discreet.study import IncompleteError, Study
    from discreet.study.sweep import Standing


def _print_schema(wanted: bool) -> None:
    if wanted:
        from discreet.study.schema import schema_text

        document(schema_text(plug_ins=True))
        raise typer.Exit


def calibrate(
    study: Annotated[Path, typer.Argument(metavar="STUDY", help="Study file, such as studies/demo.toml.")],
    out: Annotated[Path, typer.Option("--out", help="Output folder; an unfinished study is resumed.")],
    workers: Annotated[
        int | None, typer.Option(help="Number of parallel trials. Default: one per core, with one thread each.")
    ] = None,
    on: Annotated[
        str, typer.Option("--on", help="Where to run: processes (this machine) or ray (a cluster).")
    ] = "processes",
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report after the last trial.")] = True,
    json: Json = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            callback=_print_schema,
            is_eager=True,
            help="Print the JSON schema of study files, by which editors complete and check them.",
        ),
    ] = False,
) -> None:
    """Train with each protection and noise level of a study, attack the results, and recommend one.

    Each trial is saved when it finishes. The same command resumes an
    unfinished study and runs only the missing trials.
    """
    from discreet.models.build import cached
    from discreet.report import check_installed
    from discreet.study import IncompleteError, read_result, read_study, run

    if report:
        check_installed()
    values = read_study(study)
    latest: list[Standing] = []
    with stop_on_interrupt() as stop, _progress(hidden=json) as show:

        def watch(standing: Standing) -> None:
            if not latest:  # the study has been checked, and its first trial is about to run
                _note_about(values)
            latest[:] = [standing]
            show(standing)

        try:
            run(values, out, workers=workers, on=on, watch=watch, should_stop=lambda: bool(stop))
            incomplete = None
        except IncompleteError as error:
            incomplete = error
    standing = latest[-1]
    if standing.done and cached().files:
        note(cached().sentence())
    if incomplete is not None:
        _explain(incomplete, out, report)
    facts = {"out": str(out), "trials": standing.total, "run": standing.done, "kept": standing.before, "report": None}
    facts["choosing"] = read_result(out).choosing.as_dict()
    if report:
        from discreet.report.page import write_report

        files = write_report(out)
        facts |= {"report": str(files.page), "verdict": list(files.verdict)}
        facts |= _first_screen(files)
        if not json:
            _print_verdict(files)
    if json:
        as_json(facts)
    elif not report:
        line(f"{standing.total} trials in {out}. Read them with: discreet report {out}")


def _note_about(study: Study) -> None:
    limited = [f"{table['name']} ({table['seconds']:g} s)" for table in study.attack if "seconds" in table]
    if limited:
        note(
            f"The study limits the time of {', '.join(limited)}. A search stopped by the limit gives different "
            "figures on another machine. Remove `seconds` from the study to limit searches by steps instead."
        )
    goal = study.goal
    if goal is not None and goal.release is None and goal.identifies:
        note(
            f'The goal sets no release; the default is "{goal.scope}". Set release = "update", "training" or "model" '
            "in [goal]."
        )


def _explain(incomplete: IncompleteError, out: Path, report: bool) -> None:
    """Print the failed trials, report the finished ones, and exit with the status of an error or an interrupt."""
    standing = incomplete.standing
    for key, why in standing.failures.items():
        note(f"Failed, {key}: {why}")
    if standing.failures:
        if report and standing.done + standing.before:
            from discreet.report.page import write_report

            note(f"Report of the finished trials: {write_report(out).page}")
        raise incomplete
    note(f"Stopped with {standing.missing} of {standing.total} trials left. Run the same command to resume.")
    raise typer.Exit(130)


@contextmanager
def _progress(hidden: bool) -> Iterator[Callable[[Standing], None]]:
    """Show the progress of a sweep on stderr: a table in a terminal, otherwise a line for each trial."""
    console = stderr()
    if hidden or not console.is_terminal:

        def print_line(standing: Standing) -> None:
            event = standing.last
            if event is not None and not event.started and not hidden:
                state = "failed" if event.trial is None else f"{event.trial.seconds:.0f} s"
                done = standing.done + standing.before
                which = f"{event.planned.label}, seed {event.planned.seed}"
                note(f"{done}/{standing.total}  {which}  {state}{time_left(standing)}")

        yield print_line
        return
    from rich.live import Live
    from rich.table import Table

    with Live(console=console, refresh_per_second=4, transient=True) as live:

        def show(standing: Standing) -> None:
            table = Table("trials", "", box=None, pad_edge=False)
            done = f"{standing.done + standing.before} of {standing.total}"
            table.add_row("done", f"{done} ({standing.before} from earlier runs)" if standing.before else done)
            table.add_row("running", "\n".join(f"{one.label}, seed {one.seed}" for one in standing.running) or "none")
            table.add_row("failed", str(len(standing.failures)))
            table.add_row("time left", time_left(standing).strip() or "unknown")
            live.update(table)

        yield show


def time_left(standing: Standing) -> str:
    """Return the remaining time as text, once it can be estimated."""
    if standing.seconds_left is None:
        return ""
    seconds = standing.seconds_left
    return f"  {seconds / 60:.0f} min left" if seconds >= 120 else f"  {seconds:.0f} s left"


def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder written by `discreet calibrate`.")],
    pdf: Annotated[
        bool, typer.Option("--pdf", help="Also write report.pdf; needs Chromium, Chrome or Edge on this machine.")
    ] = False,
    json: Json = False,
) -> None:
    """Write report.html, report.md and model_card.md into a study's folder.

    report.html is one file that opens offline. It shows private texts: keep it
    as private as the data.
    """
    from discreet.report import check_installed

    check_installed()
    from discreet.cli.pdf import find_browser, write_pdf
    from discreet.report.page import write_report

    if pdf:
        find_browser()
    files = write_report(folder)
    printed = folder / "report.pdf"
    if pdf:
        with working("printing"):
            write_pdf(files.page, printed)
    if json:
        as_json(
            {
                "report": str(files.page),
                "markdown": str(files.markdown),
                "card": str(files.card),
                "verdict": list(files.verdict),
                **_first_screen(files),
                **({"pdf": str(printed)} if pdf else {}),
            }
        )
        return
    _print_verdict(files)
    if pdf:
        line(f"PDF: {printed}")


def _first_screen(files: Written) -> dict[str, str | list[str] | None]:
    """Return the answer of a report, what limits it, and the next command, as JSON values."""
    brief = files.brief
    return {"answer": str(brief.answer), "caveats": list(brief.caveats), "command": files.command}


def _print_verdict(files: Written) -> None:
    """Print the answer, the verdict, what limits it, the command to run next, and where the report is."""
    paragraph(files.brief.sentence)
    line()
    paragraph(" ".join(files.verdict))
    if files.brief.caveats:
        line()
        line("Caveats:")
        for text in files.brief.caveats:
            paragraph(text)
    if files.brief.command is not None:
        from discreet.report.page import WIDTH, command_text

        line()
        paragraph(files.brief.step)
        document(command_text(files.brief.command, WIDTH) + "\n")
        line()
    line(f"Report: {files.page}")
