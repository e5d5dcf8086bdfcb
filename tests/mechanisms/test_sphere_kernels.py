"""The fused sphere kernels against ordinary operations, where there is a GPU with Triton."""

import importlib.util

import numpy as np
import pytest
import torch

from discreet import Rng
from discreet.mechanisms import sphere_kernels
from discreet.mechanisms.von_mises_fisher import VonMisesFisher

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and importlib.util.find_spec("triton")), reason="needs a GPU and Triton"
)


def test_the_kernels_agree_with_ordinary_operations() -> None:
    assert sphere_kernels.agree(torch.device("cuda", 0))


@pytest.mark.parametrize("dimension", [128, 1000, 100_003])
def test_directions_are_the_same_with_and_without_them(dimension: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, dimension, generator=torch.Generator().manual_seed(1)).cuda()
    x[1] = 0
    x[2] *= 1e-20
    noise = VonMisesFisher(50.0, dimension)
    fused = noise(x, Rng(3))
    monkeypatch.setattr(sphere_kernels, "usable", lambda *tensors: False)
    plain = noise(x, Rng(3))
    np.testing.assert_allclose(fused.cpu(), plain.cpu(), atol=2e-6)
