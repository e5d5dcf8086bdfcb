"""Mark which words of a text an attacker read, in the right order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 900  # characters of a text that are shown; longer texts are truncated and end in an ellipsis


@dataclass(frozen=True)
class Piece:
    """A part of a text that was either read correctly or not."""

    text: str
    right: bool


def pieces(text: str, other: str) -> list[Piece]:
    """Return a text in pieces, marked where its words are in the other text in the same order.

    Case and the punctuation around a word are ignored, as in ROUGE: whoever reads a name without its comma has read it.

    >>> [(p.text, p.right) for p in pieces("the red cat", "The cat, sat")]
    [('the', True), (' red ', False), ('cat', True)]
    """
    shown = text if len(text) <= LONGEST else text[:LONGEST] + " …"
    words = re.findall(r"\s*\S+", shown)
    kept = _common([bare(word) for word in words], [bare(word) for word in other.split()])
    parts: list[Piece] = []
    for word, right in zip(words, kept, strict=True):
        if parts and parts[-1].right == right:
            parts[-1] = Piece(parts[-1].text + word, right)
            continue
        if parts and right:  # the space before a word that was read is not marked
            space = word[: len(word) - len(word.lstrip())]
            parts[-1] = Piece(parts[-1].text + space, False)
        parts.append(Piece(word.lstrip() if right else word, right))
    return parts


def bare(word: str) -> str:
    """Return a word in lower case without the punctuation around it; a word of punctuation alone stays.

    >>> [bare(word) for word in (" Fujita,", "(record", "-", "low-fodmap")]
    ['fujita', 'record', '-', 'low-fodmap']
    """
    word = word.strip().lower()
    return re.sub(r"^\W+|\W+$", "", word) or word


def _common(a: Sequence[str], b: Sequence[str]) -> list[bool]:
    """Return which words of the first text are on a longest common subsequence."""
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
