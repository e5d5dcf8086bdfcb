"""Many-run and sequential audits: valid at their level, close to the truth, stopped by themselves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from discreet.accounting.gdp import gaussian_epsilon
from discreet.audit.many_runs import audit_many_runs
from discreet.audit.sequential import Sequential, audit_sequentially
from discreet.core.errors import DataError, SettingError
from discreet.core.randomness import Rng
from discreet.metrics.intervals import clopper_pearson, lower_rates, upper_rates


def gaussian(mu: float) -> Callable[[bool, int, Rng], Any]:
    return lambda present, count, rng: mu * present + rng.numpy().standard_normal(count)


def response(epsilon: float) -> Callable[[bool, int, Rng], Any]:
    truth = 1 / (1 + math.exp(-epsilon))
    return lambda present, count, rng: np.where(rng.uniform(count) < truth, int(present), 1 - int(present))


def test_the_bound_of_randomized_response_is_close_to_its_epsilon() -> None:
    found = audit_many_runs(response(2.0), delta=0.0, rng=Rng(0))
    assert 1.95 < found.epsilon < 2.0
    assert found.draws == 100_000 and found.likely > found.unlikely


def test_the_bound_is_above_the_truth_in_at_most_five_percent_of_runs() -> None:
    above = [audit_many_runs(response(1.0), delta=0.0, rng=Rng(k), draws=4000).epsilon > 1.0 for k in range(200)]
    assert sum(above) <= 17  # 10 at the level; 18 or more then has probability 1%


def test_within_mu_gdp_the_same_counts_show_more() -> None:
    found = audit_many_runs(gaussian(1.0), delta=1e-5, rng=Rng(4))
    truth = gaussian_epsilon(1.0, 1e-5)
    assert 0.4 * truth < found.epsilon < gaussian_epsilon(found.mu, 1e-5) < truth


def test_the_best_of_several_scores_is_chosen_on_other_draws() -> None:
    def draw(present: bool, count: int, rng: Rng) -> Any:
        useless = rng.fork("useless").numpy().standard_normal(count)
        return np.stack([useless, gaussian(2.0)(present, count, rng.fork("useful"))], axis=1)

    both = audit_many_runs(draw, delta=1e-5, rng=Rng(1), draws=20_000).epsilon
    assert both > 2.0


def test_a_smaller_score_can_be_the_sign_of_the_record() -> None:
    found = audit_many_runs(lambda *args: -gaussian(2.0)(*args), delta=1e-5, rng=Rng(1), draws=20_000)
    assert found.epsilon > 2.0


def test_bounds_of_rates_are_those_of_clopper_and_pearson() -> None:
    for successes, trials in ((0, 50), (7, 50), (50, 50)):
        low, high = clopper_pearson(successes, trials, 0.9)
        assert lower_rates(successes, trials, 0.05) == pytest.approx(low)
        assert upper_rates(successes, trials, 0.05) == pytest.approx(high)


def test_bad_draws_are_rejected() -> None:
    with pytest.raises(DataError, match="without NaN"):
        audit_many_runs(lambda present, count, rng: np.full(count, math.nan), delta=0.0, rng=Rng(0))
    with pytest.raises(SettingError, match="draws to be an integer >= 1000"):
        audit_many_runs(gaussian(1.0), delta=0.0, rng=Rng(0), draws=10)


def test_a_false_claim_is_refuted_early_and_a_true_one_is_not() -> None:
    false = audit_sequentially(response(2.0), epsilon=1.5, delta=0.0, rng=Rng(0), most=100_000)
    assert false.refuted and false.epsilon >= 1.5 and false.draws < 20_000
    true = audit_sequentially(response(2.0), epsilon=2.0, delta=0.0, rng=Rng(0), most=30_000)
    assert not true.refuted and 1.5 <= true.epsilon < 2.0 and true.draws == 30_000


def test_looking_after_every_batch_costs_nothing() -> None:
    """A true claim is refuted at any time in at most five percent of runs, however often it is looked at."""
    refuted = [
        audit_sequentially(response(1.0), epsilon=1.0, delta=0.0, rng=Rng(k), most=2000, batch=100, grid=[1.0]).refuted
        for k in range(60)
    ]
    assert sum(refuted) <= 7


def test_a_sequential_audit_reports_as_it_goes_and_checks_its_settings() -> None:
    seen: list[Sequential] = []
    audit_sequentially(gaussian(1.0), epsilon=4.4, delta=1e-5, rng=Rng(0), most=10_000, watch=seen.append)
    assert [one.draws for one in seen] == [4000, 6000, 8000, 10_000]
    assert all(one.epsilon <= later.epsilon for one, later in itertools.pairwise(seen))
    with pytest.raises(SettingError, match="up to the claim"):
        audit_sequentially(gaussian(1.0), epsilon=2.0, delta=0.0, rng=Rng(0), grid=[1.0])
