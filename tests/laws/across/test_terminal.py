"""Text from outside (servers, files, names, what an attack reads) reaches a terminal without power over it."""

from __future__ import annotations

import ast
import io
import json
import os
import pty
import re
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.cli.main import main
from discreet.cli.output import (
    as_json,
    console,
    guarded,
    json_line,
    line,
    note,
    one_line,
    paragraph,
    plain,
    printable,
    table,
)

CLI = Path(__file__).parents[3] / "src" / "discreet" / "cli"
HOSTILE = [
    "\x1b]0;title\x07",
    "\x1b[2J\x1b[31mred",
    "bell\x07",
    "over\rwritten",
    "two\nlines",
    "c1 \x9b31m and \x85",
    "bidi \u202egnp.exe\u202c \u2066x\u2069",
    "line\u2028paragraph\u2029",
    "back\x08\x08space\x7f",
    "half \ud800",
    "hidden \u200b\u00ad\ufeff",
    "tag \U000e0041",
]
ALL = "".join(HOSTILE)
_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def powerless(text: str) -> bool:
    """Return whether nothing in printed text can do more than be seen; line ends and tabs are the command's own."""
    return all(printable(c) == c or c in "\n\t" for c in text)


@pytest.mark.parametrize("text", [*HOSTILE, ALL])
def test_what_is_printable_holds_no_control_and_can_be_encoded(text: str) -> None:
    found = printable(text)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]", found)
    found.encode()


@given(st.text())
def test_printable_text_stays_printable_and_visible_text_stays_as_it_is(text: str) -> None:
    found = printable(text)
    assert printable(found) == found
    if text.isprintable():
        assert found == text
    assert "\n" not in one_line(text)


def test_what_people_write_is_left_alone() -> None:
    for text in ("Größe, ﷽, 我被重复收费了", "می‌خواهم", "👩‍👩‍👧 🏳️‍🌈", "a\u00a0b", "C:\\new"):
        assert printable(text) == text
    assert printable("a" * 100, 10) == "a" * 9 + "…"


@pytest.mark.parametrize("text", [*HOSTILE, ALL])
def test_every_way_to_print_is_guarded(capsys: pytest.CaptureFixture[str], text: str) -> None:
    note(text)
    line(text, text, sep="\t")
    paragraph(text)
    table({text: text}, title=text)
    console().print(plain(text))
    console().print(text, markup=False)
    console(on_stderr=True).print(text, markup=False)
    out, err = capsys.readouterr()
    assert powerless(out)
    assert powerless(err)
    as_json({text: [text]})
    out = capsys.readouterr().out
    assert powerless(out)
    assert json.loads(out) == {text: [text]}


def test_a_field_cannot_end_a_line_or_begin_another(capsys: pytest.CaptureFixture[str]) -> None:
    line("a\nb", "c\td", sep="\t")
    note("a\nb")
    assert capsys.readouterr() == ("a\\nb\tc\\td\n", "a\\nb\n")


def test_colours_of_a_console_are_its_own() -> None:
    from rich.console import Console
    from rich.text import Text

    drawn = io.StringIO()
    screen = guarded(Console(file=drawn, force_terminal=True, color_system="standard"))
    screen.print(Text("\x1b]0;x\u202e seen", style="red"))
    assert "\x1b[31m" in drawn.getvalue()
    assert "\\x1b]0;x\\u202e seen" in drawn.getvalue()
    assert powerless(_COLOUR.sub("", drawn.getvalue()))


def test_json_reads_back_as_it_was() -> None:
    values = {"text": ALL, "more": ["é", "\u202e", "\x9b", "👩‍👧", "\U000e0041"]}
    assert json.loads(json_line(values)) == values
    assert powerless(json_line(values))


@pytest.mark.parametrize("path", sorted(CLI.glob("*.py")), ids=lambda path: path.name)
def test_commands_print_through_the_guarded_functions_alone(path: Path) -> None:
    if path.name == "output.py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"print", "Console"}, f"{path.name}:{node.lineno} prints past the guard"
        if isinstance(node, ast.Attribute):
            assert node.attr not in {"echo", "secho"}, f"{path.name}:{node.lineno} prints past the guard"


@contextmanager
def answering(*replies: bytes) -> Iterator[str]:
    """Yield the address of a server that gives these replies, one for each connection."""
    with socket.create_server(("127.0.0.1", 0)) as place:

        def work() -> None:
            for reply in replies:
                connection, _ = place.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
        thread.join(5)


def http(status: str, values: Any) -> bytes:
    body = json.dumps(values).encode()
    return b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % (status.encode(), len(body)) + body


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path], toy_csv: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "a"
    arguments = ["train", str(toy_csv), "--model", str(tiny_encoder("bert")), "--protect", "ldp", "--epsilon", "8"]
    assert main([*arguments, "--projection", "whole", "--queries", "99", "--epochs", "1", "--out", str(out)]) == 0
    return out / "client"


@pytest.fixture
def client(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "client")
    return tmp_path / "client"


def about(client: Path, labels: list[str], task: str = "classification") -> bytes:
    import tomllib

    width = tomllib.loads((client / "settings.toml").read_text())["width"]
    return http("200 OK", {"width": width, "task": task, "labels": labels, "max_rows": 256})


