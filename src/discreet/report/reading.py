"""Mark which words of a text an attacker read in the right order, and list the names, dates and numbers among them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from discreet.metrics.categories import NUMBERS, Category, fragments, items

LONGEST = 900  # characters of a text that are shown; longer texts are truncated and end in an ellipsis
_TOKEN = re.compile(r"[^\W_]+|[^\w\s]|_")  # a run of letters and digits, as ROUGE counts words, or one other character
_WORD = re.compile(r"[^\W_]+")
_PERSONAL = NUMBERS | {Category.NAME, Category.DATE}


@dataclass(frozen=True)
class Piece:
    """A part of a text that was either read correctly or not."""

    text: str
    right: bool


def pieces(text: str, other: str) -> list[Piece]:
    """Return a text in pieces, marked where its words are in the other text in the same order.

    Words are runs of letters and digits; case, accents and punctuation are ignored, so that a telephone number is read
    whichever way it is spaced. Punctuation is marked with the words that it touches.

    >>> [(p.text, p.right) for p in pieces("the red cat", "The cat, sat")]
    [('the', True), (' red ', False), ('cat', True)]
    >>> [(p.text, p.right) for p in pieces("Call 555-0134.", "555 - 0134")]
    [('Call ', False), ('555-0134.', True)]
    """
    shown = text if len(text) <= LONGEST else text[:LONGEST] + " …"
    pattern = _WORD if _WORD.search(shown) else _TOKEN  # a text without a word is compared sign by sign
    tokens = list(pattern.finditer(shown))
    kept = _common([_spelled(token.group()) for token in tokens], [_spelled(one) for one in pattern.findall(other)])
    right = [False] * len(shown)
    for place, token in enumerate(tokens):
        if not kept[place]:
            continue
        start, end = token.span()
        if place + 1 < len(tokens) and kept[place + 1]:
            end = tokens[place + 1].start()  # what is between two words that were read
        else:
            end = _outward(shown, end, tokens[place + 1].start() if place + 1 < len(tokens) else len(shown), 1)
        if place == 0 or not kept[place - 1]:
            start = _outward(shown, start - 1, tokens[place - 1].end() - 1 if place else -1, -1) + 1
        right[start:end] = [True] * (end - start)
    parts: list[Piece] = []
    begin = 0
    for at in range(1, len(shown) + 1):
        if at == len(shown) or right[at] != right[begin]:
            parts.append(Piece(shown[begin:at], right[begin]))
            begin = at
    return parts


def _outward(text: str, start: int, limit: int, step: int) -> int:
    """Return where the signs that touch a word end, going forward or backward up to a limit."""
    while start != limit and not text[start].isspace():
        start += step
    return start


def _spelled(token: str) -> str:
    """Return a token in lower case without accents, as `fragments` spells it; a sign stays as it is."""
    return "".join(fragments(token)) or token


def bare(word: str) -> str:
    """Return a word in lower case without the punctuation around it; a word of punctuation alone stays.

    >>> [bare(word) for word in (" Fujita,", "(record", "-", "low-fodmap")]
    ['fujita', 'record', '-', 'low-fodmap']
    """
    word = word.strip().lower()
    return re.sub(r"^\W+|\W+$", "", word) or word


def personal(text: str, guess: str) -> tuple[list[str], int]:
    """Return the names, dates and numbers of a text that a guess contains, and how many the text has.

    Neighbouring names count as one. A name, date or number is read if the guess has all of its parts, in any order.

    >>> personal("Seen: Ana Ruiz, record 4985512, tel. 555-010-0199.", "ana ruiz ( record 4985512 )")
    (['Ana Ruiz', '4985512'], 3)
    """
    groups: list[tuple[Category, list[str]]] = []
    follows = False
    for item in items(text[:LONGEST]):
        if follows and item.category is Category.NAME:
            groups[-1][1].append(item.text)
        elif item.category in _PERSONAL:
            groups.append((item.category, [item.text]))
        follows = item.category is Category.NAME
    rest = Counter(fragments(guess))
    read = []
    for _, words in groups:
        wanted = Counter(part for word in words for part in fragments(word))
        if wanted and wanted <= rest:
            read.append(" ".join(words))
            rest -= wanted
    return read, len(groups)


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
