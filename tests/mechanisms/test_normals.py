import importlib.util
import math

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import Rng
from discreet.core.errors import DataError
from discreet.mechanisms import normals as normals_module
from discreet.mechanisms.normals import add_normal, add_normals, grid_of, normals, release


def test_the_noise_is_normal_and_its_blocks_and_arrays_differ() -> None:
    z = normals((3, 70_000), Rng(1)).numpy()
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    blocks = z.ravel()[: 3 << 16].reshape(3, -1)
    assert np.abs(np.corrcoef(blocks) - np.eye(3)).max() < 0.03
    found = add_normals({"a": torch.zeros(1000), "b": torch.zeros(1000)}, 1.0, Rng(1))
    assert not torch.equal(found["a"], found["b"])


@pytest.mark.parametrize("rng", [Rng(4), Rng.secure()], ids=["seeded", "secure"])
def test_noise_is_added_with_the_stated_deviation(rng: Rng) -> None:
    z = add_normal(torch.full((50_000,), 7.0), 2.5, rng).double().numpy()
    assert stats.kstest(z, stats.norm(7.0, 2.5).cdf).pvalue > 1e-6


def test_the_numbers_do_not_depend_on_the_number_of_threads() -> None:
    before, values = torch.get_num_threads(), torch.linspace(-1, 1, 5 * (1 << 16) + 3)
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((add_normal(values, 0.7, Rng(2)), normals((len(values),), Rng(3))))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert torch.equal(found[0][0], other[0])
        assert torch.equal(found[0][1], other[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("std", [1e-3, 0.3, 1.0, 700.0])
def test_every_release_is_a_multiple_of_one_grid(dtype: torch.dtype, std: float) -> None:
    values = torch.linspace(-1, 1, 1001).to(dtype)
    grid = grid_of(std)
    assert 2.0**-17 < grid / std <= 2.0**-16
    for released in (add_normal(values, std, Rng(1)), release(values, std * normals((1001,), Rng(1)), std)):
        assert released.dtype == dtype
        if dtype.itemsize > 2:  # half precision may itself be coarser than the grid, or overflow nothing here
            steps = released.double() / grid
            assert torch.equal(steps, steps.round())


def test_no_noise_returns_the_values_and_what_is_not_finite_is_rejected() -> None:
    values = torch.tensor([1.0, 2.0])
    assert torch.equal(add_normal(values, 0.0, Rng(1)), values)
    for bad in (math.nan, math.inf):
        with pytest.raises(DataError, match="finite"):
            add_normals({"a": values, "b": torch.tensor([bad])}, 1.0, Rng(1))


def test_values_far_beyond_the_noise_are_not_lost() -> None:
    values = torch.tensor([3e9, -3e9, 2.0**60, -(2.0**60)], dtype=torch.float64)
    released = add_normal(values, 1e-3, Rng(1))
    assert ((released - values).abs() <= values.abs() * 2.0**-50 + 1e-2).all()


def test_gradients_pass_through_a_release() -> None:
    x = torch.ones(5, requires_grad=True)
    (release(x * 2, normals((5,), Rng(1)), 1.0) ** 2).sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad, 4 * release(torch.full((5,), 2.0), normals((5,), Rng(1)), 1.0))


def test_philox_gives_the_published_words() -> None:
    # The known answers of the authors' own implementation, Random123.
    ones = 0xFFFFFFFF
    for counter, key, words in [
        ((0, 0, 0, 0), 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones,) * 4, (1 << 64) - 1, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ]:
        found = normals_module.philox([np.array([c], dtype=np.uint64) for c in counter], key)
        assert tuple(int(w[0]) for w in found) == words


def test_the_kernels_reference_draws_independent_normal_numbers() -> None:
    key = normals_module.key_words(-5, 77, 1.0, 1.0).tolist()
    z = normals_module.reference(key, 200_001, 3)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    other = normals_module.reference([key[0], key[1], 1], 200_001, 3)
    pairs = np.stack([z[:100_000], z[100_001:], z[1:100_001], other[:100_000]])
    assert np.abs(np.corrcoef(pairs) - np.eye(4)).max() < 0.02
    assert np.abs(np.corrcoef(pairs**2) - np.eye(4)).max() < 0.02


@pytest.mark.skipif(
    not (torch.cuda.is_available() and importlib.util.find_spec("triton")), reason="needs a GPU and Triton"
)
def test_the_kernel_agrees_with_its_reference_and_the_slow_way_draws_normal_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert normals_module.agree(torch.device("cuda", 0))
    fused = add_normal(torch.zeros(100_001, device="cuda"), 2.0, Rng(1)).cpu().numpy()
    monkeypatch.setattr(normals_module, "kernel_usable", lambda like: False)
    slow = add_normal(torch.zeros(100_001, device="cuda"), 2.0, Rng(1)).cpu().numpy()
    for z in (fused, slow):
        assert stats.kstest(z / 2, "norm").pvalue > 1e-6


def test_only_what_is_not_finite_is_rejected_and_not_what_is_large() -> None:
    large = {"a": torch.full((3,), 3e38), "b": torch.ones(2)}  # squares of it overflow
    assert torch.isfinite(add_normals(large, 1.0, Rng(1))["a"]).all()
    assert (
        add_normals({"a": torch.ones(2), "b": torch.ones(2, dtype=torch.float64)}, 1.0, Rng(1))["b"].dtype.itemsize == 8
    )
    assert add_normals({}, 1.0, Rng(1)) == {}
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(DataError, match="NaN or infinity"):
            add_normals(large | {"b": torch.tensor([1.0, bad])}, 1.0, Rng(1))
