"""Which slow, large and many requests each HTTP server stops by its own settings, and which `local.limits` stops.

    python -m benchmarks.http_limits [--python PATH]

`--python` is an interpreter that has hypercorn and granian, for example of an environment made for this. Each server
runs the same small application in a process of its own, with the settings of its own that come closest to a patience of
two seconds, 60 connections and heads of 16 KB. An attack is stopped if the server ends it within six seconds. The table
is in docs/decisions/http_limits.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE, CONNECTIONS, HEAD = 2, 60, 16_384
STOPPED_WITHIN = 3 * PATIENCE

APPLICATION = """
import asyncio
async def app(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError("http only")
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = b"x" * (100_000 if scope["path"] == "/long" else 2)
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""
UVICORN = """
import sys, uvicorn
from application import app
uvicorn.run(app, port=int(sys.argv[1]), http={http!r}, loop="asyncio", ws="none", lifespan="off", log_level="critical",
            limit_concurrency={most}, timeout_keep_alive={patience}, h11_max_incomplete_event_size={head})
"""
OURS = """
import sys, uvicorn
from application import app
from discreet.local.http import listen, quiet_server
from discreet.local.limits import Guard, Limits
limits = Limits(rate=1e9, active={most}, connections={most}, connections_per_address={most} - 10, patience={patience})
quiet_server(Guard(app, limits), keep_alive={patience}, shutdown=1).run(sockets=[listen("127.0.0.1", int(sys.argv[1]))])
"""
HYPERCORN = """
import asyncio, sys
from hypercorn.asyncio import serve
from hypercorn.config import Config
from application import app
config = Config()
config.bind, config.read_timeout, config.keep_alive_timeout = [f"127.0.0.1:{{sys.argv[1]}}"], {patience}, {patience}
config.h11_max_incomplete_size, config.errorlog = {head}, None
asyncio.run(serve(app, config))
"""
GRANIAN = """
import sys
from granian import Granian
from granian.http import HTTP1Settings
if __name__ == "__main__":
    Granian("application:app", port=int(sys.argv[1]), interface="asginl", log_enabled=False, websockets=False,
            backpressure={most}, http1_settings=HTTP1Settings(header_read_timeout={patience} * 1000,
            max_buffer_size={head})).serve()
"""
SERVERS = {
    "ours": OURS,
    "uvicorn, httptools": UVICORN.replace("{http!r}", "'httptools'"),
    "uvicorn, h11": UVICORN.replace("{http!r}", "'h11'"),
    "hypercorn": HYPERCORN,
    "granian": GRANIAN,
}
POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n"
GET = b"GET / HTTP/1.1\r\nhost: a\r\n"
Attack = Callable[[int], str]


def connect(port: int, seconds: float = STOPPED_WITHIN) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def ended(place: socket.socket, seconds: float = STOPPED_WITHIN) -> tuple[bool, bytes]:
    """Return whether the server closed within these seconds, and what it said."""
    said, until = b"", time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        place.settimeout(left)
        try:
            part = place.recv(65536)
        except TimeoutError:
            break
        except OSError:
            return True, said
        if not part:
            return True, said
        said += part
    return False, said


def words(closed: bool, said: bytes) -> str:
    status = said.split(b" ", 2)[1].decode() if said.startswith(b"HTTP/1.1 ") else "no answer"
    return f"{'yes' if closed else 'no'} ({status})"


def after(port: int, *parts: bytes, pause: float = 0.0) -> str:
    """Return what happens to a client that sends these parts and then nothing."""
    with connect(port) as place:
        for part in parts:
            try:
                place.sendall(part)
            except OSError:
                break
            time.sleep(pause)
        return words(*ended(place))


def dripping(port: int, start: bytes, drop: bytes) -> str:
    """Return what happens to a client that sends a few bytes again and again, and never all."""
    with connect(port) as place:
        place.sendall(start)
        until, said = time.monotonic() + STOPPED_WITHIN, b""
        while time.monotonic() < until:
            try:
                place.sendall(drop)
            except OSError:
                return words(True, said)
            closed, more = ended(place, 0.2)
            said += more
            if closed:
                return words(True, said)
        return words(False, said)


def endless_head(port: int) -> str:
    with connect(port) as place:
        sent = 0
        with contextlib.suppress(OSError):
            place.sendall(GET)
            for number in range(40_000):
                sent += place.send(b"x-%d: " % number + b"y" * 100 + b"\r\n")
                if number % 100 == 0 and ended(place, 0.001)[0]:
                    break
        return f"{'yes' if sent < 1_000_000 else 'no'} (after {sent // 1000} KB)"


def long_head(port: int) -> str:
    with connect(port) as place:
        with contextlib.suppress(OSError):
            place.sendall(GET + b"x: " + b"y" * 20_000 + b"\r\n\r\n")
        _, said = ended(place)
        return words(b" 200 " not in said[:20], said)


def never_reads(port: int) -> str:
    """Return whether a client that sends requests for long answers and reads none is disconnected."""
    with connect(port) as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        place.settimeout(0.2)
        until = time.monotonic() + 2 * STOPPED_WITHIN
        while time.monotonic() < until:
            try:
                place.sendall(b"GET /long HTTP/1.1\r\nhost: a\r\n\r\n" * 20)
            except TimeoutError:
                continue
            except OSError:
                return "yes"
        return "no"


def pipelined(port: int) -> str:
    """Return how many of 2,000 requests sent at once are accepted."""
    with connect(port) as place:
        with contextlib.suppress(OSError):
            place.sendall((GET + b"\r\n") * 2000)
        _, said = ended(place)
        count = said.count(b"HTTP/1.1 200")
        return f"{'yes' if count < 2000 else 'no'} ({count} answered)"


def silent_crowd(port: int) -> str:
    """Return whether a client is answered while 300 others are connected and silent, and how many of them are kept."""
    crowd = []
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                crowd.append(connect(port, 1.0))
        time.sleep(0.3)
        open_ones = sum(not ended(place, 0.001)[0] for place in crowd)
        time.sleep(PATIENCE + 1)
        with connect(port) as place:
            place.sendall(GET + b"connection: close\r\n\r\n")
            _, said = ended(place)
        return f"{'yes' if open_ones <= CONNECTIONS else 'no'} ({open_ones} kept; later {words(True, said)[5:-1]})"
    finally:
        for place in crowd:
            place.close()


def many_at_once(port: int) -> str:
    """Return whether requests beyond the limit are answered at once with 503, while 100 slow ones run."""
    places = []
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                place = connect(port)
                place.sendall(b"GET /slow HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
                places.append(place)
        said = [ended(place)[1] for place in places]
        busy = sum(b" 503 " in one[:20] or b" 429 " in one[:20] for one in said)
        return f"{'yes' if busy else 'no'} ({busy} of 100 rejected)"
    finally:
        for place in places:
            place.close()


def half_closed(port: int) -> str:
    with connect(port) as place:
        place.sendall(b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n")
        place.shutdown(socket.SHUT_WR)
        _, said = ended(place)
        return "yes" if b"HTTP/1.1 200" in said else "no"


ATTACKS: dict[str, Attack] = {
    "connects and says nothing": lambda port: after(port),
    "half a head, then nothing": lambda port: after(port, GET),
    "a head, byte by byte": lambda port: dripping(port, GET, b"x"),
    "a head without its body": lambda port: after(port, POST + b"\r\n"),
    "a body, byte by byte": lambda port: dripping(port, POST + b"\r\n", b"x"),
    "half of a second request": lambda port: after(port, GET + b"\r\n", GET, pause=0.2),
    "a head that never ends": endless_head,
    "a head of 20 KB at once": long_head,
    "2,000 pipelined requests": pipelined,
    "reads no answer": never_reads,
    "300 silent connections": silent_crowd,
    "100 requests at once": many_at_once,
    "closes its side, is answered": half_closed,
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as place:
        return int(place.getsockname()[1])


def measure(script: str, python: str, folder: Path) -> dict[str, str]:
    """Start a server once for each attack, and return what became of the attacks."""
    (folder / "application.py").write_text(APPLICATION)
    (folder / "server.py").write_text(script.format(most=CONNECTIONS, patience=PATIENCE, head=HEAD))
    found = {}
    for name, attack in ATTACKS.items():
        port = free_port()
        with subprocess.Popen(
            [python, "server.py", str(port)], cwd=folder, env={**os.environ, "PYTHONPATH": str(folder)},
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            try:
                for _ in range(300):
                    with contextlib.suppress(OSError), connect(port, 0.5):
                        break
                    time.sleep(0.1)
                time.sleep(0.2)
                found[name] = attack(port)
            finally:
                process.terminate()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with hypercorn and granian")
    parser.add_argument("--only", help="one server")
    settings = parser.parse_args()
    results = {}
    for name, script in SERVERS.items():
        if settings.only and settings.only not in name:
            continue
        python = settings.python if name in ("hypercorn", "granian") else sys.executable
        with tempfile.TemporaryDirectory() as folder:
            results[name] = measure(script, python, Path(folder))
        print(json.dumps({name: results[name]}, indent=1), flush=True)
    print("| what a client does |", " | ".join(results), "|")
    print("|---|" + "---|" * len(results))
    for attack in ATTACKS:
        print(f"| {attack} | {' | '.join(found[attack] for found in results.values())} |")


if __name__ == "__main__":
    main()
