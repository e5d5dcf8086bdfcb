import math

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from discreet import Rng
from discreet.core.errors import SettingError
from discreet.mechanisms import cosines


def distribution(t: np.ndarray, kappa: float, d: int) -> np.ndarray:
    """Return the distribution function at sorted t by integrating the exact density over the angle."""
    # In the angle a, t = -cos(a), the density is smooth for every d >= 2.
    a = np.arccos(-t)
    edges = np.linspace(max(0.0, a[0] - 0.2 * (a[-1] - a[0])), min(math.pi, a[-1] + 0.2 * (a[-1] - a[0])), 200_001)
    with np.errstate(divide="ignore", invalid="ignore"):
        log = -kappa * np.cos(edges) + (d - 2) * np.log(np.sin(edges)) if d > 2 else -kappa * np.cos(edges)
    density = np.exp(log - np.nanmax(log[np.isfinite(log)]))
    density[~np.isfinite(density)] = 0.0
    total = integrate.cumulative_simpson(density, x=edges, initial=0.0)
    return np.interp(a, edges, total / total[-1])


@pytest.mark.parametrize("d", [2, 3, 4, 30, 1000, 1_000_000])
@pytest.mark.parametrize("kappa", [0.0, 1e-3, 1.0, 50.0, 3e3, 1e5, 1e7])
def test_the_draws_follow_the_exact_density(kappa: float, d: int) -> None:
    t, s = cosines.draw_cosines(kappa, d, 20_000, Rng(d).fork(kappa).numpy())
    assert np.abs(t * t + s * s - 1).max() < 1e-14
    # For very concentrated draws the sine keeps the digits that the cosine has lost.
    if kappa > 1e4 * d:
        x = kappa * s * s / (1 + t)  # kappa (1 - t) is then a gamma variable, up to 1 / kappa
        assert stats.kstest(x, stats.gamma((d - 1) / 2).cdf).pvalue > 1e-4
    else:
        t = np.sort(t)
        cdf = distribution(t, kappa, d)
        assert stats.kstest(cdf, "uniform").pvalue > 1e-4
    spread = t.std() / math.sqrt(len(t))
    assert abs(t.mean() - cosines.mean_cosine(kappa, d)) < 4.5 * spread


@pytest.mark.parametrize("d", [2, 3, 10, 1000, 1_000_000])
@pytest.mark.parametrize("kappa", [1e-6, 0.1, 1.0, 100.0, 1e4, 1e7])
def test_at_least_six_draws_in_ten_are_accepted(kappa: float, d: int) -> None:
    class Counting(np.random.Generator):
        drawn = 0

        def standard_gamma(self, shape, size):  # type: ignore[no-untyped-def, override]
            Counting.drawn += size
            return super().standard_gamma(shape, size)

    cosines.draw_cosines(kappa, d, 20_000, Counting(np.random.Philox(1)))
    assert Counting.drawn / 2 < 20_000 / 0.6 * 1.06


@pytest.mark.parametrize(("kappa", "d"), [(0.3, 2), (1.0, 3), (20.0, 5), (200.0, 50), (3e3, 3072)])
def test_the_mean_is_the_bessel_ratio(kappa: float, d: int) -> None:
    with mpmath.workdps(50):
        ratio = mpmath.besseli(mpmath.mpf(d) / 2, kappa) / mpmath.besseli(mpmath.mpf(d) / 2 - 1, kappa)
    assert cosines.mean_cosine(kappa, d) == pytest.approx(float(ratio), rel=1e-12)
    assert cosines.mean_cosine(0.0, d) == 0.0


def test_bad_settings_are_refused() -> None:
    for kappa in (-1.0, math.inf, math.nan):
        with pytest.raises(SettingError, match="kappa"):
            cosines.mean_cosine(kappa, 3)
    with pytest.raises(SettingError, match="dimension"):
        cosines.mean_cosine(1.0, 1)
