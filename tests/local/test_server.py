"""Over a real connection: what a user, a slow, a broken and a hostile client get, and that the server lives."""

import io
import json
import logging
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.local.conftest import wait_until

from discreet.core.errors import SettingError
from discreet.local.http import listen
from discreet.local.limits import Buckets

GOOD = [0.5, -1.0, 2.0, 0.0, 1e-3, 3]


def everything(place: socket.socket) -> bytes:
    found = b""
    try:
        while part := place.recv(65536):
            found += part
    except ConnectionError:
        pass
    return found


def post(body: bytes, kind: str = "application/json", extra: str = "", close: bool = True) -> bytes:
    end = "connection: close\r\n" if close else ""
    head = f"POST /v1/answers HTTP/1.1\r\nhost: a\r\ncontent-type: {kind}\r\n{extra}{end}"
    return head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body


def ask(server: Any, raw: bytes) -> tuple[int, dict[str, str], Any]:
    with server.connect() as place:
        place.sendall(raw)
        return parsed(everything(place))


def parsed(reply: bytes) -> tuple[int, dict[str, str], Any]:
    head, _, body = reply.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), headers, json.loads(body) if body else None


def vectors(*rows: Any) -> bytes:
    return json.dumps({"vectors": list(rows)}).encode()


def test_vectors_are_answered(served: Any) -> None:
    status, headers, found = ask(served, post(vectors(GOOD, [0] * 6)))
    assert (status, headers["content-type"]) == (200, "application/json")
    assert len(found["answers"]) == 2
    expected = served.head.answers(served.head.checked([GOOD]))[0]
    assert found["answers"][0]["label"] == expected["label"]
    assert found["answers"][0]["probabilities"] == pytest.approx(expected["probabilities"])
    assert sum(found["answers"][0]["probabilities"]) == pytest.approx(1, abs=1e-5)


def test_it_describes_itself(served: Any) -> None:
    get = "GET {} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
    status, _, document = ask(served, get.format("/openapi.json").encode())
    assert (status, document["openapi"]) == (200, "3.1.0")
    schema = document["paths"]["/v1/answers"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"]["vectors"]["items"]["maxItems"] == 6
    assert set(document["paths"]["/v1/answers"]["post"]["responses"]) >= {"200", "413", "422", "429", "503"}
    status, _, about = ask(served, get.format("/v1/about").encode())
    assert (about["width"], about["labels"], about["max_rows"]) == (6, ["a", "b", "c"], 8)
    status, _, found = ask(served, get.format("/health").encode())
    assert (status, found["status"]) == (200, "ok")


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"text": "the patient is ill"}', 422, "accepts no text"),
        (b'"the patient is ill"', 422, "accepts no text"),
        (b'{"vectors": "the patient is ill"}', 422, "accepts no text"),
        (b'{"vectors": ["the patient is ill"]}', 422, "no text"),
        (b'{"vectors": [["a", "b", "c", "d", "e", "f"]]}', 422, "no text"),
        (b'{"vectors": [["1", "2", "3", "4", "5", "6"]]}', 422, "no text"),
        (vectors([1.0] * 5), 422, "of width 6, got 5"),
        (vectors([1.0] * 384), 422, "of width 6, got 384"),
        (vectors([1.0] * 6, [1.0] * 5), 422, "another shape"),
        (vectors(), 422, "list of lists"),
        (vectors([[1.0] * 6]), 422, "lists of 6 numbers"),
        (vectors([None] * 6), 422, "lists of 6 numbers"),
        (vectors([True] * 6), 422, "lists of 6 numbers"),
        (vectors([{}] * 6), 422, "lists of 6 numbers"),
        (b'{"vectors": [[1e999, 0, 0, 0, 0, 0]]}', 400, "Expected JSON"),
        (b'{"vectors": [[1e300, 0, 0, 0, 0, 0]]}', 422, "finite"),
        (b'{"vectors": [[' + b"9" * 400 + b", 0, 0, 0, 0, 0]]}", 400, "Expected JSON"),
        (b'{"vectors": [[3e38, 3e38, 3e38, 3e38, 3e38, 3e38]]}', 422, "Expected"),
        (b'{"vectors": [[NaN, 0, 0, 0, 0, 0]]}', 400, "Expected JSON"),
        (vectors(GOOD)[:-1] + b', "note": "ill"}', 422, 'only key "vectors"'),
        (b"[]", 422, "accepts no text"),
        (b"", 400, "Expected JSON"),
        (b"{", 400, "Expected JSON"),
        (b"\xff\xfe\x00", 400, "Expected JSON"),
        (b"[" * 1500, 400, "Expected JSON"),
        (b'{"vectors": ' + b"[" * 600 + b"]" * 600 + b"}", 422, "Expected"),
        (vectors(*[GOOD] * 9), 413, "8 vectors"),
        (b" " * 5000, 413, "bytes"),
    ],
)
def test_what_is_no_release_is_refused_with_a_sentence(served: Any, body: bytes, status: int, words: str) -> None:
    found, _, said = ask(served, post(body))
    assert (found, words in said["error"]) == (status, True), said
    assert "ill" not in said["error"]
    assert served.lives()


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/jsonx", ""])
def test_other_content_types_are_refused(served: Any, kind: str) -> None:
    status, headers, said = ask(served, post(b"the patient is ill", kind))
    assert (status, headers["connection"]) == (415, "close")
    assert "accepts no text" in said["error"]


