"""Utility against what LAMP and Decepticons read under two noises: the calibration paper's figures 4 and 5.

    python -m benchmarks.planes DATA... --out FOLDER --device cuda --prior PRIOR --sentences 16 --seconds 40
    discreet report FOLDER/NAME                       # the plane of each corpus

Paper: Faustini, Fernandes, McIver and Dras, Empirical calibration and metric differential privacy in language models.
As there, pooler and head are trained for utility and the attacked gradient is that of one text and all layers. Unlike
there, every point has the certified epsilon of the release that was attacked, under each adjacency.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from discreet.attacks.gradient.decepticons import Decepticons
from discreet.attacks.gradient.lamp import Lamp
from discreet.calibration.grid import key_of
from discreet.calibration.store import Store
from discreet.core.errors import DiscreetError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge, Leakage, Trial
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.experiment.releases import by_adjacency
from discreet.experiment.trial import of_the_setting
from discreet.metrics.text import match, text_leakage
from discreet.models.classifier import Classifier, ModelSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.encode import cache_folder
from discreet.training.evaluate import evaluate
from discreet.training.loop import train
from discreet.training.release import open_release, protected_release
from discreet.training.settings import TrainSettings

NOISES = (0.014, 0.043, 0.14, 0.45, 1.2)  # the paper's multipliers for epsilon 1e6 to 1, thinned out
KAPPAS = (1e6, 1e5, 3e4, 1e4, 3e3)
METRICS = ("rouge_l", "rouge_1")
DELTA = 1e-5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="a folder for each corpus is written in it")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prior", type=Path)
    parser.add_argument("--noise", type=float, nargs="*", default=NOISES)
    parser.add_argument("--kappas", type=float, nargs="*", default=KAPPAS)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--words", type=int, default=16, help="texts of at most so many words are attacked")
    parser.add_argument("--rows", type=int, default=20_000, help="training rows at most")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=40.0, help="time for LAMP on each corpus")
    parser.add_argument("--steps", type=int, help="LAMP's steps, if not its own")
    parser.add_argument("--attacks", nargs="+", default=["lamp", "decepticons"])
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def settings_of(asked: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {"name": "none"},
        *({"name": "dp-sgd", "noise_multiplier": noise, "clip_norm": 1.0} for noise in asked.noise),
        *({"name": "dir-dp-sgd", "kappa": kappa} for kappa in asked.kappas),
    ]


def built(protection: dict[str, Any], model: Classifier) -> Any:
    """Return a protection for the parameters that a model trains."""
    if protection["name"] == "none":
        return None
    if protection["name"] == "dir-dp-sgd":
        return DirDPSGD.for_model(model, protection["kappa"])
    return DPSGD(protection["noise_multiplier"], protection["clip_norm"])


def trained(asked: argparse.Namespace, corpus: Corpus, protection: dict[str, Any], rng: Rng) -> tuple[Any, Any, float]:
    """Return utility and guarantee of pooler and head, and seconds."""
    began = time.monotonic()
    chosen = ModelSettings(encoder=asked.model, train="pooler+head", dropout=0.0, embeddings=False)
    model = Classifier.build(corpus, chosen, rng=rng.fork("model")).to(asked.device)
    protect = built(protection, model)
    rate = 2e-3 if protect is None else 1e-3
    training = TrainSettings(epochs=asked.epochs, batch_size=128, learning_rate=rate, precision="float32")
    delta = None if protect is None else 1 / corpus.split("train").unit_count
    secret = None if protect is None else rng.fork("noise")
    done = train(
        model,
        corpus,
        training,
        rng=rng.fork("train"),
        protect=protect,
        delta=delta,
        secret=secret,
        cache=cache_folder(),
    )
    promise = None if done.guarantee is None else of_the_setting(done.guarantee)
    return evaluate(model, corpus.split("validation")), promise, time.monotonic() - began


def release(model: Classifier, row: Corpus, protect: Any, rng: Rng) -> GradientRelease:
    return open_release(model, row) if protect is None else protected_release(model, row, protect, rng, delta=DELTA)


def lamp(asked: argparse.Namespace, model: Classifier, rows: Corpus, rng: Rng) -> dict[int, list[str]]:
    """Return LAMP's guesses for every setting, all releases attacked together."""
    from discreet.models.ngram import NGram

    extra = {} if asked.prior is None else {"prior": NGram.load(asked.prior)}
    word_table = max(model.encoder.named_parameters(), key=lambda item: item[1].shape[0])[0]
    seen, owner = [], []
    for number, protection in enumerate(settings_of(asked)):
        protect = built(protection, model)
        for i in range(len(rows)):
            found = release(model, rows.take([i]), protect, rng.fork("release", number, i))
            kept = {
                n: g for n, g in found.gradients.items() if n != f"encoder.{word_table}"
            }  # the attack has no use for it
            seen.append(replace(found, gradients=kept))
            owner.append(number)
    attack = Lamp(seconds=asked.seconds) if asked.steps is None else Lamp(seconds=asked.seconds, steps=asked.steps)
    guesses = attack.run_many(seen, Knowledge(model=model, extra=extra), rng.fork("lamp"))
    result: dict[int, list[str]] = {}
    for number, guess in zip(owner, guesses, strict=True):
        result.setdefault(number, []).append(guess.texts[0] if guess.texts else "")
    return result


