import math

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import Rng
from discreet.core.errors import DataError, SettingError
from discreet.mechanisms.laplace import L2Laplace, Laplace, l1_of_l2


def test_the_noise_is_laplace_with_the_stated_scale() -> None:
    z = Laplace(0.7)(np.full(200_000, -2.0), Rng(1))
    assert stats.kstest(z, stats.laplace(-2.0, 0.7).cdf).pvalue > 1e-3


def test_counts_become_floats() -> None:
    released = Laplace(scale=2.0)(np.array([3, 4]), Rng(1))
    assert released.dtype == np.float64
    assert Laplace(2.0)(torch.tensor([3, 4]), Rng(1)).tolist() == released.tolist()


def test_epsilon_is_sensitivity_over_scale() -> None:
    assert Laplace.for_epsilon(0.5, 3.0).scale == 6.0
    assert Laplace(6.0, 3.0).event.noise_multiplier == 2.0
    assert L2Laplace.for_epsilon(0.5, 3.0, 10).event.epsilon == 0.5


@pytest.mark.parametrize("d", [1, 2, 5, 2000])
def test_the_vector_noise_has_uniform_direction_and_gamma_length(d: int) -> None:
    n = 20_000 if d < 100 else 500
    z = L2Laplace(0.5, d)(np.zeros((n, d)), Rng(3))
    r = np.linalg.norm(z, axis=1)
    assert stats.kstest(r, stats.gamma(d, scale=0.5).cdf).pvalue > 1e-3
    if d > 1:
        share = (1 + z[:, 0] / r) / 2  # a coordinate of a uniform direction is a symmetric beta
        assert stats.kstest(share, stats.beta((d - 1) / 2, (d - 1) / 2).cdf).pvalue > 1e-3


def test_the_vector_noise_keeps_shape_and_precision() -> None:
    released = L2Laplace(0.5, 4)(torch.ones(2, 3, 4), Rng(2))
    assert released.shape == (2, 3, 4)
    assert released.dtype == torch.float32


def test_coordinate_noise_for_an_l2_ball_needs_the_root_of_the_dimension() -> None:
    assert l1_of_l2(2.0, 768) == pytest.approx(2 * math.sqrt(768))
    # and the vector noise is then shorter, by a root of two
    d, clip = 768, 1.0
    coordinates = Laplace.for_epsilon(1.0, l1_of_l2(2 * clip, d))
    vector = L2Laplace.for_epsilon(1.0, 2 * clip, d)
    ratio = coordinates.scale * math.sqrt(2 * d) / (vector.scale * d)
    assert ratio == pytest.approx(math.sqrt(2), rel=1e-3)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_settings_are_refused(bad: float) -> None:
    with pytest.raises(SettingError, match="scale"):
        Laplace(bad)
    with pytest.raises(SettingError, match="scale"):
        L2Laplace(bad, 3)
    with pytest.raises(SettingError, match="epsilon"):
        Laplace.for_epsilon(bad, 1.0)
    with pytest.raises(SettingError, match="sensitivity"):
        L2Laplace(1.0, 3, bad)


def test_the_cost_is_not_guessed_without_a_sensitivity() -> None:
    for noise in (Laplace(1.0), L2Laplace(1.0, 2)):
        with pytest.raises(SettingError, match="sensitivity to be .*, got None"):
            _ = noise.event


def test_vectors_of_another_dimension_are_refused() -> None:
    with pytest.raises(DataError, match="dimension 3"):
        L2Laplace(1.0, 3)(np.zeros((2, 4)), Rng(1))
