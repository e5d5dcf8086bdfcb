"""What the rows of the position-embedding gradient say of one sentence, without noise and under it.

python -m benchmarks.positions DATA --examples 50 --noise 0 1e-5 1e-4 --json positions.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from discreet.attacks.rows import PositionRows
from discreet.experiment import AttackRequest, SceneRequest, attack_once, load_scene
from discreet.models.classifier import ModelSettings
from discreet.protections.dp_sgd import DPSGD


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--examples", type=int, default=50)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.0, 1e-5, 1e-4, 1e-3, 1e-2])
    parser.add_argument("--priors", type=float, nargs="+", default=[0.0, 1.0], help="weights of the language model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a line for each row, as it is done")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    settings = ModelSettings(encoder=asked.model, dropout=0.0)
    scene = load_scene(SceneRequest(asked.data, model=settings, seed=asked.seed, device=asked.device))
    metrics = ("exact_match", "token_accuracy", "rouge_l")
    print(f"{'noise':>8}{'prior':>7}" + "".join(f"{name:>24}" for name in metrics) + f"{'seconds':>9}")
    for noise in asked.noise:
        for prior in asked.priors:
            protect = DPSGD(noise, 1.0) if noise else None
            request = AttackRequest(
                PositionRows(prior=prior), protect, "positions", examples=asked.examples, metrics=metrics,
                seed=asked.seed, noise_seed=asked.seed,
            )  # fmt: skip
            found = attack_once(request, scene)
            leaks = {leak.metric: leak for leak in found.leakages}
            each = (found.seconds - found.preparing) / asked.examples
            row: dict[str, Any] = {"data": asked.data, "noise": noise, "prior": prior, "n": found.n, "seconds": each}
            row |= {name: [leaks[name].value, leaks[name].low, leaks[name].high] for name in metrics}
            if asked.json is not None:
                with asked.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
            cells = "".join(f"{f'{leaks[m].value:.3f} [{leaks[m].low:.3f}, {leaks[m].high:.3f}]':>24}" for m in metrics)
            print(f"{noise:>8g}{prior:>7g}{cells}{each:>9.2f}", flush=True)


if __name__ == "__main__":
    main()
