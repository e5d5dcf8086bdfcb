"""Limits of a server: bytes, rows, requests, connections and seconds.

uvicorn parses HTTP and calls the application. By itself it waits indefinitely for a slow request head, accepts heads of
any length and any number of pipelined requests, and drops the response to a client that has closed its sending side.
`Guard` adds limits from outside: an ASGI application around ours, and a protocol around uvicorn's, passed to its `http`
setting, which uses it only as an `asyncio.Protocol`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

from discreet.core.errors import positive, whole
from discreet.local import HEALTH

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Endpoints = tuple[tuple[str, int], tuple[str, int]]  # of the client, of the server
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_ADDRESSES = 10_000
_BYTES_A_NUMBER = 32  # a float64 in full, with sign, exponent, comma and space
_LONGEST_HEAD = 16_384
_MOST_AHEAD = 64  # pipelined requests: sent before the response to the first
_MOST_HELD = 262_144  # bytes of pipelined requests: what asyncio reads at once
_REQUEST_LINE = b" HTTP/1."
_RESET = struct.pack("ii", 1, 0)
_TOO_LONG = f"Expected a head of at most {_LONGEST_HEAD} bytes. Send fewer headers."


@dataclass(frozen=True)
class Limits:
    """Limits of the server. Beyond them it responds 413 (size), 429 (rate), 503 (too many) or 408 (too slow)."""

    rows: int = 256
    rate: float = 1000.0
    active: int = 64
    connections: int = 512
    connections_per_address: int = 256
    patience: float = 10.0

    def __post_init__(self) -> None:
        """Reject limits under which no request could be served."""
        whole("rows", self.rows, remedy="It is the maximum number of vectors in a request.")
        positive("rate", self.rate, "It is the maximum number of requests per second from one address.")
        whole("active", self.active, remedy="It is the maximum number of requests processed at once.")
        whole("connections", self.connections, remedy="It is the maximum number of open connections.")
        whole(
            "connections_per_address",
            self.connections_per_address,
            remedy="It is the maximum number of open connections from one address.",
        )
        positive("patience", self.patience, "It is the time in seconds for a request to arrive and be answered.")

    def body_bytes(self, width: int) -> int:
        """Return the largest body of `rows` vectors of a width.

        >>> Limits(rows=2).body_bytes(10)
        1664
        """
        return 1024 + self.rows * width * _BYTES_A_NUMBER


class Buckets:
    """A token bucket for each address: a request takes one token; tokens refill at the rate, up to one second's worth.

    Beyond ten thousand addresses the least recently used are dropped, to bound the memory.
    """

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Start with full buckets."""
        self._rate, self._full, self._clock = rate, max(1.0, rate), clock
        self._held: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> float:
        """Take a token and return 0, or return the seconds until one is available.

        >>> now = [0.0]
        >>> buckets = Buckets(2.0, lambda: now[0])
        >>> [buckets.take("a") for _ in range(3)], buckets.take("b")
        ([0.0, 0.0, 0.5], 0.0)
        """
        now = self._clock()
        tokens, then = self._held.get(address, (self._full, now))
        tokens = min(self._full, tokens + (now - then) * self._rate)
        wait = 0.0 if tokens >= 1 else (1 - tokens) / self._rate
        self._held[address] = (tokens - 1 if wait == 0 else tokens, now)
        self._held.move_to_end(address)
        if len(self._held) > _ADDRESSES:
            self._held.popitem(last=False)
        return wait


@dataclass(eq=False)
class Guard:
    """An ASGI application around another that enforces the limits on requests and connections.

    With `makes_room`, a connection or a request beyond the limits replaces the oldest connection that has not sent a
    complete request, if there is one. Without `times_answers`, only the arrival of a request is timed, for streamed
    responses.
    """

    application: Application
    limits: Limits
    makes_room: bool = False
    times_answers: bool = True
    connections: dict[Endpoints, Connection] = field(default_factory=dict)
    addresses: Counter[str] = field(default_factory=Counter)
    active: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request through the application, or reject it."""
        connection = self.connections.get((scope["client"], scope["server"]))
        if connection is None:
            return  # the client has disconnected
        request = Request(connection, scope)
        limits = self.limits
        try:
            if request.head_bytes > _LONGEST_HEAD:
                await request.reject(send, 431, _TOO_LONG)
            elif scope["path"] == HEALTH:
                await self.application(scope, request.receiver(receive), request.sender(send))
            elif self.active >= limits.active and not self.make_room(connection):
                await request.reject(send, 503, f"Expected at most {limits.active} requests at once. Retry later.")
            else:
                self.active += 1
                try:
                    # Let other requests that have arrived begin first: `active` must include the backlog, and `_next`
                    # must see a pipelined request before it closes the connection.
                    await asyncio.sleep(0)
                    await self.application(scope, request.receiver(receive), request.sender(send))
                finally:
                    self.active -= 1
        finally:
            connection.answered(request)

    def make_room(self, keep: Connection) -> bool:
        """Abort the oldest half-open connection other than `keep`, and return whether there was one."""
        if not self.makes_room:
            return False
        for connection in self.connections.values():  # oldest first
            if connection is not keep and connection.half_open:
                connection.abort()
                return True
        return False

    def protocol(self) -> type[asyncio.Protocol]:
        """Return the protocol class for uvicorn's `http` setting."""
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        guard = self

        class GuardedConnection(Connection):
            def __init__(self, **settings: Any) -> None:
                super().__init__(guard, HttpToolsProtocol(**settings))

        return GuardedConnection


