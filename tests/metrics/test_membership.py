"""Membership metrics: hand-computed values, exact coverage, and units that are never on both sides."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.metrics.membership import (
    Scored,
    accusation_rates,
    advantage,
    auc,
    is_below_chance,
    largest_advantage,
    loss_tail,
    roc_points,
    true_positives_at,
)


def gaussian(mu: float, count: int, seed: int) -> Scored:
    draw = np.random.default_rng(seed)
    inside = np.arange(2 * count) < count
    return Scored.of(draw.normal(size=2 * count) + mu * inside, inside)


@given(st.lists(st.integers(0, 5), min_size=4, max_size=12), st.integers(2, 10))
def test_auc_counts_pairs_and_ties(values: list[int], members: int) -> None:
    inside = np.arange(len(values)) < min(members, len(values) - 2)
    scores = np.array(values, dtype=float)
    slow = np.mean([(a > b) + (a == b) / 2 for a in scores[inside] for b in scores[~inside]])
    found = auc(Scored.of(scores, inside))
    assert found.value == pytest.approx(slow)
    assert found.low <= found.value <= found.high


def test_the_interval_of_auc_covers_the_truth() -> None:
    truth = norm.cdf(1 / np.sqrt(2))
    hits = sum(found.low <= truth <= found.high for found in (auc(gaussian(1.0, 60, seed)) for seed in range(200)))
    assert hits >= 184  # 95% of 200 is 190; below 184 has a probability of 0.2%


def test_an_interval_counts_units_and_not_rows() -> None:
    scored = gaussian(0.5, 40, 0)
    scores = np.repeat(np.concatenate([scored.members, scored.others]), 10)
    inside, units = np.arange(800) < 400, np.repeat(np.arange(80), 10)
    rows, whole = auc(Scored.of(scores, inside, units)), auc(scored)
    assert rows.value == pytest.approx(whole.value) and rows.low == pytest.approx(whole.low, abs=1e-9)
    single = auc(Scored.of(scores, inside))
    assert single.high - single.low < 0.5 * (rows.high - rows.low)
    at = true_positives_at(Scored.of(scores, inside, units), 0.1)
    assert at is not None and at.high - at.low > 0.1


def test_a_unit_on_both_sides_is_rejected() -> None:
    with pytest.raises(SettingError, match="both sides"):
        Scored.of([0.0, 1.0, 2.0, 3.0], np.array([True, True, False, False]), np.array([0, 1, 1, 2]))
    with pytest.raises(SettingError, match="at least 2"):
        Scored.of([0.0, 1.0, 2.0], np.array([True, True, False]))
    with pytest.raises(SettingError, match="NaN"):
        Scored.of([0.0, np.nan, 2.0, 1.0], np.array([True, True, False, False]))


def test_a_false_positive_rate_is_never_exceeded() -> None:
    scored = gaussian(1.0, 1000, 3)
    for rate in (0.1, 0.01, 0.001):
        at = true_positives_at(scored, rate)
        assert at is not None and at.false_positives <= rate <= at.false_positives_high
        assert at.low <= norm.cdf(norm.ppf(rate) + 1.0) * 2.5
    assert true_positives_at(gaussian(1.0, 999, 3), 0.001) is None
    tied = Scored.of(np.zeros(400), np.arange(400) < 200)
    at = true_positives_at(tied, 0.1)
    assert at is not None and (at.value, at.false_positives) == (0.0, 0.0)


def test_the_advantage_is_that_of_a_threshold_chosen_without_the_truth() -> None:
    scored = gaussian(2.0, 2000, 5)
    found = advantage(scored, 1.0)
    assert found.low < 2 * norm.cdf(1.0) - 1 < found.high
    assert largest_advantage(scored) >= found.value
    null = gaussian(0.0, 50, 5)
    assert largest_advantage(null) > 0  # the threshold is chosen with the truth


def test_an_auc_below_one_half_is_noticed_only_where_it_is_significant() -> None:
    assert is_below_chance(auc(gaussian(-1.0, 100, 0)))
    assert not is_below_chance(auc(gaussian(0.0, 100, 0)))


def test_the_curve_rises_from_a_single_non_member() -> None:
    points = roc_points(gaussian(1.0, 500, 1))
    assert points[0][0] == pytest.approx(1 / 500) and points[-1] == (1.0, 1.0)
    assert all(a <= b for first, second in itertools.pairwise(points) for a, b in zip(first, second, strict=True))


def test_the_risk_of_a_member_is_the_rate_at_which_it_is_accused() -> None:
    scored = Scored.of([5.0, 1.5, 3.0, 2.0, 1.0], np.array([True, True, False, False, False]))
    assert accusation_rates(scored).tolist() == pytest.approx([1 / 4, 3 / 4])


def test_the_tail_of_the_loss_is_at_chance_where_nothing_is_memorized() -> None:
    draw = np.random.default_rng(0)
    null = loss_tail(draw.exponential(size=5000), draw.exponential(size=5000), Rng(0))
    assert null.chance == pytest.approx(0.002) and null.low <= 0.002 <= null.high
    memorized = loss_tail(0.1 * draw.exponential(size=5000), draw.exponential(size=5000), Rng(0))
    assert memorized.low > 0.2
    with pytest.raises(SettingError, match="more than 20"):
        loss_tail(np.ones(10), np.ones(10), Rng(0))
