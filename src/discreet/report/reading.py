"""What was written beside what an attacker read: which words came back, in which place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 900  # characters of a text that are shown; longer ones are cut, and say so


@dataclass(frozen=True)
class Piece:
    """A run of text that is either read rightly or not."""

    text: str
    right: bool


def pieces(text: str, other: str) -> list[Piece]:
    """Return a text in pieces, marked where its words stand in the other text in the same order.

    Neither case nor the punctuation around a word counts, as in ROUGE: whoever reads a name without its comma has read
    it.

    >>> [(p.text, p.right) for p in pieces("the red cat", "The cat, sat")]
    [('the', True), (' red ', False), ('cat', True)]
    """
    shown = text if len(text) <= LONGEST else text[:LONGEST] + " …"
    words = re.findall(r"\s*\S+", shown)
    kept = _common([bare(word) for word in words], [bare(word) for word in other.split()])
    found: list[Piece] = []
    for word, right in zip(words, kept, strict=True):
        if found and found[-1].right == right:
            found[-1] = Piece(found[-1].text + word, right)
            continue
        if found and right:  # the space before a word that was read is not marked
            space = word[: len(word) - len(word.lstrip())]
            found[-1] = Piece(found[-1].text + space, False)
        found.append(Piece(word.lstrip() if right else word, right))
    return found


def bare(word: str) -> str:
    """Return a word in small letters without the punctuation around it; what is nothing else stays.

    >>> [bare(word) for word in (" Fujita,", "(record", "-", "low-fodmap")]
    ['fujita', 'record', '-', 'low-fodmap']
    """
    word = word.strip().lower()
    return re.sub(r"^\W+|\W+$", "", word) or word


def _common(a: Sequence[str], b: Sequence[str]) -> list[bool]:
    """Return which of the first words lie on a longest common subsequence."""
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) - 1, -1, -1):
        for j in range(len(b) - 1, -1, -1):
            table[i][j] = table[i + 1][j + 1] + 1 if a[i] == b[j] else max(table[i + 1][j], table[i][j + 1])
    kept, j = [], 0
    for i in range(len(a)):
        while j < len(b) and a[i] != b[j] and table[i][j + 1] == table[i][j] and table[i + 1][j] < table[i][j]:
            j += 1
        if j < len(b) and a[i] == b[j] and table[i][j] == table[i + 1][j + 1] + 1:
            kept.append(True)
            j += 1
        else:
            kept.append(False)
    return kept
