"""The kernels are used only after they agree with ordinary operations; this needs no GPU."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.clipping import kernels
from discreet.clipping.kernels import agree

CPU = torch.device("cpu")


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Replace the kernels by ordinary operations."""

    def pair_figures(pairs: list[tuple[Tensor, Tensor]]) -> tuple[object, ...]:
        ((a, b),) = pairs
        one, two = (t @ t.mT for t in (a, b))
        first, second = one.diagonal(dim1=1, dim2=2), two.diagonal(dim1=1, dim2=2)
        steps = (first * second).sqrt().sum(1)
        figures = ((one * two).sum((1, 2)), first.sum(1), second.sum(1), two.abs().sum(2).amax(1), steps)
        return ([0], *(figure[None] for figure in figures))

    def norm_sums(pairs: list[tuple[Tensor, Tensor]], eps: float) -> tuple[Tensor, Tensor]:
        weights = [(F.layer_norm(x, x.shape[2:], eps=eps) * grad).sum(1) for x, grad in pairs]
        return torch.stack(weights), torch.stack([grad.sum(1) for _, grad in pairs])

    monkeypatch.setattr(kernels, "pair_figures", pair_figures)
    monkeypatch.setattr(kernels, "norm_sums", norm_sums)
    monkeypatch.setattr(kernels, "row_squares", lambda values: values[0].square().sum(1)[None])
    monkeypatch.setattr(kernels, "weighted_rows", lambda values, weights: (weights @ values[0])[None])
    monkeypatch.setattr(kernels, "scaled", lambda values, weights, dtype: torch.stack(values) * weights[:, None])
    monkeypatch.setattr(kernels, "time_sums", lambda values: torch.stack(values).sum(2))
    return monkeypatch


def test_correct_results_are_accepted(ordinary: pytest.MonkeyPatch) -> None:
    assert agree(CPU)


@pytest.mark.parametrize("name", ["row_squares", "weighted_rows", "scaled", "time_sums"])
def test_wrong_results_are_rejected(ordinary: pytest.MonkeyPatch, name: str) -> None:
    correct = getattr(kernels, name)
    ordinary.setattr(kernels, name, lambda *a: 1.1 * correct(*a))
    with pytest.warns(RuntimeWarning, match="self-test failed.*slower"):
        assert not agree(CPU)


def test_a_kernel_that_does_not_compile_is_rejected(ordinary: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such instruction")

    ordinary.setattr(kernels, "pair_figures", broken)
    with pytest.warns(RuntimeWarning, match="no such instruction"):
        assert not agree(CPU)
