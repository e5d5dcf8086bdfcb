"""Training over a grid of settings, private or not: utility beside its certified epsilon, and seconds.

    python -m benchmarks.training DATA --open --epochs 3 --batch-size 32 --rates 5e-5          # no protection
    python -m benchmarks.training DATA --epsilons 3 8                                          # DP-SGD, delta = 1/n
    python -m benchmarks.training DATA --epsilons 0                                            # clipping without noise
    python -m benchmarks.training DATA --train pooler+head --kappas 1e2 1e4 --batch-size 128   # directional

What is not said is what `discreet train` would choose.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from discreet.core.device import find_device
from discreet.core.files import load_tensors, save_tensors
from discreet.core.randomness import Rng, weights_digest
from discreet.data.corpus import without_overlap
from discreet.data.sources import Columns, load
from discreet.models.build import cache_folder
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.base import GradientProtection, defaults_of
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.evaluation import evaluate
from discreet.training.loop import Job, start_from_public, train
from discreet.training.plan import TrainingPlan, public_text


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train", default="all")
    strength = parser.add_mutually_exclusive_group(required=True)
    strength.add_argument("--open", action="store_true", help="no protection")
    strength.add_argument("--epsilons", type=float, nargs="+", help="DP-SGD; 0 clips without noise")
    strength.add_argument("--kappas", type=float, nargs="+", help="directional DP-SGD")
    parser.add_argument("--epochs", type=float, nargs="+")
    parser.add_argument("--batch-size", type=int, nargs="+")
    parser.add_argument("--rates", type=float, nargs="+")
    parser.add_argument("--clip-norms", type=float, nargs="+", default=[0.1])
    parser.add_argument("--clipping", default="flat")
    parser.add_argument("--pooling", default="mean")
    parser.add_argument("--pooler", action="store_true")
    parser.add_argument("--head", default="linear")
    parser.add_argument("--embeddings", action=argparse.BooleanOptionalAction)
    parser.add_argument("--dropout", type=float)
    parser.add_argument("--averaging", type=float, nargs="+", default=[0.0])
    parser.add_argument("--warmup", type=float, default=0.06)
    parser.add_argument("--weight-decay", type=float)
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--head-share", type=float, help="share of the steps that train only the head, first")
    parser.add_argument("--public", help="public text to start from; dp-sgd only")
    parser.add_argument("--public-start", type=Path, help="file of the weights after public text, for all seeds")
    parser.add_argument("--delta", type=float, help="1/n if left out")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, help="file to append one JSON object a run to")
    return parser.parse_args()


def protection(
    asked: argparse.Namespace, model: Classifier, strength: float, clip_norm: float, rate: float, steps: int, n: int
) -> GradientProtection | None:
    if asked.open:
        return None
    if asked.kappas:
        return DirDPSGD.for_model(model, strength)
    if strength == 0:
        return DPSGD(0.0, clip_norm, asked.clipping)
    calibrated = DPSGD.for_budget(
        strength, asked.delta or 1 / n, sampling_rate=rate, steps=steps, clip_norm=clip_norm, clipping=asked.clipping
    )
    return replace(calibrated, public=asked.public)


def main() -> None:
    asked = arguments()
    device = find_device(asked.device)
    corpus = load(asked.data)
    public = None if asked.public is None else public_text(asked.public, Columns())
    if public is not None:
        public = without_overlap(public, corpus.split("validation")).renamed(Path(asked.public).stem)
    n = corpus.split("train").unit_count
    kind = None if asked.open else DirDPSGD(kappa=1.0) if asked.kappas else DPSGD(epsilon=1.0, public=asked.public)
    usual = defaults_of(kind, asked.train, n, 384)
    grid = itertools.product(
        asked.kappas or asked.epsilons or [0.0],
        asked.epochs or [usual.epochs],
        asked.batch_size or [usual.batch_size],
        asked.rates or [usual.learning_rate],
        asked.clip_norms,
        asked.averaging,
        asked.seeds,
    )
    chosen = ModelSettings(
        encoder=asked.model,
        train=asked.train,
        pooling=asked.pooling,
        pooler=True if asked.pooler else None,
        head=asked.head,
        embeddings=usual.embeddings if asked.embeddings is None else asked.embeddings,
        dropout=usual.dropout if asked.dropout is None else asked.dropout,
    )
    for strength, epochs, batch_size, learning_rate, clip_norm, averaging, seed in grid:
        rng = Rng(seed)
        model = Classifier.build(corpus, chosen, rng=rng.fork("model")).to(device)
        settings = TrainSettings(
            epochs=epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            warmup=asked.warmup,
            weight_decay=usual.weight_decay if asked.weight_decay is None else asked.weight_decay,
            averaging=averaging,
            precision=asked.precision,
            head_share=asked.head_share,
        )
        size = min(batch_size, n)
        protect = protection(asked, model, strength, clip_norm, size / n, max(1, round(epochs * -(-n // size))), n)
        began = time.monotonic()
        delta = asked.delta or 1 / n
        plan = TrainingPlan.make(
            model, corpus, protect=protect, training=settings, delta=delta, public=public, seed=seed
        )
        if public is not None and asked.public_start is not None:
            if asked.public_start.exists():
                model.load_weights(load_tensors(asked.public_start)[0])
                model.fingerprint = weights_digest(model)
            else:
                start_from_public(model, plan, Job())
                save_tensors(model.weights(), asked.public_start)
            plan = replace(plan, public=None)
        with TemporaryDirectory() as workspace:
            done = train(model, corpus, plan, job=Job(Path(workspace), cache_folder(), checkpoint_seconds=1e9))
        seconds = time.monotonic() - began
        scores = evaluate(model, corpus.split("validation"), asked.precision)
        promise = done.guarantee
        row = {
            "data": Path(asked.data).name,
            "train": asked.train,
            "protect": None if kind is None else kind.name,
            "asked": strength,
            "epsilon": round(promise.epsilon, 3) if promise is not None and promise.exists else None,
            "certified": None if promise is None else promise.certified,
            "adjacency": None if promise is None else promise.adjacency.value,
            "noise": getattr(protect, "noise_multiplier", None),
            "batch": batch_size,
            "epochs": epochs,
            "rate": learning_rate,
            "clip": clip_norm,
            "clipping": asked.clipping,
            "pooling": asked.pooling + ("+pooler" if asked.pooler else ""),
            "embeddings": chosen.embeddings,
            "dropout": chosen.dropout,
            "averaging": averaging,
            "head_share": plan.settings.head_share,
            "public": asked.public,
            "seed": seed,
            **{name: round(value, 4) for name, value in scores.items()},
            "seconds": round(seconds, 1),
            "seconds_an_epoch": round(done.seconds / epochs, 2),
        }
        print(json.dumps(row), flush=True)
        if asked.out:
            with asked.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
