"""What a model is asked: the class of a text, its score, or its next tokens."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

Answer = Literal["class", "score", "tokens", "class of each token", "none"]


class Task(StrEnum):
    """What a model is asked. A corpus without labels asks nothing, and a language model learns from it.

    A member equals its name, which settings and files hold. Losses are chosen in `models.classifier.losses` and metrics
    in `metrics.utility`, both by the kind of answer.

    >>> Task("classification").has_classes, Task.LM == "lm", Task.REGRESSION.main
    (True, True, 'pearson')
    """

    CLASSIFICATION = "classification"
    REGRESSION = "regression"
    LM = "lm"
    TOKEN_CLASSIFICATION = "token classification"
    UNLABELLED = "unlabelled"

    @property
    def has_classes(self) -> bool:
        """Whether the answer is one of several classes."""
        return _FACTS[self].answer == "class"

    @property
    def has_scores(self) -> bool:
        """Whether the answer is a number."""
        return _FACTS[self].answer == "score"

    @property
    def is_language(self) -> bool:
        """Whether the answer is the text itself, so that labels are not read."""
        return _FACTS[self].answer == "tokens"

    @property
    def is_labelled(self) -> bool:
        """Whether texts have labels or scores."""
        return self.has_classes or self.has_scores

    @property
    def is_trained(self) -> bool:
        """Whether `discreet train` trains models for it."""
        return bool(self.main)

    @property
    def main(self) -> str:
        """The main metric of a model, if it is trained here."""
        return _FACTS[self].main

    @property
    def balanced(self) -> str | None:
        """A metric for which chance is 0 whatever the sizes of the classes, if there is one."""
        return _FACTS[self].balanced

    @property
    def row_score(self) -> str:
        """The score of a row, between 0 and 1, that a search for settings adds up."""
        return _FACTS[self].row_score

    @property
    def pipeline(self) -> str | None:
        """The name of the task on the Hugging Face hub."""
        return _FACTS[self].pipeline


@dataclass(frozen=True)
class _Facts:
    answer: Answer
    main: str = ""
    balanced: str | None = None
    row_score: str = ""
    pipeline: str | None = None


class HasClasses:
    """Settings with the key `classes`, from which a model can be built as from a corpus with these names."""

    classes: tuple[str, ...]

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of the classes in the order of the labels, as a corpus and a model have them."""
        return self.classes


_FACTS = {
    Task.CLASSIFICATION: _Facts("class", "accuracy", "matthews", "accuracy", "text-classification"),
    Task.REGRESSION: _Facts("score", "pearson", "pearson", "mean of 1 / (1 + squared error)", "text-classification"),
    Task.LM: _Facts("tokens", "perplexity", None, "mean probability of a token", "text-generation"),
    Task.TOKEN_CLASSIFICATION: _Facts("class of each token"),  # a model of transformers that is attacked
    Task.UNLABELLED: _Facts("none"),
}
