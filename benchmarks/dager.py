"""DAGER on real sentences: how many are read exactly from what a client shares, how alike the rest, and in what time.

python -m benchmarks.dager DATA --batch-size 1 --examples 100
python -m benchmarks.dager DATA --protect texthide --batch-size 4 --examples 40
python -m benchmarks.dager DATA --protect dp-sgd --batch-size 1 2 4 8 --noise 0 1e-7 1e-6 1e-5 --examples 8
python -m benchmarks.dager DATA --protect dir-dp-sgd --kappas 1e14 1e12 1e10 --examples 8
python -m benchmarks.dager DATA --protect dp-sgd --noise 1e-5 1e-4 --examples 8 --attack subspace
python -m benchmarks.dager DATA --protect lora --rank 128 --batch-size 2 --examples 20
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from discreet.attacks.span.dager import Dager
from discreet.attacks.span.subspace import Subspace
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.batches import tokenise
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.metrics.intervals import clopper_pearson
from discreet.metrics.table import text_leakage
from discreet.metrics.text import match
from discreet.models.classifier import Classifier
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.texthide import TextHide
from discreet.releases.gradient import open_release, protected_release

Share = Callable[[Corpus, Rng], GradientRelease]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--protect", choices=("none", "dp-sgd", "dir-dp-sgd", "texthide", "lora"), default="none")
    parser.add_argument("--attack", choices=("dager", "subspace"), default="dager", help="subspace follows distances")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1])
    parser.add_argument("--examples", type=int, default=100)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0], help="noise multipliers of DP-SGD, clip 1")
    parser.add_argument("--kappas", type=float, nargs="+", default=[1e12], help="of directional DP-SGD")
    parser.add_argument("--masks", type=int, default=256, help="of TextHide")
    parser.add_argument("--mix", type=int, default=4, help="of TextHide")
    parser.add_argument("--rank", type=int, default=128, help="of low-rank adapters, needs peft")
    parser.add_argument("--no-lengths", action="store_true", help="do not tell the attacker the lengths")
    parser.add_argument("--rounds", type=int, default=Dager().rounds)
    parser.add_argument("--starts", type=int, default=Dager().starts)
    parser.add_argument("--steps", type=int, default=Dager().steps)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no batch of a setting after this time")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def ways(model: Classifier, asked: argparse.Namespace) -> Iterator[tuple[str, Share]]:
    """Yield each way to share a batch's gradient, by name."""
    if asked.protect in {"none", "lora"}:
        yield asked.protect, lambda batch, rng: open_release(model, batch)
    elif asked.protect == "texthide":
        protect = TextHide(asked.masks, asked.mix)
        yield f"texthide ({asked.masks}, {asked.mix})", lambda batch, rng: hidden(model, batch, protect, rng)
    else:
        levels = asked.noise if asked.protect == "dp-sgd" else asked.kappas
        for level in levels:
            yield f"{asked.protect} {level:g}", _protected(model, asked.protect, level)


def _protected(model: Classifier, kind: str, level: float) -> Share:
    protect = DPSGD(level, clip_norm=1.0) if kind == "dp-sgd" else DirDPSGD.for_model(model, level)
    return lambda batch, rng: protected_release(model, batch, protect, rng, delta=1e-5)


def hidden(model: Classifier, batch: Corpus, protect: TextHide, secret: Rng) -> GradientRelease:
    """Return the mean gradient of a batch whose sentence vectors were mixed and masked before the head."""
    tokens = tokenise(batch, model.tokenizer, model.max_length, model.device)
    rows = np.arange(len(batch), dtype=np.int64)
    drawn = tokens.batch(rows)
    vectors = model.eval().represent(drawn.inputs)
    at_work = protect.live(len(batch), model.width, len(model.label_names), secret, model.device)
    masked, soft = at_work.hide(vectors, drawn.targets, at_work.draw(rows, tuple(vectors.shape), 0, 0))
    loss = torch.nn.functional.cross_entropy(model.decide(masked), soft)
    names, weights = zip(*((n, p) for n, p in model.named_parameters() if p.requires_grad), strict=True)
    found = torch.autograd.grad(loss, weights)
    return GradientRelease(dict(zip(names, found, strict=True)), len(batch), lengths=tuple(tokens.lengths.tolist()))


def adapted(model: Classifier, rank: int, rng: Rng) -> Classifier:
    """Return a model whose queries and values are trained through low-rank adapters, as they are after some steps."""
    from peft import LoraConfig, get_peft_model

    model.encoder = get_peft_model(model.encoder, LoraConfig(r=rank, target_modules=["query", "value"]))
    source = rng.torch()
    for name, weight in model.named_parameters():
        if "lora_B" in name:  # zero before the first step, and then the first factor has no gradient
            weight.data.copy_(0.01 * torch.randn(weight.shape, generator=source))
    return model


