"""Two processes give the sums of one; errors reach both; a rank that dies stops the run, and it resumes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.integrations.two_ranks import train

from discreet.accounting.ledger import Ledger

SCRIPT = Path(__file__).with_name("two_ranks.py")
SOURCE = Path(__file__).parents[2] / "src"


def torchrun(folder: Path, *actions: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    path = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, str(SCRIPT), str(folder), *actions], capture_output=True, text=True, env=environment, timeout=300
    )


def results(folder: Path, action: str) -> list[dict[str, Any]]:
    return [json.loads((folder / f"{action}.{rank}.json").read_text()) for rank in range(2)]


def largest_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    return float((torch.tensor(one["weights"]) - torch.tensor(other["weights"])).abs().max())


def test_two_processes_end_with_the_weights_of_one_and_share_a_budget(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    done = torchrun(tmp_path, "dp-sgd", "dir-dp-sgd", "few")
    assert done.returncode == 0, done.stderr[-2000:]
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
    assert 3 <= spent <= 4, "the step that was in progress is counted"
    with pytest.raises(ValueError, match="world_size"):
        train(tmp_path, "dp-sgd", resume=True)
    done = torchrun(tmp_path, "resume")
    assert done.returncode == 0, done.stderr[-2000:]
    first, second = results(tmp_path, "resume")
    assert first["weights"] == second["weights"] and first["spends"] == 6
    assert largest_difference(first, alone) < 1e-6
