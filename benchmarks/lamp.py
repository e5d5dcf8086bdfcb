"""LAMP, TAG and DLG on real sentences: how much of a text they read from its gradient, with and without noise.

python -m benchmarks.lamp DATA... --make-prior PRIOR
python -m benchmarks.lamp DATA... --prior PRIOR --sentences 50 --attacks lamp tag dlg --noise 0 0.014 0.1 --kappas 1e5
python -m benchmarks.lamp DATA... --prior PRIOR --device cuda --at-once 200 --vary "rate=0.01" "rate=0.03;kept=4"

A noise of 0 is the gradient as it is; any other is the noise multiplier of DP-SGD at clip norm 1. The prior is a 3-gram
model of film reviews without the texts of the corpora attacked; the word-embedding gradient is not used.
"""

from __future__ import annotations

import argparse
import ast
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from discreet.attacks.gradient.dlg import Dlg
from discreet.attacks.gradient.lamp import Lamp
from discreet.attacks.gradient.tag import Tag
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.metrics.text import match, text_leakage
from discreet.models.classifier import Classifier
from discreet.models.ngram import NGram
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.release import open_release, protected_release

ATTACKS: dict[str, Any] = {"lamp": Lamp, "tag": Tag, "dlg": Dlg}
METRICS = ("lcs_over_longer", "rouge_l", "rouge_1", "rouge_2", "exact_match")


@dataclass(frozen=True)
class Case:
    """One release and the texts behind it."""

    data: str
    release: str
    seen: GradientRelease
    truths: tuple[str, ...]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--words", type=int, default=20, help="sentences of at most so many words")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--noise", type=float, nargs="*", default=[0.0])
    parser.add_argument("--kappas", type=float, nargs="*", default=[])
    parser.add_argument("--attacks", nargs="+", default=["lamp"], choices=list(ATTACKS))
    parser.add_argument("--seconds", type=float, help="time for each run of an attack")
    parser.add_argument("--at-once", type=int, default=1, help="releases attacked together in one run")
    parser.add_argument("--vary", nargs="*", default=[""], help="settings, as rate=0.03;kept=4, and each is run")
    parser.add_argument("--prior", type=Path)
    parser.add_argument("--make-prior", type=Path, help="fit the prior, write it here, and end")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=0, help="print so many guesses of each run")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def make_prior(path: Path, corpora: Sequence[Corpus], split: str, tokenizer: Any) -> None:
    """Fit a model to reviews that are free of the texts attacked, and write it."""
    from discreet.data.overlap import without_overlap
    from discreet.data.reviews import reviews

    public = reviews()
    for corpus in corpora:
        public = without_overlap(public, corpus.split(split))
        print(public.remarks[-1])
    NGram.fit(public.texts, tokenizer, least=2).save(path)


def cases(asked: argparse.Namespace, name: str, model: Classifier, texts: Corpus, rng: Rng) -> Iterator[Case]:
    """Return every release of a corpus: its batches, without and with protections."""
    order = rng.fork("texts").permutation(len(texts)).tolist()
    chosen = [i for i in order if len(texts.texts[i].split()) <= asked.words][: asked.sentences]
    size = asked.batch_size
    word_table = max(model.encoder.named_parameters(), key=lambda item: item[1].shape[0])[0]
    protections: list[tuple[str, Any]] = [
        (f"noise {noise:g}", DPSGD(noise, clip_norm=1.0) if noise else None) for noise in asked.noise
    ]
    protections += [(f"kappa {kappa:g}", DirDPSGD.for_model(model, kappa)) for kappa in asked.kappas]
    for label, protect in protections:
        for start in range(0, len(chosen) - size + 1, size):
            batch = texts.take(chosen[start : start + size])
            if protect is None:
                seen = open_release(model, batch)
            else:
                seen = protected_release(model, batch, protect, rng.fork(label, start), delta=1e-5)
            # Never used by these attacks, and half of what would have to be kept.
            kept = {n: g for n, g in seen.gradients.items() if n != f"encoder.{word_table}"}
            rows = model.tokenizer(list(batch.texts), truncation=True, max_length=model.max_length)["input_ids"]
            spelled = tuple(model.tokenizer.decode(row, skip_special_tokens=True) for row in rows)
            yield Case(name, label, replace(seen, gradients=kept), spelled)


