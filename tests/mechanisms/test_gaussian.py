import math

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import Rng
from discreet.accounting.gdp import gaussian_delta
from discreet.core.errors import DataError, SettingError
from discreet.mechanisms.gaussian import Gaussian


def test_the_noise_is_normal_with_the_stated_deviation() -> None:
    z = Gaussian(2.5)(torch.full((200_000,), 7.0, dtype=torch.float64), Rng(1)).numpy()
    assert stats.kstest(z, stats.norm(7.0, 2.5).cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_precision_of_the_input_is_kept(dtype: torch.dtype) -> None:
    released = Gaussian(1.0, 1.0)(torch.zeros(3, 4, dtype=dtype), Rng(1))
    assert released.dtype == dtype
    assert released.shape == (3, 4)


def test_no_noise_changes_nothing_and_costs_everything() -> None:
    x = np.arange(3.0)
    np.testing.assert_array_equal(Gaussian(0.0, 1.0)(x, Rng(1)), x)
    assert Gaussian(0.0, 1.0).event.noise_multiplier == 0


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 4.0, 10.0, 60.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-10])
def test_the_budget_is_met_and_not_by_more_than_rounding(epsilon: float, delta: float) -> None:
    noise = Gaussian.for_budget(epsilon, delta, sensitivity=3.0)
    mu = 1 / noise.event.noise_multiplier
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_delta(mu * 1.001, epsilon) > delta


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_bad_noise_is_refused(bad: float) -> None:
    with pytest.raises(SettingError, match="std"):
        Gaussian(bad)
    with pytest.raises(SettingError, match="sensitivity"):
        Gaussian(1.0, bad)


def test_delta_zero_is_refused() -> None:
    with pytest.raises(SettingError, match="delta to be .*, got 0"):
        Gaussian.for_budget(1.0, 0.0, 1.0)


def test_the_cost_is_not_guessed_without_a_sensitivity() -> None:
    with pytest.raises(SettingError, match="sensitivity to be .*, got None"):
        _ = Gaussian(1.0).event
    assert Gaussian(3.0, 2.0).event.noise_multiplier == 1.5


def test_what_is_not_finite_is_refused() -> None:
    with pytest.raises(DataError, match="finite"):
        Gaussian(1.0)(np.array([1.0, np.nan]), Rng(1))


def test_gradients_pass_through_the_noise() -> None:
    x = torch.ones(3, requires_grad=True)
    Gaussian(1.0)(x, Rng(1)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1, 1, 1]
