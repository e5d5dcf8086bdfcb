"""Utility against what LAMP and Decepticons read under two noises: the calibration paper's figures 4 and 5.

    python -m benchmarks.planes DATA... --out FOLDER --device cuda --prior PRIOR --balance --cut 60
    discreet report FOLDER/NAME                       # the plane of each corpus

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
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.lamp import varied
from discreet.attacks.gradient.decepticons import Decepticons
from discreet.attacks.gradient.lamp import Lamp
from discreet.calibration.grid import key_of
from discreet.calibration.store import Store
from discreet.clipping.record import Record
from discreet.core.errors import DiscreetError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge, Leakage, Trial
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.experiment.releases import by_adjacency
from discreet.experiment.trial import of_the_setting
from discreet.mechanisms.von_mises_fisher import VonMisesFisher
from discreet.metrics.text import match, text_leakage
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.ngram import NGram
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.encode import cache_folder
from discreet.training.evaluate import evaluate
from discreet.training.loop import train
from discreet.training.release import open_release, protected_release
from discreet.training.settings import TrainSettings

NOISES = (0.003, 0.014, 0.043, 0.14, 0.45, 1.2)  # the paper's multipliers, thinned out, and one below them
KAPPAS = (1e7, 3e6, 1e6, 3e5, 1e5, 3e4)
METRICS = ("lcs_over_longer", "rouge_l", "rouge_1")  # the first is the paper's ROUGE-L
DELTA = 1e-5
SHOWN = 4


@dataclass(frozen=True)
class Formed(DirDPSGD):
    """Directional DP-SGD that forms the units' gradients whatever their number: a large device has room for them."""

    def gather(self, record: Record, sums: dict[str, torch.Tensor], rng: Rng) -> None:
        """Add the noisy directions of some units to the sums."""
        if len(record):
            self.gather_formed(record, sums, rng)
        else:
            super().gather(record, sums, rng)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="a folder for each corpus is written in it")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--prior", type=Path, help="LAMP's language model; without it, one of the training rows")
    parser.add_argument("--train", default="all", help="what is trained: pooler+head, top-N or all")
    parser.add_argument("--noise", type=float, nargs="*", default=NOISES)
    parser.add_argument("--kappas", type=float, nargs="*", default=KAPPAS)
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--words", type=int, default=16, help="texts of at most so many words are attacked")
    parser.add_argument("--cut", type=int, help="texts are cut after so many words, for training and attack alike")
    parser.add_argument("--rows", type=int, default=12_800, help="training rows at most")
    parser.add_argument("--balance", action="store_true", help="as many training rows of every class, as in the paper")
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--rates", type=float, nargs=2, metavar=("OPEN", "NOISY"), help="learning rates")
    parser.add_argument("--seconds", type=float, default=40.0, help="LAMP's time for each portion of noisy releases")
    parser.add_argument("--at-once", type=int, default=24, help="noisy releases in a portion; making them ready counts")
    parser.add_argument("--lamp", default="", help="LAMP's settings, if not its own: steps=400;polish=20")
    parser.add_argument("--attacks", nargs="+", default=["lamp", "decepticons"])
    parser.add_argument("--workers", type=int, default=0, help="trainings at a time, each in a process of its own")
    parser.add_argument("--limit", type=float, default=1e9, help="no training begins so many seconds after the first")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def settings_of(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the settings, the two noises in turn, so that an early end leaves some of each."""
    gaussian = [{"name": "dp-sgd", "noise_multiplier": noise, "clip_norm": 1.0} for noise in asked.noise]
    directional = [{"name": "dir-dp-sgd", "kappa": kappa} for kappa in asked.kappas]
    rows: list[dict[str, Any]] = [{"name": "none"}]
    for place in range(max(len(gaussian), len(directional))):
        rows += gaussian[place : place + 1] + directional[place : place + 1]
    return rows


def read_corpus(asked: argparse.Namespace, source: str) -> Corpus:
    """Return a corpus, its training rows balanced and fewer, its texts cut, where that was asked for."""
    corpus = load(source)
    rows, held_out = corpus.split("train"), corpus.split("validation")
    chosen = Rng(asked.seed).fork("rows").permutation(len(rows)).tolist()
    if asked.balance and rows.labels is not None:
        each = min(rows.labels.count(label) for label in set(rows.labels))
        by_label = [[i for i in chosen if rows.labels[i] == label][:each] for label in sorted(set(rows.labels))]
        chosen = [i for some in zip(*by_label, strict=True) for i in some]
    rows = rows.take(chosen[: asked.rows])
    texts, splits = rows.texts + held_out.texts, ("train",) * len(rows) + ("validation",) * len(held_out)
    if asked.cut:
        texts = tuple(" ".join(text.split()[: asked.cut]) for text in texts)
    labels = (rows.labels or ()) + (held_out.labels or ())
    return Corpus(corpus.name, texts, labels=labels, label_names=corpus.label_names, splits=splits)


def built(protection: dict[str, Any], model: Classifier) -> Any:
    """Return a protection for the parameters that a model trains."""
    if protection["name"] == "none":
        return None
    if protection["name"] == "dir-dp-sgd":
        kind = Formed if model.device.type == "cuda" else DirDPSGD
        return kind.for_model(model, protection["kappa"])
    return DPSGD(protection["noise_multiplier"], protection["clip_norm"])


def training_of(asked: argparse.Namespace, protection: dict[str, Any]) -> dict[str, Any]:
    frozen = asked.train in {"head", "pooler+head"}
    rates = asked.rates or ((2e-3, 1e-3) if frozen else (2e-4, 5e-4))
    rate = rates[0] if protection["name"] == "none" else rates[1]
    return {"epochs": asked.epochs, "batch_size": 128, "learning_rate": rate, "weight_decay": 0.0}


def trained(asked: argparse.Namespace, source: str, protection: dict[str, Any]) -> tuple[Any, Any, float]:
    """Return utility and guarantee of a training under a protection, and its seconds."""
    torch.set_num_threads(1)
    rng = Rng(asked.seed)
    corpus = read_corpus(asked, source)
    began = time.monotonic()
    chosen = ModelSettings(encoder=asked.model, train=asked.train, dropout=0.0, embeddings=False)
    model = Classifier.build(corpus, chosen, rng=rng.fork("model")).to(asked.device)
    protect = built(protection, model)
    done = train(
        model,
        corpus,
        TrainSettings(**training_of(asked, protection)),
        rng=rng.fork("train"),
        protect=protect,
        delta=None if protect is None else 1 / corpus.split("train").unit_count,
        secret=None if protect is None else rng.fork("noise"),
        cache=cache_folder(),
    )
    promise = None if done.guarantee is None else of_the_setting(done.guarantee)
    return evaluate(model, corpus.split("validation")), promise, time.monotonic() - began


def release(model: Classifier, row: Corpus, protect: Any, rng: Rng) -> GradientRelease:
    return open_release(model, row) if protect is None else protected_release(model, row, protect, rng, delta=DELTA)


def seen_by_lamp(found: GradientRelease, protect: Any, unused: str) -> GradientRelease:
    """Return a release as LAMP takes it: without the table of words, and as long as a clipped gradient with noise."""
    longer = 1 / VonMisesFisher(protect.kappa, protect.dimension).mean_cosine if isinstance(protect, DirDPSGD) else 1.0
    return replace(found, gradients={n: g * longer for n, g in found.gradients.items() if n != unused})


def lamp(asked: argparse.Namespace, model: Classifier, rows: Corpus, public: Corpus, rng: Rng) -> dict[int, list[str]]:
    """Return LAMP's guesses for every setting; the noisy releases are attacked in portions."""
    prior = NGram.fit(public.texts, model.tokenizer, least=2) if asked.prior is None else NGram.load(asked.prior)
    word_table = "encoder." + max(model.encoder.named_parameters(), key=lambda item: item[1].shape[0])[0]
    groups: dict[bool, list[tuple[int, GradientRelease]]] = {False: [], True: []}
    for number, protection in enumerate(settings_of(asked)):
        protect = built(protection, model)
        for i in range(len(rows)):
            found = release(model, rows.take([i]), protect, rng.fork("release", number, i))
            groups[protect is not None].append((number, seen_by_lamp(found, protect, word_table)))
    result: dict[int, list[str]] = {}
    for noisy, group in groups.items():
        size = asked.at_once if noisy else len(group)
        for start in range(0, len(group), size):
            portion = group[start : start + size]
            attack = varied(Lamp, asked.lamp if noisy else "", asked.seconds if noisy else asked.seconds / 2)
            knows = Knowledge(model=model, defence=DPSGD(1.0, 1.0) if noisy else None, extra={"prior": prior})
            guesses = attack.run_many([one for _, one in portion], knows, rng.fork("lamp", noisy, start))
            told = {name: round(passed, 1) for name, passed in guesses[0].details["seconds"].items()}
            print(f"  LAMP, {len(portion)} releases: {guesses[0].details['steps']} steps, {told}", flush=True)
            for (number, _), guess in zip(portion, guesses, strict=True):
                result.setdefault(number, []).append(guess.texts[0] if guess.texts else "")
    return result


def decepticons(
    asked: argparse.Namespace, model: Classifier, rows: Corpus, public: Corpus, rng: Rng
) -> dict[int, list[str]]:
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
            except DiscreetError:  # nothing that it could read is left under the noise
                guess = ()
            result.setdefault(number, []).append(guess[0] if guess else "")
    return result


ATTACKS = {"lamp": lamp, "decepticons": decepticons}


def spelled(model: Classifier, rows: Corpus) -> list[str]:
    ids = model.tokenizer(list(rows.texts), truncation=True, max_length=model.max_length)["input_ids"]
    return [model.tokenizer.decode(row, skip_special_tokens=True) for row in ids]


def submitted(asked: argparse.Namespace, source: str, pool: ProcessPoolExecutor | None) -> list[Future[Any]]:
    return [pool.submit(trained, asked, source, protection) for protection in settings_of(asked)] if pool else []


def in_turn(asked: argparse.Namespace, source: str, futures: Sequence[Future[Any]]) -> Iterator[tuple[int, Any]]:
    """Yield what each setting's training gave; one that failed beside others is tried again by itself."""
    wanted = settings_of(asked)
    began = time.monotonic()
    again: list[int] = []
    for number, protection in enumerate(wanted):
        future = futures[number] if futures else None
        late = time.monotonic() - began > asked.limit
        if late and (future is None or future.cancel()):
            continue
        try:
            yield number, trained(asked, source, protection) if future is None else future.result()
        except (RuntimeError, OSError) as error:  # the device's memory, or a worker that died
            print(f"  {protection}: {type(error).__name__} {str(error)[:200]}", flush=True)
            again.append(number)
    for number in again:
        if time.monotonic() - began <= asked.limit:
            try:
                yield number, trained(asked, source, wanted[number])
            except (RuntimeError, OSError) as error:
                print(f"  {wanted[number]}: left out, {type(error).__name__}", flush=True)


def run(asked: argparse.Namespace, source: str, pool: ProcessPoolExecutor | None) -> list[str]:
    """Write the trials of one corpus and return its table."""
    rng = Rng(asked.seed)
    name = Path(source).name
    corpus = read_corpus(asked, source)
    held_out = corpus.split("validation")
    model = Classifier.build(corpus, rng=rng.fork("model"), encoder=asked.model, dropout=0.0).to(asked.device)
    order = rng.fork("texts").permutation(len(held_out)).tolist()
    most = max(asked.words, asked.cut or 0)
    short = [i for i in order if 3 <= len(held_out.texts[i].split()) <= most][: asked.sentences]
    rows = held_out.take(short)
    truths = spelled(model, rows)
    folder = asked.out / name
    folder.mkdir(parents=True, exist_ok=True)
    read: dict[str, dict[int, list[str]]] = {}
    futures: list[Future[Any]] | None = None
    for attack in asked.attacks:
        if attack != "lamp" and futures is None:  # LAMP's time is short enough without trainings beside it
            futures = submitted(asked, source, pool)
        began = time.monotonic()
        read[attack] = ATTACKS[attack](asked, model, rows, corpus.split("train"), rng.fork(attack))
        (folder / "read.json").write_text(json.dumps({"truths": truths, "read": read}))
        print(f"{name}: {attack} {time.monotonic() - began:.1f} s", flush=True)
        torch.cuda.empty_cache()
    results = in_turn(asked, source, submitted(asked, source, pool) if futures is None else futures)
    metric = "matthews" if name == "cola" else "accuracy"
    study = study_of(asked, name, len(rows), metric)
    (folder / "study.json").write_text(json.dumps(study, indent=2))
    heads = ("add/remove", "zero-out", "replace", "training", "seconds")
    lines = [f"{'data':6} {'setting':30} {metric:>9} {'LAMP':>7} {'Decept.':>7}" + "".join(f" {h:>11}" for h in heads)]
    with Store(folder) as store:
        for number, (utility, promise, spent) in results:
            protection = settings_of(asked)[number]
            columns = by_adjacency(built(protection, model), DELTA)
            leakages, texts, facts = measured(protection, number, read, truths, rng, columns)
            settings = {k: study[k] for k in ("data", "model", "training", "release")} | {"protection": protection}
            settings["training"] = training_of(asked, protection)
            details = {"evaluated_rows": len(held_out), "texts": texts, "attacks": facts, "trained": asked.train}
            made = Trial(settings, asked.seed, utility, leakages, promise, spent, 0, details)
            store.append(key_of(settings, asked.seed), made)
            by_name = {leak.metric: leak.value for leak in leakages}
            figures = [columns.get(a) for a in ("add/remove", "zero-out", "replace-one")]
            figures += [promise.epsilon if promise is not None and promise.exists else None, spent]
            told = "".join(f" {'-' if value is None else format(value, '.4g'):>11}" for value in figures)
            strength = " ".join(f"{k} {v:g}" for k, v in protection.items() if k in {"noise_multiplier", "kappa"})
            leaks = [by_name.get(f"{attack}/{METRICS[0]}", float("nan")) for attack in ATTACKS]
            shown = " ".join(f"{leak:7.3f}" for leak in leaks)
            lines.append(f"{name:6} {protection['name'] + ' ' + strength:30} {utility[metric]:9.3f} {shown}{told}")
            print(lines[-1], flush=True)
    return lines


def study_of(asked: argparse.Namespace, name: str, examples: int, metric: str) -> dict[str, Any]:
    return {
        "name": f"planes of {name}",
        "title": f"{name}: utility against what LAMP and Decepticons read, Gaussian and von Mises–Fisher noise",
        "data": {"source": name, "rows": asked.rows},
        "model": {"encoder": "minilm", "train": asked.train, "embeddings": False},
        "training": {"epochs": asked.epochs, "batch_size": 128},
        "release": {"train": "all", "batch_size": 1, "delta": DELTA},
        "protections": settings_of(asked),
        "attacks": [{"name": attack, "examples": examples} for attack in asked.attacks],
        "goal": {"leakage": f"{asked.attacks[0]}/{METRICS[0]}", "ceiling": 0.3, "utility": metric},
        "seeds": [asked.seed],
    }


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
        pairs = list(zip(truths, said, strict=True))[:SHOWN]
        texts += [{"attack": attack, "truth": t, "guess": g} for t, g in pairs]
        own = columns.get("add/remove") if protection["name"] == "dp-sgd" else columns.get("replace-one")
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
