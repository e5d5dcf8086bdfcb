"""What a step and a candidate of gradient matching cost beside differentiating through all weight gradients.

python -m benchmarks.matching_cost --tokens 10 --candidates 50
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import torch
from torch import Tensor

from discreet.attacks.matching.candidate_gradients import Imitation
from discreet.attacks.matching.objective import MeanCosine, Objective
from discreet.attacks.matching.problems import Problems
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.releases.gradient import open_release

TEXT = "the nurse wrote down what the patient had said and went home before the rain began to fall on the town"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--tokens", type=int, default=10, help="with the special ones")
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=7)
    return parser.parse_args()


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    work()
    spent = []
    for _ in range(repeats):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return median(spent)


def reference(model: Classifier, seen: GradientRelease, names: list[str], x: Tensor, graph: bool) -> Tensor:
    """Return the loss of one candidate through the gradient of every weight."""
    ones = torch.ones(x.shape[:2], dtype=torch.int64)
    inputs = {"inputs_embeds": x, "attention_mask": ones, "token_type_ids": torch.zeros_like(ones)}
    loss = model.losses(inputs, torch.tensor(seen.labels)).sum()
    found = torch.autograd.grad(loss, [model.get_parameter(n) for n in names], create_graph=graph)
    pairs = [(g, seen.gradients[n]) for n, g in zip(names, found, strict=True)]
    return torch.stack([1 - (g * t).sum() / (g.norm() * t.norm()) for g, t in pairs]).mean()


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    corpus = Corpus("one", (TEXT, "unused"), labels=(0, 1))
    model = Classifier.build(corpus, rng=Rng(0), encoder=asked.model, max_length=asked.tokens).eval()
    model.encoder.set_attn_implementation("eager")  # type: ignore[operator]
    seen = open_release(model, corpus.take([0]))
    assert seen.lengths == (asked.tokens,)
    noisy = {n: g + 1e-3 * torch.randn(g.shape) for n, g in seen.gradients.items()}
    rows = []
    for label, release in (("no noise", seen), ("noise", replace(seen, gradients=noisy, noise_std=1e-3))):
        imitation = Imitation(model, [release], "this benchmark")
        objective = Objective(imitation, Problems.of([release], model, "this benchmark"), MeanCosine())
        names = list(imitation.names)
        one = torch.randn(1, asked.tokens, model.width, requires_grad=True)
        many = torch.randn(1, asked.candidates, 1, asked.tokens, model.width)

        def slow_step(release: GradientRelease = release, names: list[str] = names, one: Tensor = one) -> Tensor:
            return torch.autograd.grad(reference(model, release, names, one, True), one)[0]

        def slow_candidate(release: GradientRelease = release, names: list[str] = names, one: Tensor = one) -> Tensor:
            return reference(model, release, names, one.detach(), False)

        seconds = {
            "step, all weight gradients": cpu_seconds(slow_step, asked.repeats),
            "step": cpu_seconds(lambda o=objective, x=one: o.slopes(x[None, None]), asked.repeats),
            "candidate, all weight gradients": cpu_seconds(slow_candidate, asked.repeats),
            "candidate": cpu_seconds(
                lambda o=objective, x=many: o.of_many(asked.candidates, lambda part: x[:, part]), asked.repeats
            )
            / asked.candidates,
        }
        for what in ("step", "candidate"):
            slow, fast = seconds[f"{what}, all weight gradients"], seconds[what]
            rows.append({"release": label, "what": what, "slow_ms": 1e3 * slow, "fast_ms": 1e3 * fast})
            print(f"{label:9} {what:10} {1e3 * slow:7.1f} ms -> {1e3 * fast:6.1f} ms, {slow / fast:.1f} times cheaper")
    print(json.dumps({"tokens": asked.tokens, "candidates": asked.candidates, "rows": rows}))


if __name__ == "__main__":
    main()
