"""What a private step of `discreet train` costs on a GPU, over an unprotected one that is captured as a CUDA graph.

python -m benchmarks.train_step DATA/sst2 --minilm FOLDER         MiniLM and BERT-base, batches of 256 and 4,096
python -m benchmarks.train_step DATA/sst2 --minilm FOLDER --parts what one part of each shape costs, private and plain

Both sides are the steps of `discreet train`, taken in one process, in turn where both fit the memory, in bf16, with the
settings that dp-sgd has by default (all layers but the embeddings, no dropout) on either side. A private step draws its
units, counts its cost, reads their rows, replays its parts and ends with noise in float64 and the optimizer; a plain
one reads a shuffled batch and replays forward, backward, clip and optimizer. `sst2` are rows of SST-2, whose lengths
differ; `fixed` are texts that fill 64 tokens, where longer ones are truncated. BERT-base has random weights. Times are
medians over blocks of steps.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.core.randomness import Rng
from discreet.data.batches import Part, Tokens, tokens_for
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.models.classifier import Classifier
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.training.capture import PartGraphs
from discreet.training.engine import Engine, PrivateStep
from discreet.training.loop import optimizer_for, set_rate
from discreet.training.plan import TrainingPlan
from discreet.training.steps import OpenStep, Parts, Step

LENGTH, BLOCK = 64, 10


def bert_base(minilm: Path, folder: Path) -> Path:
    """Write BERT-base with random weights and MiniLM's tokenizer."""
    import transformers

    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig()).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    return folder


def corpora(data: str, rows: int) -> dict[str, Corpus]:
    """Return SST-2, and as many texts that fill 64 tokens."""
    sst2 = load(data, classes=("0", "1")).split("train").take(range(rows))
    words = [text.split() for text in sst2.texts]
    long = tuple(" ".join((words[i] + words[(i + 1) % rows] + ["film"] * LENGTH)[:LENGTH]) for i in range(rows))
    return {"fixed": replace(sst2, texts=long), "sst2": sst2}


def steps_of(
    folder: Path, corpus: Corpus, batch: int, private: bool, steps: int, length: int | None = LENGTH
) -> tuple[Step, Callable[[int], None]]:
    """Return the step of a training, and a function that takes it."""
    settings = ModelSettings(str(folder), train="all", embeddings=False, dropout=0.0, max_length=length)
    model = Classifier.build(corpus, settings, rng=Rng(1)).to(torch.device("cuda"))
    protect = DPSGD(noise_multiplier=1.0) if private else None
    # The values that dp-sgd has by default, on both sides.
    train = TrainSettings(
        batch_size=batch, epochs=steps * batch / len(corpus), learning_rate=1e-3, weight_decay=0.0, warmup=0.0,
        precision="bf16", head_share=0.0,
    )  # fmt: skip
    plan = TrainingPlan.make(model, corpus, protect=protect, training=train)
    rows = tokens_for(model, corpus)
    parts = Parts(model, optimizer_for(model, plan.settings), plan, rows, corpus)
    step: Step = OpenStep.of(parts)
    if private:
        step = PrivateStep.of(parts, plan.open_ledger(), Rng.secret())
        step.account.run = "benchmark"
        step.reserve(0)
    model.train()

    def take(number: int) -> None:
        set_rate(parts.optimizer, plan.rate_at(number))
        step(number)

    return step, take


def blocks(takes: dict[str, Callable[[int], None]], steps: int, warm: int) -> dict[str, list[float]]:
    """Return milliseconds a step of each side, in blocks that take turns."""
    for take in takes.values():
        for number in range(warm):
            take(number)
    seconds: dict[str, list[float]] = {name: [] for name in takes}
    for start in range(warm, steps - BLOCK + 1, BLOCK):
        for name, take in takes.items():
            torch.cuda.synchronize()
            begun = time.perf_counter()
            for number in range(start, start + BLOCK):
                take(number)
            torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - begun) / BLOCK * 1e3)
    return seconds


def whole_steps(folder: Path, corpus: Corpus, batch: int, length: int | None, profile: bool) -> dict[str, Any]:
    """Return the times of both sides; one after the other where both together do not fit the memory."""
    steps = 72 if batch <= 1024 else 36
    warm = 12 if batch <= 1024 else 6
    together = batch * (length or 64) < 1 << 17
    times: dict[str, list[float]] = {}
    plain = steps_of(folder, corpus, batch, False, steps, length)[1]
    if not together:
        times |= blocks({"plain": plain}, steps, warm)
        del plain
        gc.collect()
        torch.cuda.empty_cache()
    begun = time.perf_counter()
    private, take = steps_of(folder, corpus, batch, True, steps, length)
    assert isinstance(private, PrivateStep)
    private.parts.prepare()
    prepared = time.perf_counter() - begun
    times |= blocks({"private": take, "plain": plain} if together else {"private": take}, steps, warm)
    medians = {name: statistics.median(values) for name, values in times.items()}
    planned = private.planned(steps - 1)
    result = {
        **medians,
        "ratio": medians["private"] / medians["plain"],
        "together": together,
        "blocks": {name: [round(value, 3) for value in values] for name, values in times.items()},
        "seconds to prepare": prepared,
        "parts": [[part.units, part.width, part.real] for part in planned.parts],
        "captured": sum(one is not None for one in private.parts._captured.values()),
        "shapes": [list(pair) for pair in private.parts.shapes.rows],
        "plain attention": private.parts.kernels.plain_attention,
        "caveats": sorted(caveat.value for caveat in private.account.caveats),
        "certified": private.guarantee().certified,
    }
    if profile:
        result["profile"] = profiled(take, steps)
    return result


