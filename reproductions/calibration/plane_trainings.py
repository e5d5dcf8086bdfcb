"""The trainings of a plane: utility under each protection, some at a time, each in a process of its own."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

import torch

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.models.build import cache_folder
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.study.trial import of_the_setting
from discreet.training.evaluation import evaluate
from discreet.training.loop import Job, train
from discreet.training.plan import TrainingPlan
from reproductions.calibration.plane_readings import Setting, built, name_of


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


def training_of(asked: argparse.Namespace, protection: dict[str, Any]) -> dict[str, Any]:
    frozen = asked.train in {"head", "pooler+head"}
    rates = asked.rates or ((2e-3, 1e-3) if frozen else (2e-4, 5e-4))
    rate = rates[0] if protection["name"] == "none" else rates[1]
    return {"epochs": asked.epochs, "batch_size": 128, "learning_rate": rate, "weight_decay": 0.0}


def trained(asked: argparse.Namespace, source: str, protection: Setting) -> tuple[Any, Any, float]:
    """Return utility and guarantee of a training under a protection, and its seconds."""
    torch.set_num_threads(1)
    rng = Rng(asked.seed)
    corpus = read_corpus(asked, source)
    began = time.monotonic()
    chosen = ModelSettings(encoder=asked.model, train=asked.train, dropout=0.0, embeddings=False)
    model = Classifier.build(corpus, chosen, rng=rng.fork("model")).to(asked.device)
    protect = built(protection, model)
    plan = TrainingPlan.make(
        model,
        corpus,
        protect=protect,
        training=TrainSettings(**training_of(asked, protection)),
        delta=None if protect is None else 1 / corpus.split("train").unit_count,
        seed=asked.seed,
    )
    secret = None if protect is None else rng.fork("noise")
    done = train(model, corpus, plan, secret=secret, job=Job(cache=cache_folder()))
    promise = None if done.guarantee is None else of_the_setting(done.guarantee)
    return evaluate(model, corpus.split("validation")), promise, time.monotonic() - began


def in_turn(
    asked: argparse.Namespace, source: str, wanted: Sequence[Setting], pool: ProcessPoolExecutor | None
) -> Iterator[tuple[Setting, Any]]:
    """Yield what each setting's training gave; one that failed beside others is tried again by itself."""
    began = time.monotonic()
    futures: list[Future[Any] | None] = [None] * len(wanted)
    if pool is not None:
        futures = [pool.submit(trained, asked, source, setting) for setting in wanted]
    again: list[Setting] = []
    for setting, future in zip(wanted, futures, strict=True):
        late = time.monotonic() - began >= asked.limit
        if late and (future is None or future.cancel()):
            continue
        try:
            yield setting, trained(asked, source, setting) if future is None else future.result()
        except (RuntimeError, OSError) as error:  # the device's memory, or a worker that died
            print(f"  {name_of(setting)}: {type(error).__name__} {str(error)[:200]}", flush=True)
            again.append(setting)
    for setting in again:
        if time.monotonic() - began < asked.limit:
            try:
                yield setting, trained(asked, source, setting)
            except (RuntimeError, OSError) as error:
                print(f"  {name_of(setting)}: left out, {type(error).__name__}", flush=True)
