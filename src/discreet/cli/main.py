"""The `discreet` command: one sub-command per file; heavy libraries are imported when a command runs."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from discreet.cli.attack import attack
from discreet.cli.audit import audit
from discreet.cli.calibrate import calibrate, report
from discreet.cli.check import check
from discreet.cli.cost import cost
from discreet.cli.data import cache, data
from discreet.cli.evaluate import evaluate
from discreet.cli.export import export
from discreet.cli.federate import federate
from discreet.cli.generate import generate
from discreet.cli.ledger import ledger
from discreet.cli.models import models
from discreet.cli.names import names
from discreet.cli.output import RUNNING, line, note, options_of
from discreet.cli.predict import predict
from discreet.cli.query import query
from discreet.cli.sanitize import sanitize
from discreet.cli.serve import explore, serve
from discreet.cli.statement import statement
from discreet.cli.train import TrainCommand, train
from discreet.cli.tune import tune
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
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# In the order of the help.
_COMMANDS: tuple[Callable[..., None], ...] = (
    data, train, tune, federate, calibrate, report, evaluate, predict, generate, export, attack, audit, explore,
    sanitize, serve, query, statement, check, cost, ledger, cache, models, names,
)  # fmt: skip
for _one in _COMMANDS:
    app.command(_one.__name__, cls=TrainCommand if _one in (train, federate) else None)(_one)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 success, 2 error, 130 interrupted."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    RUNNING.set(lambda: _command(words))
    try:
        try:
            _group()(args=words or ["--help"])  # without arguments, print the help and exit with 0
        except SystemExit as stop:
            sys.stdout.flush()
            return int(stop.code or 0)
        sys.stdout.flush()
    except DiscreetError as error:
        note(f"{type(error).__name__}: {error.worded(options_of(_command(words)))}")
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


@functools.cache
def _group() -> Any:
    """Return all commands as Click knows them; to build them takes longer than most answers."""
    return typer.main.get_command(app)


def _command(words: Sequence[str]) -> Any:
    """Return the sub-command that runs; its options spell the settings in messages."""
    commands: dict[str, Any] = _group().commands
    return next((commands[word] for word in words if word in commands), None)


def _abandon_stdout() -> None:
    """Discard unwritten output, so that Python does not try to write it again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry() -> None:
    """Run the command line and exit with its status."""
    # Idle torch threads spin by default; on a shared machine this made training four times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    sys.exit(main())