def decepticons(asked: argparse.Namespace, model: Classifier, rows: Corpus, rng: Rng) -> dict[int, list[str]]:
    """Return Decepticons' guesses for every setting: the server's own weights, one text a release."""
    attack = Decepticons()
    crafted = attack.craft(model, rng.fork("craft"))
    result: dict[int, list[str]] = {}
    for number, protection in enumerate(settings_of(asked)):
        protect = built(protection, crafted)
        for i in range(len(rows)):
            try:
                seen = release(crafted, rows.take([i]), protect, rng.fork("release", number, i))
                guess = attack.run(seen, Knowledge(model=crafted), rng.fork("attack", number, i)).texts
            except DiscreetError as error:  # nothing that it could read is left under the noise
                print(f"  decepticons, {protection}: {error}")
                guess = ()
            result.setdefault(number, []).append(guess[0] if guess else "")
    return result


ATTACKS = {"lamp": lamp, "decepticons": decepticons}


def spelled(model: Classifier, rows: Corpus) -> list[str]:
    ids = model.tokenizer(list(rows.texts), truncation=True, max_length=model.max_length)["input_ids"]
    return [model.tokenizer.decode(row, skip_special_tokens=True) for row in ids]


def run(asked: argparse.Namespace, source: str) -> list[str]:
    """Write the trials of one corpus and return its table."""
    rng = Rng(asked.seed)
    name = Path(source).name
    corpus = load(source, rows=asked.rows)
    held_out = corpus.split("validation")
    model = Classifier.build(corpus, rng=rng.fork("model"), encoder=asked.model, dropout=0.0).to(asked.device)
    order = rng.fork("texts").permutation(len(held_out)).tolist()
    short = [i for i in order if 3 <= len(held_out.texts[i].split()) <= asked.words][: asked.sentences]
    rows = held_out.take(short)
    truths = spelled(model, rows)
    read: dict[str, dict[int, list[str]]] = {}
    seconds: dict[str, float] = {}
    for attack in asked.attacks:
        began = time.monotonic()
        read[attack] = ATTACKS[attack](asked, model, rows, rng.fork(attack))
        seconds[attack] = time.monotonic() - began
        print(f"{name}: {attack} {seconds[attack]:.1f} s", flush=True)
    folder = asked.out / name
    folder.mkdir(parents=True, exist_ok=True)
    metric = "matthews" if name == "cola" else "accuracy"
    study = {
        "name": f"planes of {name}",
        "title": f"{name}: utility against what LAMP and Decepticons read, Gaussian and von Mises–Fisher noise",
        "data": {"source": name, "rows": asked.rows},
        "model": {"encoder": "minilm", "train": "pooler+head"},
        "release": {"train": "all", "batch_size": 1, "delta": DELTA},
        "protections": settings_of(asked),
        "attacks": [{"name": attack, "examples": len(rows)} for attack in asked.attacks],
        "goal": {"leakage": f"{asked.attacks[0]}/rouge_l", "ceiling": 0.2, "utility": metric},
        "seeds": [asked.seed],
    }
    (folder / "study.json").write_text(json.dumps(study, indent=2))
    heads = ("add/remove", "zero-out", "replace", "training")
    lines = [f"{'data':8} {'setting':28} {metric:>9} {'LAMP':>7} {'Decept.':>7} " + " ".join(f"{h:>11}" for h in heads)]
    with Store(folder) as store:
        for number, protection in enumerate(settings_of(asked)):
            utility, promise, spent = trained(asked, corpus, protection, rng)
            columns = by_adjacency(built(protection, model), DELTA)
            leakages, texts, facts = measured(protection, number, read, truths, rng, columns)
            settings = {
                "data": study["data"],
                "model": study["model"],
                "release": study["release"],
                "protection": protection,
            }
            details = {"evaluated_rows": len(held_out), "texts": texts, "attacks": facts, "trained": "pooler+head"}
            made = Trial(settings, asked.seed, utility, leakages, promise, spent, 0, details)
            store.append(key_of(settings, asked.seed), made)
            by_name = {leak.metric: leak.value for leak in leakages}
            figures = [columns.get(a) for a in ("add/remove", "zero-out", "replace-one")]
            figures.append(promise.epsilon if promise is not None and promise.exists else None)
            told = "".join(f" {'-' if value is None else format(value, '.4g'):>11}" for value in figures)
            strength = " ".join(f"{k} {v:g}" for k, v in protection.items() if k in {"noise_multiplier", "kappa"})
            leaks = [by_name.get(f"{attack}/rouge_l", float("nan")) for attack in ATTACKS]
            shown = " ".join(f"{leak:7.3f}" for leak in leaks)
            lines.append(f"{name:8} {protection['name'] + ' ' + strength:28} {utility[metric]:9.3f} {shown}{told}")
            print(lines[-1], flush=True)
    return lines


