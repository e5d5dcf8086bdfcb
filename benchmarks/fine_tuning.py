"""Fine-tuning over a grid of settings: utility and seconds an epoch.

python -m benchmarks.fine_tuning DATA --model minilm --epochs 3 --rates 5e-5 1e-4 --poolings mean cls --seeds 0 1
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
from discreet.training.evaluate import evaluate
from discreet.training.loop import train
from discreet.training.precision import find_device
from discreet.training.settings import TrainSettings


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train", default="all")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[32])
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-4])
    parser.add_argument("--poolings", nargs="+", default=["mean"])
    parser.add_argument("--head", default="linear")
    parser.add_argument("--pooler", action="store_true")
    parser.add_argument("--dropouts", type=float, nargs="+", default=[0.1])
    parser.add_argument("--warmup", type=float, default=0.06)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="file to append one JSON object a run to")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    device = find_device(asked.device)
    corpus = load(asked.data)
    grid = itertools.product(asked.batch_size, asked.rates, asked.poolings, asked.dropouts, asked.seeds)
    for batch_size, rate, pooling, dropout, seed in grid:
        rng = Rng(seed)
        chosen = ModelSettings(
            encoder=asked.model,
            train=asked.train,
            pooling=pooling,
            head=asked.head,
            dropout=dropout,
            pooler=asked.pooler,
        )
        model = Classifier.build(corpus, chosen, rng=rng.fork("model")).to(device)
        settings = TrainSettings(
            epochs=asked.epochs,
            batch_size=batch_size,
            learning_rate=rate,
            warmup=asked.warmup,
            weight_decay=asked.weight_decay,
            precision=asked.precision,
        )
        began = time.monotonic()
        done = train(model, corpus, settings, rng=rng.fork("train"))
        seconds = time.monotonic() - began
        scores = evaluate(model, corpus.split("validation"))
        row = {
            "data": Path(asked.data).name,
            "batch": batch_size,
            "rate": rate,
            "pooling": pooling,
            "pooler": asked.pooler,
            "dropout": dropout,
            "precision": asked.precision,
            "seed": seed,
            "epochs": asked.epochs,
            **{name: round(value, 4) for name, value in scores.items()},
            "seconds_an_epoch": round(done.seconds / asked.epochs, 2),
            "seconds_with_tokenising": round(seconds, 2),
        }
        print(json.dumps(row), flush=True)
        if asked.out:
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
