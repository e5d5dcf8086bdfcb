"""The server of the page on a real socket: whom it answers, what it refuses, and that it stays alive."""

from __future__ import annotations

import http.client
import json
import logging
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from discreet.core.errors import SettingError, UnsupportedError
from discreet.explorer.app import KEY, MOST_BYTES
from discreet.explorer.reading import Question

PATH = "/v1/readings"
PAGE = Path(__file__).parents[2] / "src" / "discreet" / "explorer" / "page"
Note = Callable[[str], None]


def echo(question: Question, note: Note) -> Mapping[str, Any]:
    """Stand in for an attack: what the sentence says decides what happens."""
    note("reading")
    if "forever" in question.sentence:
        while True:
            torch.ones(1) + 1
    if "misfit" in question.sentence:
        raise UnsupportedError("Expected an attack that fits. Choose another.")
    if "crash" in question.sentence:
        raise RuntimeError(question.sentence)
    return {"length": len(question.sentence)}


@pytest.fixture(scope="module")
def served() -> Iterator[Any]:
    from explorer_running import running

    with running({"title": "toy"}, echo) as found:
        yield found


def lives(served: Any) -> bool:
    status, _, lines = served.ask("POST", PATH, {"sentence": "still there"})
    return status == 200 and lines[-1] == {"state": "done", "reading": {"length": 11}}


def begun(served: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """Ask for a reading without end, and return the connection with the answer still open."""
    call = http.client.HTTPConnection("127.0.0.1", served.place.port, timeout=30)
    headers = {KEY: served.place.key, "content-type": "application/json"}
    call.request("POST", PATH, json.dumps({"sentence": "forever"}), headers)
    return call, call.getresponse()


def test_a_reading_comes_line_by_line(served: Any) -> None:
    status, headers, lines = served.ask("POST", PATH, {"sentence": "four words are here"})
    assert status == 200 and headers["content-type"].startswith("application/x-ndjson")
    assert lines[-1] == {"state": "done", "reading": {"length": 19}}
    assert {line["state"] for line in lines[:-1]} <= {"waiting", "running"}
    assert served.ask("GET", "/v1/offer")[2] == [{"title": "toy"}]


def test_the_page_keeps_itself_to_itself(served: Any) -> None:
    scripts = [f"/{path.name}" for path in PAGE.glob("*.js")]
    for path in ("/", *scripts, "/explorer.css", "/report.css", "/v1/offer", "/nowhere"):
        status, headers, lines = served.ask("GET", path)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
        assert headers["x-content-type-options"] == "nosniff" and headers["cache-control"] == "no-store"
        assert headers["referrer-policy"] == "no-referrer" and "frame-ancestors 'none'" in policy
        assert not any(name.startswith("access-control") for name in headers), "no other site may read it"
        assert "server" not in headers and (status == 200) == (path != "/nowhere")
        if path == "/":
            assert "http://" not in lines[0]["text"] and "https://" not in lines[0]["text"]
            assert "style=" not in lines[0]["text"] and "onclick" not in lines[0]["text"]


def test_every_script_is_small_and_imports_only_its_neighbours(served: Any) -> None:
    names = {path.name for path in PAGE.glob("*.js")}
    for name in names:
        status, headers, _ = served.ask("GET", f"/{name}")
        assert status == 200 and headers["content-type"].startswith("text/javascript")
        text = (PAGE / name).read_text(encoding="utf-8")
        imported = set(re.findall(r'from "([^"]+)"', text))
        assert imported <= {f"./{other}" for other in names - {name}} and "import(" not in text
        assert text.count("\n") <= 300


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}", ""])
def test_another_name_is_refused(served: Any, host: str) -> None:
    """A site that renames itself to this machine's address still goes by its own name."""
    with socket.create_connection(("127.0.0.1", served.place.port), timeout=10) as place:
        line = f"Host: {host.format(port=served.place.port)}\r\n" if host else ""
        text = f"GET / HTTP/1.1\r\n{line}{KEY}: {served.place.key}\r\nConnection: close\r\n\r\n"
        place.sendall(text.encode())
        answer = b""
        while part := place.recv(65536):
            answer += part
    assert answer.split()[1] in (b"403", b"400") and b"<title>" not in answer


