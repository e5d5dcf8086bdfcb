"""What a server can learn of a text from when it is contacted and from how many bytes arrive.

The order of events and the sizes of messages are tested, never wall time.
"""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from discreet.accounting.ledger import Ledger
from discreet.cli.main import main
from discreet.models.classifier import Classifier
from discreet.protections.local.layer import LDPLayer

SHORT = "knee"
LONG = "the heart of the patient was calm and the cough was not very bad " * 6


@dataclass
class Recorder:
    """A server that answers like a discreet server and keeps every byte that reaches it."""

    port: int
    received: list[bytes] = field(default_factory=list)
    busy: int = 0  # how many posts are refused with 503 before one is answered

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def posts(self) -> list[bytes]:
        return [each for each in self.received if each.startswith(b"POST")]


def _request(place: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        part = place.recv(65536)
        if not part:
            return found
        found += part
    head, _, body = found.partition(b"\r\n\r\n")
    lines = [line.lower() for line in head.split(b"\r\n")]
    length = next((int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += place.recv(65536)
    return head + b"\r\n\r\n" + body


def _reply(request: bytes, recorder: Recorder, width: int, rows: int) -> bytes:
    if request.startswith(b"GET"):
        said: Any = {"width": width, "task": "classification", "labels": ["a", "b"], "max_rows": rows}
    elif recorder.busy > 0:
        recorder.busy -= 1
        return b"HTTP/1.1 503 Busy\r\nretry-after: 0.1\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}"
    else:
        count = len(json.loads(request.partition(b"\r\n\r\n")[2])["vectors"])
        said = {"answers": [{"label": "a", "probabilities": [0.75, 0.25]}] * count}
    body = json.dumps(said).encode()
    return b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@contextmanager
def recording(width: int, rows: int = 256, busy: int = 0) -> Iterator[Recorder]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        recorder = Recorder(listening.getsockname()[1], busy=busy)

        def work() -> None:
            while True:
                try:
                    place, _ = listening.accept()
                except OSError:
                    return
                with place:
                    request = _request(place)
                    if request:
                        recorder.received.append(request)
                        place.sendall(_reply(request, recorder, width, rows))

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield recorder
        finally:
            listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.fixture(scope="module")
def runs(
    tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path], toy_csv: Path
) -> dict[str, Path]:
    """Return the client folders of a run that releases sentence vectors and of one that releases token states."""
    found = {}
    for position, more in (
        ("sentence", ["--projection", "whole"]),
        ("token", ["--position", "token", "--mechanism", "gaussian", "--sampling", "fixed", "--train", "all"]),
    ):
        out = tmp_path_factory.mktemp("runs") / position
        arguments = ["train", str(toy_csv), "--model", str(tiny_encoder("bert")), "--protect", "ldp", "--epsilon", "8"]
        assert main([*arguments, "--queries", "50", "--epochs", "1", "--out", str(out), *more]) == 0
        found[position] = out / "client"
    return found


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Return a list to which every encoding, draw of noise, spend and connection is added as it happens."""
    happened: list[tuple[str, Any]] = []
    states, noise, spend = Classifier.states, LDPLayer.__call__, Ledger.spend
    connect = http.client.HTTPConnection.connect

    def encoded(self: Classifier, inputs: Any) -> Any:
        happened.append(("encode", tuple(inputs["input_ids"].shape)))
        return states(self, inputs)

    def noised(self: LDPLayer, *given: Any) -> Any:
        happened.append(("noise", tuple(given[0].shape)))
        return noise(self, *given)

    def spent(self: Ledger, *given: Any, **named: Any) -> Any:
        happened.append(("spend", None))
        return spend(self, *given, **named)

    def connected(self: http.client.HTTPConnection) -> None:
        happened.append(("connect", None))
        connect(self)

    monkeypatch.setattr(Classifier, "states", encoded)
    monkeypatch.setattr(LDPLayer, "__call__", noised)
    monkeypatch.setattr(Ledger, "spend", spent)
    monkeypatch.setattr(http.client.HTTPConnection, "connect", connected)
    return happened


def asked(client: Path, where: Path, url: str, *more: str) -> None:
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(client, where)
    assert main(["query", str(where), "--server", url, *more]) == 0


def width_of(client: Path) -> int:
    import tomllib

    return int(tomllib.loads((client / "settings.toml").read_text())["width"])


def kinds(happened: list[tuple[str, Any]]) -> list[str]:
    """Return the kinds of events, each run of equal ones once."""
    names = [name for name, _ in happened]
    return [name for number, name in enumerate(names) if number == 0 or names[number - 1] != name]


@pytest.mark.parametrize("texts", [(SHORT,), (LONG,), (SHORT, LONG, "a calm doctor")], ids=["short", "long", "several"])
@pytest.mark.parametrize("decoys", ["0", "2"])
def test_nothing_that_depends_on_the_text_happens_after_the_first_contact(
    runs: dict[str, Path], events: list[tuple[str, Any]], tmp_path: Path, texts: tuple[str, ...], decoys: str
) -> None:
    client = runs["sentence"]
    with recording(width_of(client), rows=2) as server:
        asked(client, tmp_path / "client", server.url, *texts, "--decoys", decoys)
    assert kinds(events) == ["encode", "noise", "connect", "spend", "connect"]


def test_token_states_are_encoded_and_randomised_before_the_first_contact_too(
    runs: dict[str, Path], events: list[tuple[str, Any]], tmp_path: Path
) -> None:
    client = runs["token"]
    with recording(width_of(client)) as server:
        asked(client, tmp_path / "client", server.url, LONG)
    assert kinds(events) == ["encode", "connect", "spend", "connect"]  # the noise is drawn inside the encoder


@pytest.mark.parametrize(
    ("position", "more"), [("sentence", ()), ("sentence", ("--decoys", "2")), ("token", ())], ids=str
)  # token states are not sent among decoys
def test_the_shapes_that_are_computed_do_not_depend_on_the_text(
    runs: dict[str, Path], events: list[tuple[str, Any]], tmp_path: Path, position: str, more: tuple[str, ...]
) -> None:
    client, found = runs[position], []
    for text in (SHORT, LONG):
        events.clear()
        with recording(width_of(client)) as server:
            asked(client, tmp_path / "client", server.url, text, *more)
        found.append([event for event in events if event[0] in ("encode", "noise")][: 1 if more else None])
    assert found[0] == found[1]


def sizes(received: list[bytes]) -> list[int]:
    """Return the length of every request, without the digits of the port, which differ from server to server."""
    lines = [[line for line in each.split(b"\r\n") if not line.lower().startswith(b"host:")] for each in received]
    return [len(b"\r\n".join(each)) for each in lines]


@pytest.mark.parametrize("more", [(), ("--decoys", "2")], ids=["alone", "decoys"])
def test_the_messages_are_as_many_and_as_long_for_any_text(
    runs: dict[str, Path], tmp_path: Path, more: tuple[str, ...]
) -> None:
    client, found = runs["sentence"], set()
    for texts in ((SHORT, SHORT), (LONG, LONG), (SHORT, LONG), (LONG, SHORT)):
        with recording(width_of(client), rows=4) as server:
            asked(client, tmp_path / "client", server.url, *texts, *more)
        found.add(tuple(sizes(server.received)))
    assert len(found) == 1


def test_numbers_of_any_size_and_sign_are_as_long_on_the_wire_and_read_back_whole() -> None:
    import numpy as np

    from discreet.local.remote import body_of

    values = np.array(
        [[0.0, -0.0, 1.0, -1.0], [3.4e38, -3.4e38, 1e-45, -1e-45], [np.pi, -np.e, 1 / 3, 0.1]], dtype=np.float32
    )
    bodies = [body_of(row[None]) for row in values]
    assert len({len(body) for body in bodies}) == 1
    for row, body in zip(values, bodies, strict=True):
        assert np.array_equal(np.array(json.loads(body)["vectors"], dtype=np.float32)[0], row)


def test_a_busy_server_gets_the_same_bytes_again_and_no_new_noise(
    runs: dict[str, Path], events: list[tuple[str, Any]], tmp_path: Path
) -> None:
    client = runs["sentence"]
    with recording(width_of(client), busy=2) as server:
        asked(client, tmp_path / "client", server.url, SHORT)
    assert len(server.posts) == 3
    assert len(set(server.posts)) == 1
    assert [name for name, _ in events].count("noise") == 1
    assert [name for name, _ in events].count("spend") == 1


def test_a_sealed_release_is_counted_once_when_it_is_opened_and_not_before(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    from discreet.local.client import UserSide

    shutil.copytree(runs["sentence"], tmp_path / "client")
    with UserSide.load(tmp_path / "client") as user:
        sealed = user.prepare([SHORT])
        assert Ledger.read(tmp_path / "client" / "ledger.jsonl").spends == 0
        assert "tensor" not in repr(sealed)
        first, again = sealed.open(), sealed.open()
        assert first is again
        assert Ledger.read(tmp_path / "client" / "ledger.jsonl").spends == 1
