"""What `make_private` costs in somebody's own loop: a private step against a plain one, in time and in peak memory.

python -m benchmarks.own_loops                         on the CPU: a small Llama-shaped model, 16 rows of 32 tokens
python -m benchmarks.own_loops --device cuda           on a GPU: SmolLM2-135M's shape, 32 rows of 128 tokens, in bf16
python -m benchmarks.own_loops --device cuda --rows 256 --out own_loops.json

Both sides run in one process, eager, on the same rows, with the same optimizer; times are medians after warm-up.
Weights are random, for they do not matter here. The private side draws every row at every step (rate 1), so that both
sides read the same rows. It counts each step in a ledger in memory, clips, adds noise in float64 and moves the
optimizer; the parts are those that `batches` chooses after `check`, which fit the memory of the GPU. `captured` is the
same with `private.capture`, which replays the part of a step as a CUDA graph on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
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
    asked = parser.parse_args()
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
        with make_private(model, protect, units=count, batch_size=count, steps=asked.steps + 8) as private:
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
