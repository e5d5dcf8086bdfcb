"""How well a model does its task: accuracy, F1, Matthews correlation; Pearson, Spearman."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64] | npt.NDArray[np.int64]

MAIN = {"classification": "accuracy", "regression": "pearson"}
UTILITIES = ("accuracy", "f1", "matthews", "pearson", "spearman", "mean_squared_error")


def utility(task: str, predicted: Numbers, truth: Numbers) -> dict[str, float]:
    """Return the metrics of a task by name.

    F1 is the mean over the classes that occur, each counted once. A constant prediction has correlation 0.

    >>> utility("classification", np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]))["accuracy"]
    0.75
    """
    if task == "regression":
        return {
            "pearson": _correlation("pearsonr", predicted, truth),
            "spearman": _correlation("spearmanr", predicted, truth),
            "mean_squared_error": float(np.mean((np.asarray(predicted) - np.asarray(truth)) ** 2)),
        }
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

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
