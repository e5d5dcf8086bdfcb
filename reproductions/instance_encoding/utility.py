"""DP instance encoding: utility against epsilon, under a proof and as published, and the epsilon behind the latter.

    python -m reproductions.instance_encoding.utility COLA SST2 --public labelled.tsv --json OUT
    python -m reproductions.instance_encoding.utility COLA --what layers --public labelled.tsv  # which layer says most
    python -m reproductions.instance_encoding.utility COLA --layer 4 --public labelled.tsv  # the curves on that layer
    python -m reproductions.instance_encoding.utility SST2 COLA --what finetune --device cuda --json OUT
    python -m reproductions.instance_encoding.utility SST2 --what overhead [--device cuda]

`curves`: a frozen encoder, its outputs kept in the cache; encodings are released once and a linear head is fitted to
them in closed form. `--public` is a table with text and label, from which the projections are learned; what occurs in
the private corpus is removed first. Utility is on the validation split, over three seeds of the noise. One draw serves
all epsilons of a seed: the head is a function of moments, and those of x + scale * noise are polynomials of the scale.
`finetune` trains end to end, as the paper does, which certifies nothing. `overhead` times steps in turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discreet.accounting.instance_encoding import Load
from discreet.accounting.interpret import guarantee_of
from discreet.core.device import find_device
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.batches import Vectors
from discreet.data.corpus import without_overlap
from discreet.data.sources import load
from discreet.metrics.utility import utility
from discreet.models.build import cache_folder, encode
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.closed_form import fit_classes
from discreet.protections.instance_encoding import InstanceEncoding, learn_projection
from discreet.protections.local.projection import Projection
from reproductions.instance_encoding.layers import by_layer, layers, scrambled
from reproductions.instance_encoding.steps import finetune, overhead

EPSILONS = (0.1, 1.0, 2.0, 4.0, 8.0, 10.0, 15.0, 20.0)
DELTA = 1e-5
# what the paper has, and what is proven
KINDS = (
    ("gaussian", "sound"),
    ("gaussian", "paper"),
    ("laplace", "sound"),
    ("laplace", "paper"),
    ("laplace-l2", "sound"),
)
_AT_ONCE = 8192  # rows whose noise is drawn together


@dataclass(frozen=True)
class Moments:
    """What a linear discriminant reads of vectors with noise of scale 1: sums and products, for any other scale."""

    count: int
    shares: Tensor
    sums: tuple[Tensor, Tensor]
    products: tuple[Tensor, Tensor, Tensor]

    @classmethod
    def of(cls, seen: Tensor, targets: Tensor, classes: int, noise: Iterator[Tensor]) -> Moments:
        """Return the moments of some vectors and their noise, which comes in parts."""
        width = seen.shape[1]
        sums = [torch.zeros(classes, width, dtype=torch.float64) for _ in range(2)]
        products = [torch.zeros(width, width, dtype=torch.float64) for _ in range(3)]
        one_hot = torch.nn.functional.one_hot(targets, classes).double()
        start = 0
        for part in noise:
            x, y = seen[start : start + len(part)].double(), one_hot[start : start + len(part)]
            crossed = x.T @ part
            for total, found in zip(products, (x.T @ x, crossed + crossed.T, part.T @ part), strict=True):
                total += found
            for total, found in zip(sums, (y.T @ x, y.T @ part), strict=True):
                total += found
            start += len(part)
        return cls(len(seen), one_hot.mean(0), (sums[0], sums[1]), (products[0], products[1], products[2]))

    def head(self, scale: float, noise: float) -> tuple[Tensor, Tensor]:
        """Return the weights and biases that `fit_classes` gives for this scale, whose variance is `noise`."""
        sums = self.sums[0] + scale * self.sums[1]
        products = self.products[0] + scale * self.products[1] + scale**2 * self.products[2]
        centre = sums.sum(0) / self.count
        means = sums / (self.shares * self.count)[:, None] - centre
        total = products / self.count - torch.outer(centre, centre) - (means * self.shares[:, None]).T @ means
        doubt = 2 * noise * (len(centre) / self.count) ** 0.5
        values, basis = torch.linalg.eigh(total)
        clean = (values - noise).clamp_min(0) + doubt
        within = basis @ torch.diag(clean + 1e-4 * float(clean.mean()) + 1e-12) @ basis.T
        weights = torch.linalg.solve(within, means.T).T
        return weights, -(weights * means).sum(1) / 2 - weights @ centre


def projections(
    rows: Vectors | None, odd: Tensor | None, dimension: int, same_labels: bool
) -> dict[str, Projection | None]:
    """Return what vectors may pass through first, by what is learned from public vectors.

    Nothing; the public mean taken off; principal axes; axes that tell public labels apart; axes that tell public
    sentences from the same with their words in disorder.
    """
    found: dict[str, Projection | None] = {"none": None}
    if rows is not None:
        plain = rows.vectors.cpu()
        found["centred"] = learn_projection(plain, None, plain.shape[1])
        found[f"principal {dimension}"] = learn_projection(plain, None, dimension)
        if same_labels:
            found[f"labels {dimension}"] = learn_projection(plain, rows.targets.cpu(), dimension)
        if odd is not None:
            order = torch.arange(len(plain) + len(odd)) < len(plain)
            found[f"order {dimension}"] = learn_projection(torch.cat([plain, odd.cpu()]), order.long(), dimension)
    return found


def unit_noise(asked: InstanceEncoding, count: int, width: int, rng: Rng) -> Iterator[Tensor]:
    """Return the noise of a mechanism at scale 1, in parts."""
    for start in range(0, count, _AT_ONCE):
        nothing = torch.zeros(min(_AT_ONCE, count - start), width, dtype=torch.float64)
        yield asked.noise(1.0, width)(nothing, rng.fork("noise", start))


def checked(seen: Tensor, targets: Tensor, classes: int) -> None:
    """Stop if the head from moments is not the one that is fitted to the vectors themselves."""
    few, asked = seen[:800].double(), InstanceEncoding(20.0, DELTA)
    noise = torch.cat(list(unit_noise(asked, len(few), few.shape[1], Rng(0))))
    moments = Moments.of(few, targets[:800], classes, unit_noise(asked, len(few), few.shape[1], Rng(0)))
    scale = 0.05
    doubt = 2 * scale**2 * (few.shape[1] / len(few)) ** 0.5
    slow = fit_classes(few + scale * noise, targets[:800], classes, noise=scale**2, query_noise=doubt)
    for one, other in zip(moments.head(scale, scale**2), slow, strict=True):
        torch.testing.assert_close(one.float(), other, rtol=1e-3, atol=1e-4)


def scores(asked: InstanceEncoding, head: tuple[Tensor, Tensor], held_out: Vectors, task: str) -> dict[str, float]:
    said = asked.seen(held_out.vectors) @ head[0].T + head[1]
    return utility(task, said.argmax(1).numpy(), held_out.targets.numpy())


def curves(asked: argparse.Namespace, keep: Any) -> None:
    """Print utility over epsilon for every kind of noise and every projection."""
    for source in asked.data:
        corpus = load(source, rows=asked.rows)
        name = Path(source).name
        model = Classifier.build(corpus, ModelSettings(encoder=asked.model, train="head"), rng=Rng(0))
        public = None
        if asked.public is not None:
            public = without_overlap(load(str(asked.public), validation=0), corpus)
            print(f"# public text: {public.remarks[-1]}", flush=True)
        odd = None
        if asked.layer is None:
            train, held_out = (encode(model, corpus.split(part), cache_folder()) for part in ("train", "validation"))
            rows = None if public is None else encode(model, public, cache_folder())
        else:
            where = (asked.layer, asked.pooling)
            train, held_out = (by_layer(model, corpus.split(part))[where] for part in ("train", "validation"))
            rows = None if public is None else by_layer(model, public)[where]
            odd = None if public is None else by_layer(model, scrambled(public))[where].vectors
        classes = len(model.label_names)
        for through, projection in projections(rows, odd, asked.dimension, name in asked.same_labels).items():
            best = InstanceEncoding(1.0, DELTA, projection=projection)
            width = best.width(model.width)
            seen = best.seen(train.vectors)
            checked(seen, train.targets, classes)
            silent = Moments.of(seen, train.targets, classes, iter(torch.zeros(1, len(seen), width).double()))
            plain = scores(best, silent.head(0.0, 0.0), held_out, model.task)
            keep({"data": name, "layer": asked.layer, "projection": through, "mechanism": "none", **rounded([plain])})
            drawn: dict[str, list[Moments]] = {}
            for mechanism, calibration in KINDS:
                if mechanism not in drawn:
                    likewise = InstanceEncoding(1.0, DELTA, mechanism=mechanism, projection=projection)
                    sources = [Rng(seed).fork(mechanism) for seed in asked.seeds]
                    drawn[mechanism] = [
                        Moments.of(seen, train.targets, classes, unit_noise(likewise, len(seen), width, source))
                        for source in sources
                    ]
                for epsilon in asked.epsilons:
                    protect = InstanceEncoding(
                        epsilon, DELTA, mechanism=mechanism, calibration=calibration, projection=projection
                    )
                    alone = Load(1.0, 1.0)
                    scale = protect.scale(alone, width)
                    noise, event = protect.variance(scale, width), protect.cost(alone, width).event(scale)
                    true = {
                        accountant: round(
                            guarantee_of(
                                event, delta=DELTA, adjacency=Adjacency.REPLACE_ONE, accountant=accountant
                            ).epsilon, 3,
                        )
                        for accountant in (("pld", "rdp") if mechanism == "gaussian" else ("pld",))
                    }  # fmt: skip
                    keep(
                        {
                            "data": name,
                            "layer": asked.layer,
                            "projection": through,
                            "mechanism": mechanism,
                            "calibration": calibration,
                            "epsilon": epsilon,
                            "true_epsilon": true["pld"],
                            "renyi_epsilon": true.get("rdp"),
                            "noise": round(noise**0.5, 4),
                            **rounded(
                                [scores(protect, m.head(scale, noise), held_out, model.task) for m in drawn[mechanism]]
                            ),
                        }
                    )


def rounded(found: list[dict[str, float]]) -> dict[str, Any]:
    """Return means and spreads of the utility figures."""
    row: dict[str, Any] = {}
    for name in ("accuracy", "matthews"):
        values = [score[name] for score in found]
        row[name] = round(statistics.mean(values), 4)
        row[f"{name}_spread"] = [round(min(values), 4), round(max(values), 4)]
    return row


def table(rows: list[dict[str, Any]]) -> None:
    """Print utility over epsilon, one line for each kind, with the true epsilon below what is only claimed."""
    rows = [row for row in rows if "epsilon" in row]
    epsilons = sorted({row["epsilon"] for row in rows})
    kinds = dict.fromkeys((r["data"], r["projection"], r["mechanism"], r["calibration"]) for r in rows)
    for metric in ("accuracy", "matthews"):
        print("\n" + " | ".join(["data", "projection", "noise", metric, *(f"{e:g}" for e in epsilons)]))
        for kind in kinds:
            own = {
                row["epsilon"]: row
                for row in rows
                if (row["data"], row["projection"], row["mechanism"], row["calibration"]) == kind
            }
            print(" | ".join([*kind, *(f"{own[e][metric]:.3f}" if e in own else "" for e in epsilons)]))
            if kind[3] != "sound":
                true = [f"{own[e]['true_epsilon']:.4g}" if e in own else "" for e in epsilons]
                print(" | ".join([*kind[:3], "true epsilon", *true]))


PARTS = {"curves": curves, "layers": layers, "finetune": finetune, "overhead": overhead}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--what", nargs="+", choices=list(PARTS), default=["curves"])
    parser.add_argument("--public", type=Path)
    parser.add_argument(
        "--same-labels", nargs="*", default=["sst2"], help="data whose labels mean what the public ones do"
    )
    parser.add_argument("--dimension", type=int, default=16)
    parser.add_argument("--layer", type=int, help="a hidden layer instead of the encoder's output")
    parser.add_argument("--pooling", default="mean", help="with --layer: mean or cls")
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(EPSILONS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--epochs", type=int, default=3, help="of end-to-end training")
    parser.add_argument("--steps", type=int, default=30, help="timed turns: 20 steps each on a GPU")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    asked.device = find_device(asked.device)
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print(json.dumps(row), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    for part in asked.what:
        began = time.monotonic()
        PARTS[part](asked, keep)
        print(f"# {part}: {time.monotonic() - began:.0f} s", flush=True)
    table(rows)


if __name__ == "__main__":
    main()
