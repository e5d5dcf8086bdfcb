"""One connection, with limits that the HTTP server itself does not keep: slowness, long headers, and their number."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from discreet.serving.limits import Limits
from discreet.serving.openapi import HEALTH

_LONGEST_HEAD = 16_384
_MOST_AHEAD = 64  # requests sent before the answer to the first; each answer lets in another quarter of a megabyte
_RESET = struct.pack("ii", 1, 0)


@dataclass
class Busy:
    """How many requests are being worked on."""

    count: int = 0


class Connection(HttpToolsProtocol):
    """A connection whose requests must arrive and be answered within the patience of the limits.

    A client that sends its request byte by byte, or does not read its answer, is cut off; one that closes its side
    after a whole request still gets the answer.

    With `makes_room`, a connection beyond the limits takes the place of the oldest one that has not sent a whole
    request, if there is one. Without `times_answers` only the arrival of a request is timed, for answers that stream.
    """

    limits: ClassVar[Limits] = Limits()
    busy: ClassVar[Busy]
    addresses: ClassVar[Counter[str]] = Counter()
    makes_room: ClassVar[bool] = False
    times_answers: ClassVar[bool] = True
    numbers: ClassVar[Iterator[int]] = itertools.count()

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Make a connection that waits for its first request."""
        super().__init__(*arguments, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._in_head, self._head_bytes, self._field_bytes, self._begun = True, 0, 0, 0
        self._address: str | None = None
        self._number = next(self.numbers)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take the connection, or refuse it if there are too many."""
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.addresses[self._address] += 1
        self._wait()
        limits = self.limits
        many, mine = len(self.connections), self.addresses[self._address]
        if (many > limits.connections or mine > limits.connections_per_address) and self._make_room():
            return
        if many > limits.connections:
            self._refuse(503, f"Expected at most {limits.connections} connections. Come again.", b"retry-after: 1\r\n")
        elif mine > limits.connections_per_address:
            most = limits.connections_per_address
            self._refuse(429, f"Expected at most {most} connections of yours. Use fewer.", b"retry-after: 1\r\n")

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything that was counted for the connection."""
        self._calm()
        if self._address is not None:
            self.addresses[self._address] -= 1
            if self.addresses[self._address] <= 0:
                del self.addresses[self._address]
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read some bytes; a head that never ends is refused."""
        if self.transport.is_closing():
            return
        self._head_bytes += len(data)
        super().data_received(data)
        # What came in the piece of data with which a request began is counted by its fields, later pieces whole.
        long = max(self._head_bytes, self._field_bytes) > _LONGEST_HEAD
        if len(self.pipeline) > _MOST_AHEAD and not self.transport.is_closing():
            text = f"Expected at most {_MOST_AHEAD} requests ahead of their answers. Wait for some."
            self._refuse(503, text, b"retry-after: 1\r\n")
        if self._in_head and long and not self.transport.is_closing():
            self._refuse(431, f"Expected a head of at most {_LONGEST_HEAD} bytes. Send fewer headers.")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the connection for the answer if a whole request came before the client closed its side."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        """Begin to wait for a request."""
        self._in_head, self._head_bytes, self._field_bytes = True, 0, 0
        self._begun += 1
        if self._timer is None:
            self._wait()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header."""
        self._field_bytes += len(name) + len(value)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Note that the head has ended."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the whole request is here."""
        super().on_message_complete()
        if not self.times_answers:
            self._calm()

    @property
    def half_open(self) -> bool:
        """Whether the client has not sent a whole request that is still to be answered."""
        cycle = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def _make_room(self) -> bool:
        """Cut off the oldest half-open connection besides this one, and return whether there was one."""
        if not self.makes_room:
            return False
        others = [each for each in self.connections if isinstance(each, Connection) and each is not self]
        waiting = [each for each in others if each.half_open and not each.transport.is_closing()]
        if waiting:
            min(waiting, key=lambda each: each._number).transport.abort()
        return bool(waiting)

    def on_response_complete(self) -> None:
        """Stop waiting, unless the next request has begun to arrive or the answer is still to be taken."""
        self._begun -= 1
        self._calm()
        if self._begun > 0 or self.transport.is_closing():
            self._wait()
        super().on_response_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # All that is readable is read before any of it is worked on, so this is how far the server is behind.
        if cycle.scope["path"] == HEALTH:
            super()._start_asgi_task(cycle, app)
        elif self.busy.count >= self.limits.active and not self._make_room():
            super()._start_asgi_task(cycle, self._too_busy)
        else:
            self.busy.count += 1
            super()._start_asgi_task(cycle, self._counted)

    async def _counted(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await self.app(scope, receive, send)
        finally:
            self.busy.count -= 1

    async def _too_busy(self, scope: Any, receive: Any, send: Any) -> None:
        text = f"Expected at most {self.limits.active} requests at once. Wait, then send again."
        body = b'{"error":"' + text.encode() + b'"}'
        length = str(len(body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"retry-after", b"1")]
        await send({"type": "http.response.start", "status": 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are no HTTP."""
        self._refuse(400, "Expected HTTP/1.1, found something else.")

    def _wait(self) -> None:
        self._timer = self.loop.call_later(self.limits.patience, self._cut_off)

    def _calm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cut_off(self) -> None:
        self._timer = None
        cycle = self.cycle
        if not self.transport.is_closing() and (cycle is None or not cycle.response_started):
            self._refuse(408, f"Expected a whole request within {self.limits.patience:g} s. Send it faster.")
            return
        held = self.transport.get_extra_info("socket")
        if held is not None:
            # Reset it: otherwise the system would go on trying to hand over what nobody takes.
            with contextlib.suppress(OSError):
                held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    def _refuse(self, status: int, text: str, header: bytes = b"") -> None:
        body = b'{"error":"' + text.encode("ascii") + b'"}'
        self.transport.write(
            STATUS_LINE[status]
            + b"content-type: application/json\r\nconnection: close\r\n"
            + header
            + b"content-length: "
            + str(len(body)).encode()
            + b"\r\n\r\n"
            + body
        )
        self.transport.close()
        if self._timer is None:
            self._wait()  # for whoever does not take even this


def connection_with(limits: Limits, *, makes_room: bool = False, times_answers: bool = True) -> type[Connection]:
    """Return the kind of connection that keeps to some limits."""
    own = {"limits": limits, "busy": Busy(), "addresses": Counter(), "numbers": itertools.count()}
    return type("LimitedConnection", (Connection,), {**own, "makes_room": makes_room, "times_answers": times_answers})
