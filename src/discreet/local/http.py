"""The HTTP server: one process that logs nothing of a request and shuts down cleanly."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from discreet.core.errors import ExtraError, SettingError, invalid, setting
from discreet.local.limits import Guard, Limits

if TYPE_CHECKING:
    import uvicorn

    from discreet.local.encrypted import EncryptedHead
    from discreet.local.head import Head

_SEND_BUFFER = 131_072
# uvicorn settings: log nothing of a request, send no headers about the server.
_QUIET: dict[str, Any] = {
    "loop": "asyncio",  # uvloop is 10% faster, but accepts one connection per iteration: others wait for seconds
    "ws": "none",
    "lifespan": "off",
    "access_log": False,
    "log_level": "critical",
    "log_config": None,  # uvicorn's own config closes all log handlers of the process, and absl's closes its stream
    "server_header": False,
    "date_header": False,
    "proxy_headers": False,
}
_NEEDED = ("uvicorn", "starlette", "httptools", "orjson")


def check_installed() -> None:
    """Raise an error if the HTTP libraries are not installed, with the name of the extra to install."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ExtraError(
            f"Expected {', '.join(missing)}, which the server needs. Install: pip install 'discreet[serving]'"
        )


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise an error if the address cannot be used."""
    if not 0 <= port <= 65535:
        raise invalid("port", port, "in [0, 65535]", "0 lets the system choose.")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        place = socket.create_server((host, port), family=family, backlog=2048)
        # Accepted sockets inherit it, so that a client that never reads holds little memory.
        place.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # head and body are separate writes
        return place
    except OSError as error:
        reason = error.strerror or str(error)
        raise SettingError(
            f"Expected to listen on {setting('host', host)} and {setting('port', port)}. {reason}; choose another "
            f"{setting('host')} or {setting('port')}."
        ) from None


def server_for(head: Head, limits: Limits | None = None, encrypted: EncryptedHead | None = None) -> uvicorn.Server:
    """Return the server of a head; start it with `server.run(sockets=[listen(host, port)])`.

    With `encrypted`, it answers encrypted vectors only.

    Guarantee: requests are not logged or stored; answers are post-processing of releases.
    """
    check_installed()
    from discreet.local.app import application

    limits = limits or Limits()
    guard = Guard(application(head, limits, encrypted), limits)
    return quiet_server(guard, keep_alive=max(1, round(limits.patience)), shutdown=5)


def quiet_server(guard: Guard, *, keep_alive: int, shutdown: int) -> uvicorn.Server:
    """Return the server of an application, with its timeouts in seconds; it logs nothing of a request."""
    import uvicorn

    config = uvicorn.Config(
        guard, http=guard.protocol(), **_QUIET, timeout_keep_alive=keep_alive, timeout_graceful_shutdown=shutdown
    )
    return uvicorn.Server(config)


def serve(
    head: Head,
    host: str,
    port: int,
    limits: Limits,
    say: Callable[[str], None],
    encrypted: EncryptedHead | None = None,
) -> None:
    """Serve until interrupted or terminated.

    Args:
        head: The head that answers.
        host: The address to listen on.
        port: Its port.
        limits: The limits of requests and clients.
        say: Called with what happens, a sentence.
        encrypted: The head for encrypted vectors, if they are answered too.
    """
    server = server_for(head, limits, encrypted)
    with listen(host, port) as place:
        at = place.getsockname()
        name = f"[{at[0]}]" if ":" in at[0] else at[0]
        kind = "vectors" if encrypted is None else "encrypted vectors"
        say(
            f"Serving {kind} of width {head.width} at http://{name}:{at[1]} (/openapi.json, /health). "
            "Press Ctrl-C to stop."
        )
        server.run(sockets=[place])
