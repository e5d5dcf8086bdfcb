"""Private tuning of a head on SST-2 beside the head with default settings, and what choosing costs.

    python -m benchmarks.tuning run DATA --device cuda --seeds 5 --out tuning.json
    python -m benchmarks.tuning run DATA --rows 400 --epochs 2 --seeds 1 --out small.json      # a quick try
    python -m benchmarks.tuning encode DATA --device cuda --out vectors.npz       # on a fast machine, float16; then
    python -m benchmarks.tuning run DATA --vectors vectors.npz --out tuning.json  # heads alone, on any machine
    python -m benchmarks.tuning cost                                              # accounting alone

DATA is a folder with train.tsv and validation.tsv. The text is encoded once; every figure has its own secret seed.
`run` has three parts: `default` (the settings that `discreet train --train head` chooses, at the whole epsilon),
`search` (`discreet tune` at the same epsilon, search included), and `each` (every candidate once, with the noise of a
trial, to show what the search chooses among). Results are saved as they come.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.accounting.calibrate import search_noise
from discreet.accounting.events import (
    ClippedSumDpEvent,
    DpEvent,
    PoissonSampledDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
)
from discreet.accounting.interpret import epsilon
from discreet.core.device import find_device
from discreet.core.randomness import Rng
from discreet.data.batches import Vectors, tokens_for
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource
from discreet.models.build import cache_folder, ready
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.checkpoint import copy_weights, restore_weights
from discreet.training.evaluation import evaluate, represent
from discreet.training.loop import Job, train
from discreet.training.plan import TrainingPlan
from discreet.training.tuning import SearchPlan, tune

# What somebody would try who has not seen the data: two orders of magnitude around the default rate, short and long.
GRID = {"learning_rate": (0.002, 0.006, 0.02, 0.06, 0.2), "epochs": (10.0, 40.0)}
SPLITS = ("train", "validation")
PARTS = ("default", "search", "each")


def setting_of(asked: argparse.Namespace) -> tuple[Corpus, Classifier]:
    """Return the corpus and the untrained model."""
    data = TextSource(f"{asked.data}/train.tsv", validation=f"{asked.data}/validation.tsv", rows=asked.rows)
    corpus = data.load()
    model = Classifier.build(corpus, ModelSettings(train="head"), rng=Rng(0).fork("model"))
    return corpus, model.to(find_device(asked.device))


def encode(asked: argparse.Namespace) -> None:
    """Write the vectors of both splits, in float16."""
    corpus, model = setting_of(asked)
    splits = {name: represent(model, tokens_for(model, corpus.split(name)), "float32") for name in SPLITS}
    np.savez(asked.out, **{name: vectors.cpu().numpy().astype(np.float16) for name, vectors in splits.items()})


def stored(model: Classifier, corpus: Corpus, vectors: np.ndarray) -> Vectors:
    """Return stored vectors with the labels of their rows."""
    assert corpus.labels is not None and len(vectors) == len(corpus)
    numbers = torch.from_numpy(vectors.astype(np.float32)).to(model.device)
    return Vectors(numbers, torch.tensor(corpus.labels, device=model.device), 0, True)


def run(asked: argparse.Namespace) -> None:
    """Measure the parts that were asked for."""
    corpus, model = setting_of(asked)
    device = model.device
    units = corpus.split("train").unit_count
    start = time.monotonic()
    if asked.vectors is None:
        cache = cache_folder() if asked.cache else None
        rows, held_out = (ready(model, corpus.split(name), cache) for name in SPLITS)
    else:
        with np.load(asked.vectors) as file:
            rows, held_out = (stored(model, corpus.split(name), file[name]) for name in SPLITS)
    values: dict[str, Any] = {
        "units": units,
        "delta": 1 / units,
        "epsilon": asked.epsilon,
        "device": str(device),
        "encoding_seconds": time.monotonic() - start,
        "rows": [],
    }
    print(f"encoded in {values['encoding_seconds']:.0f} s", flush=True)
    first = copy_weights(model)
    protect = DPSGD(epsilon=asked.epsilon, delta=1 / units)
    settings = TrainSettings(epochs=asked.epochs)
    grid = GRID if asked.epochs is None else {"learning_rate": GRID["learning_rate"]}

    def save(row: dict[str, Any]) -> None:
        values["rows"].append(row)
        asked.out.write_text(json.dumps(values, indent=1))
        print(row, flush=True)

    def trained(plan: TrainingPlan) -> float:
        restore_weights(model, first)
        train(model, corpus, plan, job=Job(encoded=rows))
        return evaluate(model, held_out)["accuracy"]

    for trials in asked.trials if "search" in asked.parts or "each" in asked.parts else ():
        start = time.monotonic()
        search = SearchPlan.make(model, corpus, grid, protect=protect, trials=trials, training=settings)
        planned = time.monotonic() - start
        save({"part": "plan", "trials": trials, "trial_epsilon": search.trial_epsilon, "seconds": planned})
        for seed in range(asked.seeds if "search" in asked.parts else 0):
            restore_weights(model, first)
            start = time.monotonic()
            tuned = tune(model, corpus, search, job=Job(encoded=rows))
            assert tuned.guarantee is not None
            save(
                {
                    "part": "search",
                    "trials": trials,
                    "seed": seed,
                    "accuracy": evaluate(model, held_out)["accuracy"],
                    "score": tuned.score,
                    "chosen": dict(search.candidates[tuned.winner]),
                    "epsilon": tuned.guarantee.epsilon,
                    "certified": tuned.guarantee.certified,
                    "seconds": time.monotonic() - start,
                }
            )
        if "each" in asked.parts and trials == asked.trials[0]:
            for candidate, plan in zip(search.candidates, search.plans, strict=True):
                start = time.monotonic()
                accuracy = trained(plan)
                seconds = time.monotonic() - start
                row = {"part": "each", "trials": trials, "candidate": dict(candidate), "accuracy": accuracy}
                save({**row, "seconds": seconds})
    for seed in range(asked.seeds if "default" in asked.parts else 0):
        start = time.monotonic()
        accuracy = trained(TrainingPlan.make(model, corpus, protect=protect, training=settings))
        save({"part": "default", "seed": seed, "accuracy": accuracy, "seconds": time.monotonic() - start})


def cost(asked: argparse.Namespace) -> None:
    """Print the epsilon of one trial for a total of 3, by three accountants, for the default head on SST-2."""
    units, batch, steps = 67_349, 4096, 680
    delta = 1 / units

    def training(noise: float) -> DpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(batch / units, ClippedSumDpEvent(noise)), steps)

    print("mean trials | noise | epsilon of a trial | of the search | by Renyi divergences | of as many releases")
    for mean in (1.5, 2, 3, 5, 10, 20, 50):
        search = search_noise([training], mean=mean, epsilon=asked.epsilon, delta=delta, adjacency="zero-out")
        event = search.event
        assert isinstance(event, RepeatAndSelectDpEvent)
        total, by_rdp = epsilon(event, delta, "zero-out"), epsilon(event, delta, "zero-out", "rdp")
        every = epsilon(SelfComposedDpEvent(event.event, math.ceil(mean)), delta, "zero-out")
        figures = (search.noises[0], search.trial_epsilon, total, by_rdp, every)
        print(mean, *(f"{figure:.3f}" for figure in figures), sep=" | ", flush=True)


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("data")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--device", default="auto")
    one.add_argument("--epsilon", type=float, default=3.0)
    one.add_argument("--trials", type=float, nargs="+", default=[5.0, 10.0])
    one.add_argument("--seeds", type=int, default=5)
    one.add_argument("--rows", type=int)
    one.add_argument("--epochs", type=float)
    one.add_argument("--cache", action="store_true")
    one.add_argument("--vectors", type=Path)
    one.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    one.set_defaults(run=run)
    dump = commands.add_parser("encode")
    dump.add_argument("data")
    dump.add_argument("--out", type=Path, required=True)
    dump.add_argument("--device", default="auto")
    dump.add_argument("--rows", type=int)
    dump.set_defaults(run=encode)
    two = commands.add_parser("cost")
    two.add_argument("--epsilon", type=float, default=3.0)
    two.set_defaults(run=cost)
    asked = parser.parse_args()
    asked.run(asked)


if __name__ == "__main__":
    main()
