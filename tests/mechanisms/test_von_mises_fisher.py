import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from discreet import Rng
from discreet.core.errors import DataError, SettingError
from discreet.mechanisms import cosines, sphere
from discreet.mechanisms.von_mises_fisher import VonMisesFisher


def test_batches_of_different_directions_go_each_its_own_way() -> None:
    x = torch.randn(6, 5, 40, generator=torch.Generator().manual_seed(1)) * 3
    y = VonMisesFisher(4000.0, 40)(x, Rng(1))
    assert y.shape == x.shape
    cosine = torch.nn.functional.cosine_similarity(x, y, dim=-1)
    assert float(cosine.min()) > 0.98
    assert torch.allclose(torch.linalg.vector_norm(y, dim=-1), torch.ones(6, 5), atol=1e-6)


@pytest.mark.parametrize(("kappa", "d"), [(0.0, 2), (2.0, 2), (2.0, 3), (30.0, 10), (60.0, 1200), (1e6, 5)])
def test_the_release_has_the_exact_density(kappa: float, d: int) -> None:
    n = 20_000 if d < 100 else 2_000
    x = np.broadcast_to(np.linspace(1, 2, d), (n, d)).copy()
    y = VonMisesFisher(kappa, d)(x, Rng(3))
    u = x[0] / np.linalg.norm(x[0])
    if kappa > 1e5:
        gap = kappa * ((y - u) ** 2).sum(1) / 2
        assert stats.kstest(gap, stats.gamma((d - 1) / 2).cdf).pvalue > 1e-3
        return
    angle = np.arccos(np.clip(y @ u, -1, 1))
    edges = np.linspace(1e-6, math.pi - 1e-6, 100_001)
    log_density = kappa * np.cos(edges) + (d - 2) * np.log(np.sin(edges))
    cdf = integrate.cumulative_simpson(np.exp(log_density - log_density.max()), x=edges, initial=0.0)
    assert stats.kstest(np.interp(angle, edges, cdf / cdf[-1]), "uniform").pvalue > 1e-3


def test_agrees_with_scipy_where_scipy_can() -> None:
    mu = np.array([0.0, 0.6, 0.8, 0.0])
    theirs = stats.vonmises_fisher(mu, 7.0)
    y = VonMisesFisher(7.0, 4)(np.tile(mu, (2000, 1)), Rng(4))
    np.testing.assert_allclose(VonMisesFisher(7.0, 4).log_density(y, np.tile(mu, (2000, 1))), theirs.logpdf(y))
    z = theirs.rvs(2000, random_state=np.random.default_rng(1))
    assert stats.ks_2samp(y[:, 1], z[:, 1]).pvalue > 1e-3
    assert stats.ks_2samp(y[:, 0], z[:, 0]).pvalue > 1e-3


def test_kappa_zero_and_rows_of_zeros_are_uniform() -> None:
    for noise, x in ((VonMisesFisher(0.0, 3), np.ones((20_000, 3))), (VonMisesFisher(50.0, 3), np.zeros((20_000, 3)))):
        y = noise(x, Rng(5))
        for axis in range(3):
            assert stats.kstest((1 + y[:, axis]) / 2, "uniform").pvalue > 1e-3
        area = 4 * math.pi
        np.testing.assert_allclose(noise.log_density(y[:5], x[:5]), -math.log(area))


def test_the_mean_is_the_direction_times_the_mean_cosine() -> None:
    noise = VonMisesFisher(5.0, 6)
    x = np.tile(np.array([0.0, 0, 0, 0, 3.0, 4.0]), (100_000, 1))
    estimate = noise(x, Rng(6)).mean(0) / noise.mean_cosine
    np.testing.assert_allclose(estimate, [0, 0, 0, 0, 0.6, 0.8], atol=0.012)


def test_the_cosines_alone_are_those_of_the_release() -> None:
    noise = VonMisesFisher(9.0, 20)
    x = torch.eye(20, dtype=torch.float64)[:7]
    y = noise(x, Rng(7))
    np.testing.assert_allclose(noise.cosines(7, Rng(7)), (x * y).sum(-1), atol=2.0**-17)
    assert noise.cosines(3, Rng(7)).dtype == torch.float64


