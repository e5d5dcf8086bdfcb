"""Membership attacks that learn from shadow models what members look like: for texts, and for authors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from discreet.attacks.base import Need
from discreet.attacks.membership.signals import Bools, Floats, Ints, MembershipAttack, Outputs, References, Signals
from discreet.core.errors import DataError, whole
from discreet.core.randomness import Rng

_LEAST_PROBABILITY = 1e-12
_MOST_CLASSES = 10  # sorted probabilities that an attack model reads
_RIDGE = 1e-3  # of the standardized features, so that separable classes have a finite solution
_NEWTON_STEPS = 50
_FEW = 40  # examples of a class below which all classes share one attack model


@dataclass(frozen=True)
class AttackModel:
    """Logistic regression from features of a prediction to the odds of membership."""

    mean: Floats
    std: Floats
    weights: Floats

    @classmethod
    def fit(cls, features: Floats, inside: Bools) -> AttackModel:
        """Fit by Newton's method with a small ridge penalty; members and non-members weigh the same.

        >>> model = AttackModel.fit(np.array([[0.0], [1.0], [2.0], [3.0]]), np.array([False, False, True, True]))
        >>> scores = model.log_odds(np.array([[0.0], [1.5], [3.0]]))
        >>> bool(scores[0] < scores[1] < scores[2]), round(abs(float(scores[1])), 6)
        (True, 0.0)
        """
        mean, std = features.mean(axis=0), features.std(axis=0)
        std = np.where(std > 0, std, 1.0)
        inputs = np.column_stack([(features - mean) / std, np.ones(len(features))])
        targets = inside.astype(np.float64)
        each = np.where(inside, 0.5 / max(1, inside.sum()), 0.5 / max(1, (~inside).sum()))
        penalty = np.full(inputs.shape[1], _RIDGE)
        penalty[-1] = 0.0
        weights = np.zeros(inputs.shape[1])
        for _ in range(_NEWTON_STEPS):
            odds = 1 / (1 + np.exp(-np.clip(inputs @ weights, -30, 30)))
            slope = inputs.T @ (each * (odds - targets)) + penalty * weights
            curvature = (inputs * (each * np.maximum(odds * (1 - odds), 1e-9))[:, None]).T @ inputs + np.diag(penalty)
            change = np.linalg.solve(curvature + 1e-12 * np.eye(len(weights)), slope)
            weights = weights - change
            if float(np.abs(change).max()) < 1e-9:
                break
        return cls(mean, std, weights)

    def log_odds(self, features: Floats) -> Floats:
        """Return the log-odds of membership of each row of features."""
        inputs = np.column_stack([(features - self.mean) / self.std, np.ones(len(features))])
        return np.asarray(inputs @ self.weights)


def prediction_features(outputs: Outputs) -> Floats:
    """Return features of each prediction: the sorted log-probabilities, the confidence in the true label, its square.

    Of a model without classes, the loss takes the place of the probabilities.
    """
    confidence = outputs.logits.reshape(-1)
    columns = [confidence, np.square(confidence)]
    if outputs.probabilities is not None:
        classes = outputs.probabilities.shape[-1]
        ordered = np.sort(outputs.probabilities.reshape(-1, classes), axis=1)[:, ::-1][:, :_MOST_CLASSES]
        columns += list(np.log(np.maximum(ordered, _LEAST_PROBABILITY)).T)
    else:
        columns.append(outputs.losses.reshape(-1))
    return np.column_stack(columns)


@dataclass(frozen=True)
class ShadowClassifier(MembershipAttack):
    """Learn from shadow models how predictions on members differ from those on non-members.

    Shadow models are trained like the target on other data, so that the attacker knows their members. One attack model
    for each class reads a prediction's sorted probabilities and the true label's confidence.

    Paper: Shokri et al. 2017, Membership inference attacks against machine learning models.
    Differs: the attack model is a logistic regression where the paper has a small network; classes with few examples
        share one.
    """

    name: ClassVar[str] = "mia"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.REFERENCES})
    default_references: ClassVar[int] = 10

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return the log-odds of membership from the attack model of each example's class."""
        references = signals.references
        assert references is not None
        inside = references.included.reshape(-1)
        if inside.all() or not inside.any():
            raise DataError(
                "Expected shadow models with members and non-members among the examples, got only one kind. Train "
                "shadow models on random halves of text that includes the examples."
            )
        known, own = prediction_features(references.outputs), prediction_features(signals.target)
        scores = AttackModel.fit(known, inside).log_odds(own)
        if signals.labels is None:
            return scores
        classes = np.tile(signals.labels, references.count)
        for label in np.unique(signals.labels).tolist():
            rows = classes == label
            if min(int((inside & rows).sum()), int((~inside & rows).sum())) >= _FEW:
                at = signals.labels == label
                scores[at] = AttackModel.fit(known[rows], inside[rows]).log_odds(own[at])
        return scores

    def cut(self, signals: Signals, scores: Floats) -> float:
        """Return even odds."""
        return 0.0


