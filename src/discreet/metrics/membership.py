"""Membership inference as numbers: ROC curve, AUC, true-positive rates at low false-positive rates, advantage.

Scores are higher for likely members. Rows of one privacy unit are not independent, so that every interval counts units.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discreet.core.errors import invalid, open_probability
from discreet.core.randomness import Rng
from discreet.core.types import Leakage
from discreet.metrics.intervals import clopper_pearson, share_interval

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
AUC, ADVANTAGE, LOSS_TAIL = "auc", "advantage", "loss_tail"
RATES = (0.1, 0.01, 0.001)
LEAST = 2  # members and non-members that an interval needs
_TAIL = 0.001
TAIL_MEMBERS = 10  # that must lie beyond the quantile, so that one of them does not decide it
_DRAWS = 1000


def tpr_metric(rate: float) -> str:
    """Return the name of the true-positive rate at a false-positive rate.

    >>> tpr_metric(0.01)
    'tpr_at_0.01'
    """
    return f"tpr_at_{rate:g}"


@dataclass(frozen=True)
class Scored:
    """The scores of members and of non-members, and the privacy unit of each."""

    members: Floats
    others: Floats
    member_units: Ints
    other_units: Ints

    @classmethod
    def of(
        cls, scores: Sequence[float] | Floats, is_member: npt.NDArray[np.bool_], units: Ints | None = None
    ) -> Scored:
        """Divide scores into those of members and of non-members; a unit on both sides is rejected."""
        values = np.asarray(scores, dtype=np.float64)
        inside = np.asarray(is_member, dtype=bool)
        owner = np.arange(len(values), dtype=np.int64) if units is None else np.asarray(units, dtype=np.int64)
        if not values.shape == inside.shape == owner.shape or values.ndim != 1:
            raise invalid("scores", values.shape, "one score, one truth and one unit for each example")
        if np.isnan(values).any():
            raise invalid("scores", int(np.isnan(values).sum()), "numbers, not NaN")
        for what, count in (("members", int(inside.sum())), ("non-members", int((~inside).sum()))):
            if count < LEAST:
                raise invalid(what, count, f"at least {LEAST}", "Attack more of them.")
        if both := len(set(owner[inside].tolist()) & set(owner[~inside].tolist())):
            raise invalid("units", both, "either members or non-members", "A unit may not be on both sides.")
        return cls(values[inside], values[~inside], owner[inside], owner[~inside])

    @property
    def n(self) -> int:
        """The number of examples."""
        return len(self.members) + len(self.others)

    def one_per_unit(self) -> Scored:
        """Return the mean score of each unit, for an attack on units."""
        members, others = (
            (units, np.bincount(index, weights=scores) / np.bincount(index))
            for scores, (units, index) in (
                (self.members, np.unique(self.member_units, return_inverse=True)),
                (self.others, np.unique(self.other_units, return_inverse=True)),
            )
        )
        return Scored(members[1], others[1], members[0], others[0])


def auc(scored: Scored) -> Leakage:
    """Return the area under the ROC curve with its 95% interval: the probability that a member has the higher score.

    The interval is DeLong's on the logit scale, with the components of each unit added. If every member is on one side
    of every non-member, no variance can be estimated, and the exact interval of a rate over the smaller number of
    units is used.

    Args:
        scored: The scores of members and non-members.

    Paper: DeLong et al. 1988, Comparing the areas under two or more correlated ROC curves; Obuchowski 1997,
        Nonparametric analysis of clustered ROC curve data.

    >>> inside = np.array([True, True, False, False])
    >>> auc(Scored.of([3.0, 1.0, 2.0, 0.0], inside)).value
    0.75
    """
    above = _share_below(scored.others, scored.members)  # of each member: non-members below it
    below = 1 - _share_below(scored.members, scored.others)  # of each non-member: members above it
    value = float(above.mean())
    variance = _cluster_variance(above - value, scored.member_units)
    variance += _cluster_variance(below - value, scored.other_units)
    least = min(len(np.unique(scored.member_units)), len(np.unique(scored.other_units)))
    if variance <= 0 or not 0 < value < 1:
        low, high = clopper_pearson(round(value * least), least)
    else:
        half = 1.959964 * math.sqrt(variance) / (value * (1 - value))
        centre = math.log(value / (1 - value))
        low, high = (1 / (1 + math.exp(-(centre + sign * half))) for sign in (-1, 1))
    return Leakage(AUC, value, min(low, value), max(high, value), scored.n, 0.5)


def _share_below(reference: Floats, values: Floats) -> Floats:
    """Return, for each value, the share of reference values below it; equal ones count one half."""
    ordered = np.sort(reference)
    strictly = np.searchsorted(ordered, values, side="left")
    equal = np.searchsorted(ordered, values, side="right") - strictly
    return np.asarray((strictly + equal / 2) / len(ordered))


def _cluster_variance(residuals: Floats, units: Ints) -> float:
    _, index = np.unique(units, return_inverse=True)
    sums = np.bincount(index, weights=residuals)
    count = len(sums)
    return 0.0 if count < 2 else float(count / (count - 1) * np.square(sums).sum() / len(residuals) ** 2)


@dataclass(frozen=True)
class Rate:
    """The true-positive rate at the largest false-positive rate that the sample has at or below `asked`."""

    asked: float
    false_positives: float
    false_positives_high: float
    value: float
    low: float
    high: float
    threshold: float


def true_positives_at(scored: Scored, rate: float) -> Rate | None:
    """Return the true-positive rate at a false-positive rate, or None if there are too few non-members to show it.

    The threshold is the lowest at which the share of accused non-members is at most the rate, as is common in papers.
    One non-member must be allowed, so that a rate of 0.1% needs 1,000 of them.

    >>> inside = np.arange(400) < 200
    >>> at = true_positives_at(Scored.of(np.where(inside, 1.0, 0.0), inside), 0.01)
    >>> at.value, at.false_positives, true_positives_at(Scored.of(np.where(inside, 1.0, 0.0), inside), 0.001)
    (1.0, 0.0, None)
    """
    open_probability("false_positive_rate", rate)
    ordered = np.sort(scored.others)[::-1]
    allowed = math.floor(rate * len(ordered) + 1e-9)
    if allowed < 1:
        return None
    threshold = float(ordered[min(allowed, len(ordered) - 1)])
    inside, outside = scored.members > threshold, scored.others > threshold
    low, high = share_interval(inside, scored.member_units)
    return Rate(
        rate,
        float(outside.mean()),
        share_interval(outside, scored.other_units)[1],
        float(inside.mean()),
        low,
        high,
        threshold,
    )


def advantage(scored: Scored, threshold: float) -> Leakage:
    """Return the true-positive rate minus the false-positive rate above a threshold that does not depend on the truth.

    The interval is Newcombe's, from the exact intervals of both rates.

    Paper: Yeom et al. 2018, Privacy risk in machine learning; Newcombe 1998, Interval estimation for the difference
        between independent proportions, method 10, here with Clopper-Pearson intervals.

    >>> inside = np.array([True, True, False, False])
    >>> advantage(Scored.of([3.0, 1.0, 2.0, 0.0], inside), 1.5).value
    0.0
    """
    inside, outside = scored.members > threshold, scored.others > threshold
    first, second = float(inside.mean()), float(outside.mean())
    low_1, high_1 = share_interval(inside, scored.member_units)
    low_2, high_2 = share_interval(outside, scored.other_units)
    value = first - second
    low = value - math.hypot(first - low_1, high_2 - second)
    high = value + math.hypot(high_1 - first, second - low_2)
    return Leakage(ADVANTAGE, value, max(low, -1.0), min(high, 1.0), scored.n, 0.0)


def largest_advantage(scored: Scored) -> float:
    """Return the largest true-positive rate minus false-positive rate over all thresholds.

    The threshold is chosen with the truth, so that it is above 0 even for scores that reveal nothing.

    >>> inside = np.array([True, True, False, False])
    >>> largest_advantage(Scored.of([3.0, 1.0, 2.0, 0.0], inside))
    0.5
    """
    from scipy.stats import ks_2samp

    # it is the one-sided statistic of Kolmogorov and Smirnov; its p-value is not used
    return float(ks_2samp(scored.members, scored.others, alternative="less", method="asymp").statistic)


def roc_points(scored: Scored, points: int = 60) -> list[tuple[float, float]]:
    """Return the ROC curve at false-positive rates that are evenly spaced on a logarithmic axis.

    The first is that of a single non-member.

    >>> inside = np.array([True, True, False, False])
    >>> roc_points(Scored.of([3.0, 1.0, 2.0, 0.0], inside))
    [(0.5, 1.0), (1.0, 1.0)]
    """
    ordered = np.sort(scored.others)[::-1]
    count = len(ordered)
    steps = np.unique(np.rint(np.geomspace(1, count, points)).astype(np.int64))
    thresholds = [float(ordered[step]) if step < count else -math.inf for step in steps]
    return [
        (float((scored.others > cut).mean()) if step < count else 1.0, float((scored.members > cut).mean()))
        for step, cut in zip(steps.tolist(), thresholds, strict=True)
    ]


def accusation_rates(scored: Scored) -> Floats:
    """Return, for each member, the false-positive rate at which it is accused: the per-example risk.

    A member with rate 0.001 is found by an attacker who wrongly accuses one non-member in a thousand. The smallest
    possible value is one over the number of non-members plus one.

    >>> inside = np.array([True, True, False, False])
    >>> accusation_rates(Scored.of([3.0, 1.0, 2.0, 0.0], inside)).round(3).tolist()
    [0.333, 0.667]
    """
    ordered = np.sort(scored.others)
    above = len(ordered) - np.searchsorted(ordered, scored.members, side="left")
    return np.asarray((above + 1) / (len(ordered) + 1))


def is_below_chance(leakage: Leakage) -> bool:
    """Return whether an AUC is significantly below one half: the attack orders examples the wrong way round."""
    return leakage.metric == AUC and leakage.high < 0.5


def loss_tail(members: Floats, others: Floats, rng: Rng, missed: float = _TAIL) -> Leakage:
    """Return the share of non-members whose loss exceeds nearly every member's, with a small share of members beyond.

    It needs no reference models and describes a model, not a record: where nothing is memorized, as many non-members
    as members lie beyond the quantile, and that share is the chance level. With few members the quantile is raised, so
    that ten of them lie beyond it. The interval is a bootstrap over members and non-members.

    Paper: arXiv 2510.19773 (2025), on the tail of the loss distribution as an indicator of membership risk.
    Differs: the share of members beyond the quantile is 0.1%, and at least ten over their number.
    """
    inside, outside = np.sort(np.asarray(members, dtype=np.float64)), np.asarray(others, dtype=np.float64)
    share = max(missed, TAIL_MEMBERS / len(inside))
    if share >= 0.5 or len(outside) < LEAST:
        raise invalid("members", len(inside), f"more than {2 * TAIL_MEMBERS}, with {LEAST} non-members", "Add some.")

    def beyond(first: Floats, second: Floats) -> float:
        return float((second > np.quantile(first, 1 - share)).mean())

    value = beyond(inside, outside)
    source = rng.numpy("loss_tail")
    draws = [beyond(source.choice(inside, len(inside)), source.choice(outside, len(outside))) for _ in range(_DRAWS)]
    low, high = np.quantile(draws, [0.025, 0.975]).tolist()
    return Leakage(LOSS_TAIL, value, min(low, value), max(high, value), len(inside) + len(outside), share)