def test_two_names_at_once_are_refused(served: Any) -> None:
    port = served.place.port
    with socket.create_connection(("127.0.0.1", port), timeout=10) as place:
        place.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
        assert place.recv(65536).split()[1] in (b"400", b"403")


def test_its_own_names_are_answered(served: Any) -> None:
    for name in ("127.0.0.1", "localhost"):
        assert served.ask("GET", "/", host=f"{name}:{served.place.port}")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ],
)
def test_another_site_is_refused(served: Any, headers: dict[str, str]) -> None:
    status, _, lines = served.ask("POST", PATH, {"sentence": "a"}, **headers)
    assert status == 403 and "another site" in lines[0]["error"]
    own = {"origin": f"http://127.0.0.1:{served.place.port}", "sec_fetch_site": "same-origin"}
    assert served.ask("POST", PATH, {"sentence": "a"}, **own)[0] == 200


@pytest.mark.parametrize("key", ["", "wrong", "ключ".encode().decode("latin-1")])
def test_data_needs_the_key(served: Any, key: str) -> None:
    for method, path in (("GET", "/v1/offer"), ("POST", PATH)):
        status, _, lines = served.ask(method, path, {"sentence": "a"}, x_discreet_key=key)
        assert status == 403 and "Open the full printed address" in lines[0]["error"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ("no json", 400, "Expected JSON"),
        (b"\xff\xfe", 400, "Expected JSON"),
        ("[]", 422, "Expected an object"),
        ("{}", 422, "Expected key 'sentence'"),
        ({"sentence": ""}, 422, "Type one"),
        ({"sentence": " \n "}, 422, "Type one"),
        ({"sentence": 5}, 422, "of type str"),
        ({"sentence": "a\0b"}, 422, "NUL"),
        ({"sentence": "a" * 601}, 422, "at most 600 characters, got 601"),
        ({"sentence": "a", "sentense": "b"}, 422, "Did you mean 'sentence'"),
        ({"sentence": "a", "dials": [1]}, 422, "of type dict"),
        ({"sentence": "a", "setting": 1.5}, 422, "of type int"),
        ("x" * (MOST_BYTES + 1), 413, "at most"),
        ('{"sentence": "\\ud800"}', 400, "Expected JSON"),
        ("[" * 10_000, 400, "Expected JSON"),
    ],
)
def test_bad_input_gets_a_sentence_and_the_server_lives(served: Any, body: Any, status: int, said: str) -> None:
    found, _, lines = served.ask("POST", PATH, body)
    assert found == status and said in lines[0]["error"] and lines[0]["state"] == "refused"
    assert lives(served)


def test_other_kinds_methods_and_places_are_refused(served: Any) -> None:
    assert served.ask("POST", PATH, "sentence=a", content_type="application/x-www-form-urlencoded")[0] == 415
    assert served.ask("POST", PATH, {"sentence": "a"}, content_type="")[0] == 415
    assert served.ask("GET", PATH)[0] == 405 and served.ask("OPTIONS", PATH)[0] == 405
    assert served.ask("GET", "/../server.py")[0] == 404 and served.ask("GET", "/page/explorer.html")[0] == 404
    assert lives(served)


def test_refusals_and_failures_are_told_and_nothing_is_logged(
    served: Any, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG):
        misfit = served.ask("POST", PATH, {"sentence": "misfit of Anna"})[2][-1]
        crash = served.ask("POST", PATH, {"sentence": "crash of Anna"})[2][-1]
    assert misfit == {"state": "refused", "error": "Expected an attack that fits. Choose another."}
    assert crash["state"] == "failed" and "RuntimeError" in crash["error"] and "Anna" not in crash["error"]
    printed = capfd.readouterr()
    assert "Anna" not in caplog.text + printed.out + printed.err
    assert lives(served)


def test_a_newer_reading_supersedes_an_older_one(served: Any) -> None:
    older = http.client.HTTPConnection("127.0.0.1", served.place.port, timeout=30)
    older.request(
        "POST", PATH, json.dumps({"sentence": "forever"}), {KEY: served.place.key, "content-type": "application/json"}
    )
    answer = older.getresponse()
    assert json.loads(answer.readline())["state"] in ("waiting", "running")
    assert lives(served)
    assert json.loads(answer.read().splitlines()[-1]) == {"state": "superseded"}
    older.close()


