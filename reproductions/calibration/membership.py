"""Membership inference, measured: LiRA on heads, EZ-MIA on a language model, and the calibration paper's tables.

python -m reproductions.calibration.membership ez-mia --model FOLDER --data notes reviews-rotten-tomatoes --device \
    cuda --out ez.json
python -m reproductions.calibration.membership lira --data DATA/sst2 --out lira.json
python -m reproductions.calibration.membership tables --data DATA/sst2 DATA/cola --out tables.json
python -m reproductions.calibration.membership ez-mia --model FOLDER --members 40 --epochs 1 --parts lora --device \
    cpu  (small)

Each line of results is written to --out as soon as it is there; a line that is there already is not measured again.
"""

from __future__ import annotations

import argparse
import copy
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.language_model import Results

from discreet.attacks.membership.signals import MembershipAttack, Outputs, References, Signals
from discreet.catalog import attack_of
from discreet.core.device import find_device
from discreet.core.files import cache_folder
from discreet.core.randomness import Rng
from discreet.core.types import Leakage
from discreet.data.batches import Vectors, tokens_for
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource
from discreet.experiment.attack.membership import VECTORS, Candidates, encoded, observe, select
from discreet.experiment.attack.neighbours import Close, versions
from discreet.experiment.attack.request import AttackRequest, AttackResult
from discreet.experiment.attack.runner import attack_once
from discreet.experiment.attack.scene import Scene, Target
from discreet.experiment.attack.signals import outputs_of
from discreet.metrics.membership import Scored, advantage, auc
from discreet.models.base import TextModel
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.language_model import LanguageModel
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.folder import RunChoices
from discreet.training.evaluation import evaluate, represent
from discreet.training.loop import Job, train
from discreet.training.many_heads import HeadJob, can_train_together, train_heads
from discreet.training.plan import TrainingPlan, model_settings

