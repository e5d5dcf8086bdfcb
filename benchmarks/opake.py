"""A clipped step of ours and of opake beside a plain one, on the CPU, in one process.

python -m benchmarks.opake                         a Llama-shaped model, 16 rows of 64 tokens, all parameters trained

opake (JetBrains, PyPI) needs an environment of its own: `pip install opake==0.16.1 transformers dp_accounting numpy`
under Python 3.13, and PYTHONPATH=src; its accounting does not import under Python 3.11. It forms each example's
gradient by `torch.func.vmap`, which has no batching rule for fused attention on the CPU, so the default is `eager`.
Both sides clip each row to norm 1 and add nothing. The sides take turns, times are medians of processor time, and the
sums are compared.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.clipping import Flat, Tape, clipped_sum

CLIP = 1.0


def build(width: int, layers: int, vocabulary: int, attention: str) -> torch.nn.Module:
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=3 * width,
        vocab_size=vocabulary,
        tie_word_embeddings=False,
        use_cache=False,
        attn_implementation=attention,
    )
    return transformers.LlamaForCausalLM(config).train()


def row_losses(logits: Tensor, ids: Tensor) -> Tensor:
    return F.cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def sides(model: torch.nn.Module, ids: Tensor) -> dict[str, Callable[[], dict[str, Tensor]]]:
    from opake.dpsgd.clipping import clipped_grad  # type: ignore[import-not-found]
    from opake.patches import apply_model_patches, apply_runtime_patches  # type: ignore[import-not-found]

    tape = Tape(model)

    def plain() -> dict[str, Tensor]:
        model.zero_grad()
        row_losses(model(input_ids=ids).logits, ids).sum().backward()  # type: ignore[no-untyped-call]
        return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}

    def ours() -> dict[str, Tensor]:
        with tape:
            losses = row_losses(model(input_ids=ids).logits, ids)
        return clipped_sum(tape.backward(losses), Flat(CLIP)).gradients

    patched = copy.deepcopy(model)
    apply_runtime_patches()
    apply_model_patches(patched)
    parameters = {name: p.detach() for name, p in patched.named_parameters()}

    def loss_of(values: dict[str, Tensor], row: Tensor) -> Tensor:
        logits = torch.func.functional_call(patched, values, kwargs={"input_ids": row[None]}).logits
        return row_losses(logits, row[None]).sum()

    gradients_of, start = clipped_grad(loss_of, clipping_norm=CLIP, batch_argnums=(1,))
    state = [start]

    def opake() -> dict[str, Tensor]:
        clipped, state[0] = gradients_of(parameters, ids, state=state[0])
        return dict(clipped.pytree)

    return {"plain": plain, "ours": ours, "opake": opake}


def main(given: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--attention", default="eager", choices=["eager", "sdpa"], help="of all sides")
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(given)
    torch.set_num_threads(1)
    model = build(asked.width, asked.layers, asked.vocabulary, asked.attention)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(asked.vocabulary, (asked.rows, asked.length), generator=generator)
    steps = sides(model, ids)
    sums = {side: {name: value.clone() for name, value in step().items()} for side, step in steps.items()}
    seconds: dict[str, list[float]] = {side: [] for side in steps}
    for _ in range(asked.steps):
        for side, step in steps.items():
            begun = time.process_time()
            step()
            seconds[side].append(time.process_time() - begun)
    medians = {side: statistics.median(times) for side, times in seconds.items()}
    found: dict[str, Any] = {"torch": torch.__version__, "seconds": medians}
    found["ratio"] = {side: value / medians["plain"] for side, value in medians.items()}
    ours, theirs = (torch.cat([sums[side][name].flatten() for name in sums["ours"]]) for side in ("ours", "opake"))
    scale = float((ours @ theirs) / (theirs @ theirs))  # opake may divide by the number of rows
    found["difference"] = float((ours - scale * theirs).norm() / ours.norm())
    print(json.dumps(found, indent=1))
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
