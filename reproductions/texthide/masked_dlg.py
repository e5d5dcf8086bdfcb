"""DLG with a learned mask against TextHide on a small network: how often the input is found, by width and mixing.

python -m reproductions.texthide.masked_dlg
python -m reproductions.texthide.masked_dlg --widths 4 16 --runs 10 --steps 100 --json OUT

A network of two convolutions with sigmoids, a representation of width d that is mixed and masked, and a linear head;
random images of 12 by 12; uniform weights; one mask, batch 1, label known. Success: mean squared error at most 0.001.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.func import grad, vmap

from discreet.attacks.matching.masked_dlg import MaskedDLG, _Forward, _loss, _parameters
from discreet.core.randomness import Rng
from discreet.metrics.intervals import clopper_pearson

SHAPE = (1, 12, 12)
CLASSES = 10
SUCCESS = 1e-3


class SmallNetwork(nn.Module):
    """Two convolutions and a linear map to a representation; a linear head decides."""

    def __init__(self, width: int, rng: Rng) -> None:
        """Draw all weights uniformly from -0.5 to 0.5."""
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5, stride=2, padding=2)
        self.second = nn.Conv2d(8, 8, 5, stride=2, padding=2)
        self.map = nn.Linear(72, width)
        self.head = nn.Linear(width, CLASSES)
        source = rng.torch()
        for weight in self.parameters():
            weight.data.uniform_(-0.5, 0.5, generator=source)

    def represent(self, inputs: Tensor) -> Tensor:
        """Return representations."""
        hidden = torch.sigmoid(self.second(torch.sigmoid(self.first(inputs))))
        found: Tensor = self.map(hidden.flatten(1))
        return found

    def decide(self, vectors: Tensor) -> Tensor:
        """Return class scores."""
        scores: Tensor = self.head(vectors)
        return scores


def hidden_gradients(
    model: nn.Module, inputs: Tensor, masks: Tensor, weights: Tensor, targets: Tensor
) -> dict[str, Tensor]:
    """Return the gradient of each masked mixture: (runs, k, …) inputs, (runs, width) masks, (runs, k) weights.

    Guarantee: none, a gradient reveals its input.
    """
    forward, parameters = _Forward(model), _parameters(model)

    def one(x: Tensor, mask: Tensor, weight: Tensor, target: Tensor) -> dict[str, Tensor]:
        return grad(_loss, argnums=1)(forward, parameters, x, mask, weight, target)  # type: ignore[no-any-return]

    gradients = vmap(one)(inputs, masks, weights, targets)
    return {name.removeprefix("model."): value for name, value in gradients.items()}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", type=int, nargs="+", default=[4, 16, 64, 256, 1024])
    parser.add_argument("--mixes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--steps", type=int, default=MaskedDLG().steps)
    parser.add_argument("--restarts", type=int, default=MaskedDLG().restarts)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def attacked(attack: MaskedDLG, width: int, mix: int, asked: argparse.Namespace, rng: Rng) -> dict[str, Any]:
    """Return how many of the runs find one of the inputs that were mixed."""
    model = SmallNetwork(width, rng.fork("weights")).to(asked.device)
    source = rng.fork("private").torch()
    inputs = torch.rand(asked.runs, mix, *SHAPE, generator=source)
    labels = torch.randint(CLASSES, (asked.runs, mix), generator=source)
    weights = torch.rand(asked.runs, mix, generator=source)
    weights = weights / weights.sum(dim=1, keepdim=True)
    masks = 2.0 * torch.randint(2, (asked.runs, width), generator=source) - 1.0
    if not attack.learn_mask:
        masks = torch.ones_like(masks)
    targets = (weights[:, :, None] * nn.functional.one_hot(labels, CLASSES)).sum(dim=1)
    inputs, masks, weights, targets = (t.to(asked.device) for t in (inputs, masks, weights, targets))
    gradients = hidden_gradients(model, inputs, masks, weights, targets)
    clock = time.monotonic()
    found = attack.recover(model, gradients, targets, SHAPE, rng.fork("attack"))
    errors = (found.inputs[:, :, None] - inputs[:, None]).flatten(3).square().mean(dim=3).amin(dim=(1, 2))
    hits = int((errors <= SUCCESS).sum())
    low, high = clopper_pearson(hits, asked.runs)
    return {
        "hits": hits,
        "runs": asked.runs,
        "rate": hits / asked.runs,
        "low": low,
        "high": high,
        "restarts": int(found.restarts.sum()),
        "seconds": round(time.monotonic() - clock, 1),
    }


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    rng = Rng(asked.seed)
    plain = MaskedDLG(steps=asked.steps, restarts=asked.restarts, learn_mask=False)
    cases: list[tuple[str, int, int, MaskedDLG]] = [("no mask", 1, 64, plain)]
    for mix in asked.mixes:
        for dummies in range(1, mix + 1):
            name = f"k = {mix}, {dummies} dummy input{'s' * (dummies > 1)}"
            attack = MaskedDLG(steps=asked.steps, restarts=asked.restarts, inputs=dummies)
            cases += [(name, mix, width, attack) for width in asked.widths]
    results: list[dict[str, Any]] = []
    for name, mix, width, attack in cases:
        line = {"case": name, "k": mix, "d": width}
        line |= attacked(attack, width, mix, asked, rng.fork(name, width))
        results.append(line)
        print(
            f"{name:22s} d = {width:4d}  {line['hits']:2d}/{line['runs']} = {line['rate']:.2f} "
            f"[{line['low']:.2f}, {line['high']:.2f}]  restarts {line['restarts']}  {line['seconds']} s",
            flush=True,
        )
        if asked.json:
            asked.json.write_text(json.dumps({"settings": {**vars(asked), "json": None}, "results": results}, indent=1))
    alone = [r for r in results if r["case"].startswith("k = 1")]
    if len(alone) > 2:
        value = spearmanr([r["d"] for r in alone], [r["rate"] for r in alone]).statistic
        print(f"Spearman of width and success at k = 1: {value:.2f}; the paper's Table 2: 0.76 0.56 0.30 0.22 0.08")


if __name__ == "__main__":
    main()
