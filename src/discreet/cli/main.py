"""The `discreet` command: one sub-command per file; heavy libraries are imported when a command runs."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from discreet.cli.attack import attack
from discreet.cli.calibrate import calibrate, report
from discreet.cli.cost import cost, solve, spend
from discreet.cli.data import cache, data
from discreet.cli.evaluate import evaluate
from discreet.cli.generate import generate
from discreet.cli.ledger import ledger
from discreet.cli.models import models
from discreet.cli.output import RUNNING, line, note, options_of
from discreet.cli.predict import predict
from discreet.cli.query import query
from discreet.cli.sanitize import sanitize
from discreet.cli.serve import explore, serve
from discreet.cli.train import TrainCommand, train
from discreet.core.errors import DiscreetError

app = typer.Typer(
    name="discreet",
    help="Use language models on sensitive text without giving the text away.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        import discreet

        line(f"discreet {discreet.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


app.command("data")(data)
app.command("train", cls=TrainCommand)(train)
app.command("calibrate")(calibrate)
app.command("report")(report)
app.command("evaluate")(evaluate)
app.command("predict")(predict)
app.command("generate")(generate)
app.command("attack")(attack)
app.command("explore")(explore)
app.command("sanitize")(sanitize)
app.command("serve")(serve)
app.command("query")(query)
app.command("cost")(cost)
app.command("ledger")(ledger)
app.command("cache")(cache)
app.command("models")(models)
app.command("spend", hidden=True)(spend)  # old names of cost
app.command("solve", hidden=True)(solve)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 done, 2 rejected, 130 interrupted."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    RUNNING.set(lambda: _command(given))
    try:
        try:
            app(args=given or ["--help"])  # alone, the command says what it can do, and that is no error
        except SystemExit as stop:
            sys.stdout.flush()
            return int(stop.code or 0)
        sys.stdout.flush()
    except DiscreetError as error:
        note(f"{type(error).__name__}: {error.worded(options_of(_command(given)))}")
        return 2
    except KeyboardInterrupt:
        note("Interrupted.")
        return 130
    except BrokenPipeError:
        _abandon_stdout()
        return 0
    except OSError as error:
        _abandon_stdout()
        where = f" {error.filename!r}" if error.filename else " the output"
        note(f"OutputError: Expected to be able to write or read{where}. {error.strerror}.")
        return 2
    return 0


def _command(given: Sequence[str]) -> Any:
    """Return the sub-command that is run, by which settings are spelled as options."""
    commands: dict[str, Any] = cast(Any, typer.main.get_command(app)).commands
    return next((commands[word] for word in given if word in commands), None)


def _abandon_stdout() -> None:
    """Let what could not be written go, so that Python does not try again when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """Run the command line and leave with its exit status."""
    # Idle threads of torch spin by default; on a machine that others use too that made training four times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    status = main()
    gc.freeze()  # else Python looks through all that torch has loaded before it ends, for a second or more
    sys.exit(status)
