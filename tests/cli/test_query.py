"""From a private training to an answer over a real connection, and everything that must stop before it."""

import importlib.util
import json
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from discreet.cli.main import main

_spec = importlib.util.spec_from_file_location("local_conftest", Path(__file__).parents[1] / "local/conftest.py")
assert _spec is not None
assert _spec.loader is not None
real = importlib.util.module_from_spec(_spec)
sys.modules["local_conftest"] = real
_spec.loader.exec_module(real)

QUERIES = 4
PAIRS = [(a, b) for a in ("calm", "sharp", "slow", "dull", "fast") for b in ("heart", "knee", "doctor", "pain")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path], toy_csv: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    arguments = ["train", str(toy_csv), "--model", str(tiny_encoder("bert")), "--protect", "ldp", "--epsilon", "8"]
    arguments += ["--projection", "whole", "--queries", str(QUERIES), "--epochs", "1", "--out", str(out)]
    assert main(arguments) == 0
    return out


@pytest.fixture
def client(run: Path, tmp_path: Path) -> Path:
    shutil.copytree(run / "client", tmp_path / "client")
    return tmp_path / "client"


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Any]:
    from discreet.local.head import Head
    from discreet.local.limits import Limits
    from discreet.local.server import ServerSide

    with real.running(Head.of(ServerSide.load(run / "server")), Limits(rows=2)) as found:
        yield found


def spends(client: Path) -> int:
    from discreet.accounting.ledger import Ledger

    return Ledger.read(client / "ledger.jsonl").spends


def ask(capsys: pytest.CaptureFixture[str], client: Path, url: str, *more: str) -> tuple[int, str, str]:
    capsys.readouterr()
    status = main(["query", str(client), "--server", url, *more])
    out, err = capsys.readouterr()
    return status, out, err


def test_an_answer_is_printed_and_the_ledger_has_counted(
    capsys: pytest.CaptureFixture[str], client: Path, server: Any
) -> None:
    status, out, err = ask(capsys, client, server.url, "the heart was calm")
    assert status == 0
    label, probability = out.strip().split("\t")
    assert label in ("ward", "clinic")
    assert 0.5 <= float(probability) <= 1
    assert "Each text: epsilon = 8" in err or "Each text: epsilon = 7.99" in err
    assert f"{QUERIES - 1} more are allowed" in err
    assert spends(client) == 1


