"""The page on a socket of this machine alone; it ends cleanly."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.serving.limits import Guard, Limits
from discreet.serving.server import QUIET, listen

if TYPE_CHECKING:
    import uvicorn

    from discreet.explorer.app import Read
    from discreet.explorer.worker import Worker

HOST = "127.0.0.1"  # never another: what the page shows is private


@dataclass(frozen=True)
class Place:
    """A socket that listens on this machine, and the key that whoever opens the page must have."""

    socket: socket.socket
    key: str

    @classmethod
    def on(cls, port: int) -> Place:
        """Return a place on a port of this machine; 0 lets the system choose."""
        return cls(listen(HOST, port), secrets.token_urlsafe(24))

    def __enter__(self) -> Place:
        """Keep the socket for a block."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the socket."""
        self.socket.close()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.socket.getsockname()[1])

    @property
    def hosts(self) -> tuple[str, str]:
        """The names it goes by, with the port."""
        return f"{HOST}:{self.port}", f"localhost:{self.port}"

    @property
    def address(self) -> str:
        """The address of the page; the key stands after #, where no browser sends it by itself."""
        return f"http://{HOST}:{self.port}/#{self.key}"


# Of one page on one machine. Requests must arrive in time; readings may take as long as their worker lets them.
LIMITS = Limits(rows=1, active=64, connections=64, connections_per_address=64, patience=5.0)


def server_for(
    place: Place, offer: Mapping[str, Any], read: Read, worker: Worker, limits: Limits = LIMITS
) -> uvicorn.Server:
    """Return the server of a page, not yet running: `server.run(sockets=[place.socket])`.

    A connection that has not sent a whole request is cut off after the patience of the limits, and before that if its
    place is needed, so that half-open ones never keep the page from being served.

    Guarantee: nothing that is typed is logged, written to disk or sent to another machine.
    """
    import uvicorn

    from discreet.explorer.app import application

    page = application(offer, read, worker, key=place.key, hosts=place.hosts)
    guard = Guard(page, limits, makes_room=True, times_answers=False)
    config = uvicorn.Config(
        guard,
        http=guard.protocol(),
        **QUIET,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def serve(place: Place, offer: Mapping[str, Any], read: Read) -> None:
    """Serve the page until interrupted, then stop the worker."""
    from discreet.explorer.worker import Worker

    worker = Worker()
    server = server_for(place, offer, read, worker)
    try:
        server.run(sockets=[place.socket])
    except KeyboardInterrupt:
        pass  # the server has ended, and passes on what ended it
    finally:
        worker.close()