def profiled(take: Callable[[int], None], steps: int) -> list[str]:
    """Return where the host spends its time in some steps."""
    import cProfile
    import io
    import pstats

    profile = cProfile.Profile()
    profile.enable()
    for number in range(steps - BLOCK, steps):
        take(number)
    torch.cuda.synchronize()
    profile.disable()
    out = io.StringIO()
    pstats.Stats(profile, stream=out).sort_stats("tottime").print_stats(18)
    return [line[:110] for line in out.getvalue().splitlines()[6:] if line.strip()]


def one_part(folder: Path, corpus: Corpus, widths: list[int], most: int) -> list[dict[str, Any]]:
    """Return what a part of each shape costs: its graph, and the plain captured step of the same shape."""
    found = []
    private, _ = steps_of(folder, corpus, 256, True, 100)
    plain, _ = steps_of(folder, corpus, 256, False, 100)
    assert isinstance(private, PrivateStep) and isinstance(plain, OpenStep)
    tokens = private.rows
    assert isinstance(tokens, Tokens)
    for width in widths:
        rows = 32
        while rows * width <= most:
            engine = Engine(private.engine.tape, private.protect, 256.0)
            graphs = PartGraphs(engine.tape, private.protect, private.parts.losses_of)
            part = Part(np.arange(rows, dtype=np.int64), rows, 1, width, rows)
            batch = tokens.made_up(rows, width, len(private.model.tokenizer), 2, Rng(0), padded=False)
            private.engine.record(private.parts.losses_of, batch, part, False)
            captured = graphs._captured(batch, part, None)
            for _ in range(3):
                plain.take(batch)
            entry = {"rows": rows, "width": width, "plain": median_of(lambda batch=batch: plain.take(batch))}
            if captured is not None:
                entry["private"] = median_of(captured.replay)
                entry["ratio"] = entry["private"] / entry["plain"]
            found.append(entry)
            graphs.forget()
            plain.take.captured.clear()  # type: ignore[union-attr]
            rows *= 2
    return found


def median_of(run: Callable[[], Any], count: int = 20) -> float:
    times = []
    for _ in range(count):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begun) * 1e3)
    return statistics.median(times[3:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("train_step.json"))
    parser.add_argument("--models", nargs="+", default=["minilm", "bert-base"])
    parser.add_argument("--batches", nargs="+", type=int, default=[256, 4096])
    parser.add_argument("--texts", nargs="+", default=["fixed", "sst2"])
    parser.add_argument("--rows", type=int, default=65_536)
    parser.add_argument("--parts", action="store_true")
    parser.add_argument("--profile", action="store_true")
    chosen = parser.parse_args()
    found: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    texts = corpora(chosen.data, chosen.rows)

    def note(name: str, run: Callable[[], Any]) -> None:
        try:
            found[name] = run()
        except Exception as error:  # the others are measured all the same
            found[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        chosen.out.write_text(json.dumps(found, indent=1), encoding="utf-8")
        torch.cuda.empty_cache()
        shown = found[name]
        brief = ("private", "plain", "ratio", "certified", "caveats", "captured", "parts", "error")
        print(name, {k: shown[k] for k in brief if k in shown} if isinstance(shown, dict) else shown, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        folders = {"minilm": chosen.minilm}
        if "bert-base" in chosen.models:
            folders["bert-base"] = bert_base(chosen.minilm, Path(scratch) / "bert")
        for model in chosen.models:
            if chosen.parts:
                note(
                    f"{model} parts",
                    lambda model=model: one_part(folders[model], texts["fixed"], [16, 32, 64], 1 << 17),
                )
            for text in chosen.texts:
                for batch in chosen.batches:
                    length = LENGTH if text == "fixed" else None  # truncated texts, or those of SST-2 as they are
                    run = lambda m=model, t=text, b=batch, n=length: whole_steps(  # noqa: E731
                        folders[m], texts[t], b, n, chosen.profile
                    )
                    note(f"{model} {text} {batch}", run)


if __name__ == "__main__":
    main()
