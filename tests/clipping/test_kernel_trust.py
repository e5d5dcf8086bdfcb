"""The kernels are believed only after they agreed with ordinary operations; this needs no GPU."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from discreet.clipping import kernels
from discreet.clipping.kernels import agree

CPU = torch.device("cpu")


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Put ordinary operations in the place of the kernels."""

    def pair_figures(pairs: list[tuple[Tensor, Tensor]]) -> tuple[object, ...]:
        ((a, b),) = pairs
        one, two = (t @ t.mT for t in (a, b))
        first, second = one.diagonal(dim1=1, dim2=2), two.diagonal(dim1=1, dim2=2)
        steps = (first * second).sqrt().sum(1)
        found = ((one * two).sum((1, 2)), first.sum(1), second.sum(1), two.abs().sum(2).amax(1), steps)
        return ([0], *(figure[None] for figure in found))

    def norm_sums(given: Tensor, grad: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return (F.layer_norm(given, given.shape[2:], eps=eps) * grad).sum(1), grad.sum(1)

    monkeypatch.setattr(kernels, "pair_figures", pair_figures)
    monkeypatch.setattr(kernels, "norm_sums", norm_sums)
    monkeypatch.setattr(kernels, "row_squares", lambda values: values[0].square().sum(1)[None])
    monkeypatch.setattr(kernels, "weighted_rows", lambda values, weights: (weights @ values[0])[None])
    monkeypatch.setattr(kernels, "scaled", lambda values, weights, dtype: values * weights[:, None])
    return monkeypatch


def test_right_answers_are_believed(ordinary: pytest.MonkeyPatch) -> None:
    assert agree(CPU)


@pytest.mark.parametrize("name", ["row_squares", "weighted_rows", "scaled"])
def test_wrong_answers_are_not(ordinary: pytest.MonkeyPatch, name: str) -> None:
    right = getattr(kernels, name)
    ordinary.setattr(kernels, name, lambda *a: 1.1 * right(*a))
    with pytest.warns(RuntimeWarning, match="other figures.*slower"):
        assert not agree(CPU)


def test_a_kernel_that_does_not_compile_is_left_alone(ordinary: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("no such instruction")

    ordinary.setattr(kernels, "pair_figures", broken)
    with pytest.warns(RuntimeWarning, match="no such instruction"):
        assert not agree(CPU)
