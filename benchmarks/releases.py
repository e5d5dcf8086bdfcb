"""What each protection lets go: attacks on gradients by batch size, and similarity search on released vectors.

python -m benchmarks.releases DATA --max-words 7 --json releases.jsonl
"""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from discreet.catalog import attack_of
from discreet.core.errors import DiscreetError
from discreet.experiment import AttackRequest, Scene, SceneRequest, attack_once, load_scene
from discreet.models.classifier import ModelSettings
from discreet.releases.protected import protection_of

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
    "dp-ie, epsilon 64": ("dp-ie", {"epsilon": 64.0}),
    "ldp, epsilon 8": ("ldp", {"epsilon": 8.0}),
    "ldp, epsilon 32": ("ldp", {"epsilon": 32.0}),
    "santext, 20 a word": ("santext", {"epsilon_per_word": 20.0}),
}
# The column of a table -> the attack, its settings and the metric that is shown.
ATTACKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "dager": ("dager", {}, "rouge_l"),
    "embedding-rows": ("embedding-rows", {}, "bag_recall"),
    "decepticons": ("decepticons", {}, "rouge_l"),
    "lamp": ("lamp", {}, "rouge_l"),
    "rss signed": ("rss", {"score": "signed"}, "exact_match"),
    "rss absolute": ("rss", {"score": "absolute"}, "exact_match"),
    "rss least squares": ("rss", {"score": "least-squares"}, "exact_match"),
}
SIZES = {1: 4, 2: 4, 4: 3, 8: 2}  # texts in a gradient -> gradients in a cell
VECTORS = {32: 4}  # vectors in a release -> releases in a cell
LONG = {1: 8}  # for attacks that take long: single texts alone


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--attacks", nargs="+", default=list(ATTACKS), choices=list(ATTACKS))
    parser.add_argument("--protections", nargs="+", default=list(PROTECTIONS), choices=list(PROTECTIONS))
    parser.add_argument("--times", type=int, default=1, help="this many times as many releases in each cell")
    parser.add_argument("--max-words", type=int, default=7, help="of the texts behind gradients")
    parser.add_argument("--seconds", type=float, help="for each gradient that is matched; without it, LAMP finishes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="a line for each cell, as it is done; what is there is not repeated")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    cells = Cells(asked)
    for column in asked.attacks:
        for protection in asked.protections:
            for size in sizes(column):
                cells.fill(column, protection, size)
    for column in asked.attacks:
        show(asked, column, cells.done)


def sizes(column: str) -> dict[int, int]:
    """Return the batch sizes of an attack, and the number of releases of each."""
    if column.startswith("rss"):
        return VECTORS
    return LONG if column == "lamp" else SIZES


class Cells:
    """Every cell that is done, on disk as soon as it is; and what cells share."""

    def __init__(self, asked: argparse.Namespace) -> None:
        """Take up the cells that an earlier run has left."""
        self.asked = asked
        self.done: dict[tuple[str, str, int], dict[str, Any]] = {}
        if asked.json is not None and asked.json.exists():
            for line in asked.json.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                self.done[row["attack"], row["protection"], row["batch_size"]] = row
        self.scene = cache(self._scene)
        self.protection = cache(self._protection)

    def fill(self, column: str, protection: str, size: int) -> None:
        """Run one cell, unless it is done."""
        if (column, protection, size) in self.done:
            return
        row = {"attack": column, "protection": protection, "batch_size": size, **self._found(column, protection, size)}
        self.done[column, protection, size] = row
        if self.asked.json is not None:
            with self.asked.json.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    def _found(self, column: str, protection: str, size: int) -> dict[str, Any]:
        """Return one attack on one protection at one batch size, or why there is none."""
        name, settings, metric = ATTACKS[column]
        train = "head" if column.startswith("rss") else "all"  # vectors leave an encoder that stays as it is
        asked = self.asked
        try:
            request = AttackRequest(
                attack_of(name, settings), self.protection(protection, train, size), name,
                examples=sizes(column)[size] * asked.times * size, batch_size=size,
                max_words=asked.max_words if train == "all" else None,
                seconds=asked.seconds, seed=asked.seed, noise_seed=asked.seed,
            )  # fmt: skip
            found = attack_once(request, self.scene(train))
        except DiscreetError as error:
            return {"refused": str(error)}
        leak = next(leak for leak in found.leakages if leak.metric == metric)
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

    def _scene(self, train: str) -> Scene:
        settings = ModelSettings(encoder=self.asked.model, dropout=0.0, train=train)
        return load_scene(SceneRequest(self.asked.data, model=settings, seed=self.asked.seed, device=self.asked.device))

    def _protection(self, protection: str, train: str, size: int) -> Any:
        wanted = PROTECTIONS[protection]
        if wanted is None:
            return None
        return protection_of(wanted[0], self.scene(train).model, wanted[1], delta=1e-5, batch_size=size)


def show(asked: argparse.Namespace, column: str, done: dict[tuple[str, str, int], dict[str, Any]]) -> None:
    """Print an attack's table; below it, why some cells are empty."""
    counts = sizes(column)
    most = max((done[column, p, s].get("chance") or 0.0) for p in asked.protections for s in counts)
    print(f"\n{column}: {ATTACKS[column][2]} [95% interval], chance at most {most:.2f}")
    heads = [f"size {size}, {count * asked.times} times" for size, count in counts.items()]
    print(f"{'protection':<24}{'epsilon':>10}" + "".join(f"{head:>20}" for head in heads))
    reasons: dict[str, int] = {}
    for protection in asked.protections:
        rows = [done[column, protection, size] for size in counts]
        epsilon = next((row["epsilon"] for row in rows if row.get("epsilon") is not None), None)
        cells = []
        for row in rows:
            if "refused" in row:
                cells.append(f"n/a ({reasons.setdefault(row['refused'], len(reasons) + 1)})")
            else:
                cells.append(f"{row['value']:.2f} [{row['low']:.2f}, {row['high']:.2f}]")
        shown = "none" if epsilon is None else f"{epsilon:.4g}"
        print(f"{protection:<24}{shown:>10}" + "".join(f"{cell:>20}" for cell in cells))
    for reason, number in reasons.items():
        print(f"({number}) {reason}")


if __name__ == "__main__":
    main()
