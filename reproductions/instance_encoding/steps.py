"""DP instance encoding at every step: what it adds to a step, and training end to end as the paper does."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.turns import in_turns, step_of

from discreet.core.randomness import Rng
from discreet.data.sources import load
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.training.evaluation import evaluate
from discreet.training.loop import train
from discreet.training.plan import TrainingPlan

DELTA = 1e-5
SOUND = (8.0, 20.0)  # the epsilons at which proven noise is tried too
_ROWS = 10_000


def finetune(asked: argparse.Namespace, keep: Any) -> None:
    """Print utility after training all layers through clip and noise: an estimate, the encoder saw private text."""
    for source in asked.data:
        corpus = load(source, rows=asked.rows or _ROWS)
        kinds: list[tuple[str, float | None]] = [("none", None)]
        kinds += [("paper", epsilon) for epsilon in asked.epsilons]
        kinds += [("sound", epsilon) for epsilon in asked.epsilons if epsilon in SOUND]
        for calibration, epsilon in kinds:
            for seed in asked.seeds:
                chosen = ModelSettings(encoder=asked.model, head="mlp")
                model = Classifier.build(corpus, chosen, rng=Rng(seed).fork("model")).to(asked.device)
                settings = TrainSettings(epochs=asked.epochs, batch_size=64, learning_rate=1e-4, warmup=0.1)
                protect = None
                if epsilon is not None:
                    protect = InstanceEncoding(
                        epsilon, DELTA, calibration=calibration, stored=False, epochs=asked.epochs
                    )
                began = time.monotonic()
                plan = TrainingPlan.make(
                    model, corpus, protect=protect, training=settings, delta=DELTA, seed=seed, noise_seed=seed
                )
                done = train(model, corpus, plan)
                row: dict[str, Any] = {"data": Path(source).name, "what": "finetune", "calibration": calibration}
                row |= {"claimed": epsilon, "seed": seed, "seconds": round(time.monotonic() - began, 1)}
                if done.guarantee is not None:
                    row |= {"certified": done.guarantee.certified, "reason": done.guarantee.reason}
                found = evaluate(model, corpus.split("validation"))
                keep(row | {name: round(found[name], 4) for name in ("accuracy", "matthews")})


def overhead(asked: argparse.Namespace, keep: Any) -> None:
    """Time steps: the live path beside plain training of all layers, the stored one beside that of the same head."""
    corpus = load(asked.data[0]).split("train")
    few = corpus.take(range(min(2000, len(corpus))))
    live = {"stored": False, "epochs": 3}
    kinds: dict[str, tuple[str, InstanceEncoding | None]] = {
        "plain": ("all", None),
        "dp-ie live": ("all", InstanceEncoding(8.0, DELTA, **live)),
        "dp-ie live, mix of 4": ("all", InstanceEncoding(8.0, DELTA, mix=4, **live)),
        "dp-ie live, noisy labels": ("all", InstanceEncoding(8.0, DELTA, labels="noisy", **live)),
        "plain head": ("head", None),
        "dp-ie stored": ("head", InstanceEncoding(8.0, DELTA)),
    }
    taken = {
        name: step_of(few, ModelSettings(encoder=asked.model, head="mlp", train=layers), protect, asked.device)
        for name, (layers, protect) in kinds.items()
    }
    timed = in_turns(taken, asked.steps, asked.device)
    for name, values in timed.items():
        base = timed["plain head" if kinds[name][0] == "head" else "plain"]
        middle, beside = values[len(values) // 2], base[len(base) // 2]
        keep({"what": "overhead", "step": name, "ms": round(1e3 * middle, 3), "ratio": round(middle / beside, 3)})
