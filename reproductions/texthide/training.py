"""TextHide beside plain training: the bars, the table over masks and mixtures, public partners, and the overhead.

    python -m reproductions.texthide.training SST2 --cola COLA --public sentences.txt --device cuda --model PATH \
        --json OUT
    python -m reproductions.texthide.training SST2 --what overhead --steps 60                          # on a CPU

`--what` picks parts, in this order if nothing is said: sst2 cola inter grid overhead. Results are saved as they come.
The public file has one sentence a line; what occurs in the private corpus is removed first.
`reproductions.texthide.neutral_phrases` writes one that says little of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.turns import in_turns, step_of

from discreet.core.device import find_device
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus, hold_out, without_overlap
from discreet.data.sources import load
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.texthide import PUBLIC_LABELS, OneMask, TextHide
from discreet.training.evaluation import evaluate
from discreet.training.loop import train
from discreet.training.plan import TrainingPlan

MASKS, MIXES = (1, 16, 64, 256, 512, 1024, 4096), (1, 2, 3, 4, 8)
PARTS = ("sst2", "cola", "inter", "grid", "overhead")
METRICS = {"sst2": "accuracy", "cola": "matthews"}


@dataclass(frozen=True)
class Recipe:
    """How long, how fast, and how vectors are made."""

    epochs: float
    batch_size: int
    rate: float
    warmup: float = 0.1
    pooling: str = "mean"
    cap: float | None = None
    head_rate: float = 1.0
    dropout: float | None = None


# The first that does best on a tenth of the training rows, held out, is taken; then it is trained on all of them.
SST2 = (Recipe(4, 64, 1e-4), Recipe(4, 64, 1e-4, head_rate=5.0))
COLA = (
    Recipe(30, 32, 5e-5, head_rate=10.0),
    Recipe(30, 32, 1e-4, head_rate=5.0),
    Recipe(30, 32, 1e-4, head_rate=5.0, dropout=0.0),
    Recipe(30, 32, 2e-4, head_rate=2.0),
)
GRID = Recipe(8, 64, 1e-4, head_rate=5.0)


class Bench:
    """Runs trainings and keeps what they gave, on disk after each."""

    def __init__(self, asked: argparse.Namespace) -> None:
        """Read nothing yet."""
        self.asked = asked
        self.device = find_device(asked.device)
        self.rows: list[dict[str, Any]] = []
        self.public: Corpus | None = None

    def one(
        self, part: str, corpus: Corpus, recipe: Recipe, protect: TextHide | None, seed: int, averaged: bool = True
    ) -> dict[str, Any]:
        """Train once and return its scores; masks, partners and batches come from the seed, so that runs repeat."""
        if self.asked.epochs:
            recipe = replace(recipe, epochs=self.asked.epochs)
        rng, secret = Rng(seed), Rng(seed).fork("secret")
        chosen = ModelSettings(encoder=self.asked.model, head="mlp", pooling=recipe.pooling, dropout=recipe.dropout)
        model = Classifier.build(corpus, chosen, rng=rng.fork("model")).to(self.device)
        settings = TrainSettings(
            epochs=recipe.epochs,
            batch_size=recipe.batch_size,
            learning_rate=recipe.rate,
            warmup=recipe.warmup,
            head_rate=recipe.head_rate,
        )
        began = time.monotonic()
        public = self.public if protect is not None and protect.needs_public else None
        plan = TrainingPlan.make(model, corpus, protect=protect, training=settings, public=public, seed=seed)
        train(model, corpus, plan, secret=secret if protect else None)
        seconds = time.monotonic() - began
        held_out = corpus.split("validation")
        row: dict[str, Any] = {"part": part, "seed": seed, "masks": 0, "mix": 1, "public": False}
        if protect is not None:
            row |= {"masks": protect.masks, "mix": protect.mix, "public": protect.needs_public}
        row |= {"protected": protect is not None, **vars(recipe), "seconds": round(seconds, 1)}
        row |= {name: round(value, 4) for name, value in evaluate(model, held_out).items()}
        if averaged and protect is not None and protect.masks:
            over = evaluate(model, held_out, query=protect.averaged(model.width, secret))
            row |= {f"averaged_{name}": round(value, 4) for name, value in over.items()}
            pool = protect.pool(model.width, secret)[:: max(1, protect.pool_size // 16)].to(self.device)
            each = [evaluate(model, held_out, query=OneMask(mask)) for mask in pool]
            for metric in METRICS.values():
                values = [found[metric] for found in each]
                row |= {f"single_{metric}": [round(f(values), 4) for f in (min, statistics.mean, max)]}
        self.keep(row)
        return row

    def keep(self, row: dict[str, Any]) -> None:
        """Print a row and save all of them."""
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        if self.asked.json:
            self.asked.json.write_text(json.dumps(self.rows, indent=1) + "\n", encoding="utf-8")

    def choose(self, part: str, corpus: Corpus, recipes: tuple[Recipe, ...], protect: TextHide) -> Recipe:
        """Return the recipe that does best on a tenth of the training rows; the validation split is not looked at."""
        if len(recipes) == 1 or not self.asked.choose:
            return recipes[0]
        own = hold_out(replace(corpus.split("train"), splits=()), 0.1, seed=1)
        metric = METRICS[part]
        found = [self.one(f"{part} choice", own, recipe, _with_cap(protect, recipe), 0) for recipe in recipes]
        scores = [max(row[metric], row.get(f"averaged_{metric}", 0.0)) for row in found]
        return recipes[scores.index(max(scores))]

    def pair(self, part: str, corpus: Corpus, recipe: Recipe, protect: TextHide, plain: bool = True) -> None:
        """Train with and without protection over the seeds."""
        for seed in self.asked.seeds:
            if plain:
                self.one(part, corpus, replace(recipe, cap=None), None, seed)
            self.one(part, corpus, recipe, _with_cap(protect, recipe), seed)


def _with_cap(protect: TextHide, recipe: Recipe) -> TextHide:
    return replace(protect, mix_cap=recipe.cap)


def bars(bench: Bench, sst2: Corpus) -> None:
    bench.pair("sst2", sst2, bench.choose("sst2", sst2, SST2, TextHide(256, 4)), TextHide(256, 4))


def cola(bench: Bench, sst2: Corpus) -> None:
    if bench.asked.cola is None:
        return
    corpus = load(bench.asked.cola, rows=bench.asked.rows)
    bench.pair("cola", corpus, bench.choose("cola", corpus, COLA, TextHide(256, 4)), TextHide(256, 4))


def inter(bench: Bench, sst2: Corpus) -> None:
    if bench.asked.public is None:
        return
    lines = bench.asked.public.read_text(encoding="utf-8").splitlines()
    bench.public = without_overlap(Corpus("public", tuple(line for line in lines if line.strip())), sst2)
    bench.keep({"part": "public text", "remark": bench.public.remarks[-1]})
    asked = TextHide(256, 4, public="given", public_label=bench.asked.public_label)
    bench.pair("inter", sst2, SST2[bench.asked.recipe], asked, plain=False)


def grid(bench: Bench, sst2: Corpus) -> None:
    few = load(bench.asked.data, rows=bench.asked.rows or 10_000)
    bench.one("grid", few, GRID, None, 0)
    for masks in bench.asked.masks:
        for mix in bench.asked.mixes:
            bench.one("grid", few, GRID, TextHide(masks, mix), 0, averaged=False)


def overhead(bench: Bench, sst2: Corpus) -> None:
    """Time steps with and without protection; the quickest quarter counts."""
    few = sst2.take([i for i, split in enumerate(sst2.splits) if split == "train"][:2000])
    chosen = ModelSettings(encoder=bench.asked.model, head="mlp")
    kinds = {"plain": None, "texthide": TextHide(256, 4), "mix only": TextHide(0, 4)}
    taken = {name: step_of(few, chosen, protect, bench.device) for name, protect in kinds.items()}
    timed = in_turns(taken, bench.asked.steps, bench.device)
    base = timed["plain"][len(timed["plain"]) // 4]
    for name, values in timed.items():
        quarter = values[len(values) // 4]
        bench.keep({"part": "overhead", "step": name, "ms": round(1e3 * quarter, 3), "ratio": round(quarter / base, 3)})


RUN: dict[str, Callable[[Bench, Corpus], None]] = {
    "sst2": bars,
    "cola": cola,
    "inter": inter,
    "grid": grid,
    "overhead": overhead,
}


def summary(rows: list[dict[str, Any]]) -> None:
    """Print the short table: means over seeds, spread, and the difference from plain training of the same kind."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for row in rows:
        metric = METRICS["cola" if row["part"].startswith("cola") else "sst2"]
        if metric not in row:
            continue
        kind = "hidden" if row["protected"] else "plain"
        key = (row["part"], row["masks"], row["mix"], row["rate"], row["head_rate"], row["dropout"], row["cap"])
        groups.setdefault((*key, kind), []).append(100 * row[metric])
        if f"averaged_{metric}" in row:
            groups.setdefault((*key, "averaged"), []).append(100 * row[f"averaged_{metric}"])
    plain = {key[0]: statistics.mean(found) for key, found in groups.items() if key[-1] == "plain"}
    heads = ("part", "masks", "mix", "rate", "head", "drop", "cap", "kind", "mean", "spread", "below", "n")
    print("\n" + " | ".join(heads))
    for key, found in groups.items():
        base = plain.get("sst2" if key[0] == "inter" else key[0])
        below = "" if base is None else f"{base - statistics.mean(found):+.2f}"
        cells = [*key, f"{statistics.mean(found):.2f}", f"{min(found):.1f}–{max(found):.1f}", below, len(found)]
        print(" | ".join("" if cell is None else str(cell) for cell in cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="SST-2")
    parser.add_argument("--cola")
    parser.add_argument("--public", type=Path)
    parser.add_argument("--public-label", default="dropped", choices=PUBLIC_LABELS)
    parser.add_argument("--what", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, help="fewer training rows, to try the script")
    parser.add_argument("--epochs", type=float, help="fewer epochs, to try the script")
    parser.add_argument("--choose", action=argparse.BooleanOptionalAction, default=True, help="try recipes first")
    parser.add_argument("--recipe", type=int, default=0, help="which of SST-2's recipes public partners are tried with")
    parser.add_argument("--masks", type=int, nargs="+", default=MASKS, help="pools of the grid")
    parser.add_argument("--mixes", type=int, nargs="+", default=MIXES, help="mixtures of the grid")
    parser.add_argument("--steps", type=int, default=60, help="timed turns: 20 steps each on a GPU")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    sst2 = load(asked.data, rows=asked.rows)
    bench = Bench(asked)
    for part in asked.what:
        began = time.monotonic()
        RUN[part](bench, sst2)
        print(f"# {part}: {time.monotonic() - began:.0f} s", flush=True)
    summary(bench.rows)


if __name__ == "__main__":
    main()
