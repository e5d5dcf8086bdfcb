"""Encrypted inference beside the locally private server: error, time, bytes and answers a second.

python -m benchmarks.encrypted                 a head as wide as minilm, 2 classes
python -m benchmarks.encrypted --width 768 --classes 10 --texts 100

Both servers run in a thread of this process and are asked over loopback, one request after the other. Times are medians
of wall time, and processor time of client and server together.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from discreet.core.ckks import SecretKey
from discreet.local.encrypted import EncryptedClient, EncryptedHead, packed
from discreet.local.head import Head
from discreet.local.http import listen, server_for
from discreet.local.limits import Limits
from discreet.local.remote import RemoteServer, body_of


def head_of(width: int, classes: int) -> Head:
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(classes, width)).astype(np.float32)
    return Head(((weights, rng.normal(size=classes).astype(np.float32)),), tuple(f"class {i}" for i in range(classes)))


def served(head: Head, encrypted: EncryptedHead | None) -> tuple[Any, threading.Thread, str]:
    server = server_for(head, Limits(rate=1e6), encrypted)
    place = listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    return server, thread, f"http://127.0.0.1:{place.getsockname()[1]}"


def timed(run: Callable[[], Any], times: int) -> dict[str, float]:
    walls, began = [], time.process_time()
    for _ in range(times):
        start = time.perf_counter()
        run()
        walls.append(time.perf_counter() - start)
    cpu = (time.process_time() - began) / times
    return {"p50_ms": round(1e3 * float(np.median(walls)), 2), "cpu_ms": round(1e3 * cpu, 2)}


def measure(width: int, classes: int, texts: int, times: int) -> list[dict[str, Any]]:
    head = head_of(width, classes)
    encrypted = EncryptedHead(head)
    vectors = np.random.default_rng(1).normal(size=(texts, width)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    client = EncryptedClient(encrypted.packing)
    ciphertexts = client.encrypt(vectors[:1])
    answer = encrypted.answer(ciphertexts)
    parts = {
        "make a key": timed(SecretKey, times),
        "encrypt (client)": timed(lambda: client.encrypt(vectors[:1]), times),
        "answer (server)": timed(lambda: encrypted.answer(ciphertexts), times),
        "decrypt (client)": timed(lambda: client.scores(answer, 1), times),
        "answer in the clear (server)": timed(lambda: head.answers(vectors[:1]), times),
    }
    rows: list[dict[str, Any]] = [{"part": name, **row} for name, row in parts.items()]
    exact = vectors.astype(np.float64) @ head.layers[0][0].T + head.layers[0][1]
    found = client.scores(encrypted.answer(client.encrypt(vectors)), texts)
    rows.append({"part": "error", "largest_error_of_a_score": float(np.abs(found - exact).max())})
    for name, one in (("serve", None), ("serve --encrypted", encrypted)):
        server, thread, url = served(head, one)
        try:
            rows += _asked(name, RemoteServer(url, timeout=60), vectors, one, times, client)
        finally:
            server.should_exit = True
            thread.join(10)
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def _asked(
    name: str,
    remote: RemoteServer,
    vectors: np.ndarray,
    encrypted: EncryptedHead | None,
    times: int,
    client: EncryptedClient,
) -> list[dict[str, Any]]:
    about = remote.about()
    rows = []
    for count in (1, len(vectors)):
        part = vectors[:count]
        if encrypted is None:
            row = timed(lambda: remote.answers(part, about), times)  # noqa: B023
            sent = sum(len(body_of(part[i : i + about.max_rows])) for i in range(0, count, about.max_rows))
            received = len(json.dumps({"answers": remote.answers(part, about)}))
        else:
            row = timed(lambda: remote.encrypted_answers(part, about), max(3, times // 3))  # noqa: B023
            sent = len(packed(client.encrypt(part)))
            received = remote.encrypted_answers(part, about)[1].received
        rows.append(
            {
                "part": f"discreet {name}",
                "texts": count,
                **row,
                "texts_per_second": round(1e3 * count / row["p50_ms"]),
                "bytes_sent_per_text": round(sent / count),
                "bytes_received_per_text": round(received / count),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--classes", type=int, default=2)
    parser.add_argument("--texts", type=int, default=80)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = measure(options.width, options.classes, options.texts, options.times)
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
