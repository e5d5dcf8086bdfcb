"""Canary sums: two normal distributions, in closed form, and an estimate that is close to the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from discreet.accounting.gdp import gaussian_delta, gaussian_epsilon
from discreet.audit.sums import Normal, normal_delta, normal_epsilon, sums_epsilon
from discreet.core.errors import DataError, SettingError


@settings(max_examples=20)
@given(st.floats(-2, 2), st.floats(0.3, 3), st.floats(0.3, 3), st.floats(0, 3))
def test_the_hockey_stick_is_the_integral(mean: float, one: float, other: float, epsilon: float) -> None:
    first, second = Normal(mean, one), Normal(0.0, other)

    def excess(x: float) -> float:
        return max(0.0, norm.pdf(x, mean, one) - math.exp(epsilon) * norm.pdf(x, 0.0, other))

    slow = quad(excess, -20, 20, limit=200, points=[mean, 0.0])[0]
    assert normal_delta(first, second, epsilon) == pytest.approx(slow, abs=1e-5)


def test_equal_deviations_are_the_gaussian_mechanism() -> None:
    assert normal_delta(Normal(1.5, 1.0), Normal(0.0, 1.0), 2.0) == pytest.approx(gaussian_delta(1.5, 2.0))
    assert normal_epsilon(Normal(1.5, 1.0), Normal(0.0, 1.0), 1e-5) == pytest.approx(
        gaussian_epsilon(1.5, 1e-5), rel=1e-4
    )


def test_the_estimate_of_gaussian_noise_is_close_and_below_the_truth() -> None:
    rng = np.random.default_rng(2)
    mu, truth = 1.5, gaussian_epsilon(1.5, 1e-5)
    found = []
    for _ in range(5):
        bits = rng.random(2000) < 0.5
        found.append(sums_epsilon(rng.normal(size=2000) + mu * bits, bits, 1e-5))
    assert 0.7 * truth < np.mean(found) < truth


def test_what_cannot_be_fitted_is_rejected() -> None:
    with pytest.raises(DataError, match="at least 3 included"):
        sums_epsilon([1.0, 2.0, 3.0, 4.0], [1, 0, 0, 0], 1e-5)
    with pytest.raises(SettingError, match="canaries were not read"):
        sums_epsilon([0.0] * 10, [1, 0] * 5, 1e-5)
