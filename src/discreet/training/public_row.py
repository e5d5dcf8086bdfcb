"""The public row: what an encoder or public text reaches without any private data, beside a private figure."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from discreet.core.files import load_tensors
from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, Vectors
from discreet.data.corpus import Corpus
from discreet.metrics.utility import MAIN, is_better
from discreet.models.base import TextModel
from discreet.models.build import build_classifier
from discreet.models.classifier import ModelSettings
from discreet.models.encoder import MINILM
from discreet.models.pairs import SEPARATE, THRESHOLD
from discreet.training.evaluate import evaluate

COSINE, PUBLIC_TEXT = "cosine", "public text"  # what a public row comes from
METRIC = {"classification": "matthews", "regression": "pearson"}  # chance is 0 for both, whatever the classes' sizes


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
    known = corpus.task in METRIC and (corpus.task == "regression" or corpus.classes == 2)
    if not corpus.is_pairs or not known or encoder != MINILM:
        return None
    settings = ModelSettings(encoder=encoder, train="head", pairs=SEPARATE)
    model = build_classifier(corpus, settings, rng=Rng(0)).to(device)
    return PublicRow(evaluate(model, corpus.split(split)), METRIC[corpus.task])


def start_row(model: TextModel, start: Path, rows: Tokens | Vectors, precision: str = "auto") -> PublicRow:
    """Return what a model reaches on held-out rows with the weights that public text gave it, in the file `start`.

    `rows` are tokens, or vectors of the encoder if only what follows it was trained on private text.
    """
    own = copy.deepcopy(model)
    own.load_weights(load_tensors(start)[0])
    return PublicRow(evaluate(own, rows, precision), MAIN[model.task], PUBLIC_TEXT)
