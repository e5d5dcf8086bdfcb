"""What the ledger costs: a spend against a bare write and sync of as many bytes, and reading a long ledger.

python -m benchmarks.ledger                  in the current folder's file system
python -m benchmarks.ledger --folder FOLDER  in another, for the disk decides

The two are timed in turn, so that both meet the same disk; times are medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from discreet.accounting import ledger_file
from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, event_to_json
from discreet.accounting.ledger import Budget, Ledger
from discreet.core.guarantee import Adjacency

STEP = PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spending(folder: Path, steps: int) -> dict[str, float]:
    path = folder / "bare"
    bare = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    line = b'["seed 7, step 1000",0,"0123456789abcdef"]\n'
    spends: list[float] = []
    writes: list[float] = []
    budget = Budget(6.0, 1e-5)
    with (
        Ledger.open(folder / "ledger", unit="note", adjacency="add/remove", budget=budget) as ledger,
        Ledger.open(None, unit="note", adjacency="add/remove", budget=budget) as memory,
    ):
        first = seconds(lambda: ledger.spend(STEP, "first"))
        memory.spend(STEP, "first")
        unsynced: list[float] = []
        for number in range(steps):
            name = f"seed 7, step {number}"
            spends.append(seconds(lambda name=name: ledger.spend(STEP, name)))  # type: ignore[misc]
            writes.append(seconds(lambda: (os.write(bare, line), os.fdatasync(bare))))
            unsynced.append(seconds(lambda name=name: memory.spend(STEP, name)))  # type: ignore[misc]
        progress = [seconds(lambda: ledger.epsilon()) for _ in range(100)]
    os.close(bare)
    return {
        "spend_ms": 1e3 * statistics.median(spends),
        "bare_write_and_sync_ms": 1e3 * statistics.median(writes),
        "ratio": statistics.median(spends) / statistics.median(writes),
        "in_memory_ms": 1e3 * statistics.median(unsynced),
        "first_spend_with_budget_ms": 1e3 * first,
        "epsilon_again_ms": 1e3 * statistics.median(progress),
    }


def reading(lines: int) -> dict[str, float]:
    data = [ledger_file.header("note", Adjacency.ADD_REMOVE, None)]
    tally = ledger_file.read(data[0], "memory")
    data.append(tally.declaration(event_to_json(STEP)))
    tally.take(data[-1][:-1])
    for number in range(lines):
        data.append(tally.spend(f"seed 7, step {number}", False))
        tally.take(data[-1][:-1])
    whole = b"".join(data)
    times = [seconds(lambda: ledger_file.read(whole, "memory")) for _ in range(5)]
    return {"lines": lines, "bytes_a_line": len(whole) / lines, "read_s": statistics.median(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path())
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = spending(Path(folder), options.steps) | reading(options.lines)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:28} {value:12.4g}")


if __name__ == "__main__":
    main()
