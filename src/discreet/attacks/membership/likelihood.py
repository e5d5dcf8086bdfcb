"""Membership attacks that compare the target with reference models on the same example: LiRA, RMIA and MIA-R."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.stats import rankdata

from discreet.attacks.base import Need
from discreet.attacks.membership.signals import Bools, Floats, MembershipAttack, Outputs, References, Signals
from discreet.core.errors import positive, probability
from discreet.core.randomness import Rng
from discreet.core.rules import OneOf, check_fields, ruled

_LEAST_STD = 1e-8  # of a confidence; a constant one would make every difference infinite
_OWN_VARIANCE = 64  # reference models from which each example has its own variance, as in the paper
_USUAL_A = 0.3  # where it cannot be tuned: the default of the authors' own code, Privacy Meter
_SMALLEST = 1e-30  # probability, so that a ratio stays finite


@dataclass(frozen=True)
class Fit:
    """Normal distributions of one confidence per example over the models with it, or over those without it."""

    mean: Floats
    std: Floats

    @classmethod
    def of(cls, logits: Floats, chosen: Bools, *, pooled: bool) -> Fit:
        """Fit each column over its chosen rows; `pooled` uses one standard deviation for all columns.

        The pooled one is that of the differences from each column's own mean, so that it is not widened by how much
        examples differ from each other.

        >>> fit = Fit.of(np.array([[1.0, 5.0], [3.0, 7.0]]), np.ones((2, 2), dtype=bool), pooled=True)
        >>> fit.mean.tolist(), fit.std.round(3).tolist()
        ([2.0, 6.0], [1.414, 1.414])
        """
        count = chosen.sum(axis=0)
        mean = np.where(chosen, logits, 0.0).sum(axis=0) / count
        squares = np.where(chosen, np.square(logits - mean), 0.0).sum(axis=0)
        if pooled:
            variance = np.full(len(mean), squares.sum() / max(1, int((count - 1).sum())))
        else:
            variance = squares / np.maximum(count - 1, 1)
        return cls(mean, np.maximum(np.sqrt(variance), _LEAST_STD))

    def differences(self, logits: Floats) -> Floats:
        """Return how many standard deviations each confidence lies above its mean."""
        return np.asarray((logits - self.mean) / self.std)

    def log_density(self, logits: Floats) -> Floats:
        """Return the log-density of each confidence, without the constant."""
        return np.asarray(-np.log(self.std) - np.square(self.differences(logits)) / 2)


@dataclass(frozen=True)
class Lira(MembershipAttack):
    """Compare how likely the target's confidence is under models with the example and under models without it.

    The confidence is log p - log(1 - p) of the true label. `online` fits a normal distribution for each example to the
    reference models that were trained on it, and another to those that were not; the score is the difference of their
    log-densities. Offline only the second is used, and the score is the number of standard deviations above its mean.
    With fewer than 64 reference models all examples share one variance.

    Paper: Carlini et al. 2022, Membership inference attacks from first principles, algorithm 1 and section VI.
    Differs: the shared variance is that around each example's own mean; one query per example, as text has no
        augmentations; the offline score is the argument of the paper's one-sided test, which has the same order.
    """

    name: ClassVar[str] = "lira"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.REFERENCES})
    default_references: ClassVar[int] = 64

    online: bool = True

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return the log-likelihood ratio, or offline the standardized confidence."""
        references = signals.references
        assert references is not None
        references.check_out(2)
        pooled = references.count < _OWN_VARIANCE
        logits = references.outputs.logits
        outside = Fit.of(logits, ~references.included, pooled=pooled)
        if not self.online:
            return outside.differences(signals.target.logits)
        references.check_in(2)
        inside = Fit.of(logits, references.included, pooled=pooled)
        return inside.log_density(signals.target.logits) - outside.log_density(signals.target.logits)

    def for_references(self, included: Bools) -> Lira:
        """Return the offline attack where fewer than two models were trained on some example."""
        return self if int(included.sum(axis=0).min()) >= 2 else replace(self, online=False)

    def cut(self, signals: Signals, scores: Floats) -> float:
        """Return 0 online, where members are more likely than non-members; else the median."""
        return 0.0 if self.online else super().cut(signals, scores)


SMOOTHINGS = ("logit", "loss", "none")


@dataclass(frozen=True)
class ReferenceThreshold(MembershipAttack):
    """Call an example a member if its loss is below a quantile of its losses under models that did not see it.

    With few reference models the quantiles are those of a normal distribution fitted for each example to its
    confidences (`smoothing="logit"`) or losses ("loss"), and the score is the normal quantile of the level at which the
    example is called a member; "none" counts the reference models with a larger loss.

    Paper: Ye et al. 2022, Enhanced membership inference attacks against machine learning models, attack R.
    """

    name: ClassVar[str] = "mia-r"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.REFERENCES})
    default_references: ClassVar[int] = 10

    smoothing: str = ruled("logit", OneOf(SMOOTHINGS))

    def __post_init__(self) -> None:
        """Check the settings."""
        check_fields(self)

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return how far the target's loss is below the losses of the models without the example."""
        references, target = signals.references, signals.target
        assert references is not None
        outside = ~references.included
        if self.smoothing == "none":
            references.check_out(1)
            losses = references.outputs.losses
            above = ((losses > target.losses) + (losses == target.losses) / 2) * outside
            return np.asarray(above.sum(axis=0) / outside.sum(axis=0))
        references.check_out(2)
        if self.smoothing == "logit":
            return Fit.of(references.outputs.logits, outside, pooled=False).differences(target.logits)
        return -Fit.of(references.outputs.losses, outside, pooled=False).differences(target.losses)

    def for_references(self, included: Bools) -> ReferenceThreshold:
        """Return the attack itself, which reads only models that were not trained on an example."""
        return self

    def cut(self, signals: Signals, scores: Floats) -> float:
        """Return the score of a loss at the median of the models without the example."""
        return 0.5 if self.smoothing == "none" else 0.0


