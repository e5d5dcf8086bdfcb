import math

import numpy as np
import pytest
from scipy import stats
from scipy.integrate import quad

from discreet.accounting import gdp
from discreet.core.errors import SettingError


@pytest.mark.parametrize("mu", [0.01, 0.5, 2.0, 30.0])
@pytest.mark.parametrize("eps", [-1.0, 0.0, 0.3, 2.0])
def test_the_curve_is_the_hockey_stick_of_two_normals(mu: float, eps: float) -> None:
    cut = eps / mu + mu / 2
    true = quad(lambda x: stats.norm.pdf(x, mu) - math.exp(eps) * stats.norm.pdf(x), cut, mu + 40, points=[mu])[0]
    assert gdp.gaussian_deltas(mu, eps) == pytest.approx(true, abs=1e-8)


def test_epsilon_and_delta_are_inverse_and_rounded_to_the_safe_side() -> None:
    for mu in (1e-3, 0.1, 1.0, 7.0, 70.0):
        for delta in (1e-12, 1e-5, 1e-2):
            eps = gdp.gaussian_epsilon(mu, delta)
            assert gdp.gaussian_delta(mu, eps) <= delta
            if eps > 0:
                assert gdp.gaussian_delta(mu, eps * (1 - 1e-9)) > delta * (1 - 1e-6)


def test_noise_is_enough_and_hardly_more() -> None:
    for eps in (0.1, 1.0, 10.0):
        sigma = gdp.gaussian_noise(eps, 1e-5, sensitivity=3.0)
        assert gdp.gaussian_epsilon(3.0 / sigma, 1e-5) <= eps * (1 + 1e-9)
        assert gdp.gaussian_epsilon(3.0 / sigma * 1.001, 1e-5) > eps


def test_the_classical_formula_is_short_beyond_epsilon_one() -> None:
    assert gdp.gaussian_epsilon(10 / math.sqrt(2 * math.log(1.25e5)), 1e-5) == pytest.approx(10.4, abs=0.05)


def test_central_limit_and_its_inverse_agree() -> None:
    step = gdp.central_limit_step(1.3, 0.01, 500)
    assert gdp.central_limit_mu(step, 0.01, 500) == pytest.approx(1.3)
    assert gdp.central_limit_mu(100.0, 0.01, 500) == math.inf
    assert gdp.central_limit_mu_fixed(0.5, 1.0, 1) > 0.5  # the limit forgets that drawing everything hides nothing


def test_trade_off_meets_the_curve() -> None:
    rates = np.array([1e-4, 0.01, 0.3])
    for rate in rates:
        best = min(gdp.gaussian_delta(1.2, 0.0) + rate, 1.0)
        eps = np.linspace(-8, 8, 4001)
        best = float(np.min(gdp.gaussian_deltas(1.2, eps) + np.exp(eps) * rate))
        assert gdp.gaussian_trade_off(1.2, float(rate)) == pytest.approx(best, rel=1e-3)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, float("nan")])
def test_a_delta_that_gaussian_noise_cannot_have_is_refused(delta: float) -> None:
    with pytest.raises(SettingError, match="in \\(0, 1\\)"):
        gdp.gaussian_epsilon(1.0, delta)


def test_the_noise_for_an_epsilon_with_its_margin_never_costs_more_than_it() -> None:
    for eps in (1e-4, 0.01, 0.5, 1.0, 8.0, 100.0):
        for delta in (1e-12, 1e-7, 1e-3, 0.3):
            for sensitivity in (1e-3, 1.0, 7.7):
                sigma = gdp.gaussian_noise(eps, delta, sensitivity) * (1 + gdp.ROUNDING)
                assert gdp.gaussian_epsilon(sensitivity / sigma, delta) <= eps