def test_a_page_that_goes_away_cancels_its_reading(served: Any) -> None:
    left = http.client.HTTPConnection("127.0.0.1", served.place.port, timeout=30)
    left.request(
        "POST", PATH, json.dumps({"sentence": "forever"}), {KEY: served.place.key, "content-type": "application/json"}
    )
    answer = left.getresponse()
    while json.loads(answer.readline())["state"] != "running":
        pass
    assert served.worker.busy
    answer.close()
    left.close()
    end = time.monotonic() + 120
    while served.worker.busy:
        assert time.monotonic() < end, "nobody waits for it, and it still runs"
        time.sleep(0.01)
    assert lives(served)


def test_half_a_request_harms_nobody(served: Any) -> None:
    with socket.create_connection(("127.0.0.1", served.place.port), timeout=10) as place:
        place.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1:{served.place.port}\r\ncontent-length: 50\r\n\r\nhal".encode()
        )
    assert lives(served)


def test_it_listens_on_this_machine_alone(served: Any) -> None:
    assert served.place.socket.getsockname()[0] == "127.0.0.1"
    assert served.place.address.startswith("http://127.0.0.1:") and served.place.address.endswith(
        "#" + served.place.key
    )
    assert len(served.place.key) >= 32


def test_a_port_that_is_taken_is_refused(served: Any) -> None:
    from discreet.explorer.server import Place

    with pytest.raises(SettingError, match="choose another"):
        Place.on(served.place.port)


def half_open(served: Any, kind: str) -> socket.socket:
    """Return a connection that will not send a whole request: nothing, half a head, or half a body."""
    place = socket.create_connection(("127.0.0.1", served.place.port), timeout=10)
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{served.place.port}\r\n"
    if kind == "head":
        place.sendall(head.encode()[:30])
    elif kind == "body":
        own = f"{KEY}: {served.place.key}\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n"
        place.sendall((head + own + '{"sentence"').encode())
    return place


@pytest.mark.parametrize("kind", ["silent", "head", "body"])
def test_many_half_open_connections_do_not_keep_the_page_from_being_served(served: Any, kind: str) -> None:
    held = [half_open(served, kind) for _ in range(150)]
    try:
        for _ in range(3):
            assert served.ask("GET", "/")[0] == 200
            assert lives(served)
    finally:
        for place in held:
            place.close()


def test_half_open_connections_are_cut_off_and_a_reading_is_not() -> None:
    from explorer_running import running

    from discreet.local.limits import Limits

    def slow(question: Question, note: Note) -> Mapping[str, Any]:
        if question.sentence == "slow":
            for _ in range(20):
                time.sleep(0.1)
                torch.ones(1) + 1
        return {"length": len(question.sentence)}

    with running(
        {"title": "toy"}, slow, Limits(rows=1, connections=8, connections_per_address=8, patience=0.5)
    ) as page:
        held = [half_open(page, kind) for kind in ("silent", "head", "body")]
        for place in held:
            reply = b""
            while part := place.recv(65536):  # the server ends it: the patience of this test is 10 s
                reply += part
            assert not reply or reply.split()[1] == b"408"
            place.close()
        status, _, lines = page.ask("POST", PATH, {"sentence": "slow"})  # takes four times the patience
        assert (status, lines[-1]["state"]) == (200, "done")


def test_connections_with_a_reading_under_way_are_not_given_up_for_new_ones() -> None:
    from explorer_running import running

    from discreet.local.limits import Limits

    with running({"title": "toy"}, echo, Limits(rows=1, connections=3, connections_per_address=3)) as page:
        call, answer = begun(page)
        assert json.loads(answer.readline())["state"] in ("waiting", "running")
        held = [half_open(page, "silent") for _ in range(6)]
        assert page.ask("GET", "/")[0] == 200
        assert json.loads(answer.readline())["state"] in ("waiting", "running")
        call.close()
        for place in held:
            place.close()
