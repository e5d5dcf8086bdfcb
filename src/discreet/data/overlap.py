"""Rows that two sets of rows share: private text in public text, and training rows among held-out ones."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

import numpy as np

from discreet.core.errors import DataError, setting
from discreet.data.corpus import Corpus

_BRACKETS = re.compile(r"-(?:lrb|rrb|lsb|rsb|lcb|rcb)-")
_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[\W_]+")
_BY_CHANCE = 20  # held-out rows, below which all of their texts may occur among the training rows by chance
_SHARE = 0.1  # of the held-out rows that may have the text of a training row, in addition to the repeated texts


def normalised(text: str) -> str:
    """Return a text without case, white space, punctuation, accents and tokenization.

    >>> normalised("It ca n't be -lrb- so -rrb- NAÏVE .") == normalised("it can't be (so) naive")
    True
    """
    # Only letters and digits: "ca n't" equals "can't", and "( so )" equals "-lrb- so -rrb-".
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    folded = "".join(c for c in folded if not unicodedata.combining(c)) if not folded.isascii() else folded
    bare = _NEITHER_LETTER_NOR_DIGIT.sub("", _BRACKETS.sub("", folded))
    # A text of only punctuation is kept, so that it does not equal every other such text.
    return bare or "".join(folded.split())


def overlapping(public: Corpus, private: Corpus) -> tuple[int, ...]:
    """Return the rows of the public corpus whose first or second normalized text is in the private one."""
    private_texts = {normalised(text) for text in _all_texts(private)}
    rows = [i for i, text in enumerate(public.texts) if normalised(text) in private_texts]
    if public.second is not None:
        rows += [i for i, text in enumerate(public.second) if normalised(text) in private_texts]
    return tuple(sorted(set(rows)))


def without_overlap(public: Corpus, private: Corpus) -> Corpus:
    """Return the public corpus without the rows whose text is in the private one; a remark says how many were removed.

    Use it for every public or auxiliary corpus: otherwise an attacker would be given the answers, and a model "trained
    on public text" would have seen private text.

    Guarantee: none for near duplicates; a row is removed if its text is the same after `normalised`.

    >>> public = Corpus("web", ("It can't be!", "Another one"), labels=(0, 1))
    >>> private = Corpus("ward", ("it ca n't be .", "A secret"), labels=(0, 1))
    >>> kept = without_overlap(public, private)
    >>> kept.texts, kept.remarks
    (('Another one',), ("1 of 2 rows were removed, because their text is in 'ward'",))
    """
    removed = overlapping(public, private)
    kept = np.setdiff1d(np.arange(len(public)), np.array(removed, dtype=np.int64))
    remark = f"{len(removed)} of {len(public)} rows were removed, because their text is in {private.name!r}"
    return public.take(kept).renamed(public.name, remark)


def check_held_out(train: Corpus, held_out: Corpus) -> None:
    """Reject held-out rows of units that are trained on.

    Held-out rows are read without noise: utility figures are computed on them, and they decide when to stop. Without
    ids, rows are compared by their `normalised` texts. A few equal texts may be those of other people: the held-out
    rows are rejected if all of them, or 10% more of them than of the training rows themselves, have the text of another
    training row.

    Guarantee: no held-out row belongs to a named unit of the training rows.
    """
    if train.units is not None:
        shared = len(set(train.unit_names) & set(held_out.unit_names))
        expected, got = f"of other {train.unit_name}s than the training rows", f"{shared:,} of them"
    else:
        shared = _shared_rows(_keys(train), _keys(held_out))
        expected = "that are not training rows"
        got = f"{shared:,} of {len(held_out):,} with the text of a training row"
    if shared:
        raise DataError(
            f"Expected validation rows {expected}, got {got}. Validation rows are read without noise, and would reveal "
            f"protected ones. Divide the rows by units, or leave {setting('validation')} out: a part of the units is "
            "then held out."
        )


def _shared_rows(train: list[tuple[str, str]], held_out: list[tuple[str, str]]) -> int:
    """Return how many held-out rows occur among the training rows; 0 if that may be by chance."""
    rows = Counter(train)
    shared = sum(one in rows for one in held_out)
    if shared <= 1 or (len(held_out) < _BY_CHANCE and not rows.keys() <= set(held_out)):
        return 0
    repeated = sum(count for count in rows.values() if count > 1) / len(train)
    return shared if shared == len(held_out) or shared / len(held_out) > _SHARE + repeated else 0


def _keys(corpus: Corpus) -> list[tuple[str, str]]:
    """Return the normalised texts of every row."""
    second = corpus.second or ("",) * len(corpus)
    return [(normalised(one), normalised(other)) for one, other in zip(corpus.texts, second, strict=True)]


def _all_texts(corpus: Corpus) -> tuple[str, ...]:
    return corpus.texts + (corpus.second or ())
