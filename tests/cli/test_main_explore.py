"""`discreet explore` as a user meets it: an address, a page, an end, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.cli.main import main

SOURCE = Path(__file__).parents[2] / "src"


def test_it_prints_its_address_serves_the_page_and_ends_on_an_interrupt(
    tmp_path: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path]
) -> None:
    model = ["--model", str(tiny_encoder("bert")), "--device", "cpu", "--epochs", "1", "--batch-size", "16"]
    assert main(["train", str(toy_csv), "--out", str(tmp_path / "a"), *model]) == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "discreet", "explore", str(tmp_path / "a"), "--no-open", "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"Explore the run a at (http://127\.0\.0\.1:\d+/)#(\S{32,})\n", line)
        assert found is not None, line + process.communicate()[1]
        with urllib.request.urlopen(found[1], timeout=120) as page:
            assert b"What does an attacker read?" in page.read()
        asked = urllib.request.Request(
            f"{found[1]}v1/readings",
            json.dumps({"sentence": "the heart was calm", "attack": "subspace"}).encode(),
            {"content-type": "application/json", "x-discreet-key": found[2]},
        )
        with urllib.request.urlopen(asked, timeout=120) as reading:
            assert json.loads(reading.readline())["state"] in ("waiting", "running")
            process.send_signal(signal.SIGINT)  # in the midst of a reading
            out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0 and out == "" and err.endswith("Stopped.\n"), err
    assert "Traceback" not in err


def test_bad_input_gets_a_sentence_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for arguments, said in (
            ([str(tmp_path)], "Expected the folder of a run or a study"),
            (["--port", str(taken.getsockname()[1])], "choose another"),
            (["--port", "70000"], "Expected --port to be in [0, 65535], got 70000"),
            (["--seconds", "0"], "Expected --seconds to be > 0 and finite, got 0"),
            (["--threads", "0"], "Expected --threads to be an integer >= 1, got 0"),
        ):
            assert (
                main(["explore", "--no-open", *(["--port", "0"] if "--port" not in arguments else []), *arguments]) == 2
            )
            assert said in capsys.readouterr().err


def test_without_its_libraries_it_says_which_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import importlib.util

    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "uvicorn" else real(name, *more)
    )
    assert main(["explore", "--no-open", "--port", "0"]) == 2
    assert "pip install 'discreet[serving]'" in capsys.readouterr().err
