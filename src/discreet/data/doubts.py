"""What the owner of a corpus should know before training on it: units, texts and classes in the wrong place.

Guarantee: none. All of it is computed from private rows: it is for the owner's eyes, never for a run folder, a model
card or a report.
"""

from __future__ import annotations

from discreet.core.errors import Message, setting
from discreet.data.corpus import Corpus

NOT_FOR_RELEASE = "Not for release"
_MANY_CLASSES = 20
_PER_CLASS = 2  # rows a class has on average, at or below which the labels look like identifiers


def doubts(corpus: Corpus, label: str | None = None, unit: str | None = None) -> list[str]:
    """Return what is doubtful about a corpus, a sentence each; `label` and `unit` are the columns they came from.

    >>> toy = Corpus("toy", ("a", "b", "a"), labels=(0, 1, 0), splits=("train", "train", "validation"))
    >>> doubts(toy)
    ['1 of 1 validation texts stand among the training texts too: utility is measured on rows that were learned.']
    """
    found = [*_classes(corpus), *_units(corpus)]
    if unit is not None and unit == label:
        found.append(
            f"The column {unit!r} is both label and unit: rows with the same label count as one {corpus.unit_name}. "
            "Name the column that says whose text it is."
        )
    if "train" in corpus.split_names:
        for name in corpus.split_names:
            if name != "train":
                found += _across(corpus, corpus.split("train"), corpus.split(name), name)
    return found


def _across(corpus: Corpus, train: Corpus, other: Corpus, name: str) -> list[str]:
    found: list[str] = []
    if corpus.units is not None:
        both = set(train.unit_names) & set(other.unit_names)
        if both:
            found.append(
                f"{len(both):,} of {corpus.unit_count:,} {corpus.unit_name} units stand in both train and {name}: "
                f"utility is measured on people the model has seen, and what is published of the {name} rows is not "
                "covered by the guarantee. Divide the rows by whole units."
            )
    learned = set(_rows(train))
    again = sum(row in learned for row in _rows(other))
    if again:
        found.append(
            f"{again:,} of {len(other):,} {name} texts stand among the training texts too: utility is measured on rows "
            "that were learned."
        )
    if corpus.labels is not None:
        missing = sorted(set(other.labels or ()) - set(train.labels or ()))
        if missing:
            names = ", ".join([*(repr(corpus.label_names[label]) for label in missing[:3]), *["…"][: len(missing) > 3]])
            count = "1 class stands" if len(missing) == 1 else f"{len(missing):,} classes stand"
            found.append(f"{count} only among the {name} rows ({names}): the model cannot learn what it does not see.")
    return found


def _rows(corpus: Corpus) -> list[tuple[str, ...]]:
    return (
        list(zip(corpus.texts, corpus.second, strict=True))
        if corpus.second is not None
        else [(text,) for text in corpus.texts]
    )


def _classes(corpus: Corpus) -> list[str]:
    if corpus.labels is None:
        return []
    count = len(set(corpus.labels))
    if count <= _MANY_CLASSES or count * _PER_CLASS < len(corpus):
        return []
    return [
        Message(
            f"There are {count:,} classes for {len(corpus):,} rows: the label column looks like an identifier. Name "
            f"another column ({setting('label')})."
        )
    ]


def _units(corpus: Corpus) -> list[str]:
    if corpus.units is None or "train" not in corpus.split_names:
        return []
    count = corpus.split("train").unit_count
    if count > 1:
        return []
    return [
        Message(
            f"All training rows belong to one {corpus.unit_name}: nobody can be hidden among others, and one unit is "
            f"all that a guarantee would cover. Name the column that says whose text it is ({setting('unit')})."
        )
    ]
