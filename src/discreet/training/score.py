"""The score by which trained models are compared: a sum over units to which each adds at most 1, so noise can hide it.

The score of a row is in [0, 1]: whether its class is predicted, 1 / (1 + squared error) for a number, and the geometric
mean of the token probabilities for a language model. A unit adds the mean of its rows, however many it has.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from discreet.core.randomness import Rng
from discreet.data.batches import Tokens, Vectors
from discreet.mechanisms.gaussian import Gaussian
from discreet.models.base import TextModel
from discreet.models.classifier import classifier_of
from discreet.models.language_model import LanguageModel
from discreet.training.evaluate import predict, token_totals

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NAMES = {
    "classification": "accuracy",
    "regression": "mean of 1 / (1 + squared error)",
    "lm": "mean probability of a token",
}


def row_scores(model: TextModel, rows: Tokens | Vectors, precision: str = "auto") -> Floats:
    """Return the score of every row, in [0, 1]; a NaN, of a model whose training diverged, counts as 0.

    NaN has no place in an order, and the cost of choosing the best holds for an order of all results.

    Guarantee: none, the scores are computed from private rows; `private_score` releases their mean with noise.
    """
    if isinstance(model, LanguageModel):
        assert isinstance(rows, Tokens)
        losses, counts, _ = token_totals(model, rows, precision)
        return np.nan_to_num(np.asarray(np.exp(-losses / np.maximum(counts, 1)), dtype=np.float64), nan=0.0)
    predictions = predict(classifier_of(model, "scores"), rows, precision).best
    truth = rows.targets.cpu().numpy()
    if model.task == "regression":
        errors = np.asarray(predictions - truth.reshape(-1), dtype=np.float64)
        return np.nan_to_num(1 / (1 + np.square(errors)), nan=0.0)
    return np.asarray(predictions == truth, dtype=np.float64)


def unit_scores(scores: Floats, unit_index: Ints) -> Floats:
    """Return the score of every unit, the mean of its rows.

    >>> unit_scores(np.array([1.0, 0.0, 1.0]), np.array([0, 0, 1]))
    array([0.5, 1. ])
    """
    return np.asarray(np.bincount(unit_index, weights=scores) / np.bincount(unit_index), dtype=np.float64)


def private_score(scores: Floats, unit_index: Ints, units: int, noise: float, rng: Rng) -> float:
    """Return the mean score of the units with Gaussian noise of standard deviation noise / units.

    `units` is their public number, the divisor. A NaN, of a model whose training diverged, counts as 0.

    Guarantee: that of `ClippedSumDpEvent(noise)`: adding, removing or emptying one unit changes the sum by at most 1.
    """
    total = float(np.clip(np.nan_to_num(unit_scores(scores, unit_index), nan=0.0), 0.0, 1.0).sum())
    return float(Gaussian(noise)(np.array([total]), rng)[0]) / units
