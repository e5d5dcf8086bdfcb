"""Rows that two sets of rows share: private text in public text, and training rows among held-out ones."""

from __future__ import annotations

import re
import unicodedata

import numpy as np

from discreet.core.errors import DataError, setting
from discreet.data.corpus import Corpus

_BRACKETS = re.compile(r"-(?:lrb|rrb|lsb|rsb|lcb|rcb)-")
_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[\W_]+")
_BY_CHANCE = 20  # held-out rows, below which all of their texts may occur among the training rows by chance


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
    ids, held-out rows that all occur among the training rows are the same rows; a few equal texts may be those of other
    people.

    Guarantee: no held-out row belongs to a named unit of the training rows.
    """
    if train.units is not None:
        shared = len(set(train.unit_names) & set(held_out.unit_names))
        got = f"{shared:,} of them"
    else:
        rows, others = (set(zip(one.texts, one.second or one.texts, strict=True)) for one in (train, held_out))
        by_chance = len(held_out) < _BY_CHANCE and not rows <= others
        shared, got = int(others <= rows and not by_chance), "nothing but training rows"
    if shared:
        raise DataError(
            f"Expected validation rows of other {train.unit_name}s than the training rows, got {got}. Validation rows "
            "are read without noise, and would reveal protected ones. Divide the rows by units, or leave "
            f"{setting('validation')} out: a part of the units is then held out."
        )


def _all_texts(corpus: Corpus) -> tuple[str, ...]:
    return corpus.texts + (corpus.second or ())