def test_labels_and_errors_of_a_hostile_server_are_escaped(capsys: pytest.CaptureFixture[str], client: Path) -> None:
    labels = [ALL, "b"]
    answer = {"answers": [{"label": ALL, "probabilities": [0.75, 0.25]}]}
    with answering(about(client, labels), http("200 OK", answer)) as url:
        assert main(["query", str(client), "--server", url, "the knee"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert powerless(out + err)
    with answering(about(client, labels), http("400 Bad", {"error": ALL})) as url:
        assert main(["query", str(client), "--server", url, "the knee"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert powerless(err)
    assert "\\x1b]0;title\\x07" in err
    with answering(about(client, labels), http("200 OK", answer)) as url:
        assert main(["query", str(client), "--server", url, "the knee", "--json"]) == 0
    out = capsys.readouterr().out
    assert powerless(out)
    assert json.loads(out)["answers"][0]["label"] == ALL


@pytest.mark.parametrize(
    "reply",
    [
        b"\x1b]0;title\x07\xff\r\n\r\n",
        b"HTTP/1.1 \x1b[31m200\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\x1b]0;title\x07\r\n",
        b"HTTP/1.1 503 Busy\r\nretry-after: nan\r\ncontent-length: 0\r\n\r\n",
        http("200 OK", {"width": float("inf"), "task": "a", "labels": [], "max_rows": 1}),
        http("200 OK", {"width": 10**400, "task": "a", "labels": [], "max_rows": 1}),
        http("200 OK", {"width": 8, "task": "a", "labels": "ab", "max_rows": True}),
        http("200 OK", {"width": 8.5, "task": "a", "labels": ["a"], "max_rows": 1}),
    ],
)
def test_a_server_that_speaks_no_http_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], client: Path, reply: bytes
) -> None:
    with answering(reply) as url:
        assert main(["query", str(client), "--server", url, "the knee", "--timeout", "2"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert powerless(err)
    assert "Expected" in err


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        ("classification", {"label": "a", "probabilities": [float("nan"), 0.5]}),
        ("classification", {"label": "a", "probabilities": [float("inf"), 0.5]}),
        ("classification", {"label": "a", "probabilities": [10**400, 0]}),
        ("classification", {"label": "a", "probabilities": [True, False]}),
        ("classification", {"label": "a", "probabilities": [2.0, -1.0]}),
        ("classification", {"label": ["a"], "probabilities": [1.0, 0.0]}),
        ("regression", {"score": float("nan")}),
        ("regression", {"score": 10**400}),
        ("regression", {"score": True}),
    ],
)
def test_numbers_that_are_none_are_refused(
    capsys: pytest.CaptureFixture[str], client: Path, task: str, answer: dict[str, Any]
) -> None:
    with answering(about(client, ["a", "b"], task), http("200 OK", {"answers": [answer]})) as url:
        assert main(["query", str(client), "--server", url, "the knee", "--json"]) == 2
    assert "Expected the response of a discreet server" in capsys.readouterr().err


def test_a_server_that_sends_without_end_is_cut_off(capsys: pytest.CaptureFixture[str], client: Path) -> None:
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as place:

        def drip() -> None:
            connection, _ = place.accept()
            with connection:
                connection.recv(65536)
                try:
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
                    while not stop.wait(0.05):
                        connection.sendall(b" ")
                except OSError:
                    return

        thread = threading.Thread(target=drip, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
        assert main(["query", str(client), "--server", url, "the knee", "--timeout", "0.5"]) == 2
        stop.set()
        thread.join(5)
    assert "Expected a complete response" in capsys.readouterr().err


def test_labels_columns_and_names_of_files_are_escaped(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b]0;t\x07\u202e"
    folder.mkdir()
    data = folder / "rows\x1b[31m.jsonl"
    rows = [{"text": f"{ALL.replace(chr(0xD800), '')} {i}", "label": ("a\x1b[2J\nb", "c")[i % 2]} for i in range(6)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["data", str(data)]) == 0
    out, err = capsys.readouterr()
    assert "\\x1b[2J" in out
    assert powerless(out + err)
    for more in (["--label", "nothing\x1b[31m"], ["--text", "x\x07"]):
        assert main(["data", str(data), *more]) == 2
        out, err = capsys.readouterr()
        assert powerless(out + err)
    assert main(["report", str(folder)]) == 2
    assert main(["ledger", str(folder)]) == 2
    assert powerless(capsys.readouterr().err)


def test_what_is_sanitized_onto_a_terminal_is_escaped_and_into_a_pipe_is_whole(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("id,text\n\x1b]0;t\x07\u202e1,the knee\n", encoding="utf-8")
    command = [sys.executable, "-m", "discreet", "sanitize", str(table), "--out", "-", "--epsilon-per-word", "40"]
    command += ["--format", "csv", "--seed", "1"]
    piped = subprocess.run(command, capture_output=True, timeout=120, check=True).stdout
    assert b"\x1b]0;t\x07" in piped
    own, other = pty.openpty()
    process = subprocess.Popen(command, stdout=other, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    os.close(other)
    found = b""
    while select.select([own], [], [], 120)[0]:
        try:
            part = os.read(own, 65536)
        except OSError:
            break
        if not part:
            break
        found += part
    os.close(own)
    assert process.wait(60) == 0
    assert b"\x1b" not in found
    assert b"\\x1b]0;t\\x07" in found
