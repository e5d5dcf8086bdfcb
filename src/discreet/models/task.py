"""What a model is trained for: labels of a corpus matched with those of a model."""

from __future__ import annotations

from dataclasses import replace

from discreet.core.errors import (
    DataError,
    UnsupportedError,
    setting,
)
from discreet.data.corpus import Corpus
from discreet.models.base import LM, TextModel
from discreet.models.classifier import Classifier
from discreet.models.model_settings import SEPARATE


def matched(corpus: Corpus, model: TextModel) -> Corpus:
    """Return a corpus whose class numbers are those of the model, matched by class name."""
    if model.task == LM:
        return corpus.unlabelled()
    if corpus.task != model.task:
        raise DataError(
            f"Expected data for {model.task}, the task of the model, got {corpus.task}. "
            f"Name the label column ({setting('label')})."
        )
    if corpus.labels is None or corpus.label_names == model.label_names:
        return corpus
    unknown = [name for name in corpus.label_names if name not in model.label_names]
    if unknown:
        raise DataError(
            f"Expected labels of the model ({', '.join(model.label_names)}), got {unknown[0]!r}. Rename the labels."
        )
    numbers = [model.label_names.index(name) for name in corpus.label_names]
    return replace(corpus, labels=tuple(numbers[i] for i in corpus.labels), label_names=model.label_names)


def matched_split(corpus: Corpus, model: TextModel, name: str) -> Corpus:
    """Return one split of a corpus; reject a missing split, and a corpus for another task."""
    if not isinstance(model, TextModel):
        raise UnsupportedError(
            f"Expected model to be a discreet.Classifier or LanguageModel, got {type(model).__name__}. Put a head on "
            "an encoder with Classifier.build(corpus, encoder=folder, rng=rng)."
        )
    if not isinstance(corpus, Corpus):
        raise DataError(
            f"Expected corpus to be a discreet.Corpus, got {type(corpus).__name__}. Make one with "
            "Corpus(name, texts, labels=labels), or read a file with discreet.load(path)."
        )
    if model.task == LM:
        if corpus.is_pairs:
            raise DataError("Expected single texts for a language model, got pairs. Join the two columns into one.")
        corpus = corpus.unlabelled()
    elif corpus.task != model.task:
        raise DataError(f"Expected data for {model.task}, got {corpus.task}. Name the label column.")
    elif isinstance(model, Classifier) and model.settings.pairs == SEPARATE and not corpus.is_pairs:
        raise DataError(
            f"Expected pairs of texts in corpus {corpus.name!r}, which the model reads separately, got single texts. "
            "Name the column of the second text, or leave out how pairs are read."
        )
    if name not in corpus.split_names:
        raise DataError(
            f"Expected a {name!r} split in corpus {corpus.name!r}. Add one, for example a file {name}.csv beside it."
        )
    return corpus.split(name)
