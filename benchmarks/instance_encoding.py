"""DP instance encoding: accuracy against epsilon, under a proof and as published, and the epsilon behind the latter.

    python -m benchmarks.instance_encoding SST2 COLA --public labelled.tsv --device cuda --json OUT

A frozen encoder, its outputs kept in the cache; encodings are released once and a linear head is fitted to them in
closed form. `--public` is a table with text and label, from which the projections are learned; what occurs in the
private corpus is removed first. Utility is on the validation split, over three seeds of the noise.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from discreet.accounting.interpret import guarantee
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.batches import Vectors
from discreet.data.overlap import without_overlap
from discreet.data.sources import load
from discreet.metrics.utility import utility
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.clipped_query import Clipped, attach
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.instance_encoding_settings import learned
from discreet.protections.ldp_projection import Projection
from discreet.training.encode import cache_folder, encode
from discreet.training.evaluate import predict
from discreet.training.precision import find_device
from discreet.training.stored import solve_head

EPSILONS = (0.1, 1.0, 2.0, 4.0, 8.0, 10.0, 15.0, 20.0)
DELTA = 1e-5
# mechanism, calibration, mixtures: what the paper has, and what is proven
KINDS = (
    ("gaussian", "sound", 1),
    ("gaussian", "paper", 1),
    ("laplace", "sound", 1),
    ("laplace", "paper", 1),
    ("laplace-l2", "sound", 1),
)


def projections(
    model: Classifier, public: Path | None, private: Any, dimension: int, same_labels: bool
) -> dict[str, Projection | None]:
    """Return what vectors may pass through first: nothing, principal axes, or axes that tell public labels apart."""
    found: dict[str, Projection | None] = {"none": None}
    if public is not None:
        text = without_overlap(load(str(public), validation=0), private)
        print(f"# public text: {text.remarks[-1]}", flush=True)
        rows = encode(model, text, cache_folder())
        found["principal"] = learned(rows.vectors.cpu(), None, dimension)
        if same_labels:
            found["labels"] = learned(rows.vectors.cpu(), rows.targets.cpu(), dimension)
    return found


def fit(model: Classifier, asked: InstanceEncoding, train: Vectors, held_out: Vectors, rng: Rng) -> dict[str, float]:
    """Release once, fit the head, and return its utility on clean queries."""
    model.query = None
    front = Clipped(model.width, asked.clip_norm, None if asked.projection is None else asked.projection.width)
    if asked.projection is not None:
        front.matrix.copy_(asked.projection.matrix)
        front.mean.copy_(asked.projection.mean)
        attach(model, front, Rng(0))
    else:
        model.head = torch.nn.Linear(model.width, len(model.label_names)).to(train.vectors.device)
        model.query = front.to(train.vectors.device)
    once = asked.once(torch.arange(len(train)).numpy(), model.width, len(model.label_names), rng)
    vectors, targets = once(train.vectors, train.targets)
    assert solve_head(model, Vectors(vectors, targets), once)
    return utility(model.task, predict(model, held_out).best, held_out.targets.cpu().numpy())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--public", type=Path)
    parser.add_argument(
        "--same-labels", nargs="*", default=["sst2"], help="data whose labels mean what the public ones do"
    )
    parser.add_argument("--dimension", type=int, default=16)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    device = find_device(asked.device)
    rows: list[dict[str, Any]] = []
    for source in asked.data:
        corpus = load(source, rows=asked.rows)
        model = Classifier.build(corpus, ModelSettings(encoder=asked.model, train="head"), rng=Rng(0)).to(device)
        train, held_out = (encode(model, corpus.split(name), cache_folder()) for name in ("train", "validation"))
        for through, projection in projections(
            model, asked.public, corpus, asked.dimension, Path(source).name in asked.same_labels
        ).items():
            for mechanism, calibration, mix in KINDS:
                for epsilon in asked.epsilons:
                    began = time.monotonic()
                    protect = InstanceEncoding(
                        epsilon, DELTA, mechanism=mechanism, calibration=calibration, mix=mix, projection=projection
                    )
                    once = protect.once(torch.arange(len(train)).numpy(), model.width, 2, Rng(0))
                    true = guarantee(once.event, delta=DELTA, adjacency=Adjacency.REPLACE_ONE).epsilon
                    renyi = None
                    if mechanism == "gaussian":
                        renyi = guarantee(
                            once.event, delta=DELTA, adjacency=Adjacency.REPLACE_ONE, accountant="rdp"
                        ).epsilon
                    scores = [fit(model, protect, train, held_out, Rng(seed)) for seed in asked.seeds]
                    row = {
                        "data": Path(source).name,
                        "projection": through,
                        "mechanism": mechanism,
                        "calibration": calibration,
                        "epsilon": epsilon,
                        "true_epsilon": round(true, 3),
                        "renyi_epsilon": None if renyi is None else round(renyi, 3),
                        "noise": round(once.noise_variance**0.5, 4),
                        "seconds": round(time.monotonic() - began, 1),
                    }
                    for name in ("accuracy", "matthews"):
                        values = [score[name] for score in scores]
                        row[name] = round(statistics.mean(values), 4)
                        row[f"{name}_spread"] = [round(min(values), 4), round(max(values), 4)]
                    rows.append(row)
                    print(json.dumps(row), flush=True)
                    if asked.json:
                        asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    table(rows)


def table(rows: list[dict[str, Any]]) -> None:
    """Print accuracy over epsilon, one line for each kind, with the true epsilon below what is only claimed."""
    epsilons = sorted({row["epsilon"] for row in rows})
    print("\n" + " | ".join(["data", "projection", "noise", "calibration", *(f"{e:g}" for e in epsilons)]))
    kinds = dict.fromkeys((r["data"], r["projection"], r["mechanism"], r["calibration"]) for r in rows)
    for kind in kinds:
        own = {
            row["epsilon"]: row
            for row in rows
            if (row["data"], row["projection"], row["mechanism"], row["calibration"]) == kind
        }
        print(" | ".join([*kind, *(f"{own[e]['accuracy']:.3f}" if e in own else "" for e in epsilons)]))
        if kind[3] != "sound":
            print(" | ".join([*kind[:3], "true epsilon", *(f"{own[e]['true_epsilon']:.4g}" for e in epsilons)]))


if __name__ == "__main__":
    main()
