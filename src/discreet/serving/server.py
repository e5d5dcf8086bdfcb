"""The server on a socket: one process, quiet, that ends cleanly."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from discreet.core.errors import ExtraError, SettingError, invalid, setting
from discreet.serving.limits import Guard, Limits

if TYPE_CHECKING:
    import uvicorn

    from discreet.serving.head import Head

_SEND_BUFFER = 131_072
# How a server of ours runs: it logs nothing of a request and says nothing of itself.
QUIET: dict[str, Any] = {
    "loop": "asyncio",  # uvloop is a tenth faster, but takes one new connection a round and lets others wait seconds
    "ws": "none",
    "lifespan": "off",
    "access_log": False,
    "log_level": "critical",
    "log_config": None,  # uvicorn's own closes every handler of the process, and absl's closes the stream it writes to
    "server_header": False,
    "date_header": False,
    "proxy_headers": False,
}
_NEEDED = ("uvicorn", "starlette", "httptools", "orjson")


def check_installed(extra: str = "serving") -> None:
    """Refuse to start without the libraries that answer over HTTP, and name the extra that brings them."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ExtraError(
            f"Expected {', '.join(missing)}, with which the server is built. Install: pip install 'discreet[{extra}]'"
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens, or refuse a place that is taken or is not ours."""
    if not 0 <= port <= 65535:
        raise invalid("port", port, "in [0, 65535]", "0 lets the system choose one.")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        place = socket.create_server((host, port), family=family, backlog=2048)
        # Accepted sockets inherit it: what one that never reads can make the system hold is small.
        place.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # head and body are two writes
        return place
    except OSError as error:
        said = error.strerror or str(error)
        raise SettingError(
            f"Expected to listen on {setting('host', host)} and {setting('port', port)}. {said}; choose another "
            f"{setting('host')} or {setting('port')}."
        ) from None


def server_for(head: Head, limits: Limits | None = None) -> uvicorn.Server:
    """Return the server of a head, not yet running: `server.run(sockets=[listen(host, port)])`.

    Guarantee: nothing of a request is logged or kept; what it answers is post-processing of releases.
    """
    check_installed()
    import uvicorn

    from discreet.serving.app import application

    limits = limits or Limits()
    guard = Guard(application(head, limits), limits)
    config = uvicorn.Config(
        guard,
        http=guard.protocol(),
        **QUIET,
        timeout_keep_alive=max(1, round(limits.patience)),
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)


def serve(head: Head, host: str, port: int, limits: Limits, say: Callable[[str], None]) -> None:
    """Serve until interrupted or told to end."""
    server = server_for(head, limits)
    with listen(host, port) as place:
        at = place.getsockname()
        name = f"[{at[0]}]" if ":" in at[0] else at[0]
        say(f"Serving vectors {head.width} wide at http://{name}:{at[1]} (openapi.json, health); Ctrl-C ends it.")
        server.run(sockets=[place])
