import math

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import Adjacency, Rng
from discreet.accounting.losses import curve_of
from discreet.core.errors import DataError, SettingError
from discreet.mechanisms.discrete import DiscreteGaussian, DiscreteLaplace


@pytest.mark.parametrize("kind", [DiscreteLaplace, DiscreteGaussian])
def test_what_comes_out_lies_on_the_grid(kind: type) -> None:
    noise = kind(1.5, 1.0, grid=2**-6, dimension=50)
    y = noise(np.linspace(-1, 1, 50), Rng(1))
    np.testing.assert_array_equal(np.rint(y * 64), y * 64)
    assert not np.array_equal(y, np.rint(np.linspace(-1, 1, 50) * 64) / 64)


@pytest.mark.parametrize("kind", [DiscreteLaplace, DiscreteGaussian])
def test_counts_stay_whole_numbers_and_tensors_tensors(kind: type) -> None:
    noise = kind(2.0, 1, on_grid=True, dimension=3)
    y = noise(np.array([5, 0, 2], dtype=np.int16), Rng.secure())
    assert y.dtype == np.int64
    z = noise(torch.tensor([[5.0, 0.0, 2.0]], dtype=torch.bfloat16), Rng.secure())
    assert z.dtype == torch.bfloat16
    assert z.shape == (1, 3)
    assert kind(8.0, 1, grid=4.0, on_grid=True)(np.array([8]), Rng(1)) % 4 == 0


def test_rounding_is_counted_in_the_sensitivity() -> None:
    assert DiscreteLaplace(1.0, 2.0, on_grid=True).sensitivity_steps == 2
    assert DiscreteLaplace(1.0, 2.0).sensitivity_steps == 3
    assert DiscreteLaplace(1.0, 2.0, grid=0.25, dimension=10).sensitivity_steps == 18
    assert DiscreteGaussian(1.0, 2.0, grid=0.25, dimension=16).sensitivity_steps == 12
    assert DiscreteGaussian(1.0, 2.0, grid=0.25, dimension=16, on_grid=True).sensitivity_steps == 8
    assert DiscreteGaussian(1.0, 2.0, grid=0.25).event.sensitivity == 9


def test_neighbours_are_never_farther_apart_than_counted() -> None:
    rng = np.random.default_rng(1)
    noise = DiscreteGaussian(1.0, 0.7, grid=0.25, dimension=6)
    x = rng.normal(size=(20_000, 6))
    step = rng.normal(size=(20_000, 6))
    y = x + 0.7 * step / np.linalg.norm(step, axis=1, keepdims=True)
    apart = np.linalg.norm(np.rint(x / 0.25) - np.rint(y / 0.25), axis=1)
    assert apart.max() <= noise.sensitivity_steps


@pytest.mark.parametrize("d", [1, 20])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_the_budget_is_met_and_close_to_that_of_continuous_noise(epsilon: float, d: int) -> None:
    noise = DiscreteGaussian.for_budget(epsilon, 1e-5, 1.0, grid=2**-8, dimension=d)
    assert curve_of(noise.event, Adjacency.REPLACE_ONE).delta(epsilon) <= 1e-5
    from discreet.mechanisms.gaussian import Gaussian

    ratio = noise.std / Gaussian.for_budget(epsilon, 1e-5, 1.0).std
    assert 1 <= ratio < (1.01 if d == 1 else 1.15)


def test_laplace_for_epsilon_spends_exactly_that() -> None:
    noise = DiscreteLaplace.for_epsilon(0.8, 3.0, grid=0.5, dimension=2)
    assert noise.event.noise_parameter * noise.event.sensitivity == pytest.approx(0.8)


def test_values_without_axes_are_one_coordinate() -> None:
    assert DiscreteLaplace(1.0, 1.0)(np.array(3.0), Rng(1)).shape == ()


def test_far_values_are_clamped_and_nan_is_refused() -> None:
    noise = DiscreteLaplace(1.0, 1.0, dimension=2)
    y = noise(np.array([np.inf, -1e300]), Rng(1))
    assert np.abs(y).max() < 2.0**52 + 100
    with pytest.raises(DataError, match="NaN"):
        noise(np.array([np.nan, 0.0]), Rng(1))


def test_whole_numbers_at_the_ends_of_their_range_are_clamped() -> None:
    noise = DiscreteLaplace(2.0**20, 1.0, grid=2.0**16, dimension=2, on_grid=True)
    y = noise(np.array([2**63 - 1, -(2**63)]), Rng(1))
    assert y.dtype == np.int64
    assert np.abs(y - np.array([2**53, -(2**53)])).max() < 2**26
    assert DiscreteGaussian(1.0, 1.0, on_grid=True)(np.array([2**64 - 1], dtype=np.uint64), Rng(1)) > 2**51


def test_values_off_the_grid_are_refused_where_they_were_promised_on_it() -> None:
    with pytest.raises(DataError, match="on the grid"):
        DiscreteLaplace(1.0, 1.0, on_grid=True)(np.array([0.5]), Rng(1))
    with pytest.raises(DataError, match="dimension 2"):
        DiscreteLaplace(1.0, 1.0, dimension=2)(np.zeros(3), Rng(1))


@pytest.mark.parametrize("kind", [DiscreteLaplace, DiscreteGaussian])
def test_bad_settings_are_refused(kind: type) -> None:
    for grid in (0.1, 3.0, 0.0, -1.0, math.nan, math.inf):
        with pytest.raises(SettingError, match="grid"):
            kind(1.0, 1.0, grid=grid)
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(SettingError):
            kind(bad, 1.0)
        with pytest.raises(SettingError, match="sensitivity"):
            kind(1.0, bad)
    with pytest.raises(SettingError, match="steps of grid"):
        kind(1.0, 1.0, grid=2.0**-50)
    with pytest.raises(SettingError, match="delta"):
        DiscreteGaussian.for_budget(1.0, 0.0, 1.0)


def test_on_a_fine_grid_the_noise_is_nearly_normal() -> None:
    noise = DiscreteGaussian(2.0, 1.0, grid=2**-20, dimension=50_000)
    y = noise(np.zeros(50_000), Rng.secure())
    assert stats.kstest(y / 2.0, "norm").pvalue > 1e-6
