"""A corpus: made-up weather reports."""

from __future__ import annotations

from discreet.data.corpus import Corpus


def weather(seed: int = 0, count: int = 60) -> Corpus:
    """Made-up weather reports, each of a station of its own."""
    texts = tuple(f"station {seed}-{i} reports {'rain' if i % 3 else 'sun'} at noon" for i in range(count))
    return Corpus("weather", texts, labels=tuple(int(i % 3 > 0) for i in range(count)), label_names=("sun", "rain"))
