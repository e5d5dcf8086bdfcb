"""Samplers and correlated noise of DP-SGD, beside Poisson batches and independent noise: epsilon and accuracy.

python -m benchmarks.sampler_noise accuracy --data DATA/sst2 --out sampler_noise.json     a head on cached encodings
python -m benchmarks.sampler_noise epsilon --out sampler_epsilon.json                     certified figures alone
python -m benchmarks.sampler_noise cost --out noise_cost.json --device cpu                time of the noise of a step

`accuracy` trains the head of a frozen encoder with the same batches, steps, rates and clip norm by every method, from
secret seeds of the batches and of the noise, and measures it on the validation rows. `noise` is calibrated to each
epsilon by each method's own accounting. Nothing is chosen by the result. `epsilon` has the cost of every method at the
noise at which Poisson batches reach an epsilon. Lines are written as they come, and are not measured again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.language_model import Results
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.core.device import find_device
from discreet.core.files import cache_folder
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.sources import TextSource
from discreet.experiment.attack.signals import first_head
from discreet.models.build import encode
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.training.many_heads import HeadJob, train_heads
from discreet.training.plan import TrainingPlan, model_settings

METHODS: dict[str, dict[str, Any]] = {
    "poisson": {},
    "truncated-poisson": {"sampler": "truncated-poisson"},
    "random-allocation": {"sampler": "random-allocation"},
    "banded 2": {"correlation": "banded", "bands": 2},
    "banded 4": {"correlation": "banded", "bands": 4},
    "banded 8": {"correlation": "banded", "bands": 8},
    "banded 17": {"correlation": "banded", "bands": 17},
    "lambda 0.5": {"correlation": "lambda-cgd", "decay": 0.5},
    "lambda 0.8": {"correlation": "lambda-cgd", "decay": 0.8},
    "lambda 0.9": {"correlation": "lambda-cgd", "decay": 0.9},
    "lambda 0.95": {"correlation": "lambda-cgd", "decay": 0.95},
}


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("accuracy", "epsilon", "cost"))
    parser.add_argument("--data", default="notes")
    parser.add_argument("--rows", type=int, help="training rows, chosen at random; by default all")
    parser.add_argument("--encoder", default="minilm")
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.5, 1.0, 3.0, 8.0])
    parser.add_argument("--batches", type=int, default=17, help="batches in an epoch")
    parser.add_argument("--units", type=int, default=67349, help="of the figures alone")
    parser.add_argument("--epochs", type=float, default=40.0)
    parser.add_argument("--learning-rate", type=float, default=2e-2)
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(given)


def accuracy(asked: argparse.Namespace, results: Results) -> None:
    """Train the head by every method at every epsilon, all seeds at once."""
    device = find_device(asked.device)
    corpus = TextSource(asked.data).load()
    settings = model_settings({"encoder": asked.encoder, "train": "head"}, DPSGD(epsilon=1.0), len(corpus))
    model = Classifier.build(corpus, settings, rng=Rng(0)).to(device)
    only = corpus.take([row for row, name in enumerate(corpus.splits) if name == "train"])
    if asked.rows is not None:
        only = only.take(Rng(0).fork("rows").permutation(len(only))[: asked.rows].tolist())
    split = only.split("train")
    train, held_out = (encode(model, rows, cache_folder(), "auto") for rows in (split, corpus.split("validation")))
    for epsilon in asked.epsilons:
        for method in asked.methods:
            recipe = f"{len(only)} {asked.optimizer} {asked.learning_rate:g} {asked.epochs:g}"
            key = f"{Path(asked.data).name} {recipe} {method} epsilon {epsilon:g}"
            if key in results:
                continue
            size = -(-split.unit_count // asked.batches)
            loop = TrainSettings(
                epochs=asked.epochs,
                batch_size=size,
                learning_rate=asked.learning_rate,
                weight_decay=0.0,
                optimizer=asked.optimizer,
            )
            began = time.monotonic()
            plan = TrainingPlan.make(model, only, protect=DPSGD(epsilon=epsilon, **METHODS[method]), training=loop)
            calibrated = time.monotonic() - began
            assert isinstance(plan.protect, DPSGD) and plan.delta is not None
            rows = np.arange(len(train), dtype=np.int64)
            jobs = []
            for seed in range(asked.seeds):
                weight, bias = first_head(model, Rng(seed))
                jobs.append(HeadJob(rows, split, plan, Rng.secret(), weight, bias))
            began = time.monotonic()
            weights, biases = train_heads(train, jobs)
            scores = torch.einsum("nd,mcd->mnc", held_out.vectors.float(), weights) + biases[:, None, :]
            right = (scores.argmax(-1) == held_out.targets).double().mean(1).tolist()
            losses = -scores.log_softmax(-1)[:, torch.arange(len(held_out)), held_out.targets].mean(1)
            results.add(
                key,
                {
                    "accuracy": round(statistics.mean(right), 4),
                    "range": [round(min(right), 4), round(max(right), 4)],
                    "loss": round(float(losses.mean()), 4),
                    "noise": round(plan.protect.noise, 4),
                    "certified": round(epsilon_of(plan.training_cost(), plan.delta, Adjacency.ZERO_OUT), 4),
                    "delta": plan.delta,
                    "steps": plan.steps,
                    "sampler": plan.sampler.facts,
                    "calibration_seconds": round(calibrated, 2),
                    "train_seconds": round(time.monotonic() - began, 1),
                },
            )


def certified(asked: argparse.Namespace, results: Results) -> None:
    """Compute epsilon of every method at the noise of Poisson batches, and its noise at their epsilon."""
    size, delta = -(-asked.units // asked.batches), 0.1 / asked.units
    for epsilon in asked.epsilons:
        for method in asked.methods:
            key = f"{asked.units} {asked.batches} {asked.epochs:g} {method} epsilon {epsilon:g}"
            if key in results:
                continue
            line: dict[str, Any] = {}
            plans = {}
            for name, protect in (
                ("poisson", DPSGD(epsilon=epsilon, delta=delta)),
                ("own", DPSGD(epsilon=epsilon, delta=delta, **METHODS[method])),
            ):
                plans[name] = _loop_plan(protect, asked.units, size, asked.epochs, delta)
            same = DPSGD(plans["poisson"][0].noise, **METHODS[method])
            began = time.monotonic()
            line["epsilon_at_poisson_noise"] = round(
                epsilon_of(same.training_cost(*plans["own"][1:]), delta, Adjacency.ZERO_OUT), 4
            )
            line["seconds"] = round(time.monotonic() - began, 2)
            line["poisson_noise"], line["noise"] = (round(plans[name][0].noise, 4) for name in ("poisson", "own"))
            results.add(key, line)


def _loop_plan(protect: DPSGD, units: int, size: int, epochs: float, delta: float) -> tuple[DPSGD, Any, int, int]:
    from discreet.protections.base import Conditions

    sampler = protect.sampler_for(size, units)
    steps = max(1, round(epochs * sampler.steps_per_epoch(units)))
    resolved = protect.resolve(Conditions(None, units, units, size, steps, epochs, delta, sampler=sampler))
    return resolved, sampler, steps, units


def cost(asked: argparse.Namespace, results: Results) -> None:
    """Measure the noise of one step for 1, 10 and 22.7 million parameters, in turns; medians in milliseconds."""
    device = find_device(asked.device)
    kinds: dict[str, dict[str, Any]] = {name: METHODS[name] for name in ("poisson", "lambda 0.9", "banded 4")}
    for millions in (1.0, 10.0, 22.7):
        key = f"noise {millions:g} million {device.type}"
        if key in results:
            continue
        sums = {"weight": torch.zeros(int(millions * 1e6), device=device)}
        releasers = {name: DPSGD(1.0, **values).releaser(Rng.secret()) for name, values in kinds.items()}
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for step in range(12):
            for name, releaser in releasers.items():
                if device.type == "cuda":
                    torch.cuda.synchronize()
                began = time.perf_counter() if device.type == "cuda" else time.process_time()
                releaser(dict(sums), step)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                now = time.perf_counter() if device.type == "cuda" else time.process_time()
                times[name].append(1000 * (now - began))
        results.add(key, {name: round(statistics.median(values[4:]), 2) for name, values in times.items()})


def main(given: list[str] | None = None) -> None:
    asked = arguments(given)
    results = Results(asked.out)
    {"accuracy": accuracy, "epsilon": certified, "cost": cost}[asked.what](asked, results)


if __name__ == "__main__":
    main()
