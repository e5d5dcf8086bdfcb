"""An attack: it guesses the most frequent words of public text, whatever was released."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from discreet.attacks.base import Returns, VectorAttack
from discreet.core.errors import whole
from discreet.core.randomness import Rng
from discreet.core.types import Guess, Knowledge, RepresentationRelease


@dataclass(frozen=True)
class FrequentWords(VectorAttack):
    """Guesses the most frequent words of public text."""

    words: int = 5

    name: ClassVar[str] = "frequent-words"
    returns: ClassVar[Returns] = Returns.BAG_OF_WORDS
    aligned: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Reject settings outside their rules."""
        whole("words", self.words)

    def run(self, seen: RepresentationRelease, knows: Knowledge, rng: Rng) -> Guess:
        """Return the same words for each vector."""
        counts = Counter(word for text in knows.auxiliary for word in text.lower().split())
        guess = " ".join(word for word, _ in counts.most_common(self.words))
        return Guess(texts=(guess,) * len(seen.vectors))
