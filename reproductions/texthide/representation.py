"""What attackers read out of representations under TextHide and DP instance encoding.

python -m reproductions.texthide.representation search DATA --candidates 900      # or 0: the whole training split
python -m reproductions.texthide.representation speed DATA
python -m reproductions.texthide.representation reprecon DATA
python -m reproductions.texthide.representation instance DATA --epsilons 0.1 1 2 4 8 10 15 20
python -m reproductions.texthide.representation inversion DATA --epsilons 10 30 100 300 1000 --epochs 10
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.attacks.representation.index import Index, unit
from discreet.attacks.representation.similarity import SCORES, Similarity
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge
from discreet.metrics.retrieval import retrieval
from reproductions.texthide.hidden_vectors import SCHEMES, distinct, encoded, hide, shown
from reproductions.texthide.rebuilding import instance, inversion, reprecon
from reproductions.texthide.vector_metrics import constituents

_LAST = "least-squares"


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
            if attack.score not in asked.scores:
                continue
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
    parser.add_argument("--scores", nargs="+", choices=SCORES, default=list(SCORES))
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
