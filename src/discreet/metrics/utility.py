"""Utility metrics of a model, with intervals and the baseline of a constant answer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet.core.randomness import Rng
from discreet.core.task import Task
from discreet.metrics.intervals import bootstrap, clopper_pearson

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.float64] | npt.NDArray[np.int64]

LOWER_IS_BETTER = ("mean_squared_error", "perplexity", "loss")
UTILITIES = (
    "accuracy", "f1", "matthews", "pearson", "spearman", "mean_squared_error", "token_accuracy", "perplexity",
)  # fmt: skip


@dataclass(frozen=True)
class Quality:
    """Metrics of a model, the interval of the main one, and the baseline of a constant answer.

    `baseline` is the accuracy of always predicting the most frequent class of these rows, 0 for a correlation, or the
    number of tokens for a perplexity, which a uniform distribution over the tokens reaches.
    `constant` is true if the model predicts the same value for every row.
    """

    main: str
    metrics: dict[str, float]
    rows: int
    interval: tuple[float, float]
    baseline: float
    constant: bool

    @property
    def value(self) -> float:
        """The main metric."""
        return self.metrics[self.main]

    @property
    def learned_nothing(self) -> bool:
        """Whether the model is no better than a constant answer."""
        return self.constant or not is_better(self.main, self.value, self.baseline)

    def as_dict(self) -> dict[str, Any]:
        """Return everything except the metrics as plain values for JSON."""
        return {
            "metric": self.main,
            "rows": self.rows,
            "interval": list(self.interval),
            "baseline": self.baseline,
            "constant": self.constant,
            "learned_nothing": self.learned_nothing,
        }


def in_sentences(quality: Mapping[str, Any]) -> list[str]:
    """Return `Quality.as_dict` as sentences: the interval, the baseline and possibly a warning.

    >>> in_sentences(quality("classification", np.array([1, 1, 1, 1]), np.array([0, 1, 1, 0])).as_dict())[-1]
    'Warning: the model predicts the same value for every row; it has learned nothing.'
    """
    low, high = quality["interval"]
    name, rows, baseline = quality["metric"], quality["rows"], quality["baseline"]
    sentences = [f"The 95% interval of the {name} is {low:.3f} to {high:.3f}, from {rows:,} rows."]
    if name == "perplexity":
        sentences.append(
            f"A uniform distribution over all {baseline:,.0f} tokens would reach {baseline:,.0f}; lower is better."
        )
        if quality["learned_nothing"]:
            sentences.append("Warning: the model is no better than that.")
        return sentences
    if name == "accuracy":
        sentences.append(f"Always predicting the most frequent class would reach {baseline:.3f}.")
    if quality["constant"]:
        sentences.append("Warning: the model predicts the same value for every row; it has learned nothing.")
    elif quality["learned_nothing"]:
        sentences.append("Warning: the model is no better than a constant answer.")
    elif low <= baseline:
        sentences.append("The interval includes the constant answer: more rows are needed to tell them apart.")
    return sentences


def quality(task: str, predicted: Numbers, truth: Numbers) -> Quality:
    """Return the metrics of a task, the 95% interval of the main one, and the baseline of a constant answer.

    The interval of an accuracy is Clopper and Pearson's, exact for every number of rows; that of a correlation is
    Fisher's, which is approximate.

    Args:
        task: classification or regression.
        predicted: The predicted classes, or scores, row by row.
        truth: The classes or scores.

    >>> result = quality("classification", np.array([1, 1, 1, 1]), np.array([0, 1, 1, 0]))
    >>> result.value, result.baseline, result.learned_nothing
    (0.5, 0.5, True)
    """
    metrics = utility(task, predicted, truth)
    main, rows = Task(task).main, len(truth)
    constant = rows > 1 and bool(np.ptp(predicted) == 0)
    if Task(task).has_scores:
        return Quality(main, metrics, rows, _fisher(metrics[main], rows), 0.0, constant)
    interval = clopper_pearson(int(np.sum(np.asarray(predicted) == np.asarray(truth))), rows) if rows else (0.0, 1.0)
    counts = np.unique(np.asarray(truth), return_counts=True)[1]
    baseline = float(counts.max() / rows) if rows else 0.0
    return Quality(main, metrics, rows, interval, baseline, constant and len(counts) > 1)


def by_class(predicted: Numbers, truth: Numbers, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the share of correct rows of each class that occurs, with its 95% interval (Clopper and Pearson).

    >>> [row["value"] for row in by_class(np.array([0, 1, 1]), np.array([0, 0, 1]), ["a", "b"])]
    [0.5, 1.0]
    """
    answers, labels = np.asarray(predicted), np.asarray(truth)
    rows = []
    for label, name in enumerate(names):
        own = labels == label
        if own.any():
            count, right = int(own.sum()), int((answers[own] == label).sum())
            interval = list(clopper_pearson(right, count))
            rows.append(
                {"class": name, "rows": count, "metric": "recall", "value": right / count, "interval": interval}
            )
    return rows