@dataclass(frozen=True)
class Rmia(MembershipAttack):
    """Compare an example's likelihood ratio with those of many known non-members.

    The ratio of an example is its probability under the target over its mean probability under reference models. The
    score is the share of known non-members z for which the ratio of the example is at least `gamma` times that of z.
    Works with one or two reference models. `online` averages over models with and without the example equally; offline
    uses those without it and estimates the mean as ((1 + a) p + 1 - a) / 2, where `a` is tuned on a reference model if
    it is not given.

    Paper: Zarifzadeh et al. 2024, Low-cost high-power membership inference attacks, equations 2 and 10.
    Differs: without `a`, the best of 0, 0.1, …, 1 for one reference model as the target is used, as in the authors'
        Privacy Meter, whose `gamma` of 1 is the default here too; equal shares are ordered by the ratio.
    """

    name: ClassVar[str] = "rmia"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.SIGNALS, Need.REFERENCES, Need.POPULATION})
    default_references: ClassVar[int] = 8

    gamma: float = 1.0
    online: bool = True
    a: float | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        positive("gamma", self.gamma, "1 asks whether the ratio is larger.")
        if self.a is not None:
            probability("a", self.a, "It is how much smaller the mean probability is without the example.")

    def score(self, signals: Signals, rng: Rng) -> Floats:
        """Return the share of known non-members whose likelihood ratio the example's exceeds."""
        references, population, beside = signals.references, signals.population, signals.population_references
        assert references is not None and population is not None and beside is not None
        for one in (references, beside):
            one.check_out(1)
            if self.online:
                one.check_in(1)
        scale = None if self.online else (self._tuned(references, beside) if self.a is None else self.a)
        ratios = _likelihood(signals.target) / _mean_likelihood(references, scale)
        shares = dominance(ratios, _likelihood(population) / _mean_likelihood(beside, scale), self.gamma)
        return without_ties(shares, ratios, len(population.losses))

    def for_references(self, included: Bools) -> Rmia:
        """Return the offline attack where no model was trained on some example."""
        return self if included.any(axis=0).all() else replace(self, online=False)

    def cut(self, signals: Signals, scores: Floats) -> float:
        """Return one half: the ratio of a member exceeds that of most non-members."""
        return 0.5

    def _tuned(self, references: References, beside: References) -> float:
        """Return the value of `a` with the largest AUC when the first reference model is attacked with the others."""
        rest = np.arange(1, references.count)
        others = References(references.outputs.models(rest), references.included[rest])
        around = References(beside.outputs.models(rest), beside.included[rest])
        known, inside = ~beside.included[0], references.included[0]  # known: what the first was not trained on
        covered = not (others.included.all(axis=0).any() or around.included.all(axis=0).any())
        if not covered or not known.any() or inside.all() or not inside.any():
            return _USUAL_A
        own, its = _likelihood(references.outputs.models(0)), _likelihood(beside.outputs.models(0))
        areas: dict[float, float] = {}
        for scale in np.linspace(0, 1, 11).round(1).tolist():
            ratios = own / _mean_likelihood(others, scale)
            areas[scale] = _area(dominance(ratios, (its / _mean_likelihood(around, scale))[known], self.gamma), inside)
        return max(areas, key=lambda scale: areas[scale])


def dominance(ratios: Floats, others: Floats, gamma: float) -> Floats:
    """Return, for each ratio, the share of the others that it is at least `gamma` times as large as.

    >>> dominance(np.array([2.0, 0.5]), np.array([1.0, 0.5, 4.0]), 1.0).round(3).tolist()
    [0.667, 0.333]
    """
    return np.asarray(np.searchsorted(np.sort(gamma * others), ratios, side="right") / len(others))


def without_ties(shares: Floats, ratios: Floats, count: int) -> Floats:
    """Return shares of a sample of this size, with equal shares in the order of the ratios that they come from.

    Every share moves by less than one over the size, and the order of different shares stays.

    >>> without_ties(np.array([1.0, 1.0, 0.5]), np.array([3.0, 9.0, 1.0]), 2).round(3).tolist()
    [0.917, 0.967, 0.5]
    """
    return np.asarray((shares * count + ratios / (1 + ratios)) / (count + 1))


def _likelihood(outputs: Outputs) -> Floats:
    """Return the probability of each true label, or for a language model that of its average token."""
    return np.maximum(np.exp(-outputs.losses), _SMALLEST)


def _mean_likelihood(references: References, scale: float | None) -> Floats:
    """Return the mean probability of each example over models with and without it, in equal parts.

    With a `scale` only models without it are used, and the mean is estimated from theirs.
    """
    values, inside = _likelihood(references.outputs), references.included
    outside = (values * ~inside).sum(axis=0) / (~inside).sum(axis=0)
    if scale is not None:
        return np.asarray(((1 + scale) * outside + 1 - scale) / 2)
    return np.asarray((outside + (values * inside).sum(axis=0) / inside.sum(axis=0)) / 2)


def _area(scores: Floats, inside: Bools) -> float:
    """Return the probability that a member has the higher score; equal scores count one half."""
    ranks = rankdata(scores)
    members = int(inside.sum())
    return float((ranks[inside].mean() - (members + 1) / 2) / (len(scores) - members))
