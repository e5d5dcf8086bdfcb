"""Noise on the vectors of words, which are sent as they are instead of being rounded to words again.

Paper: Qu, Kong, Yang, Zhang, Bendersky and Najork 2021, Natural language understanding with privacy-preserving BERT:
    token representation privatization.
Differs: a word lies where `WordTable` says, so words outside the vocabulary are one vector each; distances are shares
    of the table's diameter, as for `WordSwap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch

from discreet.core.errors import positive, whole
from discreet.core.guarantee import FLOATING_POINT, Adjacency
from discreet.core.randomness import Rng
from discreet.core.types import RepresentationRelease
from discreet.mechanisms.word_metric import noisy_points
from discreet.protections.words.swap import METRIC
from discreet.protections.words.table import WordTable

if TYPE_CHECKING:
    from dp_accounting.dp_event import DpEvent


@dataclass(frozen=True, eq=False)
class TokenNoise:
    """Release the vector of every word plus noise of density proportional to exp(-price |z|).

    Guarantee: metric privacy: a word exchanged for another at distance r (a share of the table's diameter) changes no
        release's density by more than e^(epsilon_per_word r); n words of a text cost n times that. The number of words
        is visible.

    The noise is long: its length has mean dimension * diameter / epsilon_per_word. Rounding to the nearest word, which
    `WordSwap` does, keeps the guarantee and hides that; here the receiver may average over words.
    """

    table: WordTable = field(repr=False)
    epsilon_per_word: float
    longest: int = 64
    place: ClassVar[str] = "representation"
    name: ClassVar[str] = "token-noise"

    def __post_init__(self) -> None:
        """Refuse a price that is none."""
        positive("epsilon_per_word", self.epsilon_per_word, "It is the cost of one word; smaller is more noise.")
        whole("longest", self.longest, remedy="Longer texts are cut to this many words.")

    @property
    def event(self) -> DpEvent:
        """What one word costs, under replace-one."""
        from discreet.accounting.events import MetricDpEvent

        return MetricDpEvent(self.epsilon_per_word, METRIC, 1.0)

    def release(self, texts: Sequence[str], rng: Rng) -> RepresentationRelease:
        """Return (texts, words, width) noisy vectors, padded with zeros where a text has ended, and their guarantee."""
        from discreet.accounting.events import SelfComposedDpEvent
        from discreet.accounting.interpret import guarantee
        from discreet.protections.words.swap import honest

        split = [self.table.split(text)[: self.longest] for text in texts]
        width, most = int(self.table.vectors.shape[1]), max(map(len, split), default=1)
        vectors = torch.zeros(len(split), most, width)
        price = self.epsilon_per_word / self.table.diameter
        for row, words in enumerate(split):
            vectors[row, : len(words)] = noisy_points(self.table.vectors_of(words), price, rng).float()
        stated = guarantee(
            SelfComposedDpEvent(self.event, most),
            delta=0.0,
            adjacency=Adjacency.REPLACE_ONE,
            unit=f"text of at most {most} words",
            assumptions=(
                "the number of words in a text is visible",
                "a text is exchanged for another with as many words",
                FLOATING_POINT,
            ),
        )
        return RepresentationRelease(vectors, guarantee=honest(stated, rng.is_secret))
