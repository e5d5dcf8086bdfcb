"""A metric: whether the first words of a guess and of the true text are the same."""

from __future__ import annotations

from discreet.metrics.table import Compares, Metric


def first_word(guess: str, truth: str) -> float:
    """Return 1 if the first words are the same."""
    return float(guess.split()[:1] == truth.split()[:1])


FIRST_WORD = Metric("first_word", "first words read", "first", Compares.TEXTS, first_word, is_rate=True)
