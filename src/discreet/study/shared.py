"""Work that many trials share, done once: corpora and scenes in a process, vectors and inner products on disk."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.randomness import Rng
from discreet.core.settings import parse
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.experiment.scene import Scene
from discreet.models.classifier import Classifier, ModelSettings
from discreet.study.tables import DataTable, ReleaseTable
from discreet.training.encode import cache_folder
from discreet.training.tensors import load_tensors, save_tensors


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Let one process at a time do a named piece of work, so that the next finds it done.

    Where the cache cannot be written nothing can be found there either, and every process does the work itself.
    """
    folder = cache_folder()
    handle = None
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if handle is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle is not None:
            os.close(handle)


class SharedScene(Scene):
    """A scene whose inner products are kept on disk, where other processes find them."""

    def gram(self, candidates: Corpus) -> npt.NDArray[np.float64]:
        """Return the inner products of candidates' gradients, computed once for all processes of this machine.

        Guarantee: none; inner products of private rows are kept in the cache, readable by its owner only.
        """
        key = ("gram", candidates.texts, candidates.second, candidates.labels, candidates.scores)
        if key not in self.kept:
            path = cache_folder() / f"gram-{_digest(self.model, repr(key))}.safetensors"
            with one_at_a_time("gram"):
                if path.exists():
                    self.kept[key] = load_tensors(path)[0]["gram"].numpy()
                else:
                    import torch

                    made = super().gram(candidates)
                    with suppress(OSError):  # a cache that cannot be written costs time, not correctness
                        save_tensors({"gram": torch.from_numpy(made)}, path)
        found: npt.NDArray[np.float64] = self.kept[key]
        return found


def _digest(model: Classifier, text: str) -> str:
    found = hashlib.sha256(f"{model.fingerprint} {model.settings!r} {text}".encode())
    for parameter in model.head.parameters():  # a fresh head differs by its seed, and gradients with it
        found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:40]


def corpus_of(data: Mapping[str, Any]) -> Corpus:
    """Return the corpus of a study's data table, read once in a process."""
    return _corpus(json.dumps(data, sort_keys=True))


@lru_cache(maxsize=2)
def _corpus(data: str) -> Corpus:
    asked = parse(DataTable, json.loads(data), "data")
    return load(
        asked.source,
        asked.columns,
        seed=asked.seed,
        rows=asked.rows,
        share=asked.share,
        validation=asked.validation,
        task=asked.task,
    )


def scene_of(settings: Mapping[str, Any], seed: int, kind: str) -> SharedScene:
    """Return what is attacked in a trial: for gradients the model that a client shares, for vectors the one trained."""
    return _scene(json.dumps([settings["data"], settings["model"], settings["release"]], sort_keys=True), seed, kind)


@lru_cache(maxsize=2)
def _scene(text: str, seed: int, kind: str) -> SharedScene:
    data, model, release = json.loads(text)
    corpus, asked = corpus_of(data), parse(ReleaseTable, release, "release")
    chosen = {**model, "embeddings": asked.embeddings, "dropout": 0.0}
    if kind == "gradient":
        chosen["train"] = asked.train
        chosen["pooler"] = None if asked.train == "pooler+head" else False
    settings = parse(ModelSettings, chosen, "model")
    built = Classifier.build(corpus, settings, rng=Rng(seed).fork("model")).eval()
    found = SharedScene.of(corpus, built, split=asked.split, origin=f"a fresh {settings.encoder}")
    assert isinstance(found, SharedScene)
    return found
