"""Flower's own processes over loopback: the same model as in one process, and what the wire and strangers see."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from benchmarks.wiretap import wiretap

from discreet.accounting.ledger import Ledger
from discreet.core.files import load_tensors
from discreet.data.sources import TextSource
from discreet.federated.processes import (
    Cluster,
    free_port,
    is_running,
    make_certificates,
    node,
    node_keys,
    running,
)
from discreet.federated.run import run_in_process
from discreet.federated.settings import Federation
from discreet.models.settings import ModelSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.checkpoint import LEDGER

Tiny = Callable[..., Federation]


def wait(cluster: Cluster, until: Callable[[], bool], seconds: float = 240) -> None:
    """Supervise the processes until something is true."""
    end = time.monotonic() + seconds
    while not until():
        failed = cluster.workspace / "server" / "failed.txt"
        assert not failed.exists(), failed.read_text()
        assert time.monotonic() < end, [path.read_text()[-2000:] for path in cluster.folder.glob("*.log")]
        cluster.supervise()
        time.sleep(0.05)


def final(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "server" / "final.safetensors")[0]


def rounds_of(folder: Path) -> int:
    path = folder / "server" / "progress.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_processes_give_the_model_of_one_process_and_the_wire_holds_no_text(
    tiny: Tiny, tmp_path: Path, toy_csv: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # relative paths mean the same to all processes
    data = TextSource(os.path.relpath(toy_csv))
    # An LSTM, so that the three processes with a model need not import the networks of transformers.
    model = ModelSettings(encoder="bilstm", train="head", dropout=0.0)
    protect = DPSGD(noise_multiplier=1.0)
    settings = tiny(
        clients=2, epochs=1, batch_size=60, data=data, model=model, noise_seed=1, protect=protect, wait_seconds=240.0
    )  # a client that starts slowly on a busy machine is waited for, or the models would differ
    run_in_process(settings, tmp_path / "one")
    assert rounds_of(tmp_path / "one") == 2
    with wiretap() as tap, running(settings, Path("many"), connect_to=tap.forward_to) as cluster:
        wait(cluster, (tmp_path / "many" / "server" / "result.json").exists)
        children = [cluster.superlink, *cluster.nodes.values()]
    assert all(child is not None and child.poll() is not None for child in children)  # none outlives the block
    many = final(tmp_path / "many")
    for name, value in final(tmp_path / "one").items():
        torch.testing.assert_close(value, many[name], rtol=0, atol=1e-6)
    wire = b"\n".join(tap.captured())
    assert b"/flwr.proto" in wire or b"train" in wire  # the proxy sees the messages in the clear
    words = {word for text in settings.data.load().texts for word in re.findall(r"[a-z]{5,}", text)}
    assert len(words) > 10
    readable = b" ".join(re.findall(rb"[ -~]{4,}", wire)).lower()
    found = {word for word in words if re.search(rb"\b" + word.encode() + rb"\b", readable)}
    assert found <= {"clinic"}, found  # a class name would be public, though it is not sent either


def test_an_unregistered_node_is_turned_away(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(clients=1)
    cluster = Cluster(settings, tmp_path, tmp_path / "flower")
    cluster.folder.mkdir()
    (cluster.folder / "secret").write_text("a secret of the test")
    cluster.certificates = make_certificates(cluster.folder)
    try:
        cluster.start_superlink()  # registers the key of client 0
        cluster.start_node(0)
        options: dict[str, object] = {"superlink": f"127.0.0.1:{cluster.port}", "host": "127.0.0.1"}
        options |= {
            "port": free_port(),
            "isolation": "process",
            "superexec-auth-secret-file": cluster.folder / "secret",
        }
        options["root-certificates"] = cluster.certificates.authority
        options["auth-supernode-private-key"] = node_keys(cluster.folder, "stranger")[0]
        stranger = cluster.child("stranger", node("supernode", options))
        cluster.nodes[99] = stranger
        assert stranger.wait(120) != 0
        refused = (cluster.folder / "stranger.log").read_text()
        assert "Failed to initialize the connection" in refused and "SuperNode ID" not in refused
        end = time.monotonic() + 120
        while "SuperNode ID" not in (cluster.folder / "client-0.log").read_text():
            assert time.monotonic() < end and cluster.nodes[0].poll() is None
            time.sleep(0.1)
    finally:
        cluster.stop()


@pytest.mark.slow
def test_with_tls_the_wire_holds_nothing_readable(tiny: Tiny, tmp_path: Path) -> None:
    settings = tiny(clients=2, epochs=1)
    with wiretap() as tap, running(settings, tmp_path, tls=True, connect_to=tap.forward_to) as cluster:
        wait(cluster, (tmp_path / "server" / "result.json").exists)
    streams = tap.captured()
    assert sum(map(len, streams)) > 10_000
    wire = b"\n".join(streams)
    for word in (b"flwr", b"train", b"head.weight", b"HTTP", b"POST"):
        assert word not in wire


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["client", "superlink", "server app"])
def test_training_ends_though_a_side_is_killed_three_times(tiny: Tiny, tmp_path: Path, victim: str) -> None:
    settings = tiny(clients=2, epochs=8, wait_seconds=5.0, protect=DPSGD(epsilon=8.0))
    with running(settings, tmp_path) as cluster:
        for at in (1, 3, 5):
            wait(cluster, lambda at=at: rounds_of(tmp_path) >= at)  # type: ignore[misc]
            if victim == "client":
                cluster.nodes[1].kill()
            elif victim == "superlink":
                assert cluster.superlink is not None
                cluster.superlink.kill()
            else:
                os.kill(int((tmp_path / "server" / "pid").read_text()), signal.SIGKILL)
        wait(cluster, (tmp_path / "server" / "result.json").exists)
    result = json.loads((tmp_path / "server" / "result.json").read_text())
    log = (tmp_path / "server" / "log.txt").read_text()
    assert log.count("died and is started again") >= 3
    for number in range(2):
        statement = Ledger.read(tmp_path / f"client-{number}" / LEDGER)
        stated = json.loads(result["clients"][str(number)]["guarantee"])
        # At least what the server received, and within the budget.
        assert statement.spends >= result["steps"] - log.count(f"without client {number}")
        assert stated["epsilon"] <= 8.0 and statement.guarantee(stated["delta"]).epsilon <= 8.0


def test_a_process_that_ended_unnoticed_does_not_run() -> None:
    """Flower's executor does not wait for a ServerApp, so that one which was killed stays in the process table."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        assert is_running(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        end = time.monotonic() + 30
        while is_running(process.pid):
            assert time.monotonic() < end
            time.sleep(0.02)
    assert not is_running(process.pid)


def test_children_end_with_their_parent(tmp_path: Path) -> None:
    """A parent that is killed cannot stop its children, so they watch it."""
    program = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; from discreet.federated.node import "
        "end_with_parent; end_with_parent(); print(1, flush=True); time.sleep(60)'], stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    end = time.monotonic() + 30
    while True:
        try:
            state = Path(f"/proc/{child}/stat").read_text().rsplit(") ", 1)[1][0]
        except FileNotFoundError:
            break
        if state == "Z":
            break
        assert time.monotonic() < end
        time.sleep(0.05)
