"""`discreet serve --encrypted` and `discreet query --encrypted`: the answers of the run, without a spend."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.local.conftest import wait_until

from discreet.cli.main import main
from discreet.local.encrypted import EncryptedHead
from discreet.local.head import Head
from discreet.local.http import listen, server_for
from discreet.local.limits import Limits
from discreet.local.server import ServerSide

TEXTS = ["calm heart", "sharp knee pain", "slow doctor"]


@contextmanager
def served(side: ServerSide) -> Iterator[str]:
    head = Head.of(side)
    server = server_for(head, Limits(), EncryptedHead(head))
    with listen("127.0.0.1", 0) as place:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{place.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(60)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path], toy_csv: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "plain"
    arguments = ["train", str(toy_csv), "--model", str(tiny_encoder("bert")), "--epochs", "1", "--train", "head"]
    assert main([*arguments, "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Callable[[str], Path], toy_csv: Path) -> Path:
    out = tmp_path_factory.mktemp("runs") / "local"
    arguments = ["train", str(toy_csv), "--model", str(tiny_encoder("bert")), "--protect", "ldp", "--epsilon", "8"]
    assert main([*arguments, "--projection", "whole", "--queries", "4", "--epochs", "1", "--out", str(out)]) == 0
    return out


def ask(capsys: pytest.CaptureFixture[str], folder: Path, url: str, *more: str) -> tuple[int, Any, str]:
    capsys.readouterr()
    code = main(["query", str(folder), *TEXTS, "--server", url, "--encrypted", "--json", *more])
    captured = capsys.readouterr()
    return code, json.loads(captured.out) if code == 0 else captured.out, captured.err


def test_an_ordinary_run_answers_as_predict_does(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("\n".join(TEXTS), encoding="utf-8")
    capsys.readouterr()
    assert main(["predict", str(plain), str(file), "--json"]) == 0
    predictions = json.loads(capsys.readouterr().out)["predictions"]
    with served(ServerSide.of_run(plain)) as url:
        code, reply, _ = ask(capsys, plain, url)
        assert code == 0
        for answer, right in zip(reply["answers"], predictions, strict=True):
            assert answer["label"] == right["label"]
            assert answer["probability"] == pytest.approx(right["probability"], abs=1e-3)
        assert reply["encrypted"]["bytes_sent"] > 200_000
        assert main(["query", str(plain), TEXTS[0], "--server", url, "--encrypted"]) == 0
        captured = capsys.readouterr()
        assert captured.out.split("\t")[0] == predictions[0]["label"] and "no budget" in captured.err
        assert ask(capsys, plain, url, "--decoys", "3")[0] == 2


def test_a_locally_private_client_asks_without_noise_and_without_a_spend(
    local: Path, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from discreet.accounting.ledger import Ledger

    with served(ServerSide.load(local / "server")) as url:
        code, first, _ = ask(capsys, local / "client", url)
        assert code == 0
        _, second, _ = ask(capsys, local / "client", url)
        for one, two in zip(first["answers"], second["answers"], strict=True):
            assert one["probability"] == pytest.approx(two["probability"], abs=1e-3)  # no noise
        assert Ledger.read(local / "client" / "ledger.jsonl").spends == 0
        # a query with noise is told that this server wants ciphertexts, before anything is spent
        assert main(["query", str(local / "client"), TEXTS[0], "--server", url]) == 2
        assert "encrypted" in capsys.readouterr().err
        assert Ledger.read(local / "client" / "ledger.jsonl").spends == 0
        code, _, error = ask(capsys, local, url)  # the run itself instead of its client folder
        assert code == 2 and "client" in error
        code, _, error = ask(capsys, plain, url)
        assert code == 2 or "width" not in error


def test_a_run_with_local_privacy_is_served_from_its_server_folder(local: Path) -> None:
    assert main(["serve", str(local), "--encrypted", "--port", "0"]) == 2
