"""Private fine-tuning over a grid of settings: utility beside its certified epsilon, and seconds.

    python -m benchmarks.private_training DATA --epsilons 3 8 --batch-size 4096 --epochs 30 --rates 1e-3

An epsilon of 0 means clipping without noise, and --open means neither: they tell what each costs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path

from discreet.core.randomness import Rng
from discreet.data.sources import load
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.gradient import GradientProtection
from discreet.training.encode import cache_folder
from discreet.training.evaluate import evaluate
from discreet.training.loop import train
from discreet.training.precision import find_device
from discreet.training.settings import TrainSettings


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train", default="all")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[3.0])
    parser.add_argument("--kappas", type=float, nargs="+", help="directional instead of Gaussian")
    parser.add_argument("--open", action="store_true", help="neither clip nor noise")
    parser.add_argument("--epochs", type=float, nargs="+", default=[30])
    parser.add_argument("--batch-size", type=int, nargs="+", default=[4096])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-3])
    parser.add_argument("--clip-norms", type=float, nargs="+", default=[0.1])
    parser.add_argument("--clipping", default="flat")
    parser.add_argument("--pooling", default="mean")
    parser.add_argument("--pooler", action="store_true")
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("--averaging", type=float, nargs="+", default=[0.0])
    parser.add_argument("--warmup", type=float, default=0.06)
    parser.add_argument("--weight-decay", type=float, default=0.0)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="file to append one JSON object a run to")
    return parser.parse_args()


def protection(
    asked: argparse.Namespace, model: Classifier, strength: float, clip_norm: float, rate: float, steps: int, n: int
) -> GradientProtection:
    if asked.kappas:
        return DirDPSGD.for_model(model, strength)
    if strength == 0:
        return DPSGD(0.0, clip_norm, asked.clipping)
    return DPSGD.for_budget(
        strength, 1 / n, sampling_rate=rate, steps=steps, clip_norm=clip_norm, clipping=asked.clipping
    )


def main() -> None:
    asked = arguments()
    device = find_device(asked.device)
    corpus = load(asked.data)
    n = corpus.split("train").unit_count
    strengths = asked.kappas or asked.epsilons
    grid = itertools.product(
        strengths, asked.epochs, asked.batch_size, asked.rates, asked.clip_norms, asked.averaging, asked.seeds
    )
    for strength, epochs, batch_size, learning_rate, clip_norm, averaging, seed in grid:
        rng = Rng(seed)
        chosen = ModelSettings(
            encoder=asked.model,
            train=asked.train,
            pooling=asked.pooling,
            pooler=True if asked.pooler else None,
            embeddings=asked.embeddings,
            dropout=0.0,
        )
        model = Classifier.build(corpus, chosen, rng=rng.fork("model")).to(device)
        settings = TrainSettings(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            warmup=asked.warmup,
            weight_decay=asked.weight_decay,
            averaging=averaging,
            precision=asked.precision,
        )
        steps = max(1, round(epochs * -(-n // min(batch_size, n))))
        protect = None
        if not asked.open:
            protect = protection(asked, model, strength, clip_norm, min(1.0, batch_size / n), steps, n)
        began = time.monotonic()
        done = train(model, corpus, settings, rng=rng.fork("train"), protect=protect, delta=1 / n, cache=cache_folder())
        seconds = time.monotonic() - began
        scores = evaluate(model, corpus.split("validation"), asked.precision)
        promise = done.guarantee
        row = {
            "data": Path(asked.data).name,
            "train": asked.train,
            "open": asked.open,
            "kappa" if asked.kappas else "asked": strength,
            "epsilon": round(promise.epsilon, 3) if promise is not None and promise.exists else None,
            "adjacency": None if promise is None else promise.adjacency.value,
            "noise": getattr(protect, "noise_multiplier", None),
            "batch": batch_size,
            "epochs": epochs,
            "rate": learning_rate,
            "clip": clip_norm,
            "clipping": asked.clipping,
            "pooling": asked.pooling + ("+pooler" if asked.pooler else ""),
            "embeddings": asked.embeddings,
            "averaging": averaging,
            "seed": seed,
            **{name: round(value, 4) for name, value in scores.items()},
            "seconds": round(seconds, 1),
        }
        print(json.dumps(row), flush=True)
        if asked.out:
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
