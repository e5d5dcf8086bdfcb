"""`discreet serve`: the server's side of a locally private run, over HTTP.

`discreet explore`: a local page where one types a sentence and watches what an attacker reads back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.catalog import ATTACKS, PROTECTIONS, attack_of, protection_class
from discreet.cli.attack_table import CLIP_NORM
from discreet.cli.options import Threads, use_threads
from discreet.cli.output import line, note
from discreet.core.errors import positive

_LIMITS = "Limits"


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="SERVER", help="The server folder of a run, such as runs/a/server.")
    ],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is every one.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 lets the system choose.")] = 8765,
    rows: Annotated[int, typer.Option(help="Maximum number of vectors in a request.", rich_help_panel=_LIMITS)] = 256,
    rate: Annotated[
        float, typer.Option(help="Maximum rate of requests from one address, per second.", rich_help_panel=_LIMITS)
    ] = 1000.0,
    active: Annotated[
        int, typer.Option(help="Maximum number of requests processed at once.", rich_help_panel=_LIMITS)
    ] = 64,
    connections: Annotated[
        int, typer.Option(help="Maximum number of open connections.", rich_help_panel=_LIMITS)
    ] = 512,
    connections_per_address: Annotated[
        int, typer.Option(help="Maximum number of open connections from one address.", rich_help_panel=_LIMITS)
    ] = 256,
    patience: Annotated[
        float, typer.Option(help="Seconds in which a request must arrive and be answered.", rich_help_panel=_LIMITS)
    ] = 10.0,
) -> None:
    """Answer protected vectors over HTTP; reject text, and store or log nothing of a request.

    The service is described at /openapi.json, and /health says whether it is running.
    """
    from discreet.serving.limits import Limits
    from discreet.serving.server import check_installed
    from discreet.serving.server import serve as go

    limits = Limits(rows, rate, active, connections, connections_per_address, patience)
    check_installed()
    from discreet.serving.head import Head
    from discreet.training.local_server import ServerSide

    go(Head.of(ServerSide.load(folder)), host, port, limits, note)


# Attacks that first learn from much public text: offered to whoever is ready to wait a minute for each answer.
SLOW = ("reprecon", "blind", "inversion")
_A_MINUTE = 60.0
# Settings of an attack or a protection on the page, where they differ from the default elsewhere.
_ATTACK_SETTINGS: dict[str, dict[str, Any]] = {"rss": {"score": "least-squares"}}  # masked or mixed, or neither
_DEFAULTS = {"dp-sgd": {"clip_norm": CLIP_NORM}}


def explore(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Folder of a run or a study; without it, the built-in notes."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 lets the system choose.")] = 8766,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    seconds: Annotated[float, typer.Option(help="Time limit of each attack; the best so far is kept.")] = 6.0,
    threads: Threads = 1,
) -> None:
    """Open a page on this machine: type a sentence, change the protection, and see what an attacker reads.

    Only this machine can reach it, with the key in the printed address; nothing typed is logged or stored.
    """
    from discreet.explorer.server import Place, serve
    from discreet.serving.server import check_installed

    positive("seconds", seconds, "It is the time for each attack.")
    check_installed("explore")
    with Place.on(port) as place:
        note("Loading the model …")
        use_threads(threads)
        from discreet.explorer.menu import offer
        from discreet.explorer.reading import read
        from discreet.explorer.stage import stage_of

        stage = stage_of(run)
        menu = menu_of_catalog(seconds)
        offered = offer(menu, stage)
        line(f"Explore {stage.title} at {place.address}")
        note("Only this machine can reach it; Ctrl-C ends it.")
        if open_page:
            import webbrowser

            webbrowser.open(place.address)
        serve(place, offered, lambda question, say: read(question, stage, menu, seconds=seconds, say=say))
    note("Ended.")


def menu_of_catalog(seconds: float) -> Any:
    """Return the catalog's attacks and protections as the page uses them."""
    from discreet.explorer.menu import Menu

    names = [name for name in ATTACKS if name not in SLOW or seconds >= _A_MINUTE]
    first = sorted(names, key=lambda name: name != "dager")  # the one that reads most in a second or two
    return Menu(
        attacks={name: attack_of(name, _ATTACK_SETTINGS.get(name)) for name in first},
        protections={name: protection_class(name) for name in PROTECTIONS},
        defaults=_DEFAULTS,
    )
