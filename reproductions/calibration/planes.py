"""Utility against what attacks read under two noises: the calibration paper's figures 4 and 5.

    python -m reproductions.calibration.planes DATA... --out FOLDER --device cuda --prior PRIOR --balance --cut 60
    discreet report FOLDER/NAME                       # the plane of each corpus

What a folder holds is not done again: readings are added to read.json, trainings to trained/, and the trials of the
plane are made of both.

Paper: Faustini, Fernandes, McIver and Dras, Empirical calibration and metric differential privacy in language models.
As there, the attacked gradient is that of one text and all layers, and the model whose utility is shown was trained in
batches of 128 with the same noise multiplier or kappa. Unlike there, all layers but the embeddings are trained (a
frozen MiniLM learns little of CoLA under a pooler and a head; `--train pooler+head` is theirs), and every point has the
certified epsilon of the release that was attacked, under each adjacency.

A kappa means another noise in every dimension K: that of a normal number of deviation sqrt(K) / kappa on each
coordinate of a gradient of length 1. The grids below cover about the same noise on an attacked gradient; in training
the noise is drawn once a batch by DP-SGD and once a text by the other, so its kappas reach further.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from discreet.attacks.matching.lamp_tag_dlg import Lamp
from discreet.attacks.matching.word_draws import WordDraws
from discreet.core.randomness import Rng
from discreet.core.types import Leakage, Trial
from discreet.data.corpus import Corpus
from discreet.metrics.table import text_leakage
from discreet.metrics.text import match
from discreet.models.classifier import Classifier
from discreet.releases.protected import epsilon_by_adjacency
from discreet.study.grid import key_of
from discreet.study.store import NAME as TRIALS
from discreet.study.store import Store, read_trials
from discreet.study.sweep import FORMAT, STUDY
from reproductions.calibration.plane_readings import (
    DELTA,
    Readings,
    Setting,
    Victims,
    built,
    decepticons,
    name_of,
    searched,
)
from reproductions.calibration.plane_trainings import in_turn, read_corpus, training_of

NOISES = (0.003, 0.014, 0.043, 0.14, 0.45, 1.2)  # the paper's multipliers, thinned out, and one below them
KAPPAS = (1e7, 3e6, 1e6, 3e5, 1e5, 3e4)
ATTACKS = ("lamp", "word-draws", "decepticons")
METRICS = ("lcs_over_longer", "rouge_l", "rouge_1")  # the first is the paper's ROUGE-L
SHOWN = 4


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="a folder for each corpus is written in it")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prior", type=Path, help="LAMP's language model; without it, one of the training rows")
    parser.add_argument("--train", default="all", help="what is trained: pooler+head, top-N or all")
    parser.add_argument("--plain", action=argparse.BooleanOptionalAction, default=True, help="also without protection")
    parser.add_argument("--noise", type=float, nargs="*", default=NOISES)
    parser.add_argument("--kappas", type=float, nargs="*", default=KAPPAS)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--words", type=int, default=16, help="texts of at most so many words are attacked")
    parser.add_argument("--cut", type=int, help="texts are cut after so many words, for training and attack alike")
    parser.add_argument("--rows", type=int, default=12_800, help="training rows at most")
    parser.add_argument("--balance", action="store_true", help="as many training rows of every class, as in the paper")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--rates", type=float, nargs=2, metavar=("OPEN", "NOISY"), help="learning rates")
    parser.add_argument("--seconds", type=float, default=40.0, help="a search's time for a portion of noisy releases")
    parser.add_argument("--at-once", type=int, default=24, help="noisy releases in a portion; making them ready counts")
    parser.add_argument("--lamp", default="", help="LAMP's settings under noise, if not its own: steps=400;polish=20")
    parser.add_argument("--draws", default="", help="those of word draws: rounds=100;texts=64")
    parser.add_argument("--attacks", nargs="*", default=ATTACKS, choices=ATTACKS)
    parser.add_argument("--workers", type=int, default=0, help="trainings at a time, each in a process of its own")
    parser.add_argument("--limit", type=float, default=1e9, help="no training begins so many seconds after the first")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def settings_of(asked: argparse.Namespace) -> list[Setting]:
    """Return the settings, the two noises in turn, so that an early end leaves some of each."""
    gaussian = [{"name": "dp-sgd", "noise_multiplier": noise, "clip_norm": 1.0} for noise in asked.noise]
    directional = [{"name": "dir-dp-sgd", "kappa": kappa} for kappa in asked.kappas]
    rows: list[Setting] = [{"name": "none"}] if asked.plain else []
    for place in range(max(len(gaussian), len(directional))):
        rows += gaussian[place : place + 1] + directional[place : place + 1]
    return rows


def spelled(model: Classifier, rows: Corpus) -> list[str]:
    ids = model.tokenizer(list(rows.texts), truncation=True, max_length=model.max_length)["input_ids"]
    return [model.tokenizer.decode(row, skip_special_tokens=True) for row in ids]


def run(asked: argparse.Namespace, source: str, pool: ProcessPoolExecutor | None) -> list[str]:
    """Read and train what is missing in a corpus's folder, write its trials, and return its table."""
    rng = Rng(asked.seed)
    name = Path(source).name
    corpus = read_corpus(asked, source)
    held_out = corpus.split("validation")
    model = Classifier.build(corpus, rng=rng.fork("model"), encoder=asked.model, dropout=0.0).to(asked.device)
    order = rng.fork("texts").permutation(len(held_out)).tolist()
    most = max(asked.words, asked.cut or 0)
    short = [i for i in order if 3 <= len(held_out.texts[i].split()) <= most][: asked.sentences]
    rows = held_out.take(short)
    folder = asked.out / name
    folder.mkdir(parents=True, exist_ok=True)
    readings = Readings.of(folder / "read.json", spelled(model, rows))
    victims = Victims(asked, model, rows, corpus.split("train"), rng)
    ways = {"lamp": searched(Lamp, asked.lamp), "word-draws": searched(WordDraws, asked.draws)}
    ways["decepticons"] = decepticons
    for attack in asked.attacks:
        began = time.monotonic()
        ways[attack](
            victims,
            readings.missing(attack, settings_of(asked)),
            lambda setting, guesses, attack=attack: readings.keep(attack, setting, guesses),  # type: ignore[misc]
        )
        print(f"{name}: {attack} {time.monotonic() - began:.1f} s", flush=True)
        torch.cuda.empty_cache()
    metric = "matthews" if name == "cola" else "accuracy"
    with Store(folder / "trained") as store:
        done = {name_of(made.settings["protect"]) for made in read_trials(folder / "trained").values()}
        wanted = [setting for setting in settings_of(asked) if name_of(setting) not in done]
        for setting, (utility, promise, spent) in in_turn(asked, source, wanted, pool):
            settings = described(asked, name, setting)
            store.append(key_of(settings, asked.seed), Trial(settings, asked.seed, utility, (), promise, spent, 0, {}))
            print(f"{name}: {name_of(setting)} {metric} {utility[metric]:.3f}, {spent:.0f} s", flush=True)
    return plane(asked, folder, readings, model, metric, len(held_out), rng)


