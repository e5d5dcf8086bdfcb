"""Runs the tests under six settings of processor, threads and order, and prints one line for each.

`make test-matrix`; or `python tests/matrix.py tests/attacks -m 'not slow'` for a part. What each run printed is kept in
.test-matrix/. A rate that differs between settings is a fault of a test or of what it tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SSE = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "OPENBLAS_CORETYPE": "Nehalem",
}
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}
NATIVE: dict[str, str] = {}
RUNS = (  # instruction set, threads, order of the tests
    ("sse", SSE, 1, ""),
    ("sse", SSE, 2, "reverse"),
    ("avx2", AVX2, 1, "reverse"),
    ("avx2", AVX2, 2, ""),
    ("native", NATIVE, 1, "random:1"),
    ("native", NATIVE, 2, "random:2"),
)


def settings_of(instructions: dict[str, str], threads: int) -> dict[str, str]:
    """Return the environment of one run: nothing of the processor is inherited."""
    kept = {name: value for name, value in os.environ.items() if name not in SSE}
    return kept | instructions | {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": str(threads)}


def main(arguments: list[str]) -> int:
    """Run the tests once under each setting and return how many runs failed."""
    logs = ROOT / ".test-matrix"
    logs.mkdir(exist_ok=True)
    failed = 0
    for number, (name, instructions, threads, order) in enumerate(RUNS, 1):
        log = logs / f"{number}-{name}-{threads}-{order.replace(':', '') or 'collected'}.log"
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        if order:
            command.append(f"--order={order}")
        with log.open("w", encoding="utf-8") as out:
            done = subprocess.run(
                command, cwd=ROOT, env=settings_of(instructions, threads), stdout=out, stderr=subprocess.STDOUT
            )
        said = log.read_text(encoding="utf-8").strip().splitlines()
        failed += done.returncode != 0
        print(
            f"{number}/{len(RUNS)}  {'passed' if done.returncode == 0 else 'FAILED'}  {name:6}  threads {threads}  "
            f"order {order or 'collected':9}  {time.monotonic() - began:5.0f} s  {said[-1] if said else ''}",
            flush=True,
        )
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]) > 0)
