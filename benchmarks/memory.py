"""What private training takes of a GPU: time and peak memory under a limit, and whether its kernels keep units apart.

python -m benchmarks.memory --json FILE                 BERT-base's and MiniLM's shapes, lengths 64 and 512, all limits
python -m benchmarks.memory --minilm FOLDER             MiniLM's weights and tokenizer from a folder
python -m benchmarks.memory --limits 24 0 --lengths 64  some of them; 0 GiB means no limit
python -m benchmarks.memory --device cpu --batch 64     the same path on a CPU, without limits

Each setting runs in a process of its own: private steps of the real trainer (bf16, DP-SGD, AdamW) on made-up texts of
exactly so many tokens, and of mixed lengths for `mixed`. Seconds are the median of the last steps. `certified` says
whether every shape that was used passed the bit-for-bit test on this device. Figures are written as they come.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

MODELS = {"minilm": (384, 6, 12, 1536), "bert-base": (768, 12, 12, 3072)}
WORDS = 2000
# Words that are one token in the usual vocabularies.
COMMON = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "was",
    "good",
    "bad",
    "house",
    "water",
    "river",
    "stone",
    "green",
    "blue",
    "long",
    "short",
    "cold",
    "warm",
    "music",
    "child",
]


def save_encoder(folder: Path, name: str) -> None:
    """Write a random encoder of a shape, with a tokenizer of one token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    width, layers, heads, inner = MODELS[name]
    torch.manual_seed(0)
    BertModel(
        BertConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner)
    ).save_pretrained(folder)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"w{i}" for i in range(WORDS))]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)


def texts_of(count: int, length: str, common: bool) -> list[str]:
    source = np.random.default_rng(0)
    if length == "mixed":  # short texts as in film reviews, a few of them long
        lengths = np.clip(source.lognormal(2.4, 0.6, size=count).astype(int), 1, 62)
    else:
        lengths = np.full(count, int(length) - 2)
    words = np.array(COMMON if common else [f"w{i}" for i in range(WORDS)])
    return [" ".join(words[source.integers(0, len(words), size=n)]) for n in lengths]


def measure(asked: argparse.Namespace) -> dict[str, object]:
    """Train a few private steps under one limit, and return what they took."""
    from discreet.core.randomness import Rng
    from discreet.data.corpus import Corpus
    from discreet.data.samplers import Poisson
    from discreet.models.build import ready
    from discreet.models.classifier import Classifier
    from discreet.models.settings import TrainSettings
    from discreet.protections.dp_sgd import DPSGD
    from discreet.training.engine import PrivateStep
    from discreet.training.loop import optimizer_for, set_rate
    from discreet.training.plan import TrainingPlan
    from discreet.training.steps import Parts

    device, limit = torch.device(asked.device), asked.limits[0]
    cuda = device.type == "cuda"
    if cuda and limit:
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit * 2**30 / total))
    model_name, length = asked.models[0], asked.lengths[0]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        if asked.encoder:
            folder = Path(asked.encoder)
        else:
            save_encoder(folder, model_name)
        texts = texts_of(2 * asked.batch, length, bool(asked.encoder))
        corpus = Corpus("made up", tuple(texts), labels=tuple(i % 2 for i in range(len(texts))))
        longest = 64 if length == "mixed" else int(length)
        model = Classifier.build(
            corpus, rng=Rng(1), encoder=str(folder), dropout=0.0, embeddings=asked.embeddings, max_length=longest
        ).to(device)
    model.train()
    settings = TrainSettings(batch_size=asked.batch, precision=asked.precision)
    protect, rows = DPSGD(1.0), ready(model, corpus)
    plan = TrainingPlan.make(model, corpus, protect=protect, training=settings, sampler=Poisson(0.5))
    with plan.open_ledger() as ledger:
        began = time.perf_counter()
        parts = Parts(model, optimizer_for(model, plan.settings), plan, rows, corpus)
        step = PrivateStep.of(parts, ledger, Rng(0))
        set_rate(step.optimizer, 1e-5)
        chosen = time.perf_counter() - began
        times = []
        for number in range(asked.steps + 1):
            if cuda:
                torch.cuda.synchronize()
                if number == 1:
                    torch.cuda.reset_peak_memory_stats()
            began = time.perf_counter()
            step(number)
            if cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
    return {
        "model": model_name,
        "length": length,
        "limit_gib": limit,
        "batch": asked.batch,
        "precision": asked.precision,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "seconds_a_step": statistics.median(times[1:]),
        "first_step": times[0],
        "choosing_seconds": chosen,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30 if cuda else None,
        "certified": not step.parts.unsteady,
        "plain_attention": step.parts.plain_attention,
        "rows": dict(step.parts.shapes.rows).get(longest),
        "shapes": [[list(shape), steady] for shape, steady in step.parts._steady.items()],
    }


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cpu", "cuda"])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--lengths", nargs="+", default=["64", "512", "mixed"])
    parser.add_argument("--limits", nargs="+", type=int, default=[0, 24, 16, 8], help="GiB; 0 is no limit")
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--precision", default="bf16", choices=["bf16", "float32"])
    parser.add_argument("--embeddings", action="store_true", help="train the word vectors too")
    parser.add_argument("--minilm", type=Path, help="folder with MiniLM's weights and tokenizer")
    parser.add_argument("--encoder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=300.0, help="begin no further setting after so long")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(given)


def main(given: list[str] | None = None) -> list[dict[str, object]]:
    """Run every setting in a process of its own, print a line for each, and return all figures."""
    asked = arguments(given)
    if asked.one:
        print(json.dumps(measure(asked)))
        return []
    rows: list[dict[str, object]] = []
    began = time.monotonic()
    limits = asked.limits if asked.device == "cuda" else [0]
    # The first limits are measured for every model first, so that what counts most is there if time runs out.
    settings = [(limit, name, length) for limit in limits for name in asked.models for length in asked.lengths]
    for limit, name, length in settings:
        if length == "mixed" and limit not in (limits[0], 24):
            continue
        if time.monotonic() - began > asked.seconds:
            print(f"not run: {name} {length} at {limit} GiB", flush=True)
            continue
        command = [sys.executable, "-m", "benchmarks.memory", "--one", "--device", asked.device]
        command += ["--models", name, "--lengths", length, "--limits", str(limit), "--batch", str(asked.batch)]
        command += ["--steps", str(asked.steps), "--precision", asked.precision]
        command += ["--embeddings"] if asked.embeddings else []
        command += ["--encoder", str(asked.minilm)] if name == "minilm" and asked.minilm else []
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        try:
            row = json.loads(done.stdout.splitlines()[-1])
        except (IndexError, json.JSONDecodeError):
            row = {"model": name, "length": length, "limit_gib": limit, "error": done.stderr[-2000:]}
        free = [r for r in rows if (r["model"], r["length"]) == (name, length) and "error" not in r]
        if free and "error" not in row:
            row["ratio"] = row["seconds_a_step"] / free[0]["seconds_a_step"]
        rows.append(row)
        print(json.dumps({key: value for key, value in row.items() if key != "shapes"}), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return rows


if __name__ == "__main__":
    main()
