"""A real server on a real socket, in a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from discreet.local.head import Head
from discreet.local.http import listen, server_for
from discreet.local.limits import Limits

WIDTH = 6


@dataclass
class Running:
    port: int
    head: Head
    thread: threading.Thread
    server: Any

    @property
    def connections(self) -> int:
        """How many connections the server holds."""
        return len(self.server.server_state.connections)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self, timeout: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def lives(self) -> bool:
        """Whether it still answers a whole request."""
        with self.connect() as place:
            place.sendall(b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            return b'"status":"ok"' in everything(place)


def everything(place: socket.socket) -> bytes:
    """Return all that comes until the other side closes."""
    found = b""
    try:
        while part := place.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def make_head(width: int = WIDTH) -> Head:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(3, width)).astype(np.float32)
    return Head(((weights, rng.normal(size=3).astype(np.float32)),), ("a", "b", "c"))


def wait_until(happened: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait for something that a server does in its own time, which is long on a busy machine."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextmanager
def running(head: Head, limits: Limits, *more: Any) -> Iterator[Running]:
    server = server_for(head, limits, *more)
    with listen("127.0.0.1", 0) as place:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield Running(place.getsockname()[1], head, thread, server)
        finally:
            server.should_exit = True
            thread.join(60)


@pytest.fixture(scope="session")
def served() -> Iterator[Running]:
    with running(make_head(), Limits(rows=8, patience=1.0, rate=1e6)) as found:
        yield found


@pytest.fixture
def serving() -> Callable[..., object]:
    return lambda **limits: running(make_head(), Limits(**limits))
