"""The guard against overlap: no text that stands in a private corpus may come back as public text."""

from __future__ import annotations

import re
import unicodedata

import numpy as np

from discreet.data.corpus import Corpus

_BRACKETS = re.compile(r"-(?:lrb|rrb|lsb|rsb|lcb|rcb)-")
_NEITHER_LETTER_NOR_DIGIT = re.compile(r"[\W_]+")


def normalised(text: str) -> str:
    """Return what is left of a text without case, white space, punctuation, accents and tokenisation.

    >>> normalised("It ca n't be -lrb- so -rrb- NAÏVE .") == normalised("it can't be (so) naive")
    True
    """
    # Letters and digits alone: whether a corpus writes "ca n't" or "can't", "( so )" or "-lrb- so -rrb-" is all one.
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    folded = "".join(c for c in folded if not unicodedata.combining(c)) if not folded.isascii() else folded
    bare = _NEITHER_LETTER_NOR_DIGIT.sub("", _BRACKETS.sub("", folded))
    # A text of punctuation alone is itself, not the same as every other such text.
    return bare or "".join(folded.split())


def overlapping(public: Corpus, private: Corpus) -> tuple[int, ...]:
    """Return the rows of the public corpus whose text, first or second, stands in the private one, normalised."""
    known = {normalised(text) for text in _all_texts(private)}
    rows = [i for i, text in enumerate(public.texts) if normalised(text) in known]
    if public.second is not None:
        rows += [i for i, text in enumerate(public.second) if normalised(text) in known]
    return tuple(sorted(set(rows)))


def without_overlap(public: Corpus, private: Corpus) -> Corpus:
    """Return the public corpus without the rows whose text stands in the private one; a remark says how many went.

    Wherever a corpus serves as public or auxiliary text, it goes through here first: otherwise an attacker would be
    handed the answers, and a model "trained on public text" would have seen the private one.

    Guarantee: none for near copies; a row goes if its text is the same after `normalised`, which leaves letters and
    digits.

    >>> public = Corpus("web", ("It can't be!", "Another one"), labels=(0, 1))
    >>> private = Corpus("ward", ("it ca n't be .", "A secret"), labels=(0, 1))
    >>> kept = without_overlap(public, private)
    >>> kept.texts, kept.remarks
    (('Another one',), ("1 of 2 rows were removed, as their text stands in 'ward'",))
    """
    gone = overlapping(public, private)
    kept = np.setdiff1d(np.arange(len(public)), np.array(gone, dtype=np.int64))
    remark = f"{len(gone)} of {len(public)} rows were removed, as their text stands in {private.name!r}"
    return public.take(kept).renamed(public.name, remark)


def _all_texts(corpus: Corpus) -> tuple[str, ...]:
    return corpus.texts + (corpus.second or ())
