"""DAGER on real sentences: how many are read exactly from a shared gradient, how alike the rest, and in what time.

python -m benchmarks.dager DATA --batch-size 1 --examples 100
python -m benchmarks.dager DATA --batch-size 4 --examples 40 --split validation --noise 0
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch

from discreet.attacks.gradient.dager import Dager
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.sources import load
from discreet.metrics.intervals import clopper_pearson
from discreet.metrics.text import match, text_leakage
from discreet.models.classifier import Classifier
from discreet.training.release import open_release


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument(
        "--noise", type=float, default=0.0, help="standard deviation added to the gradient scaled to norm 1"
    )
    parser.add_argument("--no-lengths", action="store_true", help="do not tell the attacker the lengths")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no batch after this time")
    return parser.parse_args()


def noisy(seen: GradientRelease, std: float, rng: Rng) -> GradientRelease:
    """Return a release scaled to norm 1 with Gaussian noise on every number, its size known to the attacker."""
    if not std:
        return seen
    norm = float(torch.sqrt(sum((g.square().sum() for g in seen.gradients.values()), torch.zeros(()))))
    source = rng.torch()
    gradients = {n: g / norm + std * torch.randn(g.shape, generator=source) for n, g in seen.gradients.items()}
    return replace(seen, gradients=gradients, noise_std=std)


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    rng = Rng(asked.seed)
    corpus = load(asked.data)
    model = Classifier.build(corpus, rng=rng.fork("model"), encoder=asked.model)
    texts = corpus.split(asked.split)
    chosen = texts.take(rng.fork("texts").permutation(len(texts))[: asked.examples])
    attack, knows = Dager(), Knowledge(model=model)
    guesses: list[str] = []
    truths: list[str] = []
    seconds: list[float] = []
    exact = confirmed = wrong = pairs = pairs_found = pairs_named = 0
    began = time.monotonic()
    for start in range(0, len(chosen) - asked.batch_size + 1, asked.batch_size):
        if time.monotonic() - began > asked.seconds:
            break
        batch = chosen.take(range(start, start + asked.batch_size))
        seen = noisy(open_release(model, batch), asked.noise, rng.fork("noise", start))
        if asked.no_lengths:
            seen = replace(seen, lengths=None)
        clock = time.monotonic()
        guess = attack.run(seen, knows, rng.fork("attack", start))
        seconds.append((time.monotonic() - clock) / asked.batch_size)
        rows = [tuple(row) for row in model.tokenizer(list(batch.texts))["input_ids"]]
        exact += sum(row in guess.details["tokens"] for row in rows)
        sure = [row for row, good in zip(guess.details["tokens"], guess.details["confirmed"], strict=True) if good]
        confirmed += len(sure)
        wrong += sum(row not in rows for row in sure)
        true = {(place, token) for row in rows for place, token in enumerate(row)}
        pairs += len(true)
        pairs_found += len(true & set(guess.details["pairs"]))
        pairs_named += len(guess.details["pairs"])
        # the tokenizer's own spelling of the truth: case and spaces are not in the gradient
        spelled = [model.tokenizer.decode(list(row), skip_special_tokens=True) for row in rows]
        truths += spelled
        guesses += match(guess.texts, spelled)
    low, high = clopper_pearson(exact, len(truths))
    print(f"{Path(asked.data).name} {asked.split}, batch {asked.batch_size}, noise {asked.noise:g}, n = {len(truths)}")
    print(f"every token right: {exact}/{len(truths)} = {exact / len(truths):.3f} [{low:.3f}, {high:.3f}]")
    print(f"confirmed by the second block: {confirmed}, of them wrong: {wrong}")
    print(f"(position, token) pairs: {pairs_found} of {pairs} found, {pairs_named} named with aliases")
    for metric in ("rouge_1", "rouge_2", "rouge_l", "lcs_over_longer"):
        print(text_leakage(metric, guesses, truths, rng=rng.fork(metric)))
    print(f"seconds a sentence, one core: median {median(seconds):.2f}, most {max(seconds):.2f}")
    print(json.dumps({"exact": exact, "n": len(truths), "median_seconds": round(median(seconds), 3)}))


if __name__ == "__main__":
    main()