def measure(name: str, share: Share, size: int, model: Classifier, chosen: Corpus, asked: argparse.Namespace) -> Any:
    """Return and print what the attack reads of all batches of one size."""
    rng = Rng(asked.seed).fork(name, size)
    attack: Dager | Subspace = Subspace(starts=asked.starts, steps=asked.steps)
    if asked.attack == "dager":
        attack = Dager(rounds=asked.rounds, starts=asked.starts, steps=asked.steps)
    guesses: list[str] = []
    truths: list[str] = []
    seconds: list[float] = []
    exact = confirmed = wrong = pairs = found = named = kept = right = 0
    began = time.monotonic()
    for start in range(0, len(chosen) - size + 1, size):
        if time.monotonic() - began > asked.seconds:
            break
        batch = chosen.take(range(start, start + size))
        seen = share(batch, rng.fork("share", start))
        seen = replace(seen, labels=None, lengths=None if asked.no_lengths else seen.lengths)
        clock = time.monotonic()
        guess = attack.run(seen, Knowledge(model=model), rng.fork("attack", start))
        seconds.append((time.monotonic() - clock) / size)
        rows = [tuple(row) for row in model.tokenizer(list(batch.texts))["input_ids"]]
        exact += sum(row in guess.details["tokens"] for row in rows)
        good = guess.details.get("confirmed", ())  # the subspace attack confirms nothing
        sure = [row for row, certain in zip(guess.details["tokens"], good, strict=False) if certain]
        confirmed += len(sure)
        wrong += sum(row not in rows for row in sure)
        true = {(place, token) for row in rows for place, token in enumerate(row)}
        second = {(place, token) for row in sure for place, token in enumerate(row)}
        pairs += len(true)
        found += len(true & set(guess.details.get("pairs", ())))
        named += len(guess.details.get("pairs", ()))
        kept += len(second)
        right += len(second & true)
        # the tokenizer's own spelling of the truth: case and spaces are not in the gradient
        spelled = [model.tokenizer.decode(list(row), skip_special_tokens=True) for row in rows]
        truths += spelled
        guesses += match(guess.texts, spelled)
    low, high = clopper_pearson(exact, len(truths))
    leaks = [text_leakage(m, guesses, truths, rng=rng.fork(m)) for m in ("rouge_1", "rouge_2", "rouge_l")]
    print(f"\n{Path(asked.data).name} {asked.split}, {asked.attack}, {name}, batch {size}, n = {len(truths)}")
    print(f"every token right: {exact}/{len(truths)} = {exact / len(truths):.3f} [{low:.3f}, {high:.3f}]")
    print(f"confirmed by the second block: {confirmed}, of them wrong: {wrong}")
    print(f"(position, token) pairs: {found} of {pairs} found, {named} named by the first block with aliases")
    print(f"pairs after the second block: {kept} of {pairs}, of them right: {right}")
    print(*leaks, sep="\n")
    print(f"seconds a sentence, one core: median {median(seconds):.2f}, most {max(seconds):.2f}", flush=True)
    counts = {"exact": exact, "n": len(truths), "confirmed": confirmed, "wrong": wrong, "pairs": pairs}
    counts |= {"pairs_found": found, "pairs_named": named, "pairs_kept": kept, "pairs_right": right}
    rouge = {leak.metric: [leak.value, leak.low, leak.high, leak.chance] for leak in leaks}
    return {"release": name, "batch": size, **counts, **rouge, "median_seconds": round(median(seconds), 3)}


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    rng = Rng(asked.seed)
    corpus = load(asked.data)
    model = Classifier.build(corpus, rng=rng.fork("model"), encoder=asked.model).to(asked.device)
    if asked.protect == "lora":
        model = adapted(model, asked.rank, rng.fork("adapters"))
    texts = corpus.split(asked.split)
    chosen = texts.take(rng.fork("texts").permutation(len(texts))[: asked.examples])
    results: list[Any] = []
    for name, share in ways(model, asked):
        for size in asked.batch_size:
            results.append(measure(name, share, size, model, chosen, asked))
            if asked.json:
                shown = {**vars(asked), "json": None}
                asked.json.write_text(json.dumps({"settings": shown, "results": results}, indent=1))
    print("\nrelease, batch: every token right, ROUGE-L")
    for line in results:
        print(f"{line['release']:24s} {line['batch']}: {line['exact']}/{line['n']}, {line['rouge_l'][0]:.3f}")


if __name__ == "__main__":
    main()
