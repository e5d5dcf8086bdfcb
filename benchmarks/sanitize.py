"""Rewriting words: how fast it is, what it costs over a training, and what is left of the task.

python -m benchmarks.sanitize speed DATA           10,000 sentences by each mechanism, one process
python -m benchmarks.sanitize cost [--figure F]    one word rewritten anew at every step, by three compositions
python -m benchmarks.sanitize utility DATA         accuracy of a head on the frozen encoder, texts rewritten
        [--features words] [--epsilons 8 20 40 60] [--rows 10000] [--device cuda] [--model PATH] [--json OUT]

With `--features words` a text is the mean of its words' vectors, without the encoder: seconds instead of minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DELTA = 1e-5
STEPS = (1, 10, 100, 1000, 10_000)


def speed(options: argparse.Namespace) -> dict[str, Any]:
    from discreet.cli.options import use_threads
    from discreet.core.randomness import Rng
    from discreet.data.sources import load
    from discreet.protections.words.swap import WordSwap
    from discreet.protections.words.table import WordTable, rare_words

    texts = load(options.data).split("train").texts[: options.rows]
    found: dict[str, Any] = {}
    use_threads(options.threads)
    for mechanism in ("santext", "santext+", "noise"):
        wall, cpu = time.perf_counter(), time.process_time()
        table = WordTable.of_encoder(options.model)
        marked = rare_words(table, texts[:100]) if mechanism == "santext+" else None  # only to have a list
        _, changes = WordSwap(table, 8.0, mechanism, marked).swap(texts, Rng.secret())
        found[mechanism] = {
            "seconds": round(time.perf_counter() - wall, 1),
            "cpu_seconds": round(time.process_time() - cpu, 1),
            "texts": changes.texts,
            "words": changes.words,
        }
    return found


def cost(options: argparse.Namespace) -> dict[str, Any]:
    from discreet.accounting.composition import advanced_composition
    from discreet.accounting.events import MetricDpEvent, SelfComposedDpEvent
    from discreet.accounting.interpret import epsilon

    found: dict[str, Any] = {}
    for price in (0.1, 1.0, 3.0, 8.0):
        for steps in STEPS:
            published = price * math.sqrt(2 * steps * math.log(1 / DELTA)) + steps * price * math.expm1(price)
            event = SelfComposedDpEvent(MetricDpEvent(price, "share", 1.0), steps)
            found[f"{price:g} x {steps}"] = {
                "paper, equation 10": published,
                "advanced": advanced_composition(price, 0.0, steps, DELTA)[0],
                "best": epsilon(event, DELTA, "replace-one"),
                "released once": price,
            }
    if options.figure:
        options.figure.write_text(figure(found), encoding="utf-8")
    return found


def figure(found: dict[str, dict[str, float]], price: str = "1") -> str:
    """Return the costs of one price over steps as a drawing with two logarithmic axes."""
    rows = {name: found[f"{price} x {n}"] for name, n in ((str(n), n) for n in STEPS)}
    left, right, top, bottom, highest = 60, 420, 20, 260, 6
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="310" font-family="sans-serif" font-size="12">',
        '<rect width="640" height="310" fill="white"/>',
    ]

    def across(step: int) -> float:
        return left + (right - left) * math.log10(step) / math.log10(STEPS[-1])

    def up(value: float) -> float:
        return bottom - (bottom - top) * math.log10(max(value, 1.0)) / highest

    for power in range(highest + 1):
        y = up(10**power)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    parts += [f'<text x="{across(n):.1f}" y="{bottom + 18}" text-anchor="middle">{n:,}</text>' for n in STEPS]
    parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 38}" text-anchor="middle">steps</text>')
    colours = {"paper, equation 10": "#b33", "advanced": "#d80", "best": "#06c", "released once": "#282"}
    for number, (name, colour) in enumerate(colours.items()):
        points = " ".join(f"{across(n):.1f},{up(rows[str(n)][name]):.1f}" for n in STEPS)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{right + 16}" y="{top + 20 + 20 * number}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{right + 16}" y="{top + 110}">epsilon of one word,</text>')
    parts.append(f'<text x="{right + 16}" y="{top + 126}">{price} for one use, delta 1e-5</text></svg>')
    return "\n".join(parts) + "\n"


def utility(options: argparse.Namespace) -> dict[str, Any]:
    import dataclasses

    import numpy as np

    from discreet.core.device import find_device
    from discreet.core.randomness import Rng
    from discreet.data.sources import load
    from discreet.models.build import encode
    from discreet.models.classifier import Classifier, ModelSettings
    from discreet.protections.words.swap import WordSwap
    from discreet.protections.words.table import WordTable
    from discreet.protections.words.token_noise import TokenNoise

    corpus = load(options.data)
    train, held = corpus.split("train"), corpus.split("validation")
    rows = Rng(0).permutation(len(train))[: options.rows]
    train = train.take(rows)
    table = WordTable.of_encoder(options.model)
    model = Classifier.build(corpus, ModelSettings(encoder=options.model, train="head"), rng=Rng(0))
    model.to(find_device(options.device))
    found: dict[str, Any] = {}

    def means_of(texts: Sequence[str]) -> Any:
        split = [table.split(text) for text in texts]
        names = sorted({word for words in split for word in words})
        rows, places = {name: row for row, name in enumerate(names)}, table.vectors_of(names)
        return np.stack([places[[rows[word] for word in words]].mean(0).numpy() for words in split])

    def keep(name: str, inputs: Sequence[Any], changed: float) -> None:
        from sklearn.linear_model import LogisticRegression

        fitted = LogisticRegression(max_iter=500).fit(inputs[0], train.labels)
        found[name] = {"accuracy": round(float(fitted.score(inputs[1], held.labels)), 4), "changed": round(changed, 3)}
        print(f"{name:22} {found[name]}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")

    def vectors(texts: Sequence[Sequence[str]]) -> list[Any]:
        if options.features == "words":
            return [means_of(part) for part in texts]
        both = zip((train, held), texts, strict=True)
        return [encode(model, dataclasses.replace(c, texts=tuple(t))).vectors.cpu().numpy() for c, t in both]

    keep("open", vectors((train.texts, held.texts)), 0.0)
    for epsilon in options.epsilons:
        for mechanism in options.mechanisms:
            swap = WordSwap(table, epsilon, mechanism)
            (first, changes), (second, _) = (
                swap.swap(c.texts, Rng(1).fork(c.name, n)) for n, c in enumerate((train, held))
            )
            keep(f"{mechanism} {epsilon:g}", vectors((first, second)), changes.changed / changes.words)
        noise = TokenNoise(table, epsilon)
        means = []
        for number, part in enumerate((train, held)):
            sums = []
            for start in range(0, len(part), 2000):
                sent = noise.release(part.texts[start : start + 2000], Rng(1).fork("tokens", number, start)).vectors
                count = (sent.abs().sum(-1, keepdim=True) > 0).sum(1).clamp_min(1)
                sums.append((sent.sum(1) / count).numpy())
            means.append(np.concatenate(sums))
        keep(f"token-noise {epsilon:g}", means, 1.0)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "cost", "utility"])
    parser.add_argument("data", nargs="?", default="reviews")
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8, 20, 30, 40, 60])
    parser.add_argument("--mechanisms", nargs="+", default=["santext", "noise"])
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--features", choices=["encoder", "words"], default="encoder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--threads", type=int, default=1, help="of speed; as in `discreet sanitize`")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    found = {"speed": speed, "cost": cost, "utility": utility}[options.what](options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    for name, row in found.items():
        print(
            f"{name:22} " + "  ".join(f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        )


if __name__ == "__main__":
    main()
