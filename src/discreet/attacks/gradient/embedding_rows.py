"""Reads the set of tokens of a batch straight from the gradient of the word embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from discreet.attacks.gradient.layers import dissect, model_of
from discreet.core.checks import non_negative
from discreet.core.errors import UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import GradientRelease, Guess, Knowledge

_NAME = "the embedding-row attack"


@dataclass(frozen=True)
class EmbeddingRows:
    """The tokens whose row of the word-embedding gradient is not zero, the largest rows first.

    `rounding` is the smallest row that counts, relative to the largest; it is 0, as a token that is not in the batch
    has a row of exact zeros. Under noise a row counts if it is longer than noise alone makes any of them, with
    probability about 0.95; where the release does not say how much noise there is, the typical row does. The order
    and the number of sentences are not read.

    Paper: known since Melis et al. 2019, "Exploiting Unintended Feature Leakage in Collaborative Learning".
    """

    rounding: float = 0.0
    ordered: ClassVar[bool] = False  # it reads which tokens, not where they stand

    def __post_init__(self) -> None:
        """Refuse settings outside their rules."""
        non_negative("rounding", self.rounding)

    def run(self, seen: GradientRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return one text with every token found, and their ids as indices; nothing here is random."""
        model = model_of(knows, _NAME)
        name = dissect(model).embeddings.word_name
        if name not in seen.gradients:
            raise UnsupportedError(
                f"Expected the gradient of {name!r} for {_NAME}, found none in the release. The word embeddings are "
                "frozen or not shared; attack the attention layers instead."
            )
        lengths = seen.gradients[name].detach().double().norm(dim=1)
        least = self.rounding * float(lengths.max())
        count, width = seen.gradients[name].shape
        noise = seen.noise_std
        if noise == 0 and int((lengths > 0).sum()) > count / 2:
            # No batch holds half of the vocabulary: there is noise, and most rows are nothing else.
            noise = float(lengths.median()) / math.sqrt(width)
        if noise > 0:
            # The longest of many Gaussian vectors: concentration of the norm and a union bound at 0.05.
            least = noise * (math.sqrt(width) + math.sqrt(2 * math.log(count / 0.05)))
        found = [i for i in lengths.argsort(descending=True, stable=True).tolist() if float(lengths[i]) > least]
        special = set(model.tokenizer.all_special_ids)
        text = model.tokenizer.decode([i for i in found if i not in special])
        return Guess(
            texts=(text,) if text else (),
            scores=tuple(float(lengths[i]) for i in found),
            indices=tuple(found),
            details={"threshold": least},
        )
