"""What float64 noise costs: the numbers alone, and in a private step beside a plain one.

python -m benchmarks.noise                                  on the CPU: MiniLM's shape, 256 and 32 times 64 tokens
python -m benchmarks.noise --device cuda --out noise.json   on a GPU: MiniLM's and BERT-base's shapes, bf16, graphed

The sides of a step take turns in one process and times are medians: `plain`, `clipped` (the clipped sum without
noise), `float32` (noise as it was drawn before, in float32, which an attack can tell; in this benchmark only) and
`float64` (as it is drawn now: in float64, added and rounded once). Weights are random, for they do not matter here. On
a GPU a step is recorded as a graph and replayed; the noise's counter is moved inside the graph, so that no replay
repeats another's. On a CPU the time is the process's, so that others on the machine count less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.clipping import CLIP, Setting, batch_of, build, graphed, optimizer_of, plain_step, precise
from discreet import Rng
from discreet.clipping import Flat, Tape, clipped_sum
from discreet.mechanisms import normals as normals_module
from discreet.mechanisms.normals import NormalSource, add_normal, add_normals

SIDES = ("plain", "clipped", "float32", "float64")
CPU_SETTINGS = (("minilm", 32, 64, "all"), ("minilm", 256, 64, "all"))
CUDA_SETTINGS = (
    ("minilm", 128, 64, "all"),
    ("minilm", 128, 64, "layers"),
    ("bert-base", 64, 128, "all"),
    ("bert-base", 64, 128, "layers"),
    ("bert-base", 16, 512, "layers"),
)


def private_step(setting: Setting, side: str) -> Callable[[], None]:
    """Return a step with the clipped sum and, by the side, noise."""
    model, (batch, labels) = build(setting), batch_of(setting)
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    optimizer = optimizer_of(setting, list(named.values()))
    tape, rng, count = Tape(model), Rng.secret(), 0
    key = None
    if setting.device == "cuda":
        key = NormalSource(rng).device_key(torch.device("cuda", torch.cuda.current_device()), CLIP)
        if side == "float64" and not normals_module.kernel_usable(torch.zeros(1, device="cuda")):
            raise RuntimeError("the fused noise kernel is not usable on this device")

    def step() -> None:
        nonlocal count
        count += 1
        with tape, precise(setting):
            losses = F.cross_entropy(model(**batch).logits, labels, reduction="none")
        gradients = dict(clipped_sum(tape.backward(losses), Flat(CLIP)).gradients)
        if side == "float32":
            for gradient in gradients.values():
                gradient.add_(torch.randn_like(gradient), alpha=CLIP)
        elif side == "float64" and key is not None:
            key[2].add_(1)
            for number, gradient in enumerate(gradients.values()):
                normals_module.kernel_add(gradient, key, number, out=gradient)
        elif side == "float64":
            gradients = add_normals(gradients, CLIP, rng.fork(count))
        torch._foreach_div_(list(gradients.values()), setting.batch)
        for name, parameter in named.items():
            parameter.grad = gradients[name]
        del gradients
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def in_turns(works: dict[str, Callable[[], object]], rounds: int, device: str) -> dict[str, float]:
    """Return the median seconds of each, taking turns; the first of each warms up."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            if device == "cuda":
                torch.cuda.synchronize()
            began = clock()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            if turn:
                times[name].append(clock() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def steps(setting: Setting, rounds: int) -> dict[str, Any]:
    """Return the seconds of a step of each side."""
    works: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    for side in SIDES:
        try:
            made = plain_step(setting) if side == "plain" else private_step(setting, side)
            works[side] = graphed(made) if setting.mode == "graph" else made
        except RuntimeError as error:
            failed[side] = str(error)
    return {"setting": str(setting), "seconds": in_turns(dict(works), rounds, setting.device), "failed": failed}


def alone_on_cpu(count: int, rounds: int) -> dict[str, float]:
    """Return nanoseconds a number of what could draw the noise of one parameter, with one thread."""
    values, single = torch.zeros(count), torch.empty(count)
    block, double = np.empty(1 << 16), torch.empty(1 << 16, dtype=torch.float64)
    parts = range(count >> 16)

    def blocks(kind: Any) -> Callable[[], object]:
        generator = np.random.Generator(kind(1))
        return lambda: [generator.standard_normal(out=block) for _ in parts]

    works: dict[str, Callable[[], object]] = {
        "torch float32": lambda: single.normal_(),
        "torch float64": lambda: [double.normal_() for _ in parts],
        "numpy float64, Philox": blocks(np.random.Philox),
        "numpy float64, PCG64DXSM": blocks(np.random.PCG64DXSM),
        "numpy float64, SFC64": blocks(np.random.SFC64),
        "ours, added and rounded": lambda: add_normal(values, CLIP, Rng(1)),
        "ours, from the operating system": lambda: add_normal(values, CLIP, Rng.secure()),
    }
    return {name: 1e9 * s / count for name, s in in_turns(works, rounds, "cpu").items()}


def alone_on_cuda(count: int, rounds: int) -> dict[str, float]:
    """Return picoseconds a number of the kernel and of what it replaces, for one large parameter."""
    values, double = torch.zeros(count, device="cuda"), torch.empty(count, device="cuda", dtype=torch.float64)
    device = values.device
    key = NormalSource(Rng(1)).device_key(device, CLIP)
    works: dict[str, Callable[[], object]] = {
        "torch float32, added": lambda: values.add_(torch.randn_like(values)),
        "torch float64, drawn": lambda: double.normal_(),
        "torch float64, sum of two": lambda: double.normal_().add_(torch.empty_like(double).normal_()),
    }
    if normals_module.kernel_usable(values):
        works["kernel, drawn"] = lambda: normals_module.kernel_fill(double, key, 0)
        works["kernel, added and rounded"] = lambda: normals_module.kernel_add(values, key, 0, out=values)
    return {name: 1e12 * s / count for name, s in in_turns(works, rounds, "cuda").items()}


def main(given: list[str] | None = None) -> dict[str, Any]:
    """Run the comparisons, print them, and return all figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rounds", type=int, help="turns of each side: 4 on a CPU, 60 on a GPU")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-steps", action="store_true", help="the numbers alone")
    parser.add_argument("--out", type=Path, help="file for all figures, written as they come")
    asked = parser.parse_args(given)
    torch.set_num_threads(asked.threads)
    cuda = asked.device == "cuda"
    rounds = asked.rounds or (60 if cuda else 4)
    found: dict[str, Any] = {"device": torch.cuda.get_device_name() if cuda else "cpu", "threads": asked.threads}
    found["alone"] = alone_on_cuda(1 << 27, 20) if cuda else alone_on_cpu(1 << 22, 5)
    for name, value in found["alone"].items():
        print(f"  {name:34} {value:8.2f} {'ps' if cuda else 'ns'} a number", flush=True)
    if cuda:
        found["kernel"] = normals_module.agree(torch.device("cuda", torch.cuda.current_device()))
    found["steps"] = []
    for shape, batch, length, train in () if asked.no_steps else CUDA_SETTINGS if cuda else CPU_SETTINGS:
        precision, mode = ("bf16", "graph") if cuda else ("float32", "eager")
        row = steps(Setting(shape, batch, length, train, precision, mode, asked.device), rounds)
        found["steps"].append(row)
        plain = row["seconds"].get("plain", float("nan"))
        print(row["setting"], flush=True)
        for side, seconds in row["seconds"].items():
            print(f"  {side:10} {1000 * seconds:10.2f} ms {seconds / plain:6.3f}×", flush=True)
        for side, reason in row["failed"].items():
            print(f"  {side:10} not run: {reason}", flush=True)
        if cuda:
            torch.cuda.empty_cache()
        if asked.out:
            asked.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