def varied(kind: Any, text: str, seconds: float | None) -> Any:
    settings = {}
    for part in filter(None, text.split(";")):
        key, _, value = part.partition("=")
        settings[key] = ast.literal_eval(value)
    return kind(**({"seconds": seconds} | settings))


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    rng = Rng(asked.seed)
    corpora = [load(path) for path in asked.data]
    names = [Path(path).name for path in asked.data]
    models = [Classifier.build(c, rng=rng.fork("model"), encoder=asked.model).to(asked.device) for c in corpora]
    if asked.make_prior:
        make_prior(asked.make_prior, corpora, asked.split, models[0].tokenizer)
        return
    prior = None if asked.prior is None else NGram.load(asked.prior)
    rows: list[dict[str, Any]] = []
    for name, corpus, model in zip(names, corpora, models, strict=True):
        knows = Knowledge(model=model, extra={} if prior is None else {"prior": prior})
        portion: list[Case] = []
        found: dict[tuple[str, str, str], list[tuple[Case, Any, float]]] = {}
        every = cases(asked, name, model, corpus.split(asked.split), rng.fork(name))
        while portion := [case for _, case in zip(range(asked.at_once), every, strict=False)]:
            for attack in asked.attacks:
                for settings in asked.vary:
                    began, cpu = time.monotonic(), time.process_time()
                    attacker = varied(ATTACKS[attack], settings, asked.seconds)
                    guesses = attacker.run_many([case.seen for case in portion], knows, rng.fork("attack"))
                    spent = time.monotonic() - began if asked.device != "cpu" else time.process_time() - cpu
                    for case, guess in zip(portion, guesses, strict=True):
                        key = (attack, settings, case.release)
                        found.setdefault(key, []).append((case, guess, spent / len(portion)))
                    if asked.show:
                        for case, guess in list(zip(portion, guesses, strict=True))[: asked.show]:
                            print(f"  {case.truths}\n  {guess.texts} {guess.details['loss']:.4f}", flush=True)
            rows = [row for row in rows if row["data"] != name]
            rows += [summary(name, key, results, asked) for key, results in found.items()]
            if asked.json:
                asked.json.write_text(json.dumps(rows, indent=1))
            print(line(rows[-1]), flush=True)
    heads = f"{'data':6} {'attack':5} {'release':12} {'settings':30} {'n':>3}"
    print(f"\n{heads} LCS/longer [95%]       chance R-L   R-1   R-2   exact s")
    for row in rows:
        print(line(row))


def summary(name: str, key: tuple[str, str, str], results: Sequence[Any], asked: argparse.Namespace) -> dict[str, Any]:
    guesses = [text for case, guess, _ in results for text in match(guess.texts, case.truths)]
    truths = [text for case, _, _ in results for text in case.truths]
    row: dict[str, Any] = {"data": name, "attack": key[0], "settings": key[1], "release": key[2]}
    row |= {"model": Path(asked.model).name, "batch_size": asked.batch_size, "device": asked.device, "n": len(truths)}
    for metric in METRICS:
        leak = text_leakage(metric, guesses, truths, rng=Rng(0).fork(metric))
        row[metric] = {"value": leak.value, "low": leak.low, "high": leak.high, "chance": leak.chance}
    row["seconds_a_sentence"] = sum(seconds for _, _, seconds in results) / len(truths)
    row["loss"] = sum(guess.details["loss"] for _, guess, _ in results) / len(results)
    row["steps"] = max(guess.details["steps"] for _, guess, _ in results)
    return row


def line(row: dict[str, Any]) -> str:
    lcs = row["lcs_over_longer"]
    chance = f"{lcs['chance']:.2f}" if lcs["chance"] is not None else "-"
    others = " ".join(f"{row[m]['value']:.3f}" for m in METRICS[1:])
    return (
        f"{row['data']:6} {row['attack']:5} {row['release']:12} {row['settings'][:30]:30} {row['n']:3} "
        f"{lcs['value']:.3f} [{lcs['low']:.3f}, {lcs['high']:.3f}]  {chance:6} {others} {row['seconds_a_sentence']:.1f}"
    )


if __name__ == "__main__":
    main()
