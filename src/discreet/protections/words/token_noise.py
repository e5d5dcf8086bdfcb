"""Noise on the vectors of words, which are released as they are instead of being rounded to words.

Paper: Qu, Kong, Yang, Zhang, Bendersky and Najork 2021, Natural language understanding with privacy-preserving BERT:
    token representation privatization.
Differs: word vectors are those of `WordTable`, so a word outside the vocabulary is one vector; distances are fractions
    of the table's diameter, as for `WordSwap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from discreet.core.errors import positive, whole
from discreet.core.guarantee import FLOATING_POINT
from discreet.core.randomness import Rng
from discreet.core.types import RepresentationRelease
from discreet.mechanisms.word_metric import noisy_points
from discreet.protections.words.swap import METRIC, SAME_LENGTH, WORDS_VISIBLE, release_guarantee
from discreet.protections.words.table import WordTable

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True, eq=False)
class TokenNoise:
    """Release the vector of every word plus noise of density proportional to exp(-price |z|).

    Guarantee: metric privacy: replacing a word by another at distance r (a fraction of the table's diameter) changes
        the density of any release by at most a factor of e^(epsilon_per_word r); a text of n words costs n times that.
        The number of words is visible.

    The noise is large: its mean length is dimension * diameter / epsilon_per_word. `WordSwap` rounds to the nearest
    word, which keeps the guarantee; here the receiver may average over words.
    """

    table: WordTable = field(repr=False)
    epsilon_per_word: float
    longest: int = 64
    place: ClassVar[str] = "representation"
    name: ClassVar[str] = "token-noise"

    def __post_init__(self) -> None:
        """Reject settings outside their range."""
        positive("epsilon_per_word", self.epsilon_per_word, "It is the cost of one word; smaller is more noise.")
        whole("longest", self.longest, remedy="Longer texts are truncated to this many words.")

    @property
    def event(self) -> DpEvent:
        """Privacy event of one word, under replace-one."""
        from discreet.accounting.events import MetricDpEvent

        return MetricDpEvent(self.epsilon_per_word, METRIC, 1.0)

    def release(self, texts: Sequence[str], rng: Rng) -> RepresentationRelease:
        """Return noisy vectors, (texts, words, width), zero-padded after the end of a text, and their guarantee."""
        from discreet.accounting.events import SelfComposedDpEvent

        split = [self.table.split(text)[: self.longest] for text in texts]
        width, most = int(self.table.vectors.shape[1]), max(map(len, split), default=1)
        vectors = torch.zeros(len(split), most, width)
        price = self.epsilon_per_word / self.table.diameter
        for row, words in enumerate(split):
            vectors[row, : len(words)] = noisy_points(self.table.vectors_of(words), price, rng).float()
        assumptions = (WORDS_VISIBLE, SAME_LENGTH, FLOATING_POINT)
        event = SelfComposedDpEvent(self.event, most)
        unit = f"text of at most {most} words"
        stated = release_guarantee(event, 0.0, unit, assumptions, rng.is_secret)
        return RepresentationRelease(vectors, guarantee=stated)
