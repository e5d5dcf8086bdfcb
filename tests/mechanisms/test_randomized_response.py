import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import Rng
from discreet.core.errors import DataError, SettingError
from discreet.mechanisms.randomized_response import RandomizedResponse


def test_a_bias_of_a_quarter_is_ln_3() -> None:
    response = RandomizedResponse(math.log(3))
    assert response.truth == pytest.approx(0.75)
    assert response.event.noise_parameter == pytest.approx(0.5)


@pytest.mark.parametrize("k", [2, 3, 10, 1000])
@pytest.mark.parametrize("epsilon", [0.0, 1e-9, 0.5, math.log(3), 5.0, 40.0, 100.0, 1e4])
def test_the_odds_of_the_truth_never_exceed_epsilon(epsilon: float, k: int) -> None:
    lies = Fraction(RandomizedResponse(epsilon, k)._lies, 2**64)
    odds = (1 - lies) / (lies / (k - 1))
    assert math.log(odds) <= epsilon + 1e-18
    if epsilon <= 30:
        assert math.log(odds) >= epsilon - 1e-3 * min(epsilon, 1e-9) - 1e-12


@pytest.mark.parametrize("k", [2, 5])
def test_answers_have_the_stated_probabilities(k: int) -> None:
    response = RandomizedResponse(1.2, k)
    answers = response(np.full(200_000, k - 2), Rng(1))
    expected = np.full(k, (1 - response.truth) / (k - 1))
    expected[k - 2] = response.truth
    assert stats.chisquare(np.bincount(answers, minlength=k), expected * len(answers)).pvalue > 1e-3


def test_booleans_and_tensors_come_back_in_kind() -> None:
    assert RandomizedResponse(1.0)(np.array([True, False]), Rng(1)).dtype == bool
    released = RandomizedResponse(1.0, 4)(torch.tensor([[0, 1], [2, 3]], dtype=torch.int16), Rng(1))
    assert released.dtype == torch.int16
    assert released.shape == (2, 2)


def test_the_estimate_is_unbiased_and_its_interval_holds_the_truth() -> None:
    response, rng = RandomizedResponse(1.0, 3), Rng(2)
    truth = np.repeat([0, 1, 2], [500, 300, 200])
    shares = np.array([0.5, 0.3, 0.2])
    estimates, held = [], 0
    for i in range(400):
        found = response.shares(response(truth, rng.fork(i)), confidence=0.9)
        estimates.append(found.estimate)
        held += int(((found.low <= shares) & (shares <= found.high)).sum())
    error = np.std(estimates, axis=0) / math.sqrt(len(estimates))
    assert np.abs(np.mean(estimates, axis=0) - shares).max() < 4 * error.max()
    assert held / (3 * 400) >= 0.9
    assert found.n == 1000


def test_shares_sum_to_one_and_intervals_stay_inside() -> None:
    found = RandomizedResponse(0.5, 4).shares(np.array([0, 0, 0, 1]))
    assert found.estimate.sum() == pytest.approx(1)
    assert (found.low >= 0).all()
    assert (found.high <= 1).all()


@pytest.mark.parametrize("bad", [np.array([2]), np.array([-1]), np.array([0.5])])
def test_values_outside_the_categories_are_refused(bad: np.ndarray) -> None:
    with pytest.raises(DataError, match="Expected"):
        RandomizedResponse(1.0)(bad, Rng(1))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingError, match="categories to be .*, got 1"):
        RandomizedResponse(1.0, 1)
    with pytest.raises(SettingError, match="epsilon"):
        RandomizedResponse(-0.1)
    with pytest.raises(SettingError, match="epsilon to be .*, got 0"):
        RandomizedResponse(0.0).shares(np.array([0, 1]))
    with pytest.raises(DataError, match="at least one answer"):
        RandomizedResponse(1.0).shares(np.array([], dtype=int))


def test_epsilon_zero_costs_nothing() -> None:
    assert type(RandomizedResponse(0.0, 3).event).__name__ == "NoOpDpEvent"
