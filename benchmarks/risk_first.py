"""Noise by risk: a ceiling on naming the right one of n, for one release and a whole training, proven and measured.

python -m benchmarks.risk_first DATA --ceiling 0.05 --candidates 64 --train head --json OUT
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch

from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from discreet.accounting.risk import most_identified
from discreet.attacks.identification import gaussian_sweep, training_sweep
from discreet.core.randomness import Rng
from discreet.data.sources import load
from discreet.experiment.attack.scene import Scene
from discreet.models.classifier import Classifier
from discreet.protections.dp_sgd import DPSGD
from discreet.study.noise_for_risk import RiskRequest, groups_of, noise_for_risk, upper_limit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--train", default="all", help="what is trained, so whose gradients are released")
    parser.add_argument("--ceiling", type=float, default=0.05)
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--epochs", type=float)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    corpus = load(asked.data)
    model = Classifier.build(corpus, rng=Rng(0).fork("model"), encoder=asked.model, train=asked.train, dropout=0.0)
    scene = Scene.of(corpus, model.to(asked.device).eval(), split="validation")
    units = corpus.split("train").unit_count
    usual = DPSGD(epsilon=1).defaults(asked.train, units, 384)
    size, epochs = asked.batch_size or usual.batch_size, asked.epochs or usual.epochs
    rate, steps = size / units, round(epochs * -(-units // size))
    request = RiskRequest(asked.ceiling, asked.candidates, sampling_rate=rate, steps=steps, groups=asked.groups)
    began = time.process_time()
    found = noise_for_risk(scene, request)
    held_out = groups_of(scene, request).checked
    for one in found:
        print(one.certified.sentence(one.ceiling, one.candidates))
        print(one.measured.sentence(one.ceiling, one.candidates))
        print(f"ratio {one.ratio:.2f}")
        noise, whole = one.certified.noise, one is not found[0]
        made = ClippedSumDpEvent(noise / 1.01)
        less = SelfComposedDpEvent(PoissonSampledDpEvent(rate, made), steps) if whole else made
        print(f"bound at 1% less noise {most_identified(less, one.candidates):.4f}, so within 1% of the least")
        hits = attempts = 0
        for i, gram in enumerate(held_out):  # fresh draws on the held-out texts, at 1.3 times less noise
            noise = one.measured.noise / 1.3
            fresh = Rng(99).fork(i)
            if whole:
                tried = training_sweep(gram, [noise], fresh, sampling_rate=rate, steps=steps, draws=3000)[0]
            else:
                tried = gaussian_sweep(gram, [noise], fresh, draws=8000)[0]
            hits, attempts = hits + tried.hits, attempts + tried.draws
        print(f"upper limit at 1.3 times less noise, fresh draws: {upper_limit(hits, attempts):.4f}\n", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps([one.as_dict() for one in found], indent=1))
    print(f"{time.process_time() - began:.0f} s of one core")


if __name__ == "__main__":
    main()
