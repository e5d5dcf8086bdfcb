"""The fused kernels against ordinary operations, where there is a GPU with Triton."""

import pytest
import torch
from tests.clipping import slow
from torch.nn import functional as F

from discreet.clipping import Flat, Tape, clipped_sum, kernels, norms
from discreet.core.first_test import has_triton

pytestmark = pytest.mark.skipif(not (torch.cuda.is_available() and has_triton()), reason="needs a GPU and Triton")
DTYPES = [torch.bfloat16, torch.float32]


@pytest.fixture(params=[True, False], ids=["one launch", "a launch each"])
def launches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(kernels, "_launches", lambda groups: ([group] for group in groups))


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("length", "first", "second"), [(64, 96, 384), (130, 40, 24), (2, 8, 8)])
def test_figures_of_pairs(length: int, first: int, second: int, dtype: torch.dtype) -> None:
    a, c = (torch.randn(3, length, first, device="cuda", dtype=dtype) for _ in range(2))
    b = torch.randn(3, length, second, device="cuda", dtype=dtype)
    pairs = [(a, b), (b, a), (c, b)]
    order, squares, firsts, seconds, widests, spans = kernels.pair_figures(pairs)
    close = 1e-4 if dtype == torch.bfloat16 else 1e-2
    for place, k in enumerate(order):
        one, two = (norms.gram(factor.double()) for factor in pairs[k])
        diagonals = one.diagonal(dim1=1, dim2=2), two.diagonal(dim1=1, dim2=2)
        wants = (
            (squares, (one * two).sum((1, 2))),
            (firsts, diagonals[0].sum(1)),
            (seconds, diagonals[1].sum(1)),
            (widests, two.abs().sum(2).amax(1)),
            (spans, (diagonals[0] * diagonals[1]).sqrt().sum(1)),
        )
        for got, want in wants:
            assert torch.allclose(got[place], want, rtol=close)


@pytest.mark.usefixtures("launches")
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows(dtype: torch.dtype) -> None:
    values = [torch.randn(5, 20000, device="cuda", dtype=dtype) for _ in range(3)]
    weights = torch.rand(5, device="cuda")
    want = torch.stack([v.double().square().sum(1) for v in values])
    assert torch.allclose(kernels.row_squares(values).double(), want, rtol=1e-5)
    sums = torch.stack([weights.double() @ v.double() for v in values])
    assert torch.allclose(kernels.weighted_rows(values, weights).double(), sums, atol=1e-5)


@pytest.mark.parametrize(("length", "width"), [(128, 768), (37, 100), (1, 2000)])
def test_scaling_and_layer_norm(length: int, width: int) -> None:
    x, g = (torch.randn(6, length, width, device="cuda") * 3 + 1 for _ in range(2))
    weights = torch.rand(6, device="cuda")
    for count in (1, 2):
        scaled = kernels.scaled([x, g][:count], weights, torch.float32)
        assert torch.allclose(scaled, torch.stack([x, g][:count]) * weights[:, None, None])
        sums = kernels.time_sums([x, g][:count])
        assert torch.allclose(sums.double(), torch.stack([x, g][:count]).double().sum(2), atol=1e-3)
    normalized = F.layer_norm(x.double(), (width,), None, None, 1e-5)
    for pairs in ([(x, g)], [(x, g), (x, g)]):
        weights, biases = kernels.norm_sums(pairs, 1e-5)
        for weight, bias in zip(weights, biases, strict=True):
            assert torch.allclose(weight.double(), (normalized * g).sum(1), atol=1e-3)
            assert torch.allclose(bias.double(), g.double().sum(1), atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_model_on_the_gpu_agrees_with_the_slow_loop(bert_case, precision: str) -> None:
    model = bert_case.model.cuda()
    ids = torch.randint(2, 50, (6, 39), device="cuda")

    def losses() -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            return F.cross_entropy(model(input_ids=ids).logits.float(), ids[:, 0] % 3, reduction="none")

    tape = Tape(model)
    with tape:
        values = losses()
    got = clipped_sum(tape.backward(values), Flat(0.5)).gradients
    want = slow.clipped_sum(model, losses(), 0.5)
    off = sum(float((got[n] - want[n]).square().sum()) for n in want)
    size = sum(float(want[n].square().sum()) for n in want)
    # The clip leaves room for rounding, so units come out a little shorter than the exact clip, never longer.
    assert (off / size) ** 0.5 <= (2e-3 if precision == "float32" else 1e-2)
    if precision == "float32":
        assert sum(float(got[n].square().sum()) for n in want) <= size * (1 + 1e-5)