@dataclass(frozen=True)
class Author(MembershipAttack):
    """Ask whether any text of an author was used, from the model's confidence on all texts of the author.

    The features of an author are a histogram of confidences over the author's texts, with `bins` bins that hold equal
    shares of all confidences, their mean, and the number of texts. Shadow models, whose authors the attacker knows,
    teach an attack model which histograms are those of members. Every text of an author gets the author's score.

    Paper: Song and Shmatikov 2019, Auditing data provenance in text-generation models.
    Differs: the paper's histogram is one of the ranks of true words; here it is one of confidences, so that it serves
        classifiers too, relative to the models that were not trained on a text where there are such.
    """

    name: ClassVar[str] = "author"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.REFERENCES})
    default_references: ClassVar[int] = 32
    by_unit: ClassVar[bool] = True

    bins: int = 5

    def __post_init__(self) -> None:
        """Check the settings."""
        whole("bins", self.bins, 1, "It is the number of bins of a histogram.")

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return the log-odds that a text's author is a member."""
        references, units = signals.references, signals.units
        assert references is not None
        if units is None:
            raise DataError("Expected the author of each text, got none. Name the column of the author.")
        references.check_out(1)
        usual = _mean_outside(references)
        relative = references.outputs.logits - usual
        edges = np.quantile(relative, np.linspace(0, 1, self.bins + 1)[1:-1])
        names, index = np.unique(units, return_inverse=True)
        known = [histograms(row, index, len(names), edges) for row in relative]
        first = np.array([int(np.flatnonzero(index == number)[0]) for number in range(len(names))])
        inside = references.included[:, first]
        if inside.all() or not inside.any():
            raise DataError(
                "Expected shadow models with and without each author, got only one kind. Use random halves."
            )
        model = AttackModel.fit(np.concatenate(known), inside.reshape(-1))
        own = histograms(signals.target.logits - usual, index, len(names), edges)
        return model.log_odds(own)[index]

    def cut(self, signals: Signals, scores: Floats) -> float:
        """Return even odds."""
        return 0.0


def _mean_outside(references: References) -> Floats:
    """Return the mean confidence of the models that were not trained on each example."""
    outside = ~references.included
    return np.asarray((references.outputs.logits * outside).sum(axis=0) / outside.sum(axis=0))


def histograms(values: Floats, index: Ints, units: int, edges: Floats) -> Floats:
    """Return one row for each unit: the shares of its values in each bin, their mean, and the log of their number.

    >>> histograms(np.array([0.0, 2.0, 3.0]), np.array([0, 0, 1]), 2, np.array([1.0])).round(3).tolist()
    [[0.5, 0.5, 1.0, 0.693], [0.0, 1.0, 3.0, 0.0]]
    """
    bins = np.searchsorted(edges, values, side="right")
    counts = np.zeros((units, len(edges) + 1))
    np.add.at(counts, (index, bins), 1.0)
    sizes = counts.sum(axis=1)
    means = np.bincount(index, weights=values, minlength=units) / sizes
    return np.column_stack([counts / sizes[:, None], means, np.log(sizes)])