def test_texts_come_from_files_and_lines_in_parts_the_server_takes(
    capsys: pytest.CaptureFixture[str], client: Path, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "a.csv"
    table.write_text("id,note\n1,the heart\n2,the knee\n3,dull pain\n", encoding="utf-8")
    status, out, _ = ask(capsys, client, server.url, "--file", str(table), "--text", "note", "--json")
    found = json.loads(out)
    assert (status, len(found["answers"]), found["queries_left_at_least"]) == (0, 3, QUERIES - 3)
    assert found["per_text"]["certified"] is True

    class Input:
        buffer = (tmp_path / "lines.txt").open("wb+")
        isatty = staticmethod(lambda: False)

    Input.buffer.write(b"sharp pain\n")
    Input.buffer.seek(0)
    monkeypatch.setattr("sys.stdin", Input)
    status, out, _ = ask(capsys, client, server.url)
    Input.buffer.close()
    assert (status, len(out.splitlines())) == (0, 1)


def test_texts_are_asked_among_decoys_at_the_price_of_a_text(
    capsys: pytest.CaptureFixture[str], client: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = ("the heart was calm", "the knee", "--decoys", "3", "--json")
    status, out, _ = ask(capsys, client, server.url, *more)
    found = json.loads(out)
    assert (status, len(found["answers"])) == (0, 2)
    assert found["per_text"]["certified"] is True
    assert 7.5 < found["per_text"]["epsilon"] <= 8.0 + 1e-6
    assert 8.0 < found["spent"]["epsilon"] <= 16.0 + 1e-6
    for answer in found["answers"]:  # None, where chance has drawn decoys alone
        assert answer is None or sum(answer["probabilities"]) == pytest.approx(1.0, abs=1e-4)
    assert spends(client) == 1
    monkeypatch.setattr("discreet.cli.query._MANY", 1)
    status, out, err = ask(capsys, client, server.url, "the heart", "--decoys", "1")
    assert (status, "Encoding 2 texts, most of them decoys" in err) == (0, True)
    assert len(out.splitlines()) == 1
    assert "Each text: epsilon = " in err
    status, _, err = ask(capsys, client, server.url, "the heart", "--decoys", "-1")
    assert (status, spends(client)) == (2, 2)
    assert "Expected --decoys to be" in err


def test_an_exhausted_ledger_is_refused_and_nothing_is_sent(
    capsys: pytest.CaptureFixture[str], client: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from discreet.local.remote import RemoteServer

    assert ask(capsys, client, server.url, "a", "b", "c")[0] == 0
    monkeypatch.setattr(RemoteServer, "answers", lambda *a: pytest.fail("something was sent"))
    before = (client / "ledger.jsonl").read_bytes()
    status, out, err = ask(capsys, client, server.url, "the heart", "the knee")
    assert (status, out) == (2, "")
    assert "Nothing was sent" in err
    assert (client / "ledger.jsonl").read_bytes() == before


def test_what_cannot_be_asked_costs_nothing(
    capsys: pytest.CaptureFixture[str], client: Path, server: Any, tmp_path: Path
) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n", encoding="utf-8")
    with real.running(real.make_head(width=3), real.Limits()) as other:
        for url, more, words in (
            ("http://127.0.0.1:1", ("a",), "Expected a server"),
            ("ftp://a", ("a",), "http://HOST"),
            ("http://a:99999", ("a",), "http://HOST"),
            (server.url, ("  ",), "is empty"),
            (server.url, ("--file", str(empty)), "empty"),
            (server.url, ("--file", "/nowhere.txt"), "no"),
            (server.url, ("a", "--timeout", "0"), "timeout"),
            (other.url, ("a",), "got 3"),
        ):
            status, out, err = ask(capsys, client, url, *more)
            assert (status, out) == (2, ""), err
            assert words in err
    assert spends(client) == 0
    assert ask(capsys, tmp_path / "nowhere", server.url, "a")[0] == 2
    status, _, err = ask(capsys, client.parent, server.url, "a")
    assert (status, f"Did you mean {str(client)!r}?" in err) == (2, True)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
        b'HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n{"width":"x"}',
        b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n",
        b"\x00\xff",
        b"HTTP/1.1 200 OK\r\ncontent-length: 4000\r\n\r\n" + b"[" * 4000,
    ],
)
def test_a_strange_server_is_refused_before_anything_is_spent(
    capsys: pytest.CaptureFixture[str], client: Path, reply: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as place:

        def answer() -> None:
            connection, _ = place.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(reply)

        thread = threading.Thread(target=answer)
        thread.start()
        status, _, err = ask(capsys, client, f"http://127.0.0.1:{place.getsockname()[1]}", "a", "--timeout", "2")
        thread.join(5)
    assert status == 2
    assert "Expected" in err
    assert spends(client) == 0


def test_a_busy_server_is_asked_again_with_the_same_release(
    capsys: pytest.CaptureFixture[str], client: Path, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from discreet.local.remote import RemoteServer

    plain, sent, slept = RemoteServer._once, [], []

    def busy(self: RemoteServer, method: str, path: str, body: str | None) -> tuple[int, float, bytes]:
        if body is not None:
            sent.append(body)
            if len(sent) < 3:
                return 503, 1.0, b'{"error": "wait"}'
        return plain(self, method, path, body)

    monkeypatch.setattr(RemoteServer, "_once", busy)
    monkeypatch.setattr(RemoteServer, "__post_init__", lambda self: object.__setattr__(self, "sleep", slept.append))
    assert ask(capsys, client, server.url, "the heart")[0] == 0
    assert (len(sent), len(set(sent)), slept) == (3, 1, [1.0, 1.0])
    assert "heart" not in sent[0]
    assert spends(client) == 1


def test_only_numbers_leave(capsys: pytest.CaptureFixture[str], client: Path, server: Any) -> None:
    from discreet.local.remote import RemoteServer

    bodies: list[str | None] = []
    plain = RemoteServer._once
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RemoteServer, "_once", lambda self, m, p, b: (bodies.append(b), plain(self, m, p, b))[1])
        assert ask(capsys, client, server.url, "the heart", "the knee")[0] == 0
    assert bodies[0] is None
    values = json.loads(bodies[1] or "")
    assert set(values) == {"vectors"}
    assert all(isinstance(x, float) for row in values["vectors"] for x in row)


def test_the_server_refuses_a_folder_that_is_not_its_own(
    capsys: pytest.CaptureFixture[str], client: Path, tmp_path: Path
) -> None:
    for folder in (client, tmp_path / "nowhere"):
        assert main(["serve", str(folder), "--port", "0"]) == 2
        assert "Expected" in capsys.readouterr().err
    assert main(["serve", str(client), "--rate", "0"]) == 2
    assert "Expected --rate to be" in capsys.readouterr().err


def trained(out: Path, data: Path, *more: str) -> Path:
    assert (
        main(["train", str(data), "--protect", "ldp", "--epsilon", "8", "--epochs", "1", "--out", str(out), *more]) == 0
    )
    return out


def serving(run: Path) -> Any:
    from discreet.local.head import Head
    from discreet.local.limits import Limits
    from discreet.local.server import ServerSide

    return real.running(Head.of(ServerSide.load(run / "server")), Limits(rows=64))


def test_pairs_are_protected_as_one_and_asked_with_a_tab(
    capsys: pytest.CaptureFixture[str], tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    table = tmp_path / "pairs.csv"
    rows = [f"the heart was {a},the {b} was calm,{'same' if i % 2 else 'other'}" for i, (a, b) in enumerate(PAIRS)]
    table.write_text("\n".join(["text,other,label", *rows]) + "\n", encoding="utf-8")
    made = trained(
        tmp_path / "a",
        table,
        "--model",
        str(tiny_encoder("bert")),
        "--text-pair",
        "other",
        "--queries",
        "5",
        "--validation",
        "0.3",
    )
    with serving(made) as server:
        client = made / "client"
        status, out, err = ask(capsys, client, server.url, "the heart\tthe knee")
        assert (status, len(out.splitlines())) == (0, 1)
        assert out.split("\t")[0] in ("same", "other")
        assert "Each text: epsilon = 8" in err or "Each text: epsilon = 7.99" in err
        status, out, _ = ask(capsys, client, server.url, "the heart\tthe knee", "--decoys", "2", "--json")
        found = json.loads(out)
        assert (status, found["per_text"]["unit"], found["per_text"]["certified"]) == (0, "pair", True)
        status, _, err = ask(capsys, client, server.url, "the heart alone")
        assert (status, spends(client)) == (2, 2)
        assert "separated by a tab" in err


def test_a_bilstm_on_the_users_side_is_written_with_its_client_and_answered(
    capsys: pytest.CaptureFixture[str], toy_csv: Path, tmp_path: Path
) -> None:
    made = trained(tmp_path / "a", toy_csv, "--model", "bilstm", "--dimension", "16", "--max-length", "16", "--json")
    found = json.loads(capsys.readouterr().out)
    assert found["guarantee"]["certified"] is True
    assert found["guarantee"]["epsilon"] == pytest.approx(8.0, abs=1e-2)
    assert json.loads((made / "client" / "encoder.json").read_text())["kind"] == "bilstm"
    assert not (made / "server" / "encoder.json").exists()
    with serving(made) as server:
        status, out, _ = ask(capsys, made / "client", server.url, "the heart was calm")
    assert status == 0
    assert out.split("\t")[0] in ("ward", "clinic")
