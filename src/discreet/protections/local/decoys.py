"""Decoys: synthetic sentences that are mixed with true queries, so that a server cannot tell them apart.

They contain nothing private: their words come from a public list, or they are public sentences. They hide a query only
as far as the accounting says (sampling from a pool that includes them); it does not assume that they look real.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from discreet.core.errors import DataError, invalid, whole

if TYPE_CHECKING:
    from discreet.core.randomness import Rng


@dataclass(frozen=True)
class Decoys:
    """Sentences composed of public words, or sampled from public sentences.

    Guarantee: they contain nothing private if the words and sentences do not.

    >>> from discreet import Rng
    >>> Decoys(words=("good", "film", "bad"), shortest=2, longest=3).draw(2, Rng(4))
    ('bad good', 'bad good bad')
    """

    words: tuple[str, ...] = field(default=(), repr=False)
    sentences: tuple[str, ...] = field(default=(), repr=False)
    shortest: int = 4
    longest: int = 20

    def __post_init__(self) -> None:
        """Reject missing words and sentences, and lengths out of order."""
        whole("shortest", self.shortest)
        whole("longest", self.longest, self.shortest, "It is the number of words of the longest decoy.")
        if bool(self.words) == bool(self.sentences):
            raise invalid("words", len(self.words), "set if and only if sentences are not", "Set one of the two.")

    @classmethod
    def of_vocabulary(cls, vocabulary: Iterable[str], shortest: int = 4, longest: int = 20) -> Decoys:
        """Return decoys composed of the complete, lower-case words of a tokenizer's vocabulary."""
        words = tuple(sorted({w for w in vocabulary if w.isascii() and w.isalpha() and w.islower() and len(w) > 1}))
        if not words:
            raise DataError("Expected complete words in the vocabulary, got none. Use public sentences instead.")
        return cls(words=words, shortest=shortest, longest=longest)

    def draw(self, count: int, rng: Rng) -> tuple[str, ...]:
        """Return `count` decoys."""
        whole("count", count, 0)
        if self.sentences:
            return tuple(self.sentences[i] for i in _below(len(self.sentences), count, rng))
        lengths = self.shortest + _below(self.longest - self.shortest + 1, count, rng)
        chosen = _below(len(self.words), int(lengths.sum()), rng)
        ends = np.cumsum(lengths)
        return tuple(" ".join(self.words[i] for i in chosen[e - n : e]) for e, n in zip(ends, lengths, strict=True))


def _below(limit: int, count: int, rng: Rng) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return (rng.uniform(count) * limit).astype(np.int64)