class Request:
    """A request whose head has arrived: whether its body has arrived, and whether its response has started."""

    def __init__(self, connection: Connection, scope: Scope) -> None:
        """Wait for the body, if there is one."""
        self.connection = connection
        self.length: int | None = 0  # of the body; None if unknown
        self.head_bytes = len(scope["raw_path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            self.head_bytes += len(name) + len(value)
            if name == b"content-length" and value.isdigit():
                self.length = int(value[:20])
            elif name == b"transfer-encoding":
                self.length = None
        self.arrived, self.started, self.receiving = False, False, False
        connection.began(self)
        if self.length == 0:
            self._complete()

    def _complete(self) -> None:
        self.arrived = True
        self.connection.arrived()

    def receiver(self, receive: Receive) -> Receive:
        """Wrap `receive` to record when the body is complete."""

        async def received() -> MutableMapping[str, Any]:
            self.receiving = True
            message = await receive()
            self.receiving = False
            if message["type"] == "http.request" and not self.arrived:
                if not message.get("more_body"):
                    self._complete()
                elif self.connection.closed_by_client:
                    self.connection.transport.close()  # the rest will never arrive
            return message

        return received

    def sender(self, send: Send) -> Send:
        """Wrap `send` to record the start and the end of the response."""

        async def sent(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.started = True
                if not self.arrived and (self.length is None or self.length > _MOST_HELD):  # the rest is not read
                    headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != b"connection"]
                    message = {**message, "headers": [*headers, (b"connection", b"close")]}
            await send(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                self.connection.answered(self)

        return sent

    async def reject(self, send: Send, status: int, text: str) -> None:
        """Respond with an error."""
        body = _error(text)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers.append((b"retry-after", b"1") if status == 503 else (b"connection", b"close"))
        send = self.sender(send)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


class Connection(asyncio.Protocol):
    """A connection whose requests must arrive and be answered within `limits.patience`.

    A client that sends its request too slowly, or does not read the response, is disconnected; one that closes its
    sending side after a complete request still gets the response. Received data goes to the protocol of the HTTP
    server; data after a complete request waits until that is answered.
    """

    transport: asyncio.Transport

    def __init__(self, guard: Guard, server: asyncio.Protocol) -> None:
        """Create a connection that waits for its first request."""
        self.guard, self.server, self.loop = guard, server, asyncio.get_running_loop()
        self.endpoints: Endpoints = (("", 0), ("", 0))
        self.request: Request | None = None
        self.closed_by_client = False
        self._connected = self._lost = False  # passed to the HTTP server; closed
        self._timer: asyncio.TimerHandle | None = None
        self._for_answer = False  # whether the timer waits for the client to read a response
        self._unread = 0  # bytes passed on since the last request began or ended: an incomplete head
        self._ahead = bytearray()  # received after a complete request that is not answered yet

    # --- events of the transport --------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or reject it if there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        client, here = (transport.get_extra_info(name) or ("", 0) for name in ("peername", "sockname"))
        self.endpoints = (str(client[0]), int(client[1])), (str(here[0]), int(here[1]))
        guard, limits = self.guard, self.guard.limits
        guard.connections[self.endpoints] = self
        guard.addresses[self.endpoints[0][0]] += 1
        self._start_timer()
        many, mine = len(guard.connections), guard.addresses[self.endpoints[0][0]]
        full = many > limits.connections
        if (full or mine > limits.connections_per_address) and not guard.make_room(self):
            if full:
                self._reject(503, f"Expected at most {limits.connections} connections. Retry later.")
            else:
                most = limits.connections_per_address
                self._reject(429, f"Expected at most {most} connections from your address. Use fewer.")
            return
        self._connected = True
        self.server.connection_made(cast("asyncio.Transport", _Outgoing(self)))

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection from all counts."""
        self._lost = True
        self._stop_timer()
        self._ahead.clear()
        guard, address = self.guard, self.endpoints[0][0]
        if guard.connections.get(self.endpoints) is self:
            del guard.connections[self.endpoints]
        guard.addresses[address] -= 1
        if guard.addresses[address] <= 0:
            del guard.addresses[address]
        if self._connected:
            self.server.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Pass bytes on; reject a head that is too long, and too many pipelined requests."""
        if self.transport.is_closing():
            return
        if self._ahead.count(_REQUEST_LINE) + data.count(_REQUEST_LINE) > _MOST_AHEAD:
            self._reject(503, f"Expected at most {_MOST_AHEAD} pipelined requests. Wait for responses.")
        elif self._ahead or (self.request is not None and self.request.arrived):
            self._ahead += data
            if len(self._ahead) >= _MOST_HELD:
                self.transport.pause_reading()
        elif self.request is None and self._unread > _LONGEST_HEAD:
            self._reject(431, _TOO_LONG)
        else:
            # A request begins just after its head was passed on, so this piece is counted before the next check.
            if self.request is None:
                self._unread += len(data)
                if self._timer is None:
                    self._start_timer()
            self.server.data_received(data)

    def eof_received(self) -> bool:
        """Keep the connection for the response if the client sent a complete request before it closed its side."""
        self.closed_by_client = True
        return self.request is not None and (self.request.arrived or not self.request.receiving)

    def pause_writing(self) -> None:
        """Pass on that the write buffer is full."""
        if self._connected:
            self.server.pause_writing()

    def resume_writing(self) -> None:
        """Pass on that the write buffer has space again."""
        if self._connected:
            self.server.resume_writing()

    # --- events of the application ------------------------------------------------------------------------------------

    @property
    def half_open(self) -> bool:
        """Whether no complete request of the client is waiting for its response."""
        return not (self.request is not None and self.request.arrived) and not self.transport.is_closing()

    def began(self, request: Request) -> None:
        """Record that the head of a request has arrived."""
        self.request = request
        if self._timer is None:
            self._start_timer()

    def arrived(self) -> None:
        """Record that a complete request has arrived."""
        if not self.guard.times_answers:
            self._stop_timer()

    def answered(self, request: Request) -> None:
        """Record that a request is answered."""
        if self.request is not request or self._lost:
            return
        self.request = None
        self._unread = 0 if request.arrived else -(request.length or 0)  # the rest of its body is not a head
        self._stop_timer()
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self._start_timer(for_answer=True)
        if self._ahead or self.closed_by_client:
            self.loop.call_soon(self._next)  # after the HTTP server begins a request it has already read

    def _next(self) -> None:
        if self.request is not None or self.transport.is_closing():
            return
        if self._ahead:
            data = bytes(self._ahead)
            self._ahead.clear()
            self.transport.resume_reading()
            self.data_received(data)
            self.loop.call_soon(self._next)
        elif self.closed_by_client:
            self.transport.close()

    # --- timeouts and rejections --------------------------------------------------------------------------------------

    def _start_timer(self, for_answer: bool = False) -> None:
        self._stop_timer()
        self._for_answer = for_answer
        self._timer = self.loop.call_later(self.guard.limits.patience, self._timed_out)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _timed_out(self) -> None:
        self._timer = None
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            self.abort()
        elif not self._for_answer:
            self._reject(408, f"Expected a complete request within {self.guard.limits.patience:g} s. Send it faster.")
        elif self.request is not None or self._unread > 0:
            self._start_timer()  # the response was read, and the next request is arriving

    def abort(self) -> None:
        """Reset the connection; otherwise the system would keep trying to send unread data."""
        connected = self.transport.get_extra_info("socket")
        if connected is not None:
            with contextlib.suppress(OSError):
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def write(self, data: bytes) -> None:
        """Write the output of the HTTP server; replace its message for a request it cannot parse."""
        if data.startswith(b"HTTP/1.1 400") and (self.request is None or not self.request.started):
            self._reject(400, "Expected HTTP/1.1, got something else.")
        else:
            self.transport.write(data)

    def _reject(self, status: int, text: str) -> None:
        """Respond with an error outside of any request, and close."""
        if self.request is not None and self.request.started:
            self.abort()
            return
        body = _error(text)
        retry = "retry-after: 1\r\n" if status in (429, 503) else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
            f"connection: close\r\n{retry}content-length: {len(body)}\r\n\r\n"
        )
        self.transport.write(head.encode("ascii") + body)
        self.transport.close()
        if self._timer is None:
            self._start_timer()  # in case the client does not read the error


class _Outgoing:
    """The transport that the HTTP server uses: writes go through the connection."""

    def __init__(self, connection: Connection) -> None:
        self.write, self._transport = connection.write, connection.transport
        self.is_closing = connection.transport.is_closing  # called for every response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _error(text: str) -> bytes:
    return b'{"error":"' + text.encode("ascii") + b'"}'