def plane(
    asked: argparse.Namespace,
    folder: Path,
    readings: Readings,
    model: Classifier,
    metric: str,
    evaluated: int,
    rng: Rng,
) -> list[str]:
    """Write the trials of a corpus from its readings and trainings, and return their table."""
    heads = ("zero-out", "replace", "training", "seconds")
    lines = [f"{'data':6} {'setting':30} {metric:>9}" + "".join(f" {attack[:10]:>10}" for attack in ATTACKS)]
    lines[0] += "".join(f" {head:>11}" for head in heads)
    (folder / TRIALS).unlink(missing_ok=True)
    trainings = {name_of(made.settings["protect"]): made for made in read_trials(folder / "trained").values()}
    study = study_of(asked, folder.name, len(readings.truths), metric, sorted(readings.read, key=ATTACKS.index))
    (folder / STUDY).write_text(json.dumps({"format": FORMAT, **study}, indent=2))
    with Store(folder) as store:
        for setting in settings_of(asked):
            made = trainings.get(name_of(setting))
            if made is None:
                continue
            columns = epsilon_by_adjacency(built(setting, model), DELTA)
            leakages, texts, facts = measured(setting, readings, rng, columns)
            details = {"evaluated_rows": evaluated, "texts": texts, "attacks": facts, "trained": asked.train}
            store.append(key_of(made.settings, asked.seed), replace(made, leakages=leakages, details=details))
            by_name = {leak.metric: leak.value for leak in leakages}
            promise = made.guarantee
            figures = [columns.get(a) for a in ("zero-out", "replace-one")]
            figures += [promise.epsilon if promise is not None and promise.exists else None, made.seconds]
            told = "".join(f" {'-' if value is None else format(value, '.4g'):>11}" for value in figures)
            leaks = [by_name.get(f"{attack}/{METRICS[0]}", float("nan")) for attack in ATTACKS]
            shown = "".join(f" {leak:10.3f}" for leak in leaks)
            lines.append(f"{folder.name:6} {name_of(setting):30} {made.utility[metric]:9.3f}{shown}{told}")
    return lines


