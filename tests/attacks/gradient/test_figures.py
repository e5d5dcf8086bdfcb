import pytest
import torch

from discreet.attacks.gradient.figures import Target


@pytest.mark.parametrize("noisy", [(), (0,), (1,), (0, 1)])
def test_targets_are_factored_only_where_all_are_of_low_rank(noisy: tuple[int, ...]) -> None:
    source = torch.Generator().manual_seed(0)
    value = torch.randn(2, 40, 3, generator=source) @ torch.randn(2, 3, 30, generator=source)
    for i in noisy:
        value[i] += 0.1 * torch.randn(40, 30, generator=source)
    found = Target.of(value, rank=6)
    assert (found.value is None) == (not noisy)
    assert torch.allclose(found.dense(), value, atol=1e-4)
    assert Target.of(value, rank=15).value is not None  # factors would hold more numbers than the matrix
