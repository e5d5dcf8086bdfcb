"""`discreet serve`: the server's side of a locally private run, over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discreet.cli.output import note

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
