"""A TCP proxy on the loopback interface that records every byte: what someone on the wire sees of a federated run."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

HOST = "127.0.0.1"
_CHUNK = 1 << 16


class Wiretap:
    """Forward connections to a port and keep all bytes of both directions."""

    def __init__(self) -> None:
        """Listen on a free port; nothing is forwarded yet."""
        self.listener = socket.create_server((HOST, 0))
        self.port: int = self.listener.getsockname()[1]
        self.target = 0
        self.lock = threading.Lock()
        self.streams: list[bytearray] = []

    def forward_to(self, port: int) -> int:
        """Forward connections to a port, and return the port to connect to instead."""
        if not self.target:
            threading.Thread(target=self._accept, daemon=True).start()
        self.target = port
        return self.port

    def captured(self) -> list[bytes]:
        """Return the bytes of each direction of each connection."""
        with self.lock:
            return [bytes(stream) for stream in self.streams]

    def close(self) -> None:
        """Stop listening."""
        self.listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                try:
                    server = socket.create_connection((HOST, self.target))
                except OSError:
                    client.close()
                    continue
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source: socket.socket, sink: socket.socket) -> None:
        stream = bytearray()
        with self.lock:
            self.streams.append(stream)
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK):
                with self.lock:
                    stream.extend(data)
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def wiretap() -> Iterator[Wiretap]:
    """Open a wiretap, and close it at the end."""
    tap = Wiretap()
    try:
        yield tap
    finally:
        tap.close()
