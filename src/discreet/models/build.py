"""The one way from settings to a model with its first weights, for every entry point."""

from __future__ import annotations

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.base import LM, TextModel
from discreet.models.classifier import Classifier, Labelled
from discreet.models.language_model import LanguageModel
from discreet.models.model_settings import ModelSettings


def build_model(
    target: Labelled, settings: ModelSettings, *, rng: Rng, task: str | None = None, download: bool = False
) -> TextModel:
    """Return a model for a task, by default that of `target`: a corpus, or a task with its class names.

    A language model reads no labels (`task="lm"`). The head of pairs with scores starts from the range of the scores of
    the corpus.
    """
    if (task or target.task) == LM:
        return LanguageModel.load(settings, rng=rng, download=download)
    return build_classifier(target, settings, rng=rng, download=download)


def build_classifier(target: Labelled, settings: ModelSettings, *, rng: Rng, download: bool = False) -> Classifier:
    """Return a classifier for a corpus, or for a task with its class names."""
    if not isinstance(target, Corpus):
        return Classifier.build(target, settings, rng=rng, download=download)
    return Classifier.build(target, settings, rng=rng, download=download, score_range=target.score_range)
