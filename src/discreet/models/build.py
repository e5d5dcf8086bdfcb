"""From settings to a model with its first weights, and from a corpus to what the model reads, for every entry point.

A corpus is read as tokens, or as outputs of a frozen encoder, which are computed once and cached.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from discreet.clipping.independence import bitwise_invariant, fixed_kernels
from discreet.core.device import autocast
from discreet.core.errors import (
    DataError,
    ModelError,
    OutputError,
    UnsupportedError,
    setting,
)
from discreet.core.files import cache_folder as cache_folder
from discreet.core.files import load_tensors, save_tensors
from discreet.core.randomness import Rng
from discreet.core.task import Task
from discreet.data.batches import Batch, Shapes, Tokens, Vectors, tokenise, tokens_for
from discreet.data.corpus import Corpus
from discreet.models.base import TextModel
from discreet.models.classifier import Classifier, Labelled, classifier_of
from discreet.models.language_model import LanguageModel
from discreet.models.settings import JOINT, SEPARATE, ModelSettings


def build_model(
    target: Labelled, settings: ModelSettings, *, rng: Rng, task: str | None = None, download: bool = False
) -> TextModel:
    """Return a model for a task, by default that of `target`: a corpus, or a task with its class names.

    A language model reads no labels (`task="lm"`). The head of pairs with scores starts from the range of the scores of
    the corpus.

    Args:
        target: A corpus, or a task with its class names.
        settings: The settings of the model.
        rng: The source of weights that are not loaded.
        task: The task; by default that of `target`.
        download: Download the encoder if this machine does not have it.
    """
    if Task(task or target.task).is_language:
        return LanguageModel.load(settings, rng=rng, download=download)
    return build_classifier(target, settings, rng=rng, download=download)


def build_classifier(target: Labelled, settings: ModelSettings, *, rng: Rng, download: bool = False) -> Classifier:
    """Return a classifier for a corpus, or for a task with its class names."""
    if not isinstance(target, Corpus):
        return Classifier.build(target, settings, rng=rng, download=download)
    return Classifier.build(target, settings, rng=rng, download=download, score_range=target.score_range)


def matched(corpus: Corpus, model: TextModel) -> Corpus:
    """Return a corpus whose class numbers are those of the model, matched by class name."""
    if model.task.is_language:
        return corpus.unlabelled()
    if corpus.task != model.task:
        raise DataError(
            f"Expected data for {model.task}, the task of the model, got {corpus.task}. "
            f"Name the label column ({setting('label')})."
        )
    if corpus.labels is None or corpus.label_names == model.label_names:
        return corpus
    unknown = [name for name in corpus.label_names if name not in model.label_names]
    if unknown:
        raise DataError(
            f"Expected labels of the model ({', '.join(model.label_names)}), got {unknown[0]!r}. Rename the labels."
        )
    numbers = [model.label_names.index(name) for name in corpus.label_names]
    return replace(corpus, labels=tuple(numbers[i] for i in corpus.labels), label_names=model.label_names)


def matched_split(corpus: Corpus, model: TextModel, name: str) -> Corpus:
    """Return one split of a corpus; reject a missing split, and a corpus for another task."""
    if not isinstance(model, TextModel):
        raise UnsupportedError(
            f"Expected model to be a discreet.models.Classifier or LanguageModel, got {type(model).__name__}. Put a "
            "head on an encoder with Classifier.build(corpus, encoder=folder, rng=rng)."
        )
    if not isinstance(corpus, Corpus):
        raise DataError(
            f"Expected corpus to be a discreet.Corpus, got {type(corpus).__name__}. Make one with "
            "Corpus(name, texts, labels=labels), or read a file with discreet.load(path)."
        )
    if model.task.is_language:
        if corpus.is_pairs:
            raise DataError("Expected single texts for a language model, got pairs. Join the two columns into one.")
        corpus = corpus.unlabelled()
    elif corpus.task != model.task:
        raise DataError(f"Expected data for {model.task}, got {corpus.task}. Name the label column.")
    elif isinstance(model, Classifier) and model.settings.pairs == SEPARATE and not corpus.is_pairs:
        raise DataError(
            f"Expected pairs of texts in corpus {corpus.name!r}, which the model reads separately, got single texts. "
            "Name the column of the second text, or leave out how pairs are read."
        )
    if name not in corpus.split_names:
        raise DataError(
            f"Expected a {name!r} split in corpus {corpus.name!r}. Add one, for example a file {name}.csv beside it."
        )
    return corpus.split(name)


# A corpus of any size is encoded in the shapes of batches with this many rows.
_BATCH_ROWS = 256
UNPADDED = 4  # every fourth synthetic unit has no padding


@dataclass(frozen=True)
class Cached:
    """Contents of the cache: its folder, the number of files and of bytes."""

    folder: Path
    files: int
    bytes: int

    def sentence(self) -> str:
        """Return what is stored, where, and how to delete it."""
        if not self.files:
            return f"Nothing is stored in {self.folder}."
        count = "1 file" if self.files == 1 else f"{self.files:,} files"
        return (
            f"Encoded text is stored in {self.folder} ({count}, {self.bytes / 1e6:.1f} MB, readable by you only) and "
            "reveals the text. Delete it with: discreet cache clear"
        )


def cached() -> Cached:
    """Return the current contents of the cache."""
    sizes = [path.stat().st_size for path in _cache_files()]
    return Cached(cache_folder(), len(sizes), sum(sizes))


def clear_cache() -> Cached:
    """Delete the files of the cache, and no others, and return what they were."""
    contents = cached()
    for path in _cache_files():
        path.unlink(missing_ok=True)
    return contents


def _cache_files() -> list[Path]:
    folder = cache_folder()
    patterns = ("*.safetensors", "*.safetensors.*.partial")
    return sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()})


def ready(
    model: TextModel,
    corpus: Corpus,
    cache: Path | None = None,
    precision: str = "auto",
    encoded: Callable[[int, int], None] | None = None,
) -> Tokens | Vectors:
    """Return the sentence vectors of a corpus if the encoder is frozen, and its tokens otherwise."""
    if not isinstance(model, Classifier) or not model.settings.frozen:
        return tokens_for(model, corpus)
    return encode(model, corpus, cache, precision, encoded)


def encode(
    model: TextModel,
    corpus: Corpus,
    cache: Path | None = None,
    precision: str = "auto",
    encoded: Callable[[int, int], None] | None = None,
) -> Vectors:
    """Return the sentence vectors of a corpus, from the cache if they were computed before.

    `encoded` is called with the number of texts that were encoded so far, and of all.

    Guarantee: none, the vectors reveal the text. The cache is readable by its owner only, and stays until it is cleared
        (`clear_cache`); without a `cache` folder nothing is stored.
    """
    model = classifier_of(model, "sentence vectors")
    tokens = tokenise(corpus, model.tokenizer, model.max_length, model.device)
    path = None if cache is None else cache / f"{_key(model, tokens, precision)}.safetensors"
    found = None if path is None else _read(path)
    if found is None:
        found = represent_apart(model, tokens, precision, encoded)
        # A cache that cannot be written costs time, not correctness.
        with suppress(OutputError, OSError):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                if "DISCREET_CACHE" not in os.environ and path.parent == cache_folder():
                    path.parent.chmod(0o700)  # for an older folder; a folder that the user chose is not changed
                save_tensors({"vectors": found[0], "steady": torch.tensor(found[1])}, path)
    return Vectors(found[0].to(model.device), tokens.targets, tokens.truncated, found[1])


@torch.inference_mode()
def represent_apart(
    model: Classifier,
    tokens: Tokens,
    precision: str = "auto",
    encoded: Callable[[int, int], None] | None = None,
    shapes: Shapes | None = None,
    alone: bool = True,
) -> tuple[Tensor, bool]:
    """Return the sentence vectors of a tokenized corpus, and whether each is a function of its own text alone.

    Rows are read in parts of fixed shapes, as in a private step, and synthetic rows of each shape show whether a vector
    stays the same, bit for bit, when the other rows are replaced and all rows are permuted. If memory runs out, all
    rows are read again in parts of half the size. On a GPU all shapes are tested first, so that made-up rows decide
    about their sizes. That private rows exhaust the memory may be due to one of them, and the vectors of all others
    are then rounded otherwise: they are not functions of their own text alone.

    Guarantee: none, the vectors of an encoder reveal the text.
    """
    shapes = shapes or Shapes.of(model.device.type, model.max_length, _BATCH_ROWS)
    out = torch.empty(len(tokens), model.width, device=model.device)
    steady: dict[int, bool] = {}
    training = model.training
    model.eval()

    def vectors_of(batch: Batch) -> Tensor:
        with fixed_kernels(), autocast(model.device, precision):
            return model.represent(batch.inputs).float()

    def is_steady(rows: int, width: int) -> bool:
        pool = pool_of(model, tokens, 2 * rows, 1, width)

        def values_of(chosen: Tensor) -> list[Tensor]:
            at = chosen.to(model.device)
            return [vectors_of(Batch({name: value[at] for name, value in pool.inputs.items()}, pool.targets[at]))]

        return bitwise_invariant(values_of, rows, UNPADDED)

    done, private = 0, False
    try:
        if model.device.type == "cuda":
            steady = {width: is_steady(rows, width) for width, rows in shapes.rows}
        private = True
        for part in shapes.parts(np.arange(len(tokens)), np.arange(len(tokens) + 1), tokens.lengths):
            if part.width not in steady:
                steady[part.width] = is_steady(part.units, part.width)
            rows = torch.from_numpy(part.rows[: part.real]).to(model.device)
            out[rows] = vectors_of(tokens.part(part.rows, part.width))[: part.real]
            done += part.real
            if encoded is not None:
                encoded(done, len(tokens))
    except torch.OutOfMemoryError:
        smaller = shapes.halved()
        if smaller is None:
            raise
    else:
        return out, alone and all(steady.values())
    finally:
        model.train(training)
    del out
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    return represent_apart(model, tokens, precision, encoded, smaller, alone and not private)


def _read(path: Path) -> tuple[Tensor, bool] | None:
    """Return the cached vectors, or None if there are none that can be read."""
    try:
        if not path.exists():
            return None
        tensors = load_tensors(path)[0]
        return tensors["vectors"], bool(tensors["steady"])
    except (ModelError, KeyError):
        return None


def _key(model: Classifier, tokens: Tokens, precision: str) -> str:
    """Return a hash of everything that the vectors depend on."""
    hasher = hashlib.sha256()
    settings = model.settings
    hasher.update(repr((model.fingerprint, settings.pooling, precision, model.device.type, "apart")).encode())
    if settings.pairs != JOINT:
        hasher.update(repr((settings.pairs, model.shift)).encode())
    for name, column in sorted(tokens.columns.items()):
        hasher.update(f"{name}{tuple(column.shape)}".encode())
        hasher.update(column.cpu().numpy().tobytes())
    return hasher.hexdigest()[:40]


def pool_of(model: TextModel, rows: Tokens | Vectors, units: int, each: int, width: int) -> Batch:
    """Return synthetic rows of `units` units, every fourth of which has no padding."""
    padded, full = (
        rows.made_up(units * each, width, len(model.tokenizer), model.classes, Rng(0), padded=pad)
        for pad in (True, False)
    )
    unpadded = (torch.arange(units) % UNPADDED == 0).repeat_interleave(each).to(padded.targets.device)
    inputs = {
        name: torch.where(unpadded.view(-1, *(1 for _ in value.shape[1:])), full.inputs[name], value)
        for name, value in padded.inputs.items()
    }
    return Batch(inputs, padded.targets)
