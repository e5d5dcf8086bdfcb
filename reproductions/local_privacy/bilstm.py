"""The published tables of the local layer with a BiLSTM, trained end to end with noise between encoder and head.

    python -m reproductions.local_privacy.bilstm SST2 --held-out --tables choose --json choose.jsonl
        # settings, by train rows
    python -m reproductions.local_privacy.bilstm SST2 --chosen choose.jsonl --workers 16 --seeds 3 --json \
        $OUT/local_bilstm.jsonl

Tables 3 to 5 and Figure 6 of the paper (LDP-NLP) under its calibration and under ours: accuracy beside the epsilon that
is claimed and the epsilon that is proven for the noise. As in the paper the encoder is trained on the private text, so
no figure here is certified; the noise alone is. Each row is printed and saved as soon as all its seeds are there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from discreet.accounting.local_layer import LocalLayerCost
from reproductions.local_privacy.bilstm_model import CLIP, Choice, Trainer

TRAINING = (1.0, 2.3, 3.5, 12.0, 25.0)
INFERENCE = (0.8, 1.75, 2.25, 8.0)
TABLES = ("null", "table_4", "table_4_words", "table_3", "table_5", "figure_6")
_trainer: list[Trainer] = []  # one in each process


@dataclass(frozen=True)
class Noise:
    """A budget to be turned into noise; `proven_for` is what really happens, where that is another cost."""

    cost: LocalLayerCost
    epsilon: float
    delta: float
    proven_for: LocalLayerCost | None = None


@dataclass(frozen=True)
class Job:
    """One row of a table: the training, and the queries where they have a noise of their own."""

    table: str
    calibration: str = "none"
    training: Noise | None = None
    inference: Noise | None = None
    retrained: bool = False
    position: str = "sentence"
    width: int = 128
    batch: int = 256
    rate: float = 3e-3
    dropout: float = 0.2


Work = tuple[Choice, list[tuple[Job, float]]]  # a training, and the rows it serves with the noise of their queries


class Tables:
    """The rows of each table of the paper, for so many sentences."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.n, self.queries = asked.sizes

    def noise(self, epsilon: float, calibration: str, batch: int, position: str = "sentence") -> Noise:
        steps = round(self.asked.epochs * self.n / batch)
        cost = LocalLayerCost(CLIP, self.n, batch, steps, sampling="fixed", calibration=calibration)
        # each word is bounded alone: a sentence of as many words moves further
        wide = replace(cost, clip_norm=CLIP * self.asked.tokens**0.5) if position == "word" else None
        return Noise(cost, epsilon, 1 / self.n, wide)

    def job(self, table: str, epsilon: float, calibration: str, **choice: Any) -> Job:
        batch = min(choice.pop("batch", self.asked.batch), self.n)
        noise = self.noise(epsilon, calibration, batch, choice.get("position", "sentence"))
        return Job(table, calibration, noise, batch=batch, **{**self.usual, **choice})

    @property
    def usual(self) -> dict[str, float]:
        return {"rate": self.asked.rate, "dropout": self.asked.dropout}

    def null(self) -> Iterator[Job]:
        yield Job("null", batch=min(self.asked.batch, self.n), **self.usual)

    def choose(self) -> Iterator[Job]:
        """Train at several settings, without noise and with the paper's."""
        for rate in (1.5e-3, 3e-3, 6e-3):
            for dropout in (0.2, 0.5):
                yield Job("choose", batch=min(self.asked.batch, self.n), rate=rate, dropout=dropout)
                yield self.job("choose", 3.5, "paper-vector", rate=rate, dropout=dropout)

    def table_4(self) -> Iterator[Job]:
        for position in ("sentence", "token"):
            for calibration in ("paper-vector", "sound", "paper"):
                for epsilon in TRAINING if (position, calibration) != ("token", "paper") else ():
                    yield self.job("4", epsilon, calibration, position=position)

    def table_4_words(self) -> Iterator[Job]:
        """Train with the noise on each word, as in the left half of the paper's table 4."""
        for epsilon in TRAINING:
            yield self.job("4", epsilon, "paper-vector", position="word")

    def table_3(self) -> Iterator[Job]:
        """Train at the matching epsilon of Table 4; ask without decoys, with nine a query, and these retrained."""
        n = self.queries
        for calibration in ("paper-vector", "sound"):
            for training, inference in zip(TRAINING, INFERENCE, strict=False):
                for decoys in (0, 9):
                    # one true query a step on average, and every query once
                    drawn, steps = (1 + decoys, n) if calibration != "sound" else (1, n * (1 + decoys))
                    cost = LocalLayerCost(CLIP, n, drawn, steps, decoys * n, "fixed", calibration)
                    asks = replace(self.job("3", training, calibration), inference=Noise(cost, inference, 1 / n))
                    yield asks
                    if decoys:
                        yield replace(asks, retrained=True)

    def table_5(self) -> Iterator[Job]:
        for width in (128, 256, 768):
            yield Job("5", width=width, batch=min(self.asked.batch, self.n), **self.usual)
            for epsilon in TRAINING[:3]:
                yield self.job("5", epsilon, "paper-vector", width=width)

    def figure_6(self) -> Iterator[Job]:
        for batch in (64, 128, 256, 512, 1024):
            for calibration in ("paper-vector", "sound"):
                yield self.job("figure 6", 12.0, calibration, batch=batch)


def solve(noise: Noise) -> tuple[float, float]:
    """Return the noise's standard deviation and the epsilon that is proven for it."""
    from discreet.accounting.interpret import epsilon as proven

    std = noise.cost.noise_std(noise.epsilon, noise.delta)
    return std, proven((noise.proven_for or noise.cost).event(std), noise.delta, "replace-one")


