"""Membership inference, measured: LiRA on heads, EZ-MIA on a language model, and the calibration paper's tables.

python -m benchmarks.membership ez-mia --model FOLDER --data notes reviews-rotten-tomatoes --device cuda --out ez.json
python -m benchmarks.membership lira --data DATA/sst2 --out lira.json
python -m benchmarks.membership tables --data DATA/sst2 DATA/cola --out tables.json
python -m benchmarks.membership ez-mia --model FOLDER --members 40 --epochs 1 --parts lora --device cpu   (small)

Each line of results is written to --out as soon as it is there; a line that is there already is not measured again.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.language_model import Results
from discreet.catalog import attack_of
from discreet.core.files import cache_folder
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource
from discreet.experiment.attack import AttackRequest, AttackResult, run_attack
from discreet.experiment.scene import Scene, Target
from discreet.models.base import TextModel
from discreet.models.language_model import LanguageModel
from discreet.protections.base import Protection
from discreet.protections.dp_sgd import DPSGD
from discreet.training.evaluate import assess
from discreet.training.loop import Job, train
from discreet.training.parts import find_device
from discreet.training.plan import TrainingPlan, model_settings
from discreet.training.run_folder import RunChoices
from discreet.training.settings import TrainSettings

EZ_ATTACKS = ("ez-mia", "min-k", "loss")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ez-mia", "lira", "tables"))
    parser.add_argument("--data", nargs="+", default=["notes"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--parts", nargs="+", default=["all", "lora-16"])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[8.0, 3.0])
    parser.add_argument("--members", type=int, default=1000, help="members, and non-members")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--batch-size", type=int, default=16, help="of plain training; private training has its own")
    parser.add_argument("--learning-rate", type=float, default=1e-4, help="of all layers, without privacy")
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument(
        "--window", type=int, default=8, help="texts that share so many words are not both used; not for notes"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    return parser.parse_args(given)


def halves(corpus: Corpus, count: int, window: int, rng: Rng) -> Corpus:
    """Return about `count` rows of random units as the train split, and as many of other units as validation.

    A text is used once. With a `window`, a text that shares that many consecutive words with another is left out, so
    that phrases of one sentence are not on both sides.
    """
    order = rng.permutation(corpus.unit_count)
    by_unit: dict[int, list[int]] = {}
    for row, unit in enumerate(corpus.unit_index.tolist()):
        by_unit.setdefault(unit, []).append(row)
    seen: set[tuple[str, ...]] = set()
    sides: dict[str, list[int]] = {"train": [], "validation": []}
    for unit in order.tolist():
        side = next((name for name, rows in sides.items() if len(rows) < count), None)
        if side is None:
            break
        for row in by_unit[unit]:
            words = corpus.texts[row].lower().split()
            size = min(window, len(words)) if window else len(words)
            windows = {tuple(words[i : i + size]) for i in range(len(words) - size + 1)}
            if len(words) >= max(4, window) and not windows & seen and len(sides[side]) < count:
                seen |= windows
                sides[side].append(row)
    rows = [row for chosen in sides.values() for row in chosen]
    names = tuple(name for name, chosen in sides.items() for _ in chosen)
    return replace(corpus.take(rows), splits=names)


def scene_of(
    model: TextModel, corpus: Corpus, choices: RunChoices, seed: int, encoded: Any = None
) -> tuple[Scene, dict[str, Any]]:
    """Train a model as chosen, and return it with its corpus and what its training cost."""
    plan = TrainingPlan.make(model, corpus, protect=choices.protect, train=choices.train, seed=seed, noise_seed=seed)
    began = time.monotonic()
    target = Target(corpus, choices, cache=cache_folder())
    if plan.protect is None:
        train(model, corpus, plan, job=Job(encoded=encoded))
    else:
        with plan.open_ledger() as ledger:
            done = train(model, corpus, plan, ledger=ledger, secret=plan.secret(), job=Job(encoded=encoded))
            target = replace(target, event=ledger.event, adjacency=plan.adjacency, guarantee=done.guarantee)
    facts = {
        "units": plan.units,
        "rate": plan.settings.learning_rate,
        "batch": plan.settings.batch_size,
        "steps": plan.steps,
        "train_seconds": round(time.monotonic() - began, 1),
        **({} if target.guarantee is None else {"epsilon": target.guarantee.epsilon}),
        **({} if plan.protect is None else plan.protect.facts()),
    }
    return Scene.of(corpus, model.eval(), origin="the trained model", target=target), facts


def line_of(result: AttackResult) -> dict[str, Any]:
    """Return the figures of an attack in short."""
    figures: dict[str, Any] = {
        leak.metric: [round(value, 4) for value in (leak.value, leak.low, leak.high)] for leak in result.leakages
    }
    if result.bounds:
        figures["bounds"] = {name: round(value, 4) for name, value in result.bounds.items()}
    tail = result.details.get("loss_tail")
    if tail:
        figures["loss_tail"] = [round(tail[name], 4) for name in ("value", "low", "high", "chance")]
    return {**figures, "seconds": round(result.seconds, 1)}


def ez_mia(asked: argparse.Namespace, results: Results) -> None:
    """Fine-tune a causal language model in full and by adapters, with and without privacy, and attack it."""
    device = find_device(asked.device)
    for source in asked.data:
        whole = TextSource(source, rows=4 * asked.members if source == "notes" else None, task="unlabelled").load()
        for seed in asked.seeds:
            window = 0 if source == "notes" else asked.window
            corpus = halves(whole, asked.members, window, Rng(seed).fork("halves"))
            for part in asked.parts:
                for epsilon in [None, *asked.epsilons]:
                    name = "plain" if epsilon is None else f"epsilon {epsilon:g}"
                    key = f"{source} {len(corpus)} {part} {name} seed {seed}"
                    if key in results:
                        continue
                    protect: Protection | None = None if epsilon is None else DPSGD(epsilon=epsilon)
                    chosen = {"encoder": asked.model, "train": part, "max_length": asked.max_length}
                    settings = model_settings(chosen, protect, corpus.split("train").unit_count, "lm")
                    loop = TrainSettings(epochs=asked.epochs)
                    if protect is None:
                        rate = asked.learning_rate * (1 if part == "all" else 2)  # adapters, as in the paper
                        loop = TrainSettings(epochs=asked.epochs, batch_size=asked.batch_size, learning_rate=rate)
                    model = LanguageModel.load(settings, rng=Rng(seed).fork("model")).to(device)
                    choices = RunChoices(TextSource(source), settings, loop, protect, seed)
                    scene, facts = scene_of(model, corpus, choices, seed)
                    line: dict[str, Any] = dict(facts)
                    for split in ("train", "validation"):
                        line[f"perplexity_{split}"] = round(assess(model, corpus.split(split)).metrics["perplexity"], 3)
                    for attack in EZ_ATTACKS:
                        request = AttackRequest(attack_of(attack), name=attack, members=asked.members, seed=seed)
                        line[attack] = line_of(run_attack(request, scene))
                    results.add(key, line)
                    del model, scene
                    if device.type == "cuda":
                        torch.cuda.empty_cache()


def main(given: list[str] | None = None) -> None:
    """Run what is asked for."""
    asked = arguments(given)
    results = Results(asked.out)
    {"ez-mia": ez_mia}[asked.what](asked, results)


if __name__ == "__main__":
    main()