def is_better(metric: str, value: float, other: float) -> bool:
    """Return whether a value of a metric is better than another one.

    >>> is_better("accuracy", 0.9, 0.8), is_better("perplexity", 9.0, 12.0)
    (True, True)
    """
    return value < other if metric in LOWER_IS_BETTER else value > other


def language_quality(losses: Floats, counts: Floats, hits: Floats, *, vocabulary: int) -> Quality:
    """Return the perplexity of a language model from the total loss, the tokens and the correct predictions per text.

    The interval is the percentile bootstrap over texts of the loss per token, which is approximate.

    >>> result = language_quality(np.full(8, 2 * math.log(4)), np.full(8, 2.0), np.full(8, 1.0), vocabulary=100)
    >>> round(result.value, 6), result.metrics["token_accuracy"], result.learned_nothing
    (4.0, 0.5, False)
    """
    tokens = max(float(counts.sum()), 1.0)
    loss = float(losses.sum()) / tokens
    metrics = {"perplexity": _exp(loss), "loss": loss, "token_accuracy": float(hits.sum()) / tokens}
    interval = language_intervals(losses, counts, hits)["perplexity"]
    return Quality("perplexity", metrics, len(losses), interval, float(vocabulary), False)


def language_intervals(losses: Floats, counts: Floats, hits: Floats) -> dict[str, tuple[float, float]]:
    """Return 95% intervals of the metrics of a language model: the percentile bootstrap over texts, an approximation.

    >>> found = language_intervals(np.full(8, 2 * math.log(4)), np.full(8, 2.0), np.full(8, 1.0))
    >>> found["token_accuracy"]
    (0.5, 0.5)
    """
    if len(losses) < 2:
        return {"perplexity": (1.0, math.inf), "loss": (0.0, math.inf), "token_accuracy": (0.0, 1.0)}
    rows = Rng(0).fork("perplexity").numpy("language_quality").integers(len(losses), size=(1000, len(losses)))
    tokens = np.maximum(counts[rows].sum(axis=1), 1.0)
    low, high = (float(value) for value in np.quantile(losses[rows].sum(axis=1) / tokens, (0.025, 0.975)))
    least, most = (float(value) for value in np.quantile(hits[rows].sum(axis=1) / tokens, (0.025, 0.975)))
    return {"perplexity": (_exp(low), _exp(high)), "loss": (low, high), "token_accuracy": (least, most)}


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def constant_utility(task: str, truth: Numbers) -> dict[str, float]:
    """Return the metrics of the best constant answer: the most frequent class of these rows, or their mean.

    >>> constant_utility("classification", np.array([0, 1, 1, 1]))["accuracy"]
    0.75
    """
    if not len(truth):
        return {}
    if Task(task).has_scores:
        return utility(task, np.full(len(truth), float(np.mean(truth)), dtype=np.float64), truth)
    classes, counts = np.unique(truth, return_counts=True)
    return utility(task, np.full(len(truth), classes[counts.argmax()], dtype=np.int64), truth)


