"""Public text that a protection mixes with, learns from or starts from, and what an encoder reaches with it alone."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from discreet.catalog import CORPORA
from discreet.core.errors import DataError, invalid
from discreet.core.files import load_tensors
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.data.partition import without_overlap
from discreet.data.sources import EACH_ROW, Columns, load
from discreet.metrics.utility import is_better
from discreet.models.base import TextModel
from discreet.models.build import build_classifier
from discreet.models.classifier import ModelSettings
from discreet.models.encoder import MINILM
from discreet.models.pairs import SEPARATE, THRESHOLD
from discreet.protections.base import Protection
from discreet.training.evaluate import evaluate


def public_text(
    source: str, columns: Columns, seed: int = 0, *, scores: bool = False, labelled: bool = False
) -> Corpus:
    """Return public text: a built-in corpus, or a file with the column names of the private one.

    Its labels are left out if they cannot be read, unless `labelled`: training needs them, and projections by label
    report missing ones; mixtures and principal axes need none. `scores` reads labels as numbers, also where all of them
    are integers.
    """
    if source in CORPORA:
        return load(source, seed=seed, validation=0)
    columns = replace(columns, unit=EACH_ROW)
    try:
        return load(source, columns, seed=seed, validation=0, task="regression" if scores else None)
    except DataError:
        if labelled:
            raise
        return load(source, replace(columns, label=None), seed=seed, validation=0)


def public_corpus(protect: Protection | None, private: Corpus, columns: Columns, seed: int = 0) -> Corpus | None:
    """Return the public corpus that a protection needs, without texts that occur in held-out text.

    What is learned from it is published, so it must not depend on which of its texts are in the train split: removing
    those would reveal them to anyone who has the public corpus. If nothing is guaranteed, they are removed too. All
    splits of a public folder are used.
    """
    if protect is None or protect.public is None:
        return None
    columns = columns if private.is_pairs else replace(columns, text_pair=None)
    labelled = protect.starts_from_public and private.task.is_labelled
    public = public_text(protect.public, columns, seed, scores=private.task.has_scores, labelled=labelled)
    public = replace(public, splits=("train",) * len(public))
    rows = [row for row, name in enumerate(private.splits) if name != "train" or not protect.priced]
    avoided = private.take(rows)
    if protect.priced:
        avoided = avoided.renamed(f"{private.name} (held-out rows)")
    kept = without_overlap(public, avoided) if rows else public
    if not len(kept):
        raise DataError(
            f"Expected public text that is not in {private.name!r}, got none in {protect.public!r}. Name other text."
        )
    return kept


def public_vectors(model: TextModel, public: Corpus, precision: str) -> tuple[Tensor, Tensor | None]:
    """Return the vectors of public text under a frozen encoder, and its labels if they are those of the model."""
    if not model.settings.frozen:
        raise invalid("train", model.settings.train, "head or pooler+head", "A projection is learned for one encoder.")
    from discreet.models.encode import cache_folder, encode

    rows = encode(model, public, cache_folder(), precision)
    labelled = public.task == model.task and public.label_names == model.label_names
    return rows.vectors, rows.targets if labelled else None


COSINE, PUBLIC_TEXT = "cosine", "public text"  # what a public row comes from


@dataclass(frozen=True)
class PublicRow:
    """Metrics of the cosine of two public vectors, or of a model that was trained on public text alone.

    `metric` is the one by which a private model is compared with it.

    Guarantee: epsilon 0 for the training rows, which it does not depend on; held-out rows are not protected.
    """

    utility: dict[str, float]
    metric: str
    source: str = COSINE

    def as_dict(self, utility: Mapping[str, float]) -> dict[str, Any]:
        """Return plain values, and whether a model with this utility is better."""
        better = is_better(self.metric, utility[self.metric], self.utility[self.metric])
        threshold = {"threshold": THRESHOLD} if self.source == COSINE else {}
        return {
            "utility": self.utility,
            "metric": self.metric,
            **threshold,
            "source": self.source,
            "is_beaten": better,
        }


def public_row(encoder: str, corpus: Corpus, split: str, device: torch.device | str = "cpu") -> PublicRow | None:
    """Return what the cosine of the vectors of a public encoder reaches on a split; None where there is no such row.

    There is one for pairs with scores or two classes, of which the second is for texts that agree, and an encoder whose
    cosine has a meaning: the built-in one.
    """
    known = corpus.task.has_scores or corpus.classes == 2
    if not corpus.is_pairs or not known or corpus.task.balanced is None or encoder != MINILM:
        return None
    settings = ModelSettings(encoder=encoder, train="head", pairs=SEPARATE)
    model = build_classifier(corpus, settings, rng=Rng(0)).to(device)
    return PublicRow(evaluate(model, corpus.split(split)), corpus.task.balanced)


def start_row(model: TextModel, start: Path, rows: Tokens | Vectors, precision: str = "auto") -> PublicRow:
    """Return what a model reaches on held-out rows with the weights that public text gave it, in the file `start`.

    `rows` are tokens, or vectors of the encoder if only what follows it was trained on private text.
    """
    own = copy.deepcopy(model)
    own.load_weights(load_tensors(start)[0])
    return PublicRow(evaluate(own, rows, precision), model.task.main, PUBLIC_TEXT)
