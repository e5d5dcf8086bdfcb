"""How many answers a second the server gives, how long they take, and what it does at twice as many.

python -m benchmarks.serving                         a head as wide as minilm, one vector a request
python -m benchmarks.serving --server runs/a/server  the head of a run
python -m benchmarks.serving --overload-seconds 3    a short look

The server is a process of its own; the load comes from this one over real connections, on the same machine. `hold` asks
again as soon as it was answered and finds what the server holds; `paced` and `overload` send by the clock, whatever
comes back, and `paced` counts a time from when the request was due, so that waiting is not hidden.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PATH = "/v1/answers"


@dataclass
class Load:
    """What came back: how often each status, and how long it took."""

    seconds: float = 0.0
    offered: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    lost: int = 0

    def row(self) -> dict[str, Any]:
        times = np.array(self.times or [np.nan]) * 1e3
        return {
            "seconds": round(self.seconds, 1),
            "offered_per_s": round(self.offered / self.seconds),
            "answered_per_s": round(self.statuses[200] / self.seconds),
            "refused": {str(k): v for k, v in sorted(self.statuses.items()) if k != 200},
            "no_reply": self.lost,
            "p50_ms": round(float(np.percentile(times, 50)), 2),
            "p99_ms": round(float(np.percentile(times, 99)), 2),
            "max_ms": round(float(times.max()), 2),
        }


class Asker(asyncio.Protocol):
    """One connection that sends a request and waits for its reply."""

    def __init__(self, load: Load, free: deque[Asker], again: bool) -> None:
        self.load, self.free, self.again = load, free, again
        self.held = b""
        self.due = 0.0
        self.waiting = False
        self.request = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.free.append(self)

    def send(self, request: bytes, due: float) -> None:
        self.request, self.due, self.waiting = request, due, True
        self.load.offered += 1
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.held += data
        end = self.held.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.held[:end].lower()
        at = head.index(b"content-length:") + 15
        length = int(head[at:].split(b"\r\n", 1)[0])
        if len(self.held) < end + 4 + length:
            return
        self.held = self.held[end + 4 + length :]
        self.waiting = False
        now = time.perf_counter()
        self.load.statuses[int(head[9:12])] += 1
        if head[9:12] == b"200":
            self.load.times.append(now - self.due)
        if b"connection: close" in head:
            self.transport.close()
        elif self.again and not self.free:
            self.send(self.request, now)
        else:
            self.free.append(self)

    def connection_lost(self, error: Exception | None) -> None:
        if self.waiting:
            self.load.lost += 1
        with contextlib.suppress(ValueError):
            self.free.remove(self)


async def offer(
    port: int, request: bytes, connections: int, seconds: float, rate: float | None, late: bool = False
) -> Load:
    """Send requests for a while: again at once without a rate, by the clock with one."""
    loop, load = asyncio.get_running_loop(), Load()
    free: deque[Asker] = deque()
    for _ in range(connections):
        await loop.create_connection(lambda: Asker(load, free, rate is None), "127.0.0.1", port)
    begun = time.perf_counter()
    if rate is None:
        first = list(free)
        free.clear()
        for each in first:
            each.send(request, time.perf_counter())
        await asyncio.sleep(seconds)
        load.seconds = time.perf_counter() - begun
        free.append(first[0])  # nobody asks again
    else:
        sent = 0
        while (now := time.perf_counter()) < begun + seconds:
            while free and sent < (now - begun) * rate:
                free.popleft().send(request, now if late else begun + sent / rate)
                sent += 1
            await asyncio.sleep(0.0005)
        load.seconds = time.perf_counter() - begun
    until = time.perf_counter() + 5
    while load.offered > sum(load.statuses.values()) + load.lost and time.perf_counter() < until:
        await asyncio.sleep(0.02)
    load.lost += load.offered - sum(load.statuses.values()) - load.lost
    return load


def serve_here(options: argparse.Namespace) -> None:
    from discreet.local.head import Head
    from discreet.local.http import serve
    from discreet.local.limits import Limits

    if options.server:
        from discreet.local.server import ServerSide

        head = Head.of(ServerSide.load(options.server))
    else:
        rng = np.random.default_rng(0)
        weights = rng.normal(size=(2, options.width)).astype(np.float32)
        head = Head(((weights, np.zeros(2, dtype=np.float32)),), ("negative", "positive"))
    limits = Limits(rate=options.rate, active=options.active, connections=1024, connections_per_address=1024)
    serve(head, "127.0.0.1", 0, limits, lambda said: print(said, flush=True))


@contextlib.contextmanager
def server(options: argparse.Namespace) -> Any:
    command = [sys.executable, "-m", "benchmarks.serving", "--be-server", "--width", str(options.width)]
    command += ["--rate", str(options.rate), "--active", str(options.active)]
    command += ["--server", str(options.server)] if options.server else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.readline().split()
    try:
        yield int(said[5].rsplit(":", 1)[1]), int(said[2]), process
    finally:
        process.terminate()
        process.wait(10)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--rate", type=float, default=1e9, help="of the server: requests a second from one address")
    parser.add_argument("--active", type=int, default=64, help="of the server: requests worked on at once")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--overload-seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--be-server", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.be_server:
        serve_here(options)
        return
    found: dict[str, Any] = {}
    with server(options) as (port, width, process):
        vector = np.random.default_rng(1).normal(size=width).astype(np.float32).tolist()
        body = json.dumps({"vectors": [vector]}).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        request = head.encode() + body
        run = asyncio.run
        run(offer(port, request, 4, 1.0, None))  # warm
        hold = run(offer(port, request, options.connections, options.seconds, None))
        found["hold"] = hold.row()
        found["paced at 500"] = run(offer(port, request, options.connections, options.seconds, 500.0)).row()
        twice = 2 * hold.statuses[200] / hold.seconds
        found["overload"] = run(offer(port, request, 400, options.overload_seconds, twice, True)).row()
        found["after"] = run(offer(port, request, options.connections, 2.0, 100.0)).row()
        found["server_lives"] = process.poll() is None
    found["width"], found["bytes"] = width, len(request)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    for name, row in found.items():
        print(f"{name:14} {row}")


if __name__ == "__main__":
    main()
