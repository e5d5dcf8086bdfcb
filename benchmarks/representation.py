"""What attackers read out of representations under TextHide and DP instance encoding.

python -m benchmarks.representation search DATA --candidates 900      # or 0: the whole training split
python -m benchmarks.representation speed DATA
python -m benchmarks.representation reprecon DATA
python -m benchmarks.representation instance DATA --epsilons 0.1 1 2 4 8 10 15 20
python -m benchmarks.representation inversion DATA --epsilons 10 30 100 300 1000 --epochs 10
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discreet.attacks.representation.blind import BlindReconstruction
from discreet.attacks.representation.index import Index, unit
from discreet.attacks.representation.instance import InstanceReconstruction
from discreet.attacks.representation.inversion import EmbeddingInversion
from discreet.attacks.representation.reprecon import RepRecon
from discreet.attacks.representation.similarity import Similarity
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, Leakage, RepresentationRelease
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.metrics.retrieval import constituents, matched_cosines, recovered, retrieval
from discreet.metrics.text import text_leakage
from discreet.models.classifier import Classifier
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.representation import clip
from discreet.protections.texthide import TextHide
from discreet.training.encode import cache_folder, encode

SCHEMES = {
    "plain": TextHide(masks=0, mix=1),
    "mix-only (0, 4)": TextHide(masks=0, mix=4),
    "TextHide (256, 4)": TextHide(masks=256, mix=4),
    "TextHide, fresh masks, k = 4": TextHide(masks=0, mix=4, fresh=True),
    "TextHide (256, 1), as at inference": TextHide(masks=256, mix=1),
}
THRESHOLDS = (0.8, 0.9, 0.95, 0.99)
BATCH = 32
_LAST = "least-squares"
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Hidden:
    """A release with the truth behind it: each output's own row, and the weight of every private row in it."""

    seen: RepresentationRelease
    own: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]


def hide(vectors: Tensor, protect: TextHide, outputs: int, rng: Rng, batch: int = BATCH) -> Hidden:
    """Return what TextHide lets out of some vectors, in batches drawn anew every epoch."""
    live = protect.live(len(vectors), vectors.shape[1], 2, rng.fork("secret"), torch.device("cpu"))
    seen, own, weights = [], [], []
    step = epoch = 0
    while sum(map(len, own)) < outputs:
        order = rng.fork("order", epoch).permutation(len(vectors))
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            if len(rows) < protect.mix:
                continue
            drawn = live.draw(rows, (len(rows), vectors.shape[1]), step, epoch)
            seen.append(live.hide(vectors[torch.from_numpy(rows)], torch.zeros(len(rows)).long(), drawn)[0])
            table = np.zeros((len(rows), len(vectors)))
            table[:, rows] = drawn["mix"].numpy()
            own.append(rows)
            weights.append(table)
            step += 1
        epoch += 1
    kept = slice(outputs)
    return Hidden(
        RepresentationRelease(torch.cat(seen)[kept]), np.concatenate(own)[kept], np.concatenate(weights)[kept]
    )


def encoded(path: str, split: str, pooling: str) -> tuple[Corpus, Tensor]:
    corpus = load(path).split(split)
    model = Classifier.build(corpus, rng=Rng(0), train="head", pooling=pooling)
    return corpus, encode(model, corpus, cache_folder()).vectors


def distinct(corpus: Corpus, rng: Rng) -> np.ndarray[Any, Any]:
    """Return one row of each different text, in random order."""
    first: dict[str, int] = {}
    for row, text in enumerate(corpus.texts):
        first.setdefault(text, row)
    rows = np.array(list(first.values()))
    return rows[rng.permutation(len(rows))]


def shown(leak: Leakage) -> dict[str, Any]:
    return {"value": leak.value, "low": leak.low, "high": leak.high, "n": leak.n, "chance": leak.chance}


