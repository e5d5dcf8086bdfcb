"""1-of-n identification against noise: what the best attack reaches beside the bound that none can beat.

python -m benchmarks.one_of_n DATA --candidates 64
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np
from scipy.stats import beta

from discreet.accounting.events import ClippedSumDpEvent, VonMisesFisherDpEvent
from discreet.accounting.risk import most_identified
from discreet.attacks.identification import Identified, direction_sweep, gaussian_sweep, gram_matrix
from discreet.core.randomness import Rng
from discreet.data.sources import load
from discreet.models.classifier import Classifier

NOISES = (0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0, 4.0)
KAPPAS = (1e2, 3e2, 1e3, 3e3, 1e4, 3e4, 1e5)


def interval(found: Identified) -> tuple[float, float]:
    """Return the exact 95% interval of a share."""
    hits, misses = found.hits, found.draws - found.hits
    low = float(beta.ppf(0.025, hits, misses + 1)) if hits else 0.0
    return low, float(beta.ppf(0.975, hits + 1, misses)) if misses else 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rng = Rng(asked.seed)
    corpus = load(asked.data).split("validation")
    corpus = corpus.take(np.sort(rng.fork("rows").permutation(len(corpus))[: asked.candidates]))
    model = Classifier.build(corpus, rng=rng.fork("model"), dropout=0.0)
    began = time.monotonic()
    gram = gram_matrix(model, corpus)
    gradients = time.monotonic() - began
    began = time.monotonic()
    dimension = sum(p.numel() for p in model.parameters() if p.requires_grad)
    gaussian = gaussian_sweep(gram, NOISES, rng.fork("gaussian"), draws=asked.draws)
    turned = direction_sweep(gram, KAPPAS, dimension, rng.fork("turned"), draws=asked.draws)
    swept = time.monotonic() - began
    rows = []
    for kind, found in [("gaussian", f) for f in gaussian] + [("von Mises–Fisher", f) for f in turned]:
        event, adjacency = (
            (ClippedSumDpEvent(found.strength), "add/remove")
            if kind == "gaussian"
            else (VonMisesFisherDpEvent(found.strength, dimension), "zero-out")
        )
        low, high = interval(found)
        bound = most_identified(event, found.candidates, adjacency)
        rows.append({"noise": kind, "strength": found.strength, "success": found.success, "low": low, "high": high,
                     "bound": bound, "within": low <= bound})  # fmt: skip
    if asked.json:
        print(json.dumps({"rows": rows, "gram_seconds": gradients, "sweep_seconds": swept}))
        return
    print(f"{len(corpus)} candidates, chance {1 / len(corpus):.4f}, {asked.draws} draws, {dimension:,} parameters")
    print(f"{'noise':<18}{'strength':>10}{'success':>10}{'95% interval':>20}{'bound':>9}")
    for row in rows:
        span = f"[{row['low']:.4f}, {row['high']:.4f}]"
        print(f"{row['noise']:<18}{row['strength']:>10g}{row['success']:>10.4f}{span:>20}{row['bound']:>9.4f}")
    cosines = gram / np.sqrt(np.outer(np.diag(gram), np.diag(gram)))
    print(f"mean cosine of two gradients {cosines[np.triu_indices(len(corpus), 1)].mean():.2f}")
    print(f"inner products {gradients:.1f} s, both sweeps {swept:.1f} s")


if __name__ == "__main__":
    main()
