"""The page on a real socket, in a thread of its own."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from discreet.explorer.app import KEY, Read
from discreet.explorer.server import LIMITS, Place, server_for
from discreet.explorer.worker import Worker
from discreet.local.limits import Limits


@dataclass
class Running:
    place: Place
    worker: Worker
    thread: threading.Thread

    def ask(
        self, method: str, path: str, body: object = None, **headers: str
    ) -> tuple[int, dict[str, str], list[dict[str, Any]]]:
        """Send a request as the page would, and return its status, headers and lines."""
        usual = {KEY: self.place.key, "content-type": "application/json"}
        given = usual | {name.replace("_", "-"): value for name, value in headers.items()}
        call = http.client.HTTPConnection("127.0.0.1", self.place.port, timeout=30)
        text = body if isinstance(body, str | bytes | None) else json.dumps(body)
        call.request(method, path, text, {k: v for k, v in given.items() if v})
        answer = call.getresponse()
        raw = answer.read().decode()
        call.close()
        kind = answer.headers.get_content_type()
        lines = [json.loads(line) for line in raw.splitlines()] if "json" in kind else [{"text": raw}]
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, lines


@contextmanager
def running(offer: Mapping[str, Any], read: Read, limits: Limits = LIMITS) -> Iterator[Running]:
    worker, place = Worker(), Place.on(0)
    server = server_for(place, offer, read, worker, limits)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place.socket]}, daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not server.started and time.monotonic() < until:
        time.sleep(0.005)
    try:
        yield Running(place, worker, thread)
    finally:
        server.should_exit = True
        worker.close()
        thread.join(10)
        place.socket.close()
        assert not thread.is_alive(), "the server ends when it is told to"
