"""What a von Mises–Fisher direction costs: against plain normal numbers of the same shape, and against scipy.

python -m benchmarks.von_mises_fisher                 on the CPU, one thread; scipy takes about twenty seconds
python -m benchmarks.von_mises_fisher --device cuda   on a GPU, without scipy; also the time of each pass over memory
python -m benchmarks.von_mises_fisher --no-scipy      on the CPU, in a few seconds

128 directions of each dimension in float32, kappa = 1000. `torch.randn` in float32, the float64 normal numbers that a
direction is made of, and ours take turns in one process and the best of the repeats is kept, so that all meet the same
machine; `ratio` is ours over the float64 numbers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from discreet import Rng
from discreet.mechanisms.normals import normals
from discreet.mechanisms.von_mises_fisher import VonMisesFisher

DIMENSIONS = (768, 5_000, 100_000, 1_000_000)
COUNT, KAPPA = 128, 1000.0
SCIPY_DIMENSION = 5_000


def seconds(work: Callable[[], object], device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    clock = time.process_time if device == "cpu" else time.perf_counter  # others on the machine count less
    start = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - start


def ours_and_randn(dimension: int, device: str, repeats: int) -> dict[str, Any]:
    generator = torch.Generator(device).manual_seed(1)
    x = torch.randn(COUNT, dimension, device=device, generator=generator)
    noise, rng = VonMisesFisher(KAPPA, dimension), Rng(1)
    plain: list[float] = []
    ours: list[float] = []
    numbers: list[float] = []
    for _ in range(repeats + 1):  # the first of each warms up and is dropped
        plain.append(seconds(lambda: torch.randn(COUNT, dimension, device=device, generator=generator), device))
        numbers.append(seconds(lambda: drawn(dimension, rng, device), device))
        ours.append(seconds(lambda: noise(x, rng), device))
    row: dict[str, Any] = {"dimension": dimension, "randn_s": min(plain[1:]), "ours_s": min(ours[1:])}
    row["normals_s"] = min(numbers[1:])
    row["ratio"] = row["ours_s"] / row["normals_s"]
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        noise(x, rng)
        row["extra_in_outputs"] = (torch.cuda.max_memory_allocated() - before) / (4 * COUNT * dimension) - 1
    return row


def drawn(dimension: int, rng: Rng, device: str) -> None:
    """Draw the float64 normal numbers of all directions, in blocks of rows as the directions are drawn."""
    at_once = max(1, (1 << 17 if device == "cpu" else 1 << 26) // dimension)
    for start in range(0, COUNT, at_once):
        normals((min(at_once, COUNT - start), dimension), rng, device)


def scipy_seconds(dimension: int) -> float:
    from scipy.stats import vonmises_fisher

    mu = np.ones(dimension) / np.sqrt(dimension)
    return seconds(lambda: vonmises_fisher(mu, KAPPA).rvs(COUNT, random_state=np.random.default_rng(1)), "cpu")


def passes(dimension: int, device: str, repeats: int) -> dict[str, float]:
    """Return the milliseconds of each kind of pass over memory, to see where the time goes."""
    a = torch.randn(COUNT, dimension, device=device)
    b = torch.randn(COUNT, dimension, device=device)
    row = torch.rand(COUNT, 1, device=device)
    works: dict[str, Callable[[], object]] = {
        "normal_": lambda: a.normal_(),
        "vector_norm": lambda: torch.linalg.vector_norm(a, dim=-1),
        "product then sum": lambda: (a * b).sum(-1),
        "batched matrix product": lambda: torch.bmm(a[:, None, :], b[:, :, None]),
        "mul_": lambda: a.mul_(row),
        "addcmul_": lambda: a.addcmul_(b, row),
    }
    return {name: 1e3 * min(seconds(work, device) for _ in range(repeats + 2)) for name, work in works.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-scipy", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [ours_and_randn(d, options.device, options.repeats) for d in DIMENSIONS]
    if options.device == "cpu" and not options.no_scipy:
        (row,) = [r for r in rows if r["dimension"] == SCIPY_DIMENSION]
        row["scipy_s"] = scipy_seconds(SCIPY_DIMENSION)
        row["speed_up"] = row["scipy_s"] / row["ours_s"]
    print(f"{COUNT} directions on {options.device}, kappa = {KAPPA:g}, best of {options.repeats}")
    heads = ("randn ms", "normals ms", "ours ms")
    print(f"{'dimension':>10} " + " ".join(f"{h:>10}" for h in heads) + f" {'ratio':>7} {'scipy s':>9} {'speed-up':>9}")
    for r in rows:
        scipy = f"{r['scipy_s']:9.2f} {r['speed_up']:9.0f}" if "scipy_s" in r else ""
        times = " ".join(f"{1e3 * r[name]:10.3f}" for name in ("randn_s", "normals_s", "ours_s"))
        print(f"{r['dimension']:10,} {times} {r['ratio']:7.2f} {scipy}")
    found: dict[str, Any] = {"device": options.device, "count": COUNT, "kappa": KAPPA, "rows": rows}
    if options.device != "cpu":
        found["device"] = torch.cuda.get_device_name()
        found["passes_ms"] = passes(DIMENSIONS[-1], options.device, options.repeats)
        for name, value in found["passes_ms"].items():
            print(f"  {name:24} {value:8.3f} ms")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
