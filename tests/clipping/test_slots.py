"""Slots that the kernels process together, with ordinary operations in place of the kernels; this needs no GPU."""

import pytest
import torch
from tests.clipping import slow
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.clipping import Flat, Tape, clipped_sum, kernels, record, slots
from discreet.clipping.slots import Units, Weights


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Replace the kernels by ordinary operations, and return the list of their calls with the number of tensors."""
    made: list[tuple[str, int]] = []

    def pair_figures(pairs: list[tuple[Tensor, Tensor]]) -> tuple[object, ...]:
        columns = []
        for a, b in pairs:
            one, two = (t.double() @ t.double().mT for t in (a, b))
            first, second = one.diagonal(dim1=1, dim2=2), two.diagonal(dim1=1, dim2=2)
            figures = ((one * two).sum((1, 2)), first.sum(1), second.sum(1), two.abs().sum(2).amax(1))
            columns.append((*figures, (first * second).sqrt().sum(1)))
        order = list(reversed(range(len(pairs))))
        return (order, *(torch.stack([columns[k][place] for k in order]) for place in range(5)))

    def norm_sums(pairs: list[tuple[Tensor, Tensor]], eps: float) -> tuple[Tensor, Tensor]:
        weights = [(F.layer_norm(x, x.shape[2:], eps=eps) * grad).sum(1) for x, grad in pairs]
        return torch.stack(weights), torch.stack([grad.sum(1) for _, grad in pairs])

    ordinary = {
        "pair_figures": pair_figures,
        "norm_sums": norm_sums,
        "row_squares": lambda values: torch.stack([v.double().square().sum(1) for v in values]),
        "weighted_rows": lambda values, weights: torch.stack([weights @ v for v in values]),
        "scaled": lambda values, rows, dtype: torch.stack([v * rows[:, None, None] for v in values]).to(dtype),
        "time_sums": lambda values: torch.stack(values).sum(2, dtype=torch.float32),
    }
    for name, function in ordinary.items():

        def counted(values, *rest, name=name, function=function):
            made.append((name, len(values)))
            return function(values, *rest)

        monkeypatch.setattr(kernels, name, counted)
    monkeypatch.setattr(kernels, "usable", lambda *tensors: not any(t.requires_grad for t in tensors))
    monkeypatch.setattr(slots, "product_precision", lambda device: "tf32")
    return made


@pytest.mark.parametrize("limit", [0, 1 << 20], ids=["one by one", "together"])
def test_layers_processed_together_agree_with_the_slow_loop(
    calls: list[tuple[str, int]], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_DEFERRED_BYTES", limit)
    torch.manual_seed(0)
    blocks = [layer for _ in range(3) for layer in (nn.Linear(8, 8), nn.LayerNorm(8), nn.Tanh())]
    model, x = nn.Sequential(*blocks, nn.Linear(8, 2)), torch.randn(5, 4, 8)
    tape = Tape(model)
    with tape:
        losses = model(x).square().sum((1, 2))
    total = clipped_sum(tape.backward(losses), Flat(0.5))
    expected = slow.gradients(model, model(x).square().sum((1, 2)))
    assert torch.allclose(total.norms, torch.tensor([slow.norm(g) for g in expected]), rtol=1e-5)
    for name, gradient in total.gradients.items():
        sums = sum(f * g[name] for f, g in zip(total.factors, expected, strict=True))
        assert torch.allclose(gradient, sums, atol=1e-5)
    norms = [count for name, count in calls if name == "norm_sums"]
    assert norms == ([1, 1, 1] if limit == 0 else [3])


def test_sums_over_time_keep_their_order(calls: list[tuple[str, int]]) -> None:
    torch.manual_seed(0)
    values = [torch.randn(3, length, width) for length, width in ((4, 6), (5, 6), (4, 6), (4, 2))]
    values.append(torch.randn(3, 6, 4).transpose(1, 2))  # of the first one's shape, in another layout
    for result, value in zip(slots.time_sums(values), values, strict=True):
        torch.testing.assert_close(result, value.sum(1))
    assert calls == [("time_sums", 2)]


def test_factors_scaled_together_are_found_by_their_pairs(calls: list[tuple[str, int]]) -> None:
    torch.manual_seed(0)
    units = Units(3)
    shared = torch.randn(3, 4, 5)
    factors = [(shared, torch.randn(3, 4, 7)), (shared, torch.randn(3, 4, 6)), (torch.randn(3, 4, 9), shared.neg())]
    pairs = [
        slots.Pair(str(k), "layer", torch.Size((g.shape[2], i.shape[2])), i, g, units)
        for k, (i, g) in enumerate(factors)
    ]
    weights = Weights.of(torch.rand(3), units)
    keyed = {(*pair.scaled_key, id(weights)): pair.inputs if pair.scales_inputs else pair.grads for pair in pairs}
    together = slots._scaled_together(keyed, weights)
    assert calls == [("scaled", 2)]  # the shared input once
    for pair in pairs:
        sums = torch.einsum("b,bto,bti->oi", weights.units, pair.grads, pair.inputs)
        torch.testing.assert_close(pair.weighted(weights, together), sums)
    assert len(together) == 2
    named = dict(slots.pair_sums(list(reversed(pairs)), weights))
    assert list(named) == ["0", "1", "2"]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pairs_of_one_shape_are_summed_in_one_product(dtype: torch.dtype, transposed: bool) -> None:
    units = slots.Units(5)
    shape = torch.Size((7, 6) if transposed else (6, 7))
    pairs = [
        slots.Pair(
            str(k), "layer", shape, torch.randn(5, 4, 7).to(dtype), torch.randn(5, 4, 6).to(dtype), units, transposed
        )
        for k in range(3)
    ]
    weights = Weights.of(torch.rand(5), units)
    for pair, total in zip(pairs, slots.stacked_sums(pairs, weights), strict=True):
        torch.testing.assert_close(total, pair.weighted(weights, {}), rtol=1e-5, atol=1e-5)


def test_pairs_are_grouped_by_shape_and_each_is_summed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    units = slots.Units(3)
    widths = [(4, 5), (4, 5), (6, 5), (4, 5), (5, 4)]
    pairs = [
        slots.Pair(str(k), "layer", torch.Size((o, i)), torch.randn(3, 2, i), torch.randn(3, 2, o), units)
        for k, (i, o) in enumerate(widths)
    ]
    weights = Weights.of(torch.rand(3), units)
    expected = {pair.name: pair.weighted(weights, {}) for pair in pairs}
    monkeypatch.setattr(slots, "_SUM_BYTES", 2 * 3 * 2 * 9 * 4)  # two pairs at once
    rest = list(pairs)
    sums = dict(slots._sums_by_shape(rest, weights))
    assert len(sums) == 2
    assert sorted([*sums, *(pair.name for pair in rest)]) == ["0", "1", "2", "3", "4"]
    for name, total in sums.items():
        torch.testing.assert_close(total, expected[name])