def search(asked: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> None:
    """Print the paper's five measures for three scores under five schemes."""
    rng = Rng(asked.seed)
    corpus, vectors = encoded(asked.data, "train", asked.pooling)
    order = distinct(corpus, rng.fork("rows"))
    count = asked.candidates or len(corpus)
    brief = asked.brief or not asked.candidates
    private = order[: 300 if asked.candidates else asked.queries]
    others = np.setdiff1d(order, private, assume_unique=True)[: count - len(private)]
    index = np.concatenate([private, others]) if asked.candidates else np.concatenate(
        [private, np.setdiff1d(np.arange(len(corpus)), private)]
    )  # fmt: skip
    texts = [corpus.texts[i] for i in index]
    labels = [corpus.labels[i] for i in index] if corpus.labels is not None else None
    held = vectors[torch.from_numpy(index)]
    where = {text: row for row, text in reversed(list(enumerate(texts)))}
    embeddings = unit(held.numpy())
    knows = Knowledge(candidates=texts, extra={"vectors": held})
    print(f"{Path(asked.data).name}: {len(texts)} candidates, {len(private)} private, {asked.queries} queries")
    for name, protect in list(SCHEMES.items())[: 3 if brief else None]:
        made = hide(vectors[torch.from_numpy(private)], protect, asked.queries, rng.fork(name))
        heaviest = made.weights.argmax(axis=1)
        for attack in (
            Similarity("signed"), Similarity("absolute"), Similarity("least-squares", rounds=1),
            Similarity(_LAST),
        ):  # fmt: skip
            label = attack.score + (", one round" if attack.rounds == 1 else "")
            if brief and (attack.rounds == 1 or (protect.masks == 0 and attack.score == _LAST)):
                continue  # least squares only for what signed cosine does not find
            began = time.monotonic()
            guess = attack.run(made.seen, knows, rng)
            seconds = time.monotonic() - began
            row = {"data": corpus.name, "candidates": len(texts), "pooling": asked.pooling, "scheme": name,
                   "score": label, "seed": asked.seed, "seconds": seconds}  # fmt: skip
            for whose, truth in (("own", made.own), ("dominant", heaviest)):
                leaks = retrieval(
                    guess.texts, [texts[i] for i in truth], texts, rng=rng.fork(name, label, whose),
                    embed=lambda asked_for: embeddings[[where[text] for text in asked_for]],
                    guessed_labels=None if labels is None else [labels[i] for i in guess.indices],
                    true_labels=None if labels is None else [labels[i] for i in truth], index_labels=labels,
                )  # fmt: skip
                row[whose] = {leak.metric: shown(leak) for leak in leaks}
            ranked = guess.details["ranked"]
            true = [set(np.flatnonzero(line).tolist()) for line in made.weights]
            row["constituents"] = shown(constituents(ranked, true, len(texts), rng=rng.fork(name, label)))
            save(row)
            own = "  ".join(f"{metric} {cell['value']:.3f}" for metric, cell in row["own"].items())
            print(f"{name:<36}{label:<26} own: {own}  dominant {row['dominant']['identity']['value']:.3f}  "
                  f"constituents {row['constituents']['value']:.3f}  {seconds:.1f} s", flush=True)  # fmt: skip


def speed(asked: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> None:
    """Print the time of a query after indexing, alone and in batches, on one core: the best of several rounds.

    Queries are mixtures behind masks; one by one they are asked twice, over bytes first and over whole vectors.
    """
    import faiss

    faiss.omp_set_num_threads(1)
    corpus, vectors = encoded(asked.data, "train", asked.pooling)
    rows = unit(np.abs(vectors.numpy()))
    few = distinct(corpus, Rng(0).fork("rows"))[:1000]
    made = hide(vectors[torch.from_numpy(few)], SCHEMES["TextHide (256, 4)"], 1000, Rng(0))
    queries = unit(np.abs(made.seen.vectors.numpy()))
    began = time.process_time()
    index = Index(rows)
    built = time.process_time() - began
    began = time.process_time()
    assert index.coarse.index.ntotal == len(rows)
    bytes_built = time.process_time() - began
    ways: dict[str, tuple[int, int, Callable[..., Any]]] = {
        "one by one": (1, 50, index.search),
        "one by one, whole vectors": (1, 50, index.compare),
        "1,000 at once": (1000, 1000, index.search),
    }
    found: dict[str, list[Any]] = {}
    for count in (1, 5):
        for way, (batch, total, ask) in ways.items():
            best = {"wall": float("inf"), "cpu": float("inf")}
            for _ in range(8):
                wall, cpu = time.monotonic(), time.process_time()
                answers = [ask(queries[start : start + batch], count) for start in range(0, total, batch)]
                best = {"wall": min(best["wall"], (time.monotonic() - wall) / total * 1e3),
                        "cpu": min(best["cpu"], (time.process_time() - cpu) / total * 1e3)}  # fmt: skip
            found[way] = [np.concatenate([scores for _, scores in answers])]
            save({"data": corpus.name, "vectors": len(index), "way": way, "count": count, "index_seconds": built,
                  "bytes_seconds": bytes_built, **best})  # fmt: skip
            print(f"{len(index)} vectors, the best {count}, {way}: {best['wall']:.2f} ms a query ({best['cpu']:.2f} ms "
                  f"of CPU); index built in {built:.2f} s, bytes in {bytes_built:.2f} s", flush=True)  # fmt: skip
        off = np.abs(found["one by one"][0] - found["one by one, whole vectors"][0]).max()
        print(f"# largest difference between the two ways' products: {off:.1e}", flush=True)


def reprecon(asked: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> None:
    """Print what a trained network rebuilds, by signed and by absolute values, on validation sentences."""
    rng = Rng(asked.seed)
    train, plain = encoded(asked.data, "train", asked.pooling)
    test, vectors = encoded(asked.data, "validation", asked.pooling)
    rows = torch.from_numpy(np.sort(rng.fork("rows").permutation(len(train))[: asked.pairs]))
    plain, queries = plain[rows], min(500, len(test))
    knows_texts, labels = list(test.texts), test.labels
    embeddings = unit(vectors.numpy())
    where = {text: row for row, text in reversed(list(enumerate(knows_texts)))}
    for name in ("plain", "TextHide (256, 4)") if asked.brief else list(SCHEMES)[:4]:
        protect = SCHEMES[name]
        # one pool of masks for both: the attacker's pairs come from the defence that it attacks
        both = torch.cat([plain, vectors])
        made = hide(both, protect, len(both), rng.fork(name))
        learnt = made.own < len(plain)
        heaviest = made.weights.argmax(axis=1)
        tested = np.flatnonzero(~learnt & (heaviest >= len(plain)))[:queries]
        for absolute in (False, True):
            attack = RepRecon(absolute=absolute, epochs=asked.epochs)
            pairs = (made.seen.vectors[torch.from_numpy(learnt)], both[torch.from_numpy(made.own[learnt])])
            knows = Knowledge(candidates=knows_texts, extra={"vectors": vectors, "pairs": pairs})
            began = time.monotonic()
            guess = attack.run(RepresentationRelease(made.seen.vectors[torch.from_numpy(tested)]), knows, rng)
            row = {"data": test.name, "scheme": name, "absolute": absolute, "pairs": len(plain), "seed": asked.seed,
                   "queries": len(tested), "seconds": time.monotonic() - began}  # fmt: skip
            for whose, truth in (("own", made.own[tested]), ("dominant", heaviest[tested])):
                true = truth - len(plain)
                leaks = retrieval(
                    guess.texts, [knows_texts[i] for i in true], knows_texts, rng=rng.fork(name, whose),
                    embed=lambda asked_for: embeddings[[where[text] for text in asked_for]],
                    guessed_labels=None if labels is None else [labels[i] for i in guess.indices],
                    true_labels=None if labels is None else [labels[i] for i in true], index_labels=labels,
                )  # fmt: skip
                row[whose] = {leak.metric: shown(leak) for leak in leaks}
            save(row)
            own = "  ".join(f"{m} {cell['value']:.3f} ({cell['chance']:.3f})" for m, cell in row["own"].items())
            heavy = row["dominant"]["identity"]["value"]
            print(f"{name:<36}{'absolute' if absolute else 'signed':<10}own (chance): {own}  dominant {heavy:.3f}  "
                  f"{row['seconds']:.0f} s", flush=True)  # fmt: skip


def measured(guess: Guess, truth: Tensor, candidates: int) -> tuple[Leakage, dict[str, float]]:
    rebuilt = guess.details["vectors"]
    cosines = matched_cosines(rebuilt, truth)
    chance = len(truth) / candidates
    return recovered(rebuilt, truth, chance=chance), {f"{t:g}": float((cosines >= t).mean()) for t in THRESHOLDS}


def instance(asked: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> None:
    """Print how many of 100 private vectors are rebuilt from 5,000 encodings."""
    corpus, vectors = encoded(asked.data, "train", asked.pooling)
    for seed in range(asked.seed, asked.seed + asked.seeds):
        rng = Rng(seed)
        rows = torch.from_numpy(distinct(corpus, rng.fork("rows"))[: asked.candidates or 900])
        held = vectors[rows[rng.fork("shuffle").permutation(len(rows))]]
        inside = torch.from_numpy(rng.fork("inside").permutation(len(held))[: asked.private])
        truth = held[inside]
        for name, protect in (
            ("TextHide (16, 4)", TextHide(masks=16, mix=4)),
            ("TextHide, fresh masks, k = 4", TextHide(masks=0, mix=4, fresh=True)),
        ):
            made = hide(truth, protect, asked.encodings, rng.fork(name), batch=asked.private)
            attack = InstanceReconstruction(count=asked.private)
            guess = attack.run(made.seen, Knowledge(extra={"vectors": held}), rng.fork("attack"))
            report(name, None, None, seed, *measured(guess, truth, len(held)), save, corpus.name)
            if protect.masks:
                others = torch.from_numpy(np.setdiff1d(np.arange(len(vectors)), rows.numpy())[:3000])
                public = Knowledge(extra={"public": vectors[others]})
                guess = BlindReconstruction(count=asked.private, masks=protect.masks).run(made.seen, public, rng)
                leak, curve = measured(guess, truth, len(held))
                report(f"{name}, blind", None, None, seed, replace(leak, chance=0.0), curve, save, corpus.name)
        norm = float(torch.linalg.vector_norm(held, dim=1).median())
        clipped = clip(held, norm)
        knows = Knowledge(extra={"vectors": clipped})
        for calibration in ("paper", "sound"):
            for epsilon in asked.epsilons:
                protect = InstanceEncoding(
                    epsilon, 1e-5, norm, mix=4, calibration=calibration, rounds=asked.encodings // asked.private
                )
                once = protect.once(np.arange(len(truth)), truth.shape[1], 2, rng.fork(calibration, f"{epsilon!r}"))
                encodings, _ = once(truth, torch.zeros(len(truth)).long())
                attack = InstanceReconstruction(count=asked.private, masked=False)
                guess = attack.run(RepresentationRelease(encodings), knows, rng.fork("attack"))
                found = measured(guess, clipped[inside], len(held))
                report(f"DP-IE, {calibration}", epsilon, once.scale / norm, seed, *found, save, corpus.name)
                if calibration == "paper":  # as its algorithm is printed: one noise vector for all outputs
                    mixed = torch.zeros(len(once.partners), truth.shape[1], dtype=torch.float64)
                    for j in range(4):
                        weight = torch.from_numpy(once.weights[:, j : j + 1])
                        mixed += weight * clipped[inside][torch.from_numpy(once.partners[:, j])]
                    noise = torch.from_numpy(rng.fork("one", f"{epsilon!r}").numpy().standard_normal(truth.shape[1]))
                    attack = InstanceReconstruction(count=asked.private, masked=False, common_noise=True)
                    guess = attack.run(RepresentationRelease(mixed + once.scale * noise), knows, rng.fork("attack"))
                    found = measured(guess, clipped[inside], len(held))
                    report("DP-IE, paper, one noise", epsilon, once.scale / norm, seed, *found, save, corpus.name)


def inversion(asked: argparse.Namespace, save: Callable[[dict[str, Any]], None]) -> None:
    """Print how many words a network reads from vectors under DP instance encoding without mixing, sent once."""
    rng = Rng(asked.seed)
    train, own = encoded(asked.data, "train", asked.pooling)
    test, vectors = encoded(asked.data, "validation", asked.pooling)
    rows = np.sort(rng.fork("rows").permutation(len(train))[: asked.pairs])
    known = set(test.texts)
    rows = np.array([row for row in rows.tolist() if train.texts[row] not in known])
    own, vectors = own[torch.from_numpy(rows)], vectors[:300]
    norm = float(torch.linalg.vector_norm(own, dim=1).median())
    for epsilon in [*asked.epsilons, None]:
        protect = None if epsilon is None else InstanceEncoding(epsilon, 1e-5, norm)
        hidden = []
        for part, plain in (("own", own), ("attacked", vectors)):
            if protect is None:
                hidden.append(plain)
                continue
            once = protect.once(np.arange(len(plain)), plain.shape[1], 2, rng.fork(part, f"{epsilon!r}"))
            hidden.append(once(plain, torch.zeros(len(plain)).long())[0].float())
        knows = Knowledge(auxiliary=[train.texts[row] for row in rows], extra={"auxiliary": hidden[0]})
        attack = EmbeddingInversion(hidden=512, epochs=asked.epochs)
        guess = attack.run(RepresentationRelease(hidden[1]), knows, rng.fork("attack"))
        truths = test.texts[: len(vectors)]
        leaks = [
            text_leakage(metric, guess.texts, truths, rng=rng.fork("measure")) for metric in ("rouge_1", "jaccard")
        ]
        save({"data": test.name, "what": "inversion", "epsilon": epsilon, **{k.metric: shown(k) for k in leaks}})
        print(f"epsilon {'none' if epsilon is None else epsilon}: {leaks[0]}; {leaks[1]}", flush=True)


def report(
    scheme: str, epsilon: float | None, scale: float | None, seed: int, leak: Leakage, curve: dict[str, float],
    save: Callable[[dict[str, Any]], None], data: str,
) -> None:  # fmt: skip
    save({"data": data, "scheme": scheme, "epsilon": epsilon, "noise_over_norm": scale, "seed": seed,
          "recovered": shown(leak), "curve": curve})  # fmt: skip
    strength = "" if epsilon is None else f"epsilon {epsilon:g}, noise {scale:.3g} C"
    print(f"{Path(data).name} seed {seed} {scheme:<30}{strength:<28}{leak}  over thresholds {curve}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["search", "speed", "reprecon", "instance", "inversion"])
    parser.add_argument("data")
    parser.add_argument("--pooling", default="mean")
    parser.add_argument("--candidates", type=int, default=900, help="0: the whole training split")
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--pairs", type=int, default=8000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--private", type=int, default=100)
    parser.add_argument("--encodings", type=int, default=5000)
    parser.add_argument("--epsilons", type=float, nargs="*", default=[0.1, 1, 2, 4, 8, 10, 15, 20])
    parser.add_argument("--brief", action="store_true", help="the schemes and scores of the bars alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--json", help="a file to which a line is added for every row")
    asked = parser.parse_args()
    torch.set_num_threads(1)

    def save(row: dict[str, Any]) -> None:
        if asked.json:
            with Path(asked.json).open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")

    stories = {"search": search, "speed": speed, "reprecon": reprecon, "instance": instance, "inversion": inversion}
    stories[asked.what](asked, save)


if __name__ == "__main__":
    main()