def test_compressed_bodies_other_paths_and_methods_are_refused(served: Any) -> None:
    assert ask(served, post(vectors(GOOD), extra="content-encoding: gzip\r\n"))[0] == 415
    status, _, said = ask(served, b"GET /v1/answers HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
    assert status == 405
    assert said["error"]
    assert ask(served, b"GET /etc/passwd HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")[0] == 404
    assert ask(served, post(vectors(GOOD), kind="application/json; charset=utf-8"))[0] == 200


def test_a_huge_body_is_refused_before_it_is_read(served: Any) -> None:
    with served.connect() as place:
        place.sendall(
            b"POST /v1/answers HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 99999999999999"
            b"\r\n\r\n"
        )
        assert parsed(everything(place))[0] == 413
    with served.connect() as place:  # chunked, so that no length is said
        place.sendall(
            b"POST /v1/answers HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        try:
            for _ in range(2000):
                place.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        except ConnectionError:
            pass
        reply = everything(place)
        assert not reply or parsed(reply)[0] == 413
    assert served.lives()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/answers HTTP/1.1\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/answers HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcdef",
        b"POST /v1/answers HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\nzz\r\n\r\n",
        b"\r\n\r\n\r\n\x00\x00",
        b"GET /\xff\xfe HTTP/1.1\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    ],
)
def test_garbage_is_refused_or_cut_off(served: Any, raw: bytes) -> None:
    with served.connect() as place:
        place.sendall(raw)
        reply = everything(place)  # at the latest, patience ends
    assert reply == b"" or reply.startswith(b"HTTP/1.1 ")
    assert served.lives()


def test_random_bytes_never_kill_it(served: Any) -> None:
    source = random.Random(1)
    for _ in range(150):
        with served.connect() as place:
            raw = bytearray(post(vectors(GOOD)))
            for _ in range(source.randint(1, 12)):
                raw[source.randrange(len(raw))] = source.randrange(256)
            try:
                place.sendall(bytes(raw))
                place.shutdown(socket.SHUT_WR)
            except OSError:
                continue
            everything(place)
    assert served.lives()


def test_a_head_that_never_ends_is_refused(served: Any) -> None:
    with served.connect() as place:
        place.sendall(b"GET /health HTTP/1.1\r\n")
        try:
            for number in range(3000):
                place.sendall(b"x-%d: yyyyyyyyyyyyyyyyyyyyyy\r\n" % number)
        except ConnectionError:
            pass
        reply = everything(place)
    assert not reply or reply.startswith(b"HTTP/1.1 431")
    assert served.lives()


def test_slow_requests_are_cut_off_and_others_are_answered_meanwhile(served: Any) -> None:
    slow = [served.connect() for _ in range(40)]
    whole = post(vectors(GOOD))
    for number, place in enumerate(slow):
        place.sendall(whole[: 10 + number * 3])
    assert ask(served, whole)[0] == 200
    silent = served.connect()  # says nothing at all
    drip = served.connect()
    for byte in whole:
        try:
            drip.sendall(bytes([byte]))
        except ConnectionError:
            break
        time.sleep(0.02)
    for place in (*slow, silent, drip):
        reply = everything(place)
        assert reply == b"" or parsed(reply)[0] == 408
        place.close()
    assert served.lives()


def test_a_slow_second_request_on_one_connection_is_cut_off_too(served: Any) -> None:
    with served.connect() as place:
        whole = post(vectors(GOOD), close=False)
        place.sendall(whole + whole[:20])
        assert everything(place).startswith(b"HTTP/1.1 200")  # which comes to an end
    assert served.lives()


def test_a_client_that_closes_its_side_still_gets_its_answer(served: Any) -> None:
    with served.connect() as place:
        place.sendall(post(vectors(GOOD), close=False))
        place.shutdown(socket.SHUT_WR)
        assert parsed(everything(place))[0] == 200
    with served.connect() as place:
        place.sendall(post(vectors(GOOD))[:-3])
        place.shutdown(socket.SHUT_WR)
        everything(place)
    assert served.lives()


def test_resets_and_pipelines_are_borne(served: Any) -> None:
    for _ in range(60):
        place = served.connect()
        place.sendall(post(vectors(GOOD)))
        place.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        place.close()
    with served.connect() as place:
        place.sendall(post(vectors(GOOD), close=False) * 30 + post(vectors(GOOD)))
        assert everything(place).count(b"HTTP/1.1 200") == 31
    assert served.lives()


def test_one_that_never_reads_is_cut_off(served: Any) -> None:
    with served.connect() as place:
        place.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        place.settimeout(0.5)
        whole = post(vectors(*[GOOD] * 8), close=False) * 50
        begun, cut = time.monotonic(), False
        while time.monotonic() - begun < 120 and not cut:
            try:
                place.sendall(whole)
            except TimeoutError:
                pass
            except OSError:
                cut = True
            # The system may keep what nobody takes for a while; the server must not.
            cut = cut or (time.monotonic() - begun > 3 and served.connections == 0)
        assert cut
    assert served.lives()


def test_the_rate_of_one_address_is_limited(serving: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(Buckets.__init__, "__defaults__", (lambda: now[0],))
    with serving(rate=5.0) as server:
        found = [ask(server, post(vectors(GOOD))) for _ in range(12)]
        statuses = [status for status, _, _ in found]
        assert statuses == [200] * 5 + [429] * 7
        assert int(found[-1][1]["retry-after"]) >= 1
        now[0] += 0.5
        assert [ask(server, post(vectors(GOOD)))[0] for _ in range(4)] == [200, 200, 429, 429]
        now[0] += 10
        assert server.lives()


def test_too_many_requests_and_connections_are_refused_with_when_to_come_again(serving: Callable[..., Any]) -> None:
    with serving(active=2, connections=6, connections_per_address=3, patience=60.0) as server:
        guard = server.server.config.app
        half = [server.connect() for _ in range(3)]
        for place in half:
            place.sendall(post(vectors(GOOD))[:-3])
        wait_until(lambda: guard.active >= 2)  # they are being read
        status, headers, said = ask(server, post(vectors(GOOD)))
        assert (status, headers["retry-after"]) == (503, "1")
        assert "at once" in said["error"]
        more = server.connect()
        status, headers, said = ask(server, post(vectors(GOOD)))
        assert (status, headers["retry-after"]) == (429, "1")
        assert "connections from your address" in said["error"]
        for place in (*half, more):
            place.close()
        wait_until(lambda: not guard.connections and not guard.active)
        assert ask(server, post(vectors(GOOD)))[0] == 200


def test_nothing_of_a_request_is_logged(
    served: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        ask(served, post(vectors([123.456789] * 6)))
        ask(served, post(b'{"text": "very private words"}'))
        ask(served, b"garbage very private words\r\n\r\n")
    out, err = capfd.readouterr()
    said = caplog.text + out + err
    assert "123.456" not in said
    assert "very private" not in said


def test_a_failure_inside_is_said_without_what_it_held(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(vectors: Any) -> Any:
        raise RuntimeError("secret 123.456")

    monkeypatch.setattr(type(served.head), "answers", lambda self, vectors: fail(vectors))
    status, _, said = ask(served, post(vectors(GOOD)))
    assert status == 500
    assert "123" not in said["error"]
    monkeypatch.undo()
    assert ask(served, post(vectors(GOOD)))[0] == 200


def test_serving_leaves_the_logging_of_the_process_alone(serving: Callable[..., Any]) -> None:
    closed: list[logging.Handler] = []

    class Own(logging.StreamHandler[io.StringIO]):
        def close(self) -> None:
            closed.append(self)
            super().close()

    own = Own(io.StringIO())
    with serving() as server:
        assert server.lives()
    assert not closed
    own.close()


def test_a_taken_port_is_refused(served: Any) -> None:
    with pytest.raises(SettingError, match=f"port={served.port}"):
        listen("127.0.0.1", served.port)
    with pytest.raises(SettingError, match="port to be .*, got 70000"):
        listen("127.0.0.1", 70000)


def test_under_load_each_request_is_answered_or_refused(serving: Callable[..., Any]) -> None:
    found: list[int] = []
    with serving(rate=400.0, active=8) as server:
        until = time.monotonic() + 3

        def work() -> None:
            raw = post(vectors(GOOD), close=False)
            with server.connect() as place:
                while time.monotonic() < until:
                    place.sendall(raw)
                    reply = b""
                    while b"\r\n\r\n" not in reply:
                        reply += place.recv(65536)
                    head, _, body = reply.partition(b"\r\n\r\n")
                    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                    while len(body) < length:
                        body += place.recv(65536)
                    found.append(int(head.split()[1]))

        threads = [threading.Thread(target=work) for _ in range(16)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(20)
        assert server.lives()
    assert set(found) <= {200, 429, 503}
    assert found.count(200) >= 16  # everyone's first


# --- limits that the HTTP server itself does not keep -----------------------------------------------------------------


def test_a_long_head_in_one_piece_is_rejected(served: Any) -> None:
    with served.connect() as place:
        place.sendall(b"GET /health HTTP/1.1\r\nx: " + b"y" * 20_000 + b"\r\n\r\n")
        status, headers, said = parsed(everything(place))
    assert (status, headers["connection"]) == (431, "close")
    assert "16384 bytes" in said["error"]
    assert ask(served, b"GET /%s HTTP/1.1\r\nhost: a\r\n\r\n" % (b"y" * 20_000))[0] == 431
    assert served.lives()


def test_too_many_requests_ahead_of_their_answers_are_rejected(served: Any) -> None:
    with served.connect() as place:
        place.sendall(post(vectors(GOOD), close=False) * 200)
        reply = everything(place)
    assert reply.count(b"HTTP/1.1 200") <= 64
    assert served.lives()


def test_many_requests_on_one_connection_are_answered_in_order(served: Any) -> None:
    """Also if they are sent before the answer to the first, in pieces that end anywhere, and the client then closes."""
    whole = b"".join(post(vectors([number, 0, 0, 0, 0, 0]), close=False) for number in range(40))
    expected = [served.head.answers(served.head.checked([[n, 0, 0, 0, 0, 0]]))[0]["label"] for n in range(40)]
    for size in (7, 300, 5000):
        with served.connect() as place:
            for start in range(0, len(whole), size):
                place.sendall(whole[start : start + size])
            place.shutdown(socket.SHUT_WR)
            replies = everything(place).split(b"HTTP/1.1 200 OK")[1:]
        assert [json.loads(each.partition(b"\r\n\r\n")[2])["answers"][0]["label"] for each in replies] == expected


def test_a_body_that_is_not_read_does_not_count_as_a_head(served: Any) -> None:
    """A request that is rejected by its head alone leaves its body on the connection, before the next request."""
    rest = b" " * 100_000
    wrong = b"POST /nowhere HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(rest)
    with served.connect() as place:
        place.sendall(wrong)
        reply = place.recv(65536)
        for start in range(0, len(rest), 10_000):
            place.sendall(rest[start : start + 10_000])
        place.sendall(post(vectors(GOOD)))
        reply += everything(place)
    assert reply.startswith(b"HTTP/1.1 404") and reply.count(b"HTTP/1.1 200") == 1
    with served.connect() as place:  # one whose length is not said, or is too large to be read to its end
        place.sendall(b"POST /nowhere HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        status, headers, _ = parsed(everything(place))
    assert (status, headers["connection"]) == (404, "close")
    assert served.lives()


def test_what_is_no_http_is_rejected_in_our_words(served: Any) -> None:
    status, headers, said = ask(served, b"GET /health HTTP/1.1\r\nbad header\r\n\r\n")
    assert (status, headers["content-type"], headers["connection"]) == (400, "application/json", "close")
    assert "HTTP/1.1" in said["error"]


def test_connections_and_addresses_are_forgotten_when_they_end(serving: Callable[..., Any]) -> None:
    with serving(connections=3, connections_per_address=2, patience=1.0) as server:
        guard = server.server.config.app
        for _ in range(20):
            held = [server.connect() for _ in range(4)]
            for place in held:
                place.close()
        until = time.monotonic() + 20
        while not server.lives() and time.monotonic() < until:  # some may still wait to be accepted
            time.sleep(0.01)
        while guard.connections and time.monotonic() < until:
            time.sleep(0.01)
        assert (guard.connections, dict(guard.addresses), guard.active) == ({}, {}, 0)
        assert server.lives()


def test_the_http_server_is_used_through_its_settings_alone() -> None:
    """No class of uvicorn is extended, and its connections are known only as asyncio protocols."""
    import ast
    from pathlib import Path

    import discreet

    names = set()
    for path in Path(discreet.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "uvicorn":
                names |= {alias.name for alias in node.names}
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names if alias.name.startswith("uvicorn.")}
            if isinstance(node, ast.ClassDef):
                assert not any(
                    "HttpTools" in ast.unparse(base) or "uvicorn" in ast.unparse(base) for base in node.bases
                )
    assert names == {"HttpToolsProtocol"}
