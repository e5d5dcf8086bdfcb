"""LAMP, TAG and DLG on real sentences: how much of a text they read from its gradient, with and without noise.

python -m reproductions.calibration.lamp DATA... --make-prior PRIOR
python -m reproductions.calibration.lamp DATA... --prior PRIOR --sentences 50 --attacks lamp tag dlg --noise 0 \
    0.014 0.1 --kappas 1e5
python -m reproductions.calibration.lamp DATA... --prior PRIOR --device cuda --at-once 200 --vary "rate=0.01" \
    "rate=0.03;kept=4"

A noise of 0 is the gradient as it is; any other is the noise multiplier of DP-SGD at clip norm 1. The prior is a 3-gram
model of film reviews without the texts of the corpora attacked; the word-embedding gradient is not used.
"""

from __future__ import annotations

import argparse
import ast
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from discreet.attacks.matching.lamp_tag_dlg import Dlg, Lamp, Tag
from discreet.attacks.matching.word_draws import WordDraws
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Knowledge
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.metrics.table import text_leakage
from discreet.metrics.text import match
from discreet.models.classifier import Classifier
from discreet.models.ngram import NGram
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.releases.gradient import open_release, protected_release

ATTACKS: dict[str, Any] = {"lamp": Lamp, "tag": Tag, "dlg": Dlg, "word-draws": WordDraws}
METRICS = ("lcs_over_longer", "rouge_l", "rouge_1", "rouge_2", "exact_match")


@dataclass(frozen=True)
class Case:
    """One release and the texts behind it."""

    data: str
    release: str
    seen: GradientRelease
    truths: tuple[str, ...]
    protect: Any = None


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*")
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--sentences", type=int, default=50)
    parser.add_argument("--skip", type=int, default=0, help="leave out so many first, to share the work")
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
    parser.add_argument("--guesses", type=Path, help="write guesses and truths here, one line of JSON for each text")
    parser.add_argument("--score", type=Path, nargs="+", help="score files of --guesses, and do nothing else")
    return parser.parse_args()


def make_prior(asked: argparse.Namespace) -> None:
    """Fit a model to reviews that are free of the texts attacked, and write it."""
    from discreet.data.corpus import without_overlap
    from discreet.data.sources import reviews
    from discreet.models.encoder import load_encoder

    public = reviews()
    for path in asked.data:
        public = without_overlap(public, load(path).split(asked.split))
        print(public.remarks[-1])
    tokenizer = load_encoder(asked.model, rng=Rng(0)).tokenizer
    NGram.fit(public.texts, tokenizer, least=2).save(asked.make_prior)


def cases(asked: argparse.Namespace, name: str, model: Classifier, texts: Corpus, rng: Rng) -> Iterator[Case]:
    """Return every release of a corpus: its batches, without and with protections."""
    order = rng.fork("texts").permutation(len(texts)).tolist()
    chosen = [i for i in order if len(texts.texts[i].split()) <= asked.words]
    chosen = chosen[asked.skip : asked.skip + asked.sentences]
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
            yield Case(name, label, replace(seen, gradients=kept), spelled, protect)


def varied(kind: Any, text: str, seconds: float | None) -> Any:
    settings = {}
    for part in filter(None, text.split(";")):
        key, _, value = part.partition("=")
        settings[key] = ast.literal_eval(value)
    return kind(**({"seconds": seconds} | settings))


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    found: list[dict[str, Any]] = []
    if asked.score:
        found = [json.loads(text) for path in asked.score for text in path.read_text().splitlines()]
    elif asked.make_prior:
        make_prior(asked)
        return
    else:
        attack_all(asked, found)
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for one in found:
        groups.setdefault((one["data"], one["attack"], one["settings"], one["release"]), []).append(one)
    rows = [summary(results) for results in groups.values()]
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))
    heads = f"{'data':5} {'attack':5} {'release':12} {'settings':34} {'n':>3}"
    print(f"\n{heads} LCS/longer [95%]      chance R-L   R-1   R-2   exact s     steps loss")
    for row in rows:
        print(line(row))


