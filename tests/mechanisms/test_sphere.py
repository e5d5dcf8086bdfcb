import numpy as np
import pytest
import torch
from scipy import stats

from discreet import Rng
from discreet.core.errors import DataError
from discreet.mechanisms.normals import normals
from discreet.mechanisms.sphere import directions_around, uniform_directions


def slowly(x: torch.Tensor, cosine: np.ndarray, sine: np.ndarray, rng: Rng) -> torch.Tensor:
    """The same in float64, one row after the other, as the formula says."""
    rows = []
    for row, c, s, xi in zip(x, cosine, sine, normals(tuple(x.shape), rng), strict=True):
        u = row.double() / torch.linalg.vector_norm(row.double())
        across = xi - (xi @ u) * u
        rows.append(c * u + s * across / torch.linalg.vector_norm(across))
    return torch.stack(rows)


@pytest.mark.parametrize(("n", "d"), [(5, 2), (7, 3), (3, 100), (3, 1500), (2, 300_000)])
def test_the_fast_way_agrees_with_the_slow_one(n: int, d: int) -> None:
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(1)) * torch.logspace(-3, 3, n)[:, None]
    cosine = np.linspace(-0.9, 0.9, n)
    sine = np.sqrt(1 - cosine**2)
    if d > 1 << 17:
        x, cosine, sine = (
            x[:1],
            cosine[:1],
            sine[:1],
        )  # a block of its own, with normal numbers of its own, for each row
    fast = directions_around(x, cosine, sine, Rng(4))
    np.testing.assert_allclose(fast, slowly(x, cosine, sine, Rng(4)), rtol=2.0**-23, atol=2.0**-16 / np.sqrt(d))


@pytest.mark.parametrize("d", [2, 3, 20, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_result_is_of_unit_length_at_the_stated_angle(d: int, dtype: torch.dtype) -> None:
    x = torch.randn(40, d, generator=torch.Generator().manual_seed(2)).to(dtype)
    cosine = np.linspace(-1, 1, 40)
    sine = np.sqrt(1 - cosine**2)
    y = directions_around(x, cosine, sine, Rng(5))
    assert y.dtype == dtype
    tolerance = {torch.float64: 2e-5, torch.float32: 2e-5, torch.bfloat16: 1e-2}[dtype]
    u = x.double() / torch.linalg.vector_norm(x.double(), dim=1, keepdim=True)
    np.testing.assert_allclose((y.double() * u).sum(1), cosine, atol=tolerance)
    np.testing.assert_allclose(torch.linalg.vector_norm(y.double(), dim=1), 1, atol=tolerance)


def test_across_the_direction_it_is_uniform() -> None:
    n = 50_000
    x = torch.tensor([[3.0, 4.0, 0.0]], dtype=torch.float64).repeat(n, 1)
    y = directions_around(x, np.full(n, 0.6), np.full(n, 0.8), Rng(6)).numpy()
    angle = np.arctan2(y[:, 2], y @ np.array([-0.8, 0.6, 0.0]))
    assert stats.kstest((angle + np.pi) / (2 * np.pi), "uniform").pvalue > 1e-3


def test_rows_of_zeros_give_uniform_directions() -> None:
    n = 50_000
    y = directions_around(torch.zeros(n, 3), np.full(n, 0.9), np.full(n, np.sqrt(0.19)), Rng(7)).numpy()
    np.testing.assert_allclose(np.linalg.norm(y, axis=1), 1, atol=2e-5)
    for axis in range(3):
        assert stats.kstest((1 + y[:, axis]) / 2, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("d", [3, 2000])
@pytest.mark.parametrize("scale", [1e-44, 1e-30, 1e-20, 1e20, 1e35])
def test_very_short_and_very_long_rows_keep_their_direction(d: int, scale: float) -> None:
    base = torch.randn(2, d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    x = torch.cat([(base[:1] * scale).float(), torch.zeros(1, d), base[1:].float()])
    y = directions_around(x, np.full(3, 1.0), np.zeros(3), Rng(8)).double()
    u = x.double() / torch.linalg.vector_norm(x.double(), dim=1, keepdim=True).clamp(min=1e-300)
    np.testing.assert_allclose((y * u).sum(1)[[0, 2]], 1, atol=2e-5)
    assert float(torch.linalg.vector_norm(y[1])) == pytest.approx(1, abs=2e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    x = torch.ones(3, 4)
    x[1, 2] = bad
    with pytest.raises(DataError, match="finite"):
        directions_around(x, np.zeros(3), np.ones(3), Rng(9))


def test_uniform_directions_have_unit_length() -> None:
    y = uniform_directions(10, 1500, Rng(1))
    assert y.dtype == torch.float64
    np.testing.assert_allclose(np.linalg.norm(y.numpy(), axis=1), 1, atol=1e-12)