def measured(
    protection: dict[str, Any],
    number: int,
    read: dict[str, dict[int, list[str]]],
    truths: Sequence[str],
    rng: Rng,
    columns: dict[str, float | None],
) -> tuple[tuple[Leakage, ...], list[dict[str, Any]], dict[str, Any]]:
    """Return leakages, texts and the facts of the release for every attack on one setting."""
    leakages: list[Leakage] = []
    texts: list[dict[str, Any]] = []
    facts: dict[str, Any] = {}
    for attack, guesses in read.items():
        said = [match([guess], [truth])[0] for guess, truth in zip(guesses[number], truths, strict=True)]
        for metric in METRICS:
            found = text_leakage(metric, said, truths, rng=rng.fork("interval", attack, metric))
            leakages.append(replace(found, metric=f"{attack}/{metric}"))
        texts += [{"attack": attack, "truth": t, "guess": g} for t, g in list(zip(truths, said, strict=True))[:4]]
        own = columns.get("add/remove") if protection["name"] == "dp-sgd" else columns.get("replace-one")
        promise = None if own is None else {"epsilon": own, "delta": DELTA, "certified": True}
        shared = {"kind": "gradient", "parameters": "all layers", "batch_size": 1, "model": "a fresh minilm"}
        facts[attack] = {"release": shared, "guarantee": promise, "epsilon_by_adjacency": columns}
    return tuple(leakages), texts, facts


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    began = time.monotonic()
    tables = [run(asked, source) for source in asked.data]
    print()
    for table in tables:
        print("\n".join(table))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