def attack_all(asked: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """Run every attack with every setting on every release, and add what was guessed."""
    rng = Rng(asked.seed)
    prior = None if asked.prior is None else NGram.load(asked.prior)
    for path in asked.data:
        name, corpus = Path(path).name, load(path)
        model = Classifier.build(corpus, rng=rng.fork("model"), encoder=asked.model).to(asked.device)
        every = cases(asked, name, model, corpus.split(asked.split), rng.fork(name))
        while portion := [case for _, case in zip(range(asked.at_once), every, strict=False)]:
            for attack, settings in itertools.product(asked.attacks, asked.vary):
                defence = portion[0].protect if all(c.release == portion[0].release for c in portion) else None
                knows = Knowledge(model=model, defence=defence, extra={} if prior is None else {"prior": prior})
                began, cpu = time.monotonic(), time.process_time()
                attacker = varied(ATTACKS[attack], settings, asked.seconds)
                guesses = attacker.run_many([case.seen for case in portion], knows, rng.fork("attack"))
                wall, cpu = time.monotonic() - began, time.process_time() - cpu
                spent = (cpu if asked.device == "cpu" else wall) / len(portion) / asked.batch_size
                for case, guess in zip(portion, guesses, strict=True):
                    shared = {"data": name, "attack": attack, "settings": settings, "release": case.release}
                    shared |= {k: guess.details[k] for k in ("loss", "steps", "seconds")}
                    shared |= {"seconds_a_sentence": spent, "batch_size": asked.batch_size, "device": asked.device}
                    pairs = [(text, truth) for text, truth in zip(guess.texts, case.truths, strict=True)]
                    found.append(shared | {"texts": [g for g, _ in pairs], "truths": [t for _, t in pairs]})
                seconds = {k: round(v, 1) for k, v in guesses[0].details["seconds"].items()}
                print(f"{name} {attack} {portion[0].release} … {settings}: {wall:.0f} s, {seconds}", flush=True)
                for one in found[-len(portion) :][: asked.show]:
                    print(f"  {one['truths']}\n  {one['texts']} {one['loss']:.4f}", flush=True)
            if asked.guesses:
                asked.guesses.write_text("".join(json.dumps(one) + "\n" for one in found))


def summary(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    guesses = [text for one in results for text in match(one["texts"], one["truths"])]
    truths = [text for one in results for text in one["truths"]]
    row: dict[str, Any] = {k: results[0][k] for k in ("data", "attack", "settings", "release", "batch_size", "device")}
    row["n"] = len(truths)
    for metric in METRICS:
        leak = text_leakage(metric, guesses, truths, rng=Rng(0).fork(metric))
        row[metric] = {"value": leak.value, "low": leak.low, "high": leak.high, "chance": leak.chance}
    row["seconds_a_sentence"] = sum(one["seconds_a_sentence"] for one in results) / len(results)
    row["loss"] = sum(one["loss"] for one in results) / len(results)
    row["steps"] = max(one["steps"] for one in results)
    return row


def line(row: dict[str, Any]) -> str:
    lcs = row["lcs_over_longer"]
    chance = f"{lcs['chance']:.2f}" if lcs["chance"] is not None else "-"
    others = " ".join(f"{row[m]['value']:.3f}" for m in METRICS[1:])
    return (
        f"{row['data']:5} {row['attack']:5} {row['release']:12} {row['settings'][:34]:34} {row['n']:3} "
        f"{lcs['value']:.3f} [{lcs['low']:.3f}, {lcs['high']:.3f}] {chance:6} {others} "
        f"{row['seconds_a_sentence']:5.1f} {row['steps']:5} {row['loss']:.4f}"
    )


if __name__ == "__main__":
    main()
