"""What each protection lets go, attacked at several batch sizes: attack × protection × batch size.

python -m benchmarks.releases DATA --examples 8 --max-words 15 --json releases.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from discreet.cli.catalog import attack_of, protection_of
from discreet.core.errors import DiscreetError
from discreet.experiment import AttackRequest, SceneRequest, load_scene, run_attack
from discreet.experiment.releases import REPRESENTATION, kind_of
from discreet.models.classifier import ModelSettings

# What is asked of each protection: little protection and much, where it has a strength at all.
PROTECTIONS: dict[str, tuple[str, dict[str, Any]] | None] = {
    "none": None,
    "dp-sgd, clip alone": ("dp-sgd", {"noise_multiplier": 1e-8, "clip_norm": 1.0}),
    "dp-sgd, noise 0.01": ("dp-sgd", {"noise_multiplier": 0.01, "clip_norm": 1.0}),
    "dp-sgd, noise 1": ("dp-sgd", {"noise_multiplier": 1.0, "clip_norm": 1.0}),
    "dir-dp-sgd, kappa 1e12": ("dir-dp-sgd", {"kappa": 1e12}),
    "dir-dp-sgd, kappa 1e4": ("dir-dp-sgd", {"kappa": 1e4}),
    "texthide (256, 4)": ("texthide", {"masks": 256, "mix": 4}),
    "dp-ie, epsilon 8": ("dp-ie", {"epsilon": 8.0}),
    "ldp, epsilon 8": ("ldp", {"epsilon": 8.0}),
}
MAIN = {"embedding-rows": "bag_recall"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--attacks", nargs="+", default=["embedding-rows", "dager", "decepticons"])
    parser.add_argument("--protections", nargs="+", default=list(PROTECTIONS), choices=list(PROTECTIONS))
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--max-words", type=int, default=15)
    parser.add_argument("--seconds", type=float, help="for each batch; without it, attacks finish")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a line for each cell, as it is done; what is there is not repeated")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    settings = ModelSettings(encoder=asked.model, dropout=0.0)
    scene = load_scene(SceneRequest(asked.data, model=settings, seed=asked.seed, device=asked.device))
    done: dict[tuple[str, str, int], dict[str, Any]] = {}
    if asked.json is not None and asked.json.exists():
        for line in asked.json.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            done[row["attack"], row["protection"], row["batch_size"]] = row
    for name in asked.attacks:
        for protection in asked.protections:
            for size in asked.batch_sizes:
                if (name, protection, size) not in done:
                    row = {"attack": name, "protection": protection, "batch_size": size}
                    done[name, protection, size] = row | cell(asked, scene, name, protection, size)
                    if asked.json is not None:
                        with asked.json.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(done[name, protection, size]) + "\n")
    for name in asked.attacks:
        print(f"\n{name}: {MAIN.get(name, 'rouge_l')}, n = {asked.examples}, at most {asked.max_words} words")
        print(f"{'protection':<24}{'epsilon':>10}" + "".join(f"{f'batch {size}':>12}" for size in asked.batch_sizes))
        for protection in asked.protections:
            rows = [done[name, protection, size] for size in asked.batch_sizes]
            epsilon = next((row["epsilon"] for row in rows if row.get("epsilon") is not None), None)
            shown = "none" if epsilon is None else f"{epsilon:.4g}"
            print(f"{protection:<24}{shown:>10}" + "".join(f"{words(row):>12}" for row in rows))


def cell(asked: argparse.Namespace, scene: Any, name: str, protection: str, size: int) -> dict[str, Any]:
    """Return one attack on one protection at one batch size, or why there is none."""
    attack = attack_of(name)
    wanted = PROTECTIONS[protection]
    try:
        protect = None
        if wanted is not None:
            protect = protection_of(wanted[0], scene.model, wanted[1], delta=1e-5, batch_size=size)
        count = size if kind_of(attack) == REPRESENTATION else asked.examples
        request = AttackRequest(
            attack, protect, name, examples=-(-max(count, size) // size) * size, batch_size=size,
            max_words=asked.max_words, seconds=asked.seconds, seed=asked.seed, noise_seed=asked.seed,
        )  # fmt: skip
        found = run_attack(request, scene)
    except DiscreetError as error:
        return {"refused": str(error)}
    leakages = {leak.metric: leak for leak in found.leakages}
    leak = leakages.get(MAIN.get(name, "rouge_l"), found.leakages[0])
    promise = found.guarantee
    return {
        "epsilon": promise.epsilon if promise is not None and promise.exists else None,
        "value": leak.value,
        "low": leak.low,
        "high": leak.high,
        "chance": leak.chance,
        "n": leak.n,
        "seconds": round(found.seconds, 1),
    }


def words(row: dict[str, Any]) -> str:
    return "refused" if "refused" in row else f"{row['value']:.2f}"


if __name__ == "__main__":
    main()
