"""`discreet serve`: serve a locally private run, or encrypted vectors of any classifier, over HTTP.

`discreet explore`: open a local page that attacks a sentence while it is typed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from discreet.catalog import ATTACKS, PROTECTIONS, attack_of, protection_class
from discreet.cli.attack_table import CLIP_NORM
from discreet.cli.options import Threads, generated, use_threads
from discreet.cli.output import line, note
from discreet.core.errors import positive
from discreet.core.settings import option_field

_LIMITS = "Limits"


@dataclass(frozen=True)
class LimitOptions:
    """Limits of the server on requests and connections."""

    rows: int = option_field(256, "Maximum number of vectors in a request.", _LIMITS)
    rate: float = option_field(1000.0, "Maximum rate of requests from one address, per second.", _LIMITS)
    active: int = option_field(64, "Maximum number of requests processed at once.", _LIMITS)
    connections: int = option_field(512, "Maximum number of open connections.", _LIMITS)
    connections_per_address: int = option_field(256, "Maximum number of open connections from one address.", _LIMITS)
    patience: float = option_field(10.0, "Seconds within which a request must arrive and be answered.", _LIMITS)


@generated()
def serve(
    folder: Annotated[Path, typer.Argument(metavar="SERVER", help="Server folder of a run, such as runs/a/server.")],
    limits: LimitOptions,
    encrypted: Annotated[
        bool,
        typer.Option("--encrypted", help="Answer encrypted vectors only; SERVER may also be an ordinary run."),
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 is all interfaces.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 lets the system choose.")] = 8765,
) -> None:
    """Serve predictions for protected vectors over HTTP; text is rejected, and requests are not stored or logged.

    /openapi.json describes the service; /health reports whether it is running.

    With --encrypted, the server computes on ciphertexts: it has no key, and sees
    neither the vectors nor its own answers. It needs a linear head.
    """
    from discreet.local.http import check_installed
    from discreet.local.http import serve as run_server
    from discreet.local.limits import Limits

    allowed = Limits(**vars(limits))
    check_installed()
    from discreet.local.head import Head
    from discreet.local.server import ServerSide

    if encrypted:
        from discreet.local.encrypted import EncryptedHead
        from discreet.runs.folder import is_run

        head = Head.of(ServerSide.of_run(folder) if is_run(folder) else ServerSide.load(folder))
        run_server(head, host, port, allowed, note, EncryptedHead(head))
    else:
        run_server(Head.of(ServerSide.load(folder)), host, port, allowed, note)


# Attacks that first train on much public text; offered if the time limit is at least a minute.
SLOW = ("reprecon", "blind", "inversion")
_A_MINUTE = 60.0
# Settings of attacks and protections on the page that differ from their defaults.
_ATTACK_SETTINGS: dict[str, dict[str, Any]] = {"rss": {"score": "least-squares"}}  # also reads masked and mixed vectors
_DEFAULTS = {"dp-sgd": {"clip_norm": CLIP_NORM}}


def explore(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Folder of a run or a study. Default: the built-in notes."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 lets the system choose.")] = 8766,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    seconds: Annotated[float, typer.Option(help="Time limit of each attack; it returns its best guess so far.")] = 6.0,
    threads: Threads = 1,
) -> None:
    """Open a local page: type a sentence, change the protection, and see what an attacker recovers.

    Only this machine can reach the page, with the key in the printed address.
    Typed text is not logged or stored.
    """
    from discreet.local.http import check_installed

    positive("seconds", seconds, "It is the time limit of each attack.")
    check_installed()
    from discreet.explorer.server import Place, serve

    with Place.on(port) as place:
        note("Loading the model …")
        use_threads(threads)
        from discreet.explorer.menu import offer
        from discreet.explorer.page_data import load_page_data
        from discreet.explorer.reading import read

        data = load_page_data(run)
        menu = menu_of_catalog(seconds)
        offered = offer(menu, data)
        line(f"Explore {data.title} at {place.address}")
        note("Only this machine can reach it. Press Ctrl-C to stop.")
        if open_page:
            import webbrowser

            webbrowser.open(place.address)
        serve(place, offered, lambda question, say: read(question, data, menu, seconds=seconds, say=say))
    note("Stopped.")


def menu_of_catalog(seconds: float) -> Any:
    """Return the attacks and protections of the catalog, with the settings of the page."""
    from discreet.explorer.menu import Menu

    # a sentence is not a trained model, and says nothing about a register of people
    offered = [name for name, entry in ATTACKS.usable().items() if entry.sees != "model" and not entry.about_people]
    names = [name for name in offered if name not in SLOW or seconds >= _A_MINUTE]
    first = sorted(names, key=lambda name: name != "dager")  # it recovers most within a second or two
    return Menu(
        attacks={name: attack_of(name, _ATTACK_SETTINGS.get(name)) for name in first},
        protections={name: protection_class(name) for name in PROTECTIONS.usable()},
        defaults=_DEFAULTS,
    )
