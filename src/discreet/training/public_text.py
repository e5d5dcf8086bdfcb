"""Public text that a protection mixes with, learns from or starts from: read it, and leave out what is held out."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from discreet.catalog import CORPORA
from discreet.core.errors import DataError, invalid
from discreet.data.corpus import Corpus
from discreet.data.overlap import without_overlap
from discreet.data.sources import EACH_ROW, Columns, load
from discreet.models.base import TextModel
from discreet.protections.base import Protection, RepresentationProtection


def public_text(
    source: str, columns: Columns, seed: int = 0, *, scores: bool = False, labelled: bool = False
) -> Corpus:
    """Return public text: a built-in corpus, or a file with the column names of the private one.

    Its labels are left out if they cannot be read, unless `labelled`: training needs them, and projections by label
    report missing ones; mixtures and principal axes need none. `scores` reads labels as numbers, also where all of them
    are integers.
    """
    if source in CORPORA:
        return load(source, seed=seed, validation=0)
    columns = replace(columns, unit=EACH_ROW)
    try:
        return load(source, columns, seed=seed, validation=0, task="regression" if scores else None)
    except DataError:
        if labelled:
            raise
        return load(source, replace(columns, label=None), seed=seed, validation=0)


def public_corpus(protect: Protection | None, private: Corpus, columns: Columns, seed: int = 0) -> Corpus | None:
    """Return the public corpus that a protection needs, without texts that occur in held-out text.

    What is learned from it is published, so it must not depend on which of its texts are in the train split: removing
    those would reveal them to anyone who has the public corpus. If nothing is guaranteed, they are removed too. All
    splits of a public folder are used.
    """
    if protect is None or protect.public is None:
        return None
    columns = columns if private.is_pairs else replace(columns, text_pair=None)
    labelled = protect.starts_from_public and private.task in ("classification", "regression")
    public = public_text(protect.public, columns, seed, scores=private.task == "regression", labelled=labelled)
    public = replace(public, splits=("train",) * len(public))
    guaranteed = not isinstance(protect, RepresentationProtection) or protect.priced
    rows = [row for row, name in enumerate(private.splits) if name != "train" or not guaranteed]
    avoided = private.take(rows)
    if guaranteed:
        avoided = avoided.renamed(f"{private.name} (held-out rows)")
    kept = without_overlap(public, avoided) if rows else public
    if not len(kept):
        raise DataError(
            f"Expected public text that is not in {private.name!r}, got none in {protect.public!r}. Name other text."
        )
    return kept


def public_vectors(model: TextModel, public: Corpus, precision: str) -> tuple[Tensor, Tensor | None]:
    """Return the vectors of public text under a frozen encoder, and its labels if they are those of the model."""
    if not model.settings.frozen:
        raise invalid("train", model.settings.train, "head or pooler+head", "A projection is learned for one encoder.")
    from discreet.models.encode import cache_folder, encode

    rows = encode(model, public, cache_folder(), precision)
    labelled = public.task == model.task and public.label_names == model.label_names
    return rows.vectors, rows.targets if labelled else None
