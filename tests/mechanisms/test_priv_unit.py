import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats

from discreet import Rng
from discreet.core.errors import SettingError
from discreet.mechanisms.priv_unit import PrivUnit, _mean, best_cap, draw_cosines, log_cap_mass


@pytest.mark.parametrize("d", [2, 3, 5, 50, 1000, 100_000])
@pytest.mark.parametrize("height", [0.0, 0.001, 0.05, 0.5, 0.9, 0.9999, 1 - 1e-12])
def test_the_cap_mass_agrees_with_sixty_digits(height: float, d: int) -> None:
    with mpmath.workdps(60):
        # The series 2F1(a + b, 1; a + 1; x) of the incomplete beta function, in logarithms, so that nothing underflows.
        a, x = mpmath.mpf(d - 1) / 2, 1 - mpmath.mpf(height) ** 2
        if height == 0:
            expected = -math.log(2)
        else:
            series = mpmath.hyp2f1(1, a + 0.5, a + 1, x)
            front = a * mpmath.log(x) + mpmath.log(height) - mpmath.log(a) - mpmath.log(mpmath.beta(a, 0.5))
            expected = float(front + mpmath.log(series) - mpmath.log(2))
    assert log_cap_mass(height, d) == pytest.approx(expected, rel=1e-11, abs=1e-11)


@pytest.mark.parametrize("d", [2, 3, 16, 768, 10_000])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 16.0, 64.0])
def test_the_density_ratio_is_exactly_epsilon(epsilon: float, d: int) -> None:
    cap = best_cap(epsilon, d)
    log_in = math.log(cap.truth) - cap.log_mass
    log_out = math.log1p(-cap.truth) - math.log1p(-math.exp(cap.log_mass)) if cap.truth < 1 else -math.inf
    if cap.truth > 1 - 1e-9:  # 1 - p has lost its digits: take the odds from the definition of p instead
        log_out = log_in - epsilon
    assert log_in - log_out == pytest.approx(epsilon, rel=1e-6)
    assert log_out <= 0 <= log_in  # a row of zeros lies between


@pytest.mark.parametrize("d", [2, 3, 16, 768])
@pytest.mark.parametrize("epsilon", [0.2, 1.0, 8.0, 30.0])
def test_no_other_cap_has_less_error(epsilon: float, d: int) -> None:
    best = best_cap(epsilon, d)
    searched = optimize.minimize_scalar(
        lambda h: -_mean(h, epsilon, d), bounds=(0.0, 1 - 1e-9), method="bounded", options={"xatol": 1e-9}
    )
    assert best.mean >= -searched.fun * (1 - 1e-9)
    assert best.height == pytest.approx(best.mean, rel=1e-6)


@pytest.mark.parametrize(("epsilon", "d"), [(1.0, 2), (1.0, 3), (4.0, 2), (12.0, 2), (2.0, 30), (8.0, 30), (40.0, 200)])
def test_the_cosine_has_the_stated_law(epsilon: float, d: int) -> None:
    cap = best_cap(epsilon, d)
    t, s = draw_cosines(cap, d, 40_000, Rng(1).fork(epsilon, d).numpy())
    np.testing.assert_allclose(t * t + s * s, 1, atol=1e-12)
    inside = t >= cap.height
    assert stats.binomtest(int(inside.sum()), len(t), cap.truth).pvalue > 1e-4
    # In the angle the uniform density is sin^(d - 2), smooth for every d.
    edge = math.acos(cap.height)
    for part, low, high in ((np.arccos(t[inside]), 0.0, edge), (np.arccos(t[~inside]), edge, math.pi)):
        if len(part) > 50:
            grid = np.linspace(low, high, 20_001)
            cdf = integrate.cumulative_simpson(np.sin(grid) ** (d - 2), x=grid, initial=0.0)
            assert stats.kstest(np.interp(part, grid, cdf / cdf[-1]), "uniform").pvalue > 1e-4


@pytest.mark.parametrize(("epsilon", "d"), [(1.0, 2), (4.0, 8), (10.0, 64)])
def test_the_estimate_is_unbiased_with_the_stated_error(epsilon: float, d: int) -> None:
    u = np.linspace(-1, 2, d)
    u /= np.linalg.norm(u)
    noise = PrivUnit(epsilon, d)
    z = noise(np.tile(5 * u, (60_000, 1)), Rng(2))
    spread = np.sqrt(noise.squared_error / d / len(z))
    assert np.abs(z.mean(0) - u).max() < 5 * spread * math.sqrt(d) / math.sqrt(d - 1) + 5 * spread
    assert ((z - u) ** 2).sum(1).mean() == pytest.approx(noise.squared_error, rel=0.02)


def test_a_row_of_zeros_has_mean_zero() -> None:
    noise = PrivUnit(3.0, 4)
    z = noise(torch.zeros(50_000, 4), Rng(3))
    assert float(z.mean(0).abs().max()) < 5 / noise.cap.mean / math.sqrt(4 * 50_000)


def test_more_budget_means_less_error() -> None:
    errors = [PrivUnit(e, 768).squared_error for e in (0.5, 1, 2, 4, 8, 16, 64, 256)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 2


@pytest.mark.parametrize(("epsilon", "d"), [(1e-6, 2), (500.0, 2), (5000.0, 3), (1.0, 10**6), (700.0, 10**6)])
def test_extreme_settings_stay_finite(epsilon: float, d: int) -> None:
    cap = best_cap(epsilon, d)
    assert 0 <= cap.height < 1
    assert 0 < cap.truth <= 1
    assert 0 < cap.mean <= 1
    t, s = draw_cosines(cap, d, 100, Rng(4).numpy())
    assert np.isfinite(t).all()
    assert np.isfinite(s).all()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.inf, math.nan])
def test_bad_settings_are_refused(bad: float) -> None:
    with pytest.raises(SettingError, match="epsilon"):
        PrivUnit(bad, 3)
    with pytest.raises(SettingError, match="dimension"):
        PrivUnit(1.0, 1)
