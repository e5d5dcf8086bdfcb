"""From settings to a model with its first weights, for every entry point; from a corpus to the labels of a model."""

from __future__ import annotations

from dataclasses import replace

from discreet.core.errors import (
    DataError,
    UnsupportedError,
    setting,
)
from discreet.core.randomness import Rng
from discreet.core.task import Task
from discreet.data.corpus import Corpus
from discreet.models.base import TextModel
from discreet.models.classifier import Classifier, Labelled
from discreet.models.language_model import LanguageModel
from discreet.models.settings import SEPARATE, ModelSettings


def build_model(
    target: Labelled, settings: ModelSettings, *, rng: Rng, task: str | None = None, download: bool = False
) -> TextModel:
    """Return a model for a task, by default that of `target`: a corpus, or a task with its class names.

    A language model reads no labels (`task="lm"`). The head of pairs with scores starts from the range of the scores of
    the corpus.
    """
    if Task(task or target.task).is_language:
        return LanguageModel.load(settings, rng=rng, download=download)
    return build_classifier(target, settings, rng=rng, download=download)


def build_classifier(target: Labelled, settings: ModelSettings, *, rng: Rng, download: bool = False) -> Classifier:
    """Return a classifier for a corpus, or for a task with its class names."""
    if not isinstance(target, Corpus):
        return Classifier.build(target, settings, rng=rng, download=download)
    return Classifier.build(target, settings, rng=rng, download=download, score_range=target.score_range)


def matched(corpus: Corpus, model: TextModel) -> Corpus:
    """Return a corpus whose class numbers are those of the model, matched by class name."""
    if model.task.is_language:
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
    if model.task.is_language:
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
