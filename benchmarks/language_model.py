"""What private fine-tuning costs a causal language model, and what its gradients give away.

python -m benchmarks.language_model perplexity --data notes --parts lora all --epsilons 8 3 --device cuda --out lm.json
python -m benchmarks.language_model perplexity --data DATA/sst2 --rows 20000 --device cuda --out lm-films.json
python -m benchmarks.language_model attack --attacks dager lamp --batch-sizes 1 4 --parts all lora lora-64 --device cuda
python -m benchmarks.language_model perplexity --rows 200 --epochs 2 --parts lora --epsilons 8   (small, on a CPU)

Each line of results is written to --out as soon as it is there; a line that is there already is not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from pathlib import Path
from typing import Any

import torch

from discreet.core.device import find_device
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.data.batches import tokens_for
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource
from discreet.experiment.attack.own_model import attack_model
from discreet.models.language_model import LanguageModel
from discreet.models.settings import TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.training.evaluation import assess
from discreet.training.loop import train
from discreet.training.plan import TrainingPlan, model_settings


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("perplexity", "attack"))
    parser.add_argument("--data", default="notes")
    parser.add_argument("--rows", type=int, help="training rows to keep, or notes to generate")
    parser.add_argument("--unit", help="row makes every row its own unit; by default the corpus says")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--parts", nargs="+", default=["lora", "all"])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[8.0, 3.0])
    parser.add_argument("--plain", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--epochs", type=float, help="of every training; by default those of the library")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--held-out", type=int, default=1000, help="held-out texts that are scored, at most")
    parser.add_argument("--attacks", nargs="+", default=["dager", "lamp"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--examples", type=int, default=8, help="texts to attack")
    parser.add_argument("--words", type=int, default=12, help="first words of each text that is attacked")
    parser.add_argument("--seconds", type=float, help="limit on the search in each release")
    parser.add_argument("--adapter-steps", type=int, default=20, help="plain steps before adapters are attacked")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(given)


class Results:
    """Lines of results by their key, kept in a JSON file as they come."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lines: dict[str, Any] = json.loads(path.read_text()) if path is not None and path.exists() else {}

    def __contains__(self, key: str) -> bool:
        return key in self.lines

    def add(self, key: str, line: dict[str, Any]) -> None:
        self.lines[key] = line
        print(key, json.dumps(line), flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps(self.lines, indent=1) + "\n")


def perplexities(asked: argparse.Namespace, results: Results) -> None:
    corpus = TextSource(asked.data, rows=asked.rows, unit=asked.unit, seed=asked.seed, task="unlabelled").load()
    held_out = corpus.split("validation")
    held_out = held_out.take(range(min(asked.held_out, len(held_out))))
    device = find_device(asked.device)
    for part in asked.parts:
        budgets: list[float | None] = [*([None] if asked.plain else []), *asked.epsilons]
        for epsilon in budgets:
            name = "plain" if epsilon is None else f"epsilon {epsilon:g}"
            settings = (asked.epochs, asked.batch_size, asked.learning_rate)
            key = f"{asked.data} {asked.rows} {asked.unit} {part} {name} {settings}"
            if key in results:
                continue
            protect = None if epsilon is None else DPSGD(epsilon=epsilon)
            chosen = {"encoder": asked.model, "train": part, "max_length": asked.max_length}
            units = corpus.split("train").unit_count
            rng = Rng(asked.seed).fork("model")
            model = LanguageModel.load(model_settings(chosen, protect, units, "lm"), rng=rng).to(device)
            if f"{asked.data} before" not in results:
                results.add(f"{asked.data} before", measured(model, held_out))
            loop = TrainSettings(epochs=asked.epochs, batch_size=asked.batch_size, learning_rate=asked.learning_rate)
            plan = TrainingPlan.make(model, corpus, protect=protect, training=loop, seed=asked.seed)
            began = time.monotonic()
            done = train(model, corpus, plan)
            spent = {} if done.guarantee is None else {"epsilon": done.guarantee.epsilon, "delta": done.guarantee.delta}
            facts = {"rate": plan.settings.learning_rate, "batch": plan.settings.batch_size, "steps": done.steps}
            trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
            about = {"units": units, "unit": corpus.unit_name, "weights": trained, **facts, **spent}
            results.add(key, {**measured(model, held_out), **about, "seconds": time.monotonic() - began})
            del model
            if device.type == "cuda":
                torch.cuda.empty_cache()


def attacks(asked: argparse.Namespace, results: Results) -> None:
    """Attack the gradients of a model, all layers or adapters after some steps, plain and under each epsilon.

    An epsilon is that of the one release attacked, for DP-SGD; a training spreads it over many releases, each with more
    noise.
    """
    source = TextSource(asked.data, rows=asked.rows, unit=asked.unit, seed=asked.seed, task="unlabelled")
    corpus = source.load()
    held_out = corpus.split("validation").texts
    texts = list(dict.fromkeys(" ".join(text.split()[: asked.words]) for text in held_out))[: asked.examples]
    public = corpus.split("train").texts[:2000]
    device = find_device(asked.device)
    for part in asked.parts:
        chosen = {"encoder": asked.model, "train": part, "max_length": asked.max_length, "embeddings": False}
        settings = model_settings(chosen, None, 1, "lm")
        model = LanguageModel.load(settings, rng=Rng(asked.seed).fork("model")).to(device)
        if settings.rank is not None:  # before the first step an adapter's gradient is zero
            few = TrainSettings(epochs=1, batch_size=8, learning_rate=1e-3)
            rows = corpus.take(range(8 * asked.adapter_steps))
            train(model, rows, TrainingPlan.make(model, rows, training=few))
        for name, size, epsilon in itertools.product(asked.attacks, asked.batch_sizes, [None, *asked.epsilons]):
            key = f"{asked.data} {part} {name} batch {size} {'plain' if epsilon is None else f'epsilon {epsilon:g}'}"
            if key in results:
                continue
            protect = None if epsilon is None else DPSGD(epsilon=epsilon)
            began = time.monotonic()
            try:
                found = attack_model(
                    model, None, texts, name, protect=protect, batch_size=size, public=public, seconds=asked.seconds
                )
            except UnsupportedError as error:
                results.add(key, {"unsupported": str(error)})
                continue
            values = {leak.metric: [leak.value, leak.low, leak.high] for leak in found.leakages}
            results.add(key, {**values, "n": found.n, "seconds": time.monotonic() - began})


def measured(model: LanguageModel, held_out: Corpus) -> dict[str, Any]:
    quality = assess(model, tokens_for(model, held_out)).quality
    return {"perplexity": quality.value, "interval": list(quality.interval), "texts": quality.rows}


def main(given: list[str] | None = None) -> None:
    asked = arguments(given)
    (perplexities if asked.what == "perplexity" else attacks)(asked, Results(asked.out))


if __name__ == "__main__":
    main()