def described(asked: argparse.Namespace, name: str, setting: Setting) -> dict[str, Any]:
    """Return what decides a training and the release beside it, by which its trial is known."""
    return {
        "data": {"source": name, "rows": asked.rows},
        "model": {"encoder": "minilm", "train": asked.train, "embeddings": False},
        "training": training_of(asked, setting),
        "release": {"train": "all", "batch_size": 1, "delta": DELTA},
        "protect": setting,
    }


def study_of(
    asked: argparse.Namespace, name: str, examples: int, metric: str, attacks: Sequence[str]
) -> dict[str, Any]:
    """Return the plane as the study that a report expects."""
    shared = described(asked, name, {"name": "none"})
    strongest = "word-draws" if "word-draws" in attacks else "lamp"
    return {
        "name": f"planes of {name}",
        "title": f"{name}: utility against what is read of one text, Gaussian and von Mises–Fisher noise",
        **{part: shared[part] for part in ("data", "model", "release")},
        "training": {"epochs": asked.epochs, "batch_size": 128},
        "protect": settings_of(asked),
        "attack": [{"name": attack, "examples": examples} for attack in attacks],
        "goal": {"leakage": f"{strongest}/{METRICS[0]}", "ceiling": 0.3, "utility": metric},
        "seeds": [asked.seed],
    }


def measured(
    setting: Setting, readings: Readings, rng: Rng, columns: dict[str, float | None]
) -> tuple[tuple[Leakage, ...], list[dict[str, Any]], dict[str, Any]]:
    """Return leakages, texts and the facts of the release for every attack on one setting."""
    leakages: list[Leakage] = []
    texts: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    truths = readings.truths
    for attack, by_setting in readings.read.items():
        if name_of(setting) not in by_setting:
            continue
        guesses = by_setting[name_of(setting)]
        said = [match([guess], [truth])[0] for guess, truth in zip(guesses, truths, strict=True)]
        for metric in METRICS:
            found = text_leakage(metric, said, truths, rng=rng.fork("interval", attack, metric))
            leakages.append(replace(found, metric=f"{attack}/{metric}"))
        pairs = list(zip(truths, said, strict=True))[:SHOWN]
        texts += [{"attack": attack, "truth": t, "guess": g} for t, g in pairs]
        own = columns.get("zero-out") if setting["name"] == "dp-sgd" else columns.get("replace-one")
        promise = None if own is None else {"epsilon": own, "delta": DELTA, "certified": True}
        shared = {"kind": "gradient", "parameters": "all layers", "batch_size": 1, "model": "a fresh minilm"}
        facts[attack] = {"release": shared, "guarantee": promise, "epsilon_by_adjacency": columns}
    return tuple(leakages), texts, facts


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    began = time.monotonic()
    pool = None
    if asked.workers:
        pool = ProcessPoolExecutor(asked.workers, mp_context=multiprocessing.get_context("spawn"))
    tables = [run(asked, source, pool) for source in asked.data]
    if pool is not None:
        pool.shutdown(cancel_futures=True)
    print()
    for table in tables:
        print("\n".join(table))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