def utility_intervals(
    task: str, predicted: Numbers, truth: Numbers, rng: Rng, draws: int = 1000
) -> dict[str, tuple[float, float]]:
    """Return 95% intervals of all metrics of a task.

    Accuracy has Clopper and Pearson's, correlations Fisher's; F1, Matthews and the squared error have the percentile
    bootstrap, which is approximate.

    >>> [round(v, 2) for v in utility_intervals("classification", np.arange(40) % 2, np.arange(40) % 2, Rng(0))["f1"]]
    [1.0, 1.0]
    """
    rows = len(truth)
    if not rows:
        return {}
    if Task(task).has_scores:
        metrics = utility(task, predicted, truth)
        errors = np.asarray((np.asarray(predicted) - np.asarray(truth)) ** 2, dtype=np.float64)
        return {
            **{name: _fisher(metrics[name], rows) for name in ("pearson", "spearman")},
            "mean_squared_error": bootstrap(errors, rng=rng.fork("squared error")),
        }
    names, places = np.unique(np.concatenate((np.asarray(truth), np.asarray(predicted))), return_inverse=True)
    count = len(names)
    pairs = np.bincount(places[:rows] * count + places[rows:], minlength=count * count)
    resampled = rng.fork("confusion").numpy("utility_intervals").multinomial(rows, pairs / rows, size=draws)
    table = resampled.reshape(draws, count, count).astype(np.float64)  # truth by prediction
    hits = np.diagonal(table, axis1=1, axis2=2)
    true, guessed = table.sum(axis=2), table.sum(axis=1)
    occurs = (true > 0) | (guessed > 0)
    f1 = np.where(occurs, 2 * hits / np.maximum(true + guessed, 1), 0.0).sum(axis=1) / occurs.sum(axis=1)
    shared = hits.sum(axis=1) * rows - (true * guessed).sum(axis=1)
    spread = np.sqrt((rows**2 - (guessed**2).sum(axis=1)) * (rows**2 - (true**2).sum(axis=1)))
    matthews = np.divide(shared, spread, out=np.zeros(draws), where=spread > 0)
    right = int(np.sum(np.asarray(predicted) == np.asarray(truth)))
    return {
        "accuracy": clopper_pearson(right, rows),
        **{
            name: (float(np.quantile(values, 0.025)), float(np.quantile(values, 0.975)))
            for name, values in (("f1", f1), ("matthews", matthews))
        },
    }


def _fisher(correlation: float, rows: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Fisher's interval of a correlation, or [-1, 1] for up to three rows."""
    if rows <= 3:
        return -1.0, 1.0
    if abs(correlation) >= 1:
        return correlation, correlation
    from scipy.stats import norm

    half = float(norm.ppf((1 + confidence) / 2)) / math.sqrt(rows - 3)
    return math.tanh(math.atanh(correlation) - half), math.tanh(math.atanh(correlation) + half)


def utility(task: str, predicted: Numbers, truth: Numbers) -> dict[str, float]:
    """Return the metrics of a task by name.

    F1 is the mean over the classes that occur, each counted once. A constant answer has correlation 0.

    >>> utility("classification", np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]))["accuracy"]
    0.75
    """
    if Task(task).has_scores:
        return {
            "pearson": _correlation("pearsonr", predicted, truth),
            "spearman": _correlation("spearmanr", predicted, truth),
            "mean_squared_error": float(np.mean((np.asarray(predicted) - np.asarray(truth)) ** 2)),
        }
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # rows of a single class are valid
        return {
            "accuracy": float(accuracy_score(truth, predicted)),
            "f1": float(f1_score(truth, predicted, average="macro", zero_division=0)),
            "matthews": float(matthews_corrcoef(truth, predicted)),
        }


def _correlation(name: str, predicted: Numbers, truth: Numbers) -> float:
    from scipy import stats

    if len(predicted) < 2 or np.ptp(predicted) == 0 or np.ptp(truth) == 0:
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(getattr(stats, name)(predicted, truth).statistic)
