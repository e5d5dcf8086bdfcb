"""Decepticons on real sentences: what crafted weights bring back from a batch, without noise, clipped, and under noise.

python -m benchmarks.decepticons DATA --loss classifier --batches 5
python -m benchmarks.decepticons DATA --loss masked --batches 3 --noise 0 1e-12 1e-10 --kappas 1e20 1e18 --json OUT
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from discreet.attacks.crafted.decepticons import Decepticons
from discreet.clipping.tape import Tape
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.batches import tokenise
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.metrics.table import text_leakage
from discreet.metrics.text import match
from discreet.models.classifier import Classifier
from discreet.models.language_model import LanguageModel
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

Release = Callable[[Corpus, Rng], GradientRelease]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--loss", choices=("classifier", "masked"), default="classifier")
    parser.add_argument("--pooling", default="mean")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--sharpness", type=float, default=Decepticons().sharpness)
    parser.add_argument("--noise", type=float, nargs="*", default=[], help="noise multipliers, clip 1; 0 is clip alone")
    parser.add_argument("--kappas", type=float, nargs="*", default=[], help="of directional noise")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no batch after this time")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def releases(model: Classifier, asked: argparse.Namespace) -> dict[str, Release]:
    """Return what each way to send a batch's gradient lets the server see."""

    def clipped(noise: float) -> Release:
        return lambda batch, rng: protected_release(model, batch, DPSGD(noise, 1.0), rng, delta=1e-5)

    def turned(kappa: float) -> Release:
        protect = DirDPSGD.for_model(model, kappa)
        return lambda batch, rng: _directions(model, batch, protect, rng)

    ways: dict[str, Release] = {"plain": lambda batch, rng: open_release(model, batch)}
    ways |= {f"clip 1, noise {noise:g}": clipped(noise) for noise in asked.noise}
    return ways | {f"kappa {kappa:g}": turned(kappa) for kappa in asked.kappas}


def _directions(model: Classifier, batch: Corpus, protect: DirDPSGD, rng: Rng) -> GradientRelease:
    """Return noisy directions without their guarantee: there is none to speak of at a kappa that leaves a trace."""
    tokens = tokenise(batch, model.tokenizer, model.max_length, model.device)
    drawn = tokens.batch(np.arange(len(batch), dtype=np.int64))
    tape, sums = Tape(model.eval()), dict[str, torch.Tensor]()
    with tape:
        losses = model.losses(drawn.inputs, drawn.targets)
    protect.gather(tape.backward(losses), sums, rng)
    return GradientRelease(sums, len(batch), lengths=tuple(tokens.lengths.tolist()))


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    rng = Rng(asked.seed)
    corpus = load(asked.data)
    if asked.loss == "masked":
        model: Classifier = LanguageModel.open(asked.model, rng=rng.fork("model"))
    else:
        model = Classifier.build(corpus, rng=rng.fork("model"), encoder=asked.model, pooling=asked.pooling)
    model = model.to(asked.device)
    attack = Decepticons(sharpness=asked.sharpness)
    crafted = attack.craft(model, rng.fork("craft"))
    texts = corpus.split(asked.split)
    chosen = texts.take(rng.fork("texts").permutation(len(texts))[: asked.batches * asked.batch_size])
    began = time.monotonic()
    results: list[dict[str, Any]] = []
    print(f"{Path(asked.data).name}, {asked.loss} loss, batch {asked.batch_size}, sharpness {asked.sharpness:g}")
    for name, release in releases(crafted, asked).items():
        guesses: list[str] = []
        truths: list[str] = []
        seconds: list[float] = []
        exact = 0
        for start in range(0, len(chosen) - asked.batch_size + 1, asked.batch_size):
            if time.monotonic() - began > asked.seconds:
                break
            batch = chosen.take(range(start, start + asked.batch_size))
            seen = release(batch, rng.fork("release", start))
            clock = time.monotonic()
            guess = attack.run(seen, Knowledge(model=crafted), rng.fork("attack", start))
            seconds.append(time.monotonic() - clock)
            rows = [tuple(row) for row in model.tokenizer(list(batch.texts))["input_ids"]]
            exact += sum(row in guess.details["tokens"] for row in rows)
            spelled = [model.tokenizer.decode(list(row), skip_special_tokens=True) for row in rows]
            truths += spelled
            guesses += match(guess.texts, spelled)
        if not truths:
            break
        leak = text_leakage("rouge_l", guesses, truths, rng=rng.fork("interval"))
        line = {"release": name, "exact": exact, "n": len(truths), "rouge_l": leak.value, "low": leak.low}
        line |= {"high": leak.high, "chance": leak.chance, "median_seconds": round(median(seconds), 2)}
        results.append(line)
        print(f"{name:24s} exact {exact}/{len(truths)}  {leak}  {median(seconds):.1f} s a batch", flush=True)
        if asked.json:
            asked.json.write_text(json.dumps({"settings": {**vars(asked), "json": None}, "results": results}, indent=1))


if __name__ == "__main__":
    main()
