"""Two processes give the sums of one; errors reach both; a rank that dies stops the run, and it resumes."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations import trainer_process
from tests.integrations.two_ranks import train

from discreet.accounting.ledger import Ledger

SCRIPT = Path(__file__).with_name("two_ranks.py")
TRAINER = Path(__file__).with_name("trainer_process.py")
SOURCE = Path(__file__).parents[2] / "src"


def torchrun(folder: Path, *actions: str, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.run(
        [*command, str(script), str(folder), *actions], capture_output=True, text=True, env=environment(), timeout=300
    )


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(SOURCE), str(SOURCE.parent), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}


def results(folder: Path, action: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{action}.{rank}.json").read_text()) for rank in range(2)]


def check_ended(folder: Path) -> None:
    """Check that no thread of the process group is left at the end of a rank; it could abort the process."""
    left = [name for threads in results(folder, "threads") for name in threads]
    assert not any("gloo" in str(name) for name in left), left


def largest_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    return float((torch.tensor(one["weights"]) - torch.tensor(other["weights"])).abs().max())


def test_two_processes_end_with_the_weights_of_one_and_share_a_budget(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    done = torchrun(tmp_path, "dp-sgd", "dir-dp-sgd", "few")
    assert done.returncode == 0, done.stderr[-2000:]
    check_ended(tmp_path)
    for protection in ("dp-sgd", "dir-dp-sgd"):
        first, second = results(tmp_path, protection)
        assert first["weights"] == second["weights"]
        assert largest_difference(first, train(tmp_path / "alone", protection)) < 1e-6
        assert first["spends"] == first["position"] == second["position"] == 6
    first, second = results(tmp_path, "few")
    assert first["weights"] == second["weights"] and first["out"] and second["out"]
    assert first["spends"] == first["position"] == second["position"] < 6


@pytest.mark.slow
def test_a_rank_that_dies_stops_the_run_and_it_resumes_with_two_and_not_with_one(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    alone = train(tmp_path / "alone", "dp-sgd")
    assert torchrun(tmp_path, "die").returncode != 0
    spent = Ledger.read(tmp_path / "dp-sgd.jsonl").spends
    assert 3 <= spent <= 6, "the step that was in progress is counted, and all planned ones by a rank that can close"
    with pytest.raises(ValueError, match="world_size"):
        train(tmp_path, "dp-sgd", resume=True)
    done = torchrun(tmp_path, "resume")
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = results(tmp_path, "resume")
    assert first["weights"] == second["weights"] and first["spends"] == 6
    assert largest_difference(first, alone) < 1e-6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of transformers and accelerate
def test_a_trainer_in_two_processes_ends_with_the_weights_of_one(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    alone = trainer_process.weights(trainer_process.train(tmp_path / "alone"))
    done = torchrun(tmp_path, script=TRAINER)
    assert done.returncode == 0, done.stderr[-2000:]
    check_ended(tmp_path)
    first, second = (torch.tensor(json.loads((tmp_path / f"weights.{rank}.json").read_text())) for rank in range(2))
    assert torch.equal(first, second) and float((first - alone).abs().max()) < 1e-6
    assert Ledger.read(tmp_path / "out" / "ledger.jsonl").spends == trainer_process.STEPS


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_trainer_that_is_killed_again_and_again_ends_with_the_same_weights(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    alone = trainer_process.weights(trainer_process.train(tmp_path / "alone"))
    ledger, most = tmp_path / "out" / "ledger.jsonl", 0
    for kill in range(4):
        process = subprocess.Popen(
            [sys.executable, str(TRAINER), str(tmp_path), "resume"], env=environment(), stderr=subprocess.DEVNULL
        )
        # After so many spends: while a part is computed, while a checkpoint is written, or anywhere between.
        while process.poll() is None and spends_in(ledger) < 2 + 3 * kill:
            time.sleep(0.002 * (kill + 1))
        process.kill()
        process.wait()
        assert spends_in(ledger) >= most, "the ledger never goes back"
        most = spends_in(ledger)
    last = subprocess.run([sys.executable, str(TRAINER), str(tmp_path), "resume"], env=environment(), timeout=300)
    assert last.returncode == 0
    assert spends_in(ledger) == trainer_process.STEPS
    assert json.loads((tmp_path / "weights.0.json").read_text()) == alone.tolist()


def spends_in(ledger: Path) -> int:
    return Ledger.read(ledger).spends if ledger.exists() else 0
