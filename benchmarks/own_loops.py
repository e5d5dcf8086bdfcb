"""What `make_private` costs in somebody's own loop: a private step against a plain one, in time and in peak memory.

python -m benchmarks.own_loops                         on the CPU: a small Llama-shaped model, 16 rows of 32 tokens
python -m benchmarks.own_loops --device cuda           on a GPU: SmolLM2-135M's shape, 32 rows of 128 tokens, in bf16
python -m benchmarks.own_loops --device cuda --rows 256 --out own_loops.json
python -m benchmarks.own_loops --against OTHER/src     against the source of another version, on the CPU

Both sides run in one process, eager, on the same rows, with the same optimizer; times are medians after warm-up.
Weights are random, for they do not matter here. The private side draws every row at every step (rate 1), so that both
sides read the same rows. It counts each step in a ledger in memory, clips, adds noise in float64 and moves the
optimizer; the parts are those that `batches` chooses after `check`, which fit the memory of the GPU. `captured` is the
same with `private.capture`, which replays the part of a step as a CUDA graph on a GPU.

With `--against`, this source and another one take private steps in turn, each in a process of its own with one thread:
a BERT of MiniLM's size with 32 rows of 64 tokens, and a small MLP. Processor time is compared, since other programs
disturb it less than the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import DPSGD, make_private

SHAPES = {
    "smollm2": {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "intermediate_size": 1536},
    "small": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128},
}


def build(shape: str, device: str) -> nn.Module:
    import transformers

    sizes: dict[str, Any] = {**SHAPES[shape], "vocab_size": 49152 if shape == "smollm2" else 500}
    if shape == "smollm2":
        sizes["num_key_value_heads"] = 3
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, tie_word_embeddings=True))
    model.get_input_embeddings().requires_grad_(False)  # tied to the output, and frozen with it
    return model.to(device).train()


def timed(device: str, steps: int, take: Any) -> tuple[float, int]:
    seconds = []
    for step in range(steps + 5):
        if step == 5 and device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        take()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    peak = int(torch.cuda.max_memory_allocated()) if device == "cuda" else 0
    return statistics.median(seconds[5:]), peak


_SIDE = """
import inspect, json, sys, time, warnings
import torch
from torch.nn import functional as F
from discreet import DPSGD, make_private

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
torch.manual_seed(0)
count = 32
if sys.argv[1] == "bert":
    from transformers import BertConfig, BertForSequenceClassification
    sizes = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    model = BertForSequenceClassification(BertConfig(**sizes)).train()
    rows = [torch.randint(1, 30000, (64,)) for _ in range(count)]
    def losses_of(ids):
        return F.cross_entropy(model(input_ids=ids).logits, ids[:, 0] % 2, reduction="none")
else:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    rows = [torch.randn(64) for _ in range(count)]
    def losses_of(x):
        return F.cross_entropy(model(x), (x[:, 0] > 0).long(), reduction="none")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
private = make_private(model, DPSGD(noise_multiplier=1.0), num_units=count, batch_size=count, steps=int(sys.argv[2]))
takes_function = "Losses" in str(inspect.signature(type(private).step))
if sys.argv[1] != "bert":
    private.check(losses_of, rows[:8])
parts = private.batches(rows, max_rows=count)
for line in sys.stdin:
    seconds = []
    for _ in range(int(line)):
        begun, moved = time.process_time(), False
        while not moved:
            part = next(parts)
            moved = private.step(losses_of if takes_function else losses_of(part), optimizer)
        seconds.append(time.process_time() - begun)
    print(json.dumps(seconds), flush=True)
"""


def against(other: Path) -> None:
    """Print how long a private step of this source takes, over one of another source."""
    here = Path(__file__).resolve().parent.parent / "src"
    for kind, rounds, each in (("bert", 8, 2), ("mlp", 60, 20)):
        sides = {
            name: subprocess.Popen(
                [sys.executable, "-c", _SIDE, kind, str((rounds + 1) * each)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
            )
            for name, source in (("other", other.resolve()), ("this", here))
        }
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(rounds + 1):
            for name in sorted(sides, reverse=turn % 2 == 1):
                stdin, stdout = sides[name].stdin, sides[name].stdout
                assert stdin is not None and stdout is not None
                stdin.write(f"{each}\n")
                stdin.flush()
                taken = json.loads(stdout.readline())
                seconds[name] += taken if turn else []
        for side in sides.values():
            side.kill()
        medians = {f"{name}_seconds": statistics.median(found) for name, found in seconds.items()}
        say({"model": kind, **medians, "ratio": medians["this_seconds"] / medians["other_seconds"]})


def say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def profiled(path: Path, take: Any) -> None:
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    with torch.profiler.profile(activities=kinds) as profile:
        take()
    path.write_text(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=40), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--max-rows", type=int)
    parser.add_argument("--sides", nargs="+", default=["private", "captured"], choices=["private", "captured"])
    parser.add_argument("--profile", type=Path, help="file for a profile of one step of the last side")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--against", type=Path, metavar="SRC", help="source folder of another version")
    asked = parser.parse_args()
    if asked.against is not None:
        against(asked.against)
        return
    cuda = asked.device == "cuda"
    shape, count, length = ("smollm2", asked.rows or 32, 128) if cuda else ("small", asked.rows or 16, 32)
    model = build(shape, asked.device)
    ids = torch.randint(1, 500, (count, length), generator=torch.Generator().manual_seed(1))
    rows = list(ids)

    def losses_of(batch: Tensor) -> Tensor:
        tokens = batch.to(asked.device)
        with torch.autocast(asked.device, torch.bfloat16, enabled=cuda):
            logits = model(input_ids=tokens).logits
        return F.cross_entropy(logits[:, :-1].float().transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)

    weights = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=True)

    def plain() -> None:
        losses_of(ids).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    found: dict[str, Any] = {"device": asked.device, "shape": shape, "rows": count, "length": length}
    found["plain_seconds"], found["plain_bytes"] = timed(asked.device, asked.steps, plain)
    say(found)
    protect = DPSGD(noise_multiplier=1.0)
    for side in asked.sides:
        with make_private(model, protect, num_units=count, batch_size=count, steps=asked.steps + 8) as private:
            begun = time.perf_counter()
            private.check(losses_of, rows[:8])
            found["check_seconds"] = time.perf_counter() - begun
            parts = private.batches(rows, max_rows=asked.max_rows)
            captured = private.capture(losses_of)

            def one(parts: Any = parts, private: Any = private, captured: Any = captured, side: str = side) -> None:
                moved = False
                while not moved:
                    part = next(parts)
                    moved = captured(part, optimizer) if side == "captured" else private.step(losses_of, optimizer)

            found[f"{side}_seconds"], found[f"{side}_bytes"] = timed(asked.device, asked.steps, one)
            found["rows_of_a_part"] = private.state_dict()["max_rows"]
            found[f"{side}_caveats"] = sorted(private.caveats)
            found[f"{side}_time_ratio"] = found[f"{side}_seconds"] / found["plain_seconds"]
            say(found)
            if asked.out is not None:
                asked.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
            if asked.profile is not None and side == asked.sides[-1]:
                profiled(asked.profile, one)


if __name__ == "__main__":
    main()