def start(asked: argparse.Namespace) -> None:
    """Read the corpus once in each process."""
    torch.set_num_threads(1)
    _trainer.append(Trainer(asked))


def run(given: Work) -> list[tuple[Job, float, float]]:
    """Return for each row that one training serves its accuracy, and how much of the clip is on the head's axis."""
    choice, rows = given
    trainer = _trainer[0]
    made = trainer.model(choice)
    share = trainer.along(made) if choice.position == "sentence" else float("nan")
    return [(job, trainer.accuracy(made, ask, choice.seed), share) for job, ask in rows]


def trainings(jobs: Sequence[Job], solved: dict[Noise, tuple[float, float]], seeds: int) -> list[Work]:
    """Return the trainings that the rows need, each once, the long ones first and then seed by seed."""
    found: dict[Choice, list[tuple[Job, float]]] = {}
    for seed in range(seeds):
        for job in jobs:
            std = -1.0 if job.training is None else solved[job.training][0]
            ask = std if job.inference is None else solved[job.inference][0]
            trained = ask if job.retrained else std
            choice = Choice(trained, job.position, job.width, job.batch, job.rate, job.dropout, seed)
            found.setdefault(choice, []).append((job, ask))
    return sorted(found.items(), key=lambda each: -(each[0].width // 512))


def line(job: Job, solved: dict[Noise, tuple[float, float]], found: list[tuple[float, float]]) -> dict[str, Any]:
    """Return a row of figures."""
    values = np.array(found)
    row: dict[str, Any] = {"table": job.table, "calibration": job.calibration, "position": job.position}
    row |= {"width": job.width, "batch": job.batch, "rate": job.rate, "dropout": job.dropout}
    for name in ("training", "inference"):
        noise: Noise | None = getattr(job, name)
        if noise is not None:
            std, true = solved[noise]
            row |= {name: noise.epsilon, f"{name}_std": std, f"{name}_proven": true}
            row |= {"decoys": noise.cost.decoys, "retrained": job.retrained} if name == "inference" else {}
    row |= {"accuracy": values[:, 0].mean(), "spread": values[:, 0].std(), "seeds": len(found)}
    row["along"] = values[:, 1].mean()
    return {k: round(float(v), 4) if isinstance(v, float) else v for k, v in row.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--model", default="minilm", help="whose vocabulary and word vectors the BiLSTM starts from")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--embedding", type=int, default=128, help="principal dimensions of the word vectors")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--held-out", action="store_true", help="ask about a tenth of the train rows instead")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tables", nargs="+", default=TABLES)
    parser.add_argument("--positions", nargs="+", default=["sentence", "token", "word"])
    parser.add_argument("--calibrations", nargs="+", default=["none", "paper-vector", "sound", "paper"])
    parser.add_argument("--widths", type=int, nargs="+", default=[128, 256, 768])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--chosen", type=Path, help="take rate and dropout from a file of choose")
    parser.add_argument("--limit", type=float, default=1e9, help="begin nothing after so many seconds")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    asked.sizes = _sizes(asked)
    if asked.chosen:
        asked.rate, asked.dropout = chosen(asked.chosen)
    tables = Tables(asked)
    jobs = [job for name in asked.tables for job in getattr(tables, name)()]
    jobs = [j for j in jobs if j.position in asked.positions and j.calibration in asked.calibrations]
    jobs = [j for j in dict.fromkeys(jobs) if j.width in asked.widths]
    began = time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(asked.workers, start, (asked,)) as pool:
        noises = list(dict.fromkeys(n for j in jobs for n in (j.training, j.inference) if n is not None))
        solved = dict(zip(noises, pool.map(solve, noises, chunksize=1), strict=True))
        work = trainings(jobs, solved, asked.seeds)
        print(
            f"# {len(jobs)} rows by {len(work)} trainings; noise solved in {time.monotonic() - began:.0f} s", flush=True
        )
        found: dict[Job, list[tuple[float, float]]] = {}
        for each in pool.imap_unordered(run, work):
            for job, accuracy, share in each:
                found.setdefault(job, []).append((accuracy, share))
                if len(found[job]) == asked.seeds:
                    save(line(job, solved, found[job]), asked.json)
            if time.monotonic() - began > asked.limit:
                pool.terminate()
                break
        for job, values in found.items():
            if len(values) < asked.seeds:
                save(line(job, solved, values), asked.json)
        print(f"# {time.monotonic() - began:.0f} s", flush=True)


def save(row: dict[str, Any], path: Path | None) -> None:
    """Print a row, and add it to a file."""
    said = json.dumps(row)
    print(said, flush=True)
    if path:
        with path.open("a", encoding="utf-8") as file:
            file.write(said + "\n")


def chosen(path: Path) -> tuple[float, float]:
    """Return the rate and dropout that did best in a file of `choose`, with and without noise taken together."""
    rows = [json.loads(each) for each in path.read_text(encoding="utf-8").splitlines()]
    means: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        means.setdefault((row["rate"], row["dropout"]), []).append(row["accuracy"])
    return max(means, key=lambda each: float(np.mean(means[each])))


def _sizes(asked: argparse.Namespace) -> tuple[int, int]:
    from discreet.data.sources import load

    corpus = load(asked.data)
    rows = min(asked.rows, len(corpus.split("train")))
    return (rows - rows // 10, rows // 10) if asked.held_out else (rows, len(corpus.split("validation")))


if __name__ == "__main__":
    main()
