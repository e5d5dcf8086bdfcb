"""Predictions of a model, and its utility."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from discreet.core.device import autocast
from discreet.core.randomness import Rng
from discreet.core.task import Task
from discreet.data.batches import Tokens, Vectors, tokenise, tokens_for
from discreet.data.corpus import Corpus
from discreet.metrics.utility import (
    Quality,
    by_class,
    constant_utility,
    language_intervals,
    language_quality,
    quality,
    utility_intervals,
)
from discreet.models.base import TextModel, evaluating
from discreet.models.build import matched
from discreet.models.classifier import Classifier, classifier_of
from discreet.models.language_model import LanguageModel, token_losses

_TOKENS_AT_ONCE = {"cpu": 4096, "cuda": 65536}
_ROWS_AT_ONCE = 256
_LESS_FOR_SCORES = 4  # a language model scores every word of its vocabulary for each token


@dataclass(frozen=True)
class Predictions:
    """Class probabilities, (rows, classes), or numbers, (rows, 1), in the order of the corpus."""

    values: npt.NDArray[np.float32]
    task: Task
    truncated: int = 0

    @property
    def best(self) -> npt.NDArray[np.int64] | npt.NDArray[np.float64]:
        """Most likely class of each row, or its score."""
        if self.task.has_scores:
            return self.values[:, 0].astype(np.float64)
        return np.asarray(self.values.argmax(axis=1), dtype=np.int64)


def by_length(lengths: npt.NDArray[np.int64], tokens_at_once: int) -> list[npt.NDArray[np.int64]]:
    """Return groups of rows of similar length, each with about `tokens_at_once` tokens when padded."""
    order = np.argsort(-lengths, kind="stable").astype(np.int64)
    groups, start = [], 0
    while start < len(order):
        size = max(1, tokens_at_once // int(lengths[order[start]]))
        groups.append(order[start : start + size])
        start += size
    return groups


@torch.inference_mode()
def represent(
    model: Classifier,
    tokens: Tokens,
    precision: str = "auto",
    encoded: Callable[[int, int], None] | None = None,
) -> torch.Tensor:
    """Return the sentence vectors of a tokenized corpus, in its order, in float32.

    `encoded` is called with the number of rows encoded so far and in all.

    Guarantee: none, the vectors of an encoder reveal the text.
    """
    out = torch.empty(len(tokens), model.width, device=model.device)
    done = 0
    with evaluating(model), autocast(model.device, precision):
        for rows in by_length(tokens.lengths, _TOKENS_AT_ONCE[model.device.type]):
            out[torch.from_numpy(rows).to(model.device)] = _represented(model, tokens, rows)
            done += len(rows)
            if encoded is not None:
                encoded(done, len(tokens))
    return out


def _represented(model: Classifier, tokens: Tokens, rows: npt.NDArray[np.int64]) -> torch.Tensor:
    """Return the vectors of the rows; if memory runs out, half of them at a time."""
    try:
        return model.represent(tokens.batch(rows).inputs).float()
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    half = len(rows) // 2
    return torch.cat([_represented(model, tokens, part) for part in (rows[:half], rows[half:])])


@torch.inference_mode()
def predict(
    model: Classifier,
    rows: Corpus | Tokens | Vectors,
    precision: str = "auto",
    query: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Predictions:
    """Return the predictions of a model for every row.

    `query` replaces the model's own map from vectors to the input of the head; if it returns several views of a row,
    their predictions are averaged.

    Args:
        model: The model.
        rows: The rows.
        precision: auto (bf16 on a GPU, else float32), float32 or bf16.
        query: Replaces the model's own map from vectors to the input of the head; if it returns several views of a row,
            their predictions are averaged.

    Guarantee: none for the rows; that of the model does not change, as this is post-processing.
    """
    if isinstance(rows, Corpus):
        rows = tokenise(rows, model.tokenizer, model.max_length, model.device)
    with evaluating(model), autocast(model.device, precision):
        vectors = rows.vectors if isinstance(rows, Vectors) else represent(model, rows, precision)
        scores = _answers(model, vectors, query or model.query)
    return Predictions(scores.cpu().numpy(), model.task, rows.truncated)


def _answers(model: Classifier, vectors: torch.Tensor, query: Callable[[torch.Tensor], torch.Tensor] | None) -> Any:
    """Return class probabilities or scores from sentence vectors."""

    def answer(inputs: torch.Tensor) -> torch.Tensor:
        scores = model.decide(inputs).float()
        return scores.softmax(dim=-1) if model.task.has_classes else scores

    if query is None:
        return answer(vectors)
    answers = []
    for part in torch.split(vectors, _ROWS_AT_ONCE):  # one view per mask of all rows would fill the memory
        inputs = query(part)
        answers.append(answer(inputs).mean(dim=0) if inputs.ndim > 2 else answer(inputs))
    return torch.cat(answers)


def evaluate(
    model: TextModel,
    corpus: Corpus | Tokens | Vectors,
    precision: str = "auto",
    query: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> dict[str, float]:
    """Return the utility metrics of a model on a corpus by name.

    Args:
        model: The model.
        corpus: The rows to evaluate on, held out from the training.
        precision: auto (bf16 on a GPU, else float32), float32 or bf16.
        query: Replaces the model's own map from vectors to the input of the head; if it returns several views of a row,
            their predictions are averaged.
    """
    return assess(model, corpus, precision, query).quality.metrics


@dataclass(frozen=True)
class Assessment:
    """How good the answers of a model are: its utility, also by class, and the answers with the truth.

    A language model has no answers, but `totals` of each row: its loss, its tokens, and those that are predicted.
    """

    task: Task
    quality: Quality
    by_class: list[dict[str, Any]]
    answers: npt.NDArray[Any] | None = None
    truth: npt.NDArray[Any] | None = None
    totals: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]] | None = None

    def intervals(self, rng: Rng) -> dict[str, tuple[float, float]]:
        """Return 95% intervals of the metrics."""
        if self.totals is not None:
            return language_intervals(*self.totals)
        assert self.answers is not None and self.truth is not None
        return utility_intervals(self.task, self.answers, self.truth, rng)

    def baselines(self) -> dict[str, float]:
        """Return the metrics of the best constant answer; of a language model, the main one."""
        if self.truth is None:
            return {self.quality.main: self.quality.baseline}
        return constant_utility(self.task, self.truth)

    def values(self, split: str) -> dict[str, Any]:
        """Return the utility on a split as plain values for JSON."""
        classes = {"utility_by_class": self.by_class} if self.by_class else {}
        return {"utility": self.quality.metrics, "quality": self.quality.as_dict(), "evaluated_on": split, **classes}


def assess(
    model: TextModel,
    corpus: Corpus | Tokens | Vectors,
    precision: str = "auto",
    query: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Assessment:
    """Return the utility of a model on a corpus, with its interval, the baseline of a constant answer, and by class.

    Args:
        model: The model.
        corpus: The rows to evaluate on, held out from the training.
        precision: auto (bf16 on a GPU, else float32), float32 or bf16.
        query: Replaces the model's own map from vectors to the input of the head; if it returns several views of a row,
            their predictions are averaged.
    """
    if isinstance(corpus, Corpus):
        corpus = tokens_for(model, matched(corpus, model))
    if isinstance(model, LanguageModel):
        assert isinstance(corpus, Tokens)
        totals = token_totals(model, corpus, precision)
        return Assessment(model.task, language_quality(*totals, vocabulary=len(model.tokenizer)), [], totals=totals)
    answers = predict(classifier_of(model, "predictions"), corpus, precision, query).best
    truth = corpus.targets.cpu().numpy()
    classes = by_class(answers, truth, model.label_names) if model.task.has_classes else []
    return Assessment(model.task, quality(model.task, answers, truth), classes, answers, truth)


def perplexity(model: LanguageModel, tokens: Tokens, precision: str = "auto") -> Quality:
    """Return the perplexity of a language model on a tokenized corpus, with its interval.

    Guarantee: none for the rows; that of the model does not change, as this is post-processing.
    """
    return language_quality(*token_totals(model, tokens, precision), vocabulary=len(model.tokenizer))


@torch.inference_mode()
def token_totals(
    model: LanguageModel, tokens: Tokens, precision: str = "auto"
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return for every row the sum of the losses of its tokens, their number, and how many are predicted.

    Guarantee: none for the rows.
    """
    losses, counts, hits = (np.zeros(len(tokens)) for _ in range(3))
    with evaluating(model), autocast(model.device, precision):
        for rows in by_length(tokens.lengths, _TOKENS_AT_ONCE[model.device.type] // _LESS_FOR_SCORES):
            scores, targets, mask = model.token_scores(tokens.batch(rows).inputs)
            losses[rows] = (token_losses(scores, targets) * mask).sum(dim=1).double().cpu().numpy()
            counts[rows] = mask.sum(dim=1).cpu().numpy()
            hits[rows] = ((scores.argmax(dim=-1) == targets) & mask).sum(dim=1).cpu().numpy()
    return losses, counts, hits
