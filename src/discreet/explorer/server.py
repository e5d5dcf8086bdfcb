"""The server of the page, on a local socket."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from discreet.local.http import listen, quiet_server
from discreet.local.limits import Guard, Limits

if TYPE_CHECKING:
    import uvicorn

    from discreet.explorer.app import Read
    from discreet.explorer.worker import Worker

HOST = "127.0.0.1"  # never another address: the page shows private text


@dataclass(frozen=True)
class Place:
    """A local listening socket, and the key that is required to use the page."""

    socket: socket.socket
    key: str

    @classmethod
    def on(cls, port: int) -> Place:
        """Listen on a port of this machine; 0 lets the system choose."""
        return cls(listen(HOST, port), secrets.token_urlsafe(24))

    def __enter__(self) -> Place:
        """Return self."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the socket."""
        self.socket.close()

    @property
    def port(self) -> int:
        """The port of the socket."""
        return int(self.socket.getsockname()[1])

    @property
    def hosts(self) -> tuple[str, str]:
        """The host names of the page, with the port."""
        return f"{HOST}:{self.port}", f"localhost:{self.port}"

    @property
    def address(self) -> str:
        """The address of the page; the key is in the fragment, which browsers do not send."""
        return f"http://{HOST}:{self.port}/#{self.key}"


# For one page on one machine. Requests must arrive in time; the worker limits the time of attacks.
LIMITS = Limits(rows=1, active=64, connections=64, connections_per_address=64, patience=5.0)


def server_for(
    place: Place, offer: Mapping[str, Any], read: Read, worker: Worker, limits: Limits = LIMITS
) -> uvicorn.Server:
    """Return the server of the page; start it with `server.run(sockets=[place.socket])`.

    A connection without a complete request is closed after `limits.patience`, or earlier if another connection needs
    its place, so that half-open connections never block the page.

    Guarantee: typed text is not logged, written to disk or sent to another machine.
    """
    from discreet.explorer.app import application

    page = application(offer, read, worker, key=place.key, hosts=place.hosts)
    return quiet_server(Guard(page, limits, makes_room=True, times_answers=False), keep_alive=10, shutdown=2)


def serve(place: Place, offer: Mapping[str, Any], read: Read) -> None:
    """Serve the page until interrupted, then stop the worker."""
    from discreet.explorer.worker import Worker

    worker = Worker()
    server = server_for(place, offer, read, worker)
    try:
        server.run(sockets=[place.socket])
    except KeyboardInterrupt:
        pass  # uvicorn raises the interrupt again after its shutdown
    finally:
        worker.close()