def test_the_log_density_does_not_overflow_in_a_million_dimensions() -> None:
    d = 1_000_000
    x = torch.ones(1, d)
    for kappa in (0.0, 1.0, 1e4, 1e7):
        value = VonMisesFisher(kappa, d).log_density(x / 1000, x)
        assert bool(torch.isfinite(value).all())
    loss = VonMisesFisher(300.0, d).log_density(x / 1000, x) - VonMisesFisher(300.0, d).log_density(x / 1000, -x)
    assert float(loss) == pytest.approx(600, rel=1e-6)


@pytest.mark.parametrize(("kappa", "d"), [(0.0, 3), (1.0, 3), (5.0, 4), (40.0, 10), (100.0, 3072)])
def test_the_density_integrates_to_one(kappa: float, d: int) -> None:
    """Over the cosine t: the directions of one cosine are a sphere of radius sqrt(1 - t^2) and one dimension less."""
    t = np.linspace(-1, 1, 400_001)[1:-1]
    y = np.zeros((len(t), d)) if d < 100 else None
    noise, axis = VonMisesFisher(kappa, d), np.eye(d)[:1]
    if y is None:  # of the density, only the cosine matters
        density = noise.log_normaliser + kappa * t
        point = noise.log_density(axis * 0.25, axis)
        assert float(point[0]) == pytest.approx(noise.log_normaliser + kappa * 0.25)
    else:
        y[:, 0], y[:, 1] = t, np.sqrt(1 - t * t)
        density = noise.log_density(y, np.broadcast_to(axis, y.shape))
    slices = cosines.log_sphere_area(d - 1) + (d - 3) / 2 * np.log1p(-t * t)
    assert integrate.simpson(np.exp(density + slices), x=t) == pytest.approx(1, abs=2e-5)


def test_a_density_that_float64_does_not_determine_is_rejected() -> None:
    x = np.eye(3)[:1]
    assert np.isfinite(VonMisesFisher(1e10, 3).log_density(x, x)).all()
    with pytest.raises(SettingError, match="kappa"):
        VonMisesFisher(1.1e10, 3).log_density(x, x)


def test_no_second_copy_of_the_batch_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    turn = sphere._turn

    def watched(noise: torch.Tensor, x: torch.Tensor, *rest: Any) -> None:
        sizes.append(noise.numel())  # noise in float64 is at most a block of rows
        before = x.data_ptr()
        turn(noise, x, *rest)
        assert before == x.data_ptr()

    monkeypatch.setattr(sphere, "_turn", watched)
    x = torch.randn(4, 500_000, generator=torch.Generator().manual_seed(1))
    tracemalloc.start()
    VonMisesFisher(10.0, 500_000)(x, Rng(1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sizes == [500_000] * 4
    assert peak < 2.2 * 8 * 500_000  # the block that is drawn and the one before it, of four


@pytest.mark.parametrize("kappa", [-1.0, math.inf, math.nan])
def test_bad_concentrations_are_refused(kappa: float) -> None:
    with pytest.raises(SettingError, match="kappa"):
        VonMisesFisher(kappa, 3)


def test_bad_dimensions_and_inputs_are_refused() -> None:
    with pytest.raises(SettingError, match="dimension to be .*, got 1"):
        VonMisesFisher(1.0, 1)
    with pytest.raises(DataError, match="dimension 3"):
        VonMisesFisher(1.0, 3)(np.zeros((2, 4)), Rng(1))
    with pytest.raises(DataError, match="finite"):
        VonMisesFisher(1.0, 3)(np.array([[1.0, np.nan, 0.0]]), Rng(1))


def test_an_empty_batch_gives_an_empty_release() -> None:
    assert VonMisesFisher(1.0, 3)(np.zeros((0, 3)), Rng(1)).shape == (0, 3)