EZ_ATTACKS = ("ez-mia", "min-k", "loss")


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ez-mia", "lira", "tables"))
    parser.add_argument("--data", nargs="+", default=["notes"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--parts", nargs="+", default=["all", "lora-16"])
    parser.add_argument("--epsilons", type=float, nargs="*", default=[8.0, 3.0])
    parser.add_argument("--members", type=int, default=1000, help="members, and non-members")
    parser.add_argument("--texts", type=int, help="texts of each model of the tables; by default those of the paper")
    parser.add_argument("--kappas", type=float, nargs="*", default=KAPPAS, help="directional noise of the tables")
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
    plan = TrainingPlan.make(
        model, corpus, protect=choices.protect, training=choices.training, seed=seed, noise_seed=seed
    )
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


def rounded(leakage: Leakage) -> list[float]:
    """Return a value with its interval, in four digits."""
    return [round(value, 4) for value in (leakage.value, leakage.low, leakage.high)]


def line_of(result: AttackResult) -> dict[str, Any]:
    """Return the figures of an attack in short."""
    figures: dict[str, Any] = {leak.metric: rounded(leak) for leak in result.leakages}
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
                        line[f"perplexity_{split}"] = round(evaluate(model, corpus.split(split))["perplexity"], 3)
                    for attack in EZ_ATTACKS:
                        request = AttackRequest(attack_of(attack), name=attack, members=asked.members, seed=seed)
                        line[attack] = line_of(attack_once(request, scene))
                    results.add(key, line)
                    del model, scene
                    if device.type == "cuda":
                        torch.cuda.empty_cache()


# The noise multipliers of the calibration paper's tables 1 and 2 for BERT, by data set, and how many texts a model had.
PAPER_NOISES = {
    "cola": (0.014, 0.043, 0.092, 0.140, 0.278, 0.615, 1.91),
    "sst2": (0.042, 0.078, 0.101, 0.137, 0.254, 0.478, 1.00),
}
PAPER_TEXTS = {"cola": 259, "sst2": 3100}
# Of a head with 770 numbers: the mean cosine between a direction and its release falls from .99 to .04.
KAPPAS = (3e4, 1e4, 3e3, 1e3, 300.0, 100.0, 30.0)
REFERENCES = 16
NEIGHBOURS, NEIGHBOUR_TEXTS = 10, 250
LOOP = {"epochs": 60, "learning_rate": 0.02, "weight_decay": 0.0}


def head_scene(
    corpus: Corpus,
    protect: Protection | None,
    loop: TrainSettings,
    seed: int,
    cache: dict[Any, Any],
    certified: bool = True,
    **model: Any,
) -> tuple[Scene, dict[str, Any]]:
    """Train a head on a frozen encoder, whose vectors are computed once for all heads on a corpus."""
    settings = ModelSettings(**{"train": "head", "dropout": 0.0, **model})
    built = cache.get("model")
    if built is None:
        built = cache["model"] = Classifier.build(corpus, settings, rng=Rng(seed).fork("model"))
    built = copy.deepcopy(built)
    built.settings = settings
    built.replace_head(built.width, Rng(seed).fork("model").fork("head"))
    choices = RunChoices(TextSource("benchmark"), settings, loop, protect, seed)
    scene = Scene.of(
        corpus, built.eval(), origin="the trained head", target=Target(corpus, choices, cache=cache_folder())
    )
    scene.cache.update(cache.get("vectors", {}))
    rows = np.flatnonzero(np.array(corpus.splits) == "train")
    batch = encoded(scene, scene.target, corpus, rows, lambda stage, done, total: None)  # type: ignore[arg-type]
    cache["vectors"] = dict(scene.cache)
    if certified or not can_train_together(settings, loop, protect, built.task):
        trained, facts = scene_of(built, corpus, choices, seed, batch)
        trained.cache.update(cache["vectors"])
        return trained, facts
    # Most noises of the paper have an epsilon of thousands, which takes minutes to compute and says nothing.
    split = corpus.split("train")
    plan = TrainingPlan.make(built, split, protect=protect, training=loop, seed=seed, noise_seed=seed)
    weight, bias = (parameter.detach() for parameter in built.head.parameters())
    job = HeadJob(rows, split, plan, None if protect is None else plan.secret(), weight, bias)
    weights, biases = train_heads(scene.cache[VECTORS], [job])
    with torch.no_grad():
        for parameter, value in zip(built.head.parameters(), (weights[0], biases[0]), strict=True):
            parameter.copy_(value)
    return scene, {"steps": plan.steps}


def accuracy_gap(scene: Scene) -> float:
    """Return accuracy on the training rows minus that on the others, in points."""
    vectors, target = scene.cache[VECTORS], scene.target
    assert target is not None
    inside = np.array(target.corpus.splits) == "train"
    right = outputs_of(scene.model, vectors).logits > 0
    return round(100 * float(right[inside].mean() - right[~inside].mean()), 2)


def joined(one: Outputs, other: Outputs) -> Outputs:
    """Return the outputs on the examples of both."""
    assert one.probabilities is not None and other.probabilities is not None
    probabilities = np.concatenate([one.probabilities, other.probabilities], axis=-2)
    losses, logits = (
        np.concatenate([getattr(one, name), getattr(other, name)], axis=-1) for name in ("losses", "logits")
    )
    return Outputs(losses, logits, probabilities)


def with_population(signals: Signals, candidates: Candidates) -> Signals:
    """Return signals in which the known non-members are asked about too."""
    references, beside = signals.references, signals.population_references
    assert references is not None and beside is not None and signals.population is not None
    included = np.concatenate([references.included, beside.included], axis=1)
    rows, labels = np.concatenate([candidates.rows, candidates.population]), candidates.corpus.labels
    return Signals(
        joined(signals.target, signals.population),
        labels=None if labels is None else np.asarray(labels, dtype=np.int64)[rows],
        references=References(joined(references.outputs, beside.outputs), included),
    )


def attacked(scene: Scene, seed: int, nearby: tuple[Any, Any] | None, cache: dict[Any, Any]) -> dict[str, Any]:
    """Return the figures of every attack on a head: the paper's, the same with protected references, LiRA and RMIA.

    Unprotected references do not depend on the noise of the target, so that they are trained once and kept in `cache`.
    """
    target = scene.target
    assert target is not None
    line: dict[str, Any] = {"train_gap": accuracy_gap(scene)}
    request = AttackRequest(attack_of("rmia"), name="rmia", references=REFERENCES, seed=seed)
    candidates = select(scene.model, target, request, Rng(seed).fork("candidates"))
    is_member = np.concatenate([candidates.is_member, np.zeros(len(candidates.population), dtype=bool)])
    own = replace(request, attack=attack_of("population"))  # the target's outputs alone
    for words in ("plain",) if target.choices.protect is None else ("plain", "protected"):
        if words == "plain" and "plain" in cache:
            kept = cache["plain"]
            signals = observe(own, scene, target, candidates, lambda stage, done, total: None)
            signals = replace(signals, references=kept[0], population_references=kept[1])
        else:
            asked = replace(request, references_protected=words == "protected")
            signals = observe(asked, scene, target, candidates, lambda stage, done, total: None)
        if words == "plain":
            cache["plain"] = signals.references, signals.population_references
        every = with_population(signals, candidates)
        assert every.references is not None
        ten = np.arange(10)
        few = References(every.references.outputs.models(ten), every.references.included[ten])
        for name, seen, inside in (
            ("mia", replace(every, references=few), is_member),
            ("mia-r", replace(every, references=few), is_member),
            ("lira", every, is_member),
            ("rmia", signals, candidates.is_member),
        ):
            attack = attack_of(name)
            assert isinstance(attack, MembershipAttack)
            scores = attack.score(seen, Rng(seed))
            scored = Scored.of(scores, inside)
            gain = advantage(scored, attack.cut(seen, scores))
            line[f"{name} {words}"] = [*rounded(auc(scored)), round(gain.value, 4)]
        line["loss"] = rounded(auc(Scored.of(-every.target.losses, is_member)))
    if nearby is not None:
        rows, vectors = nearby
        its = scene.cache[VECTORS].batch(rows)
        losses = outputs_of(scene.model, Vectors(its.inputs["vectors"], its.targets)).losses
        beside = outputs_of(scene.model, vectors).losses.reshape(len(rows), NEIGHBOURS)
        inside = np.array(target.corpus.splits)[rows] == "train"
        line["mia-n"] = rounded(auc(Scored.of(beside.mean(axis=1) - losses, inside)))
    return line


def text_of(source: str) -> Corpus:
    """Return a data set; in tab-separated files quotation marks are text."""
    tabs = Path(source).is_dir() and any(Path(source).glob("*.tsv"))
    return TextSource(source, quoting="none" if tabs else None).load()


def altered_vectors(scene: Scene, rng: Rng) -> tuple[Any, Any]:
    """Return some rows of both sides, and the vectors of their altered versions, which do not depend on the head."""
    target = scene.target
    assert target is not None and isinstance(scene.model, Classifier)
    splits = np.array(target.corpus.splits)
    sides = [np.flatnonzero(splits == name) for name in ("train", "validation")]
    orders = [rng.fork(str(number)).permutation(len(side)) for number, side in enumerate(sides)]
    rows = np.concatenate([side[order[:NEIGHBOUR_TEXTS]] for side, order in zip(sides, orders, strict=True)])
    close = Close.of(scene.model, scene.model.encoder.get_input_embeddings().weight)  # type: ignore[operator]
    tokens = versions(tokens_for(scene.model, target.corpus.take(rows)), close, NEIGHBOURS, rng.fork("altered"))
    return rows, Vectors(represent(scene.model, tokens), tokens.targets)


def tables(asked: argparse.Namespace, results: Results) -> None:
    """Measure the calibration paper's tables 1 and 2 on heads: its attacks, its noise levels, and both noises."""
    for source in asked.data:
        name = Path(source).name
        whole = text_of(source)
        count, noises = asked.texts or PAPER_TEXTS[name], PAPER_NOISES[name]
        loop = TrainSettings(batch_size=64 if name == "cola" else 256, **LOOP)  # type: ignore[arg-type]
        levels: list[tuple[str, Protection | None]] = [("none", None)]
        levels += [(f"gaussian {noise:g}", DPSGD(noise_multiplier=noise, clip_norm=1.0)) for noise in noises]
        levels += [(f"von-mises-fisher {kappa:g}", DirDPSGD(kappa=kappa)) for kappa in asked.kappas]
        for seed in asked.seeds:
            corpus = halves(whole, count, 0 if name == "cola" else asked.window, Rng(seed).fork("halves"))
            cache: dict[Any, Any] = {}
            nearby = None
            for label, protect in levels:
                key = f"{name} {label} seed {seed}"
                if key in results:
                    continue
                scene, facts = head_scene(corpus, protect, loop, seed, cache, certified=False)
                if seed == asked.seeds[0] and nearby is None:
                    nearby = altered_vectors(scene, Rng(seed).fork("nearby"))
                line = attacked(scene, seed, nearby, cache)
                results.add(key, {**line, "steps": facts["steps"]})


def lira(asked: argparse.Namespace, results: Results) -> None:
    """Measure LiRA with 64 reference heads: over-fitted ones without privacy, and a private one."""
    heads: dict[str, tuple[dict[str, Any], TrainSettings, Protection | None]] = {
        "linear": ({}, TrainSettings(epochs=100, batch_size=256, learning_rate=0.05, weight_decay=0.0), None),
        "mlp-128": (
            {"head": "mlp", "hidden": (128,)},
            TrainSettings(epochs=30, batch_size=256, learning_rate=0.01, weight_decay=0.0),
            None,
        ),
        "linear epsilon 3": ({}, TrainSettings(), DPSGD(epsilon=3.0)),
    }
    for source in asked.data:
        whole = text_of(source)
        corpus = halves(whole, asked.members, asked.window, Rng(0).fork("halves"))
        cache: dict[Any, Any] = {}
        for name, (model, loop, protect) in heads.items():
            key = f"{Path(source).name} {len(corpus)} {name}"
            if key in results:
                continue
            began = time.monotonic()
            scene, facts = head_scene(corpus, protect, loop, 0, cache, **model)
            line: dict[str, Any] = {**facts, "train_gap": accuracy_gap(scene)}
            line["prepared"] = round(time.monotonic() - began, 1)
            for attack in ("lira", "rmia", "loss"):
                line[attack] = line_of(attack_once(AttackRequest(attack_of(attack), name=attack), scene))
            results.add(key, line)


def main(given: list[str] | None = None) -> None:
    """Run what is asked for."""
    asked = arguments(given)
    results = Results(asked.out)
    {"ez-mia": ez_mia, "lira": lira, "tables": tables}[asked.what](asked, results)


if __name__ == "__main__":
    main()
