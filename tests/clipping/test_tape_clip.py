"""No unit adds more than the clip allows, at any scale and precision; parts add up to the whole."""

import math

import pytest
import torch
from tests.clipping import slow
from torch import Tensor, nn

from discreet.clipping import Automatic, Flat, PerLayer, Record, Tape, clipped_sum
from discreet.core.errors import SettingError

CLIPS = [Flat(0.5), PerLayer(0.5), Automatic(0.5)]


def record_of(model: nn.Module, losses) -> Record:
    tape = Tape(model)
    with tape:
        values = losses()
    return tape.backward(values)


def contributions(record: Record, factors) -> list[float]:
    """Return the norm of what each unit really adds to the sum, by summing it alone."""
    found = []
    for unit in range(len(record)):
        alone = torch.zeros(len(record)).index_fill(0, torch.tensor([unit]), 1.0)
        weights = {k: f * alone for k, f in factors.items()} if isinstance(factors, dict) else factors * alone
        total = record.weighted_sum(weights, keep=True)
        found.append(math.sqrt(sum(float(g.double().square().sum()) for g in total.values())))
    return found


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: type(c).__name__)
def test_no_unit_adds_more_than_the_bound(case, clip) -> None:
    record = record_of(case.model, case.losses)
    norms = record.norms()
    got = clipped_sum(record, clip, keep=True)
    added = contributions(record, got.factors)
    assert max(added) <= clip.sensitivity
    if isinstance(clip, Flat):
        want = [min(float(n), clip.norm) for n in norms]
        assert added == pytest.approx(want, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("exponent", [-22, -12, -6, 0, 6, 12, 22])
def test_no_unit_adds_more_than_the_bound_at_adversarial_scales(exponent: int, dtype: torch.dtype) -> None:
    # Steps that cancel: large opposite output gradients for nearly the same input leave a small gradient in which
    # the rounding of the large ones shows.
    torch.manual_seed(exponent)
    worst = 0.0
    for trial in range(12):
        width, length = (3, 40, 130)[trial % 3], (2, 9, 33)[trial // 4]
        model = nn.Sequential(nn.Linear(width, width + 1, bias=trial % 2 == 0))
        base = torch.randn(4, 1, width)
        x = (base + 10.0 ** -(trial % 5) * torch.randn(4, length, width)) * 10.0**exponent
        signs = torch.randn(4, length, width + 1) * 10.0**-exponent
        signs = signs - (1 - 10.0 ** -(trial % 4)) * signs.mean(1, keepdim=True)

        def losses(model=model, x=x, signs=signs) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                return (model(x) * signs).float().sum((1, 2))

        for bound in (1e-6, 1e-2, 1.0):
            record = record_of(model, losses)
            got = clipped_sum(record, Flat(bound), keep=True)
            worst = max(worst, max(contributions(record, got.factors)) / bound)
    assert worst <= 1.0
    assert worst > 0.9  # the margin is small where nothing cancels


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_tied_weights_in_bfloat16_stay_within_the_bound(case_of, clip, scale: float) -> None:
    case = case_of("tied")

    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return scale * case.losses().float()

    record = record_of(case.model, losses)
    added = contributions(record, clipped_sum(record, clip, keep=True).factors)
    assert max(added) <= clip.sensitivity
    assert scale < 1 or max(added) > 0.9 * clip.sensitivity * (1 if isinstance(clip, Flat) else 0.1)


def repeated(kind: str, length: int, into: int, out: int, residue: float) -> tuple[Record, Tensor]:
    """Return the record of one unit whose steps repeat and nearly cancel, and its gradient in float64.

    All entries of a Gram matrix then carry the same rounding, so nothing averages out in their sum.
    """
    generator = torch.Generator().manual_seed(0)
    x, d = torch.randn(1, 1, into, generator=generator), 10 * torch.randn(1, 1, out, generator=generator)
    if kind == "constant":
        x, d = torch.full_like(x, 1.12), torch.full_like(d, 7.2)
    second = -(d + 10 * residue * torch.randn(1, 1, out, generator=generator))
    x = x.expand(1, length, into).contiguous()
    d = torch.cat((d.expand(1, length // 2, out), second.expand(1, length - length // 2, out)), 1)
    model = nn.Linear(into, out, bias=False)
    truth = torch.einsum("bto,bti->oi", d.double(), x.double())
    return record_of(model, lambda: (model(x) * d).sum((1, 2))), truth


@pytest.mark.parametrize(
    ("kind", "length", "into", "out"),
    [("random", 64, 384, 384), ("random", 128, 1536, 384), ("constant", 128, 1024, 1024)],
)
@pytest.mark.parametrize("residue", [1e-3, 2e-4, 1e-6])
def test_repeated_steps_that_cancel_stay_within_the_bound(
    kind: str, length: int, into: int, out: int, residue: float
) -> None:
    record, truth = repeated(kind, length, into, out, residue)
    true = float(truth.norm())
    assert float(record.norms()[0]) == pytest.approx(true, rel=1e-3)
    assert float(record.norms(["weight"])[0]) == pytest.approx(true, rel=1e-3)
    assert float(record.upper_norms()[0]) >= true
    got = clipped_sum(record, Flat(0.1)).gradients["weight"]
    assert float(got.double().norm()) <= 0.1


def test_a_gradient_all_rounding_is_formed_to_know_its_norm() -> None:
    # Even Gram matrices in float64 know nothing of this norm: the residue is one part in 10^9 of the terms' sum.
    generator = torch.Generator().manual_seed(1)
    x, d = torch.randn(1, 1, 256, generator=generator).expand(1, 8, 256), torch.randn(1, 1, 300, generator=generator)
    d = torch.cat((d.expand(1, 4, 300), -d.expand(1, 4, 300)), 1).clone()
    d[0, 0] += 1e-7 * torch.randn(300, generator=generator).abs()
    model = nn.Linear(256, 300, bias=False)
    record = record_of(model, lambda: (model(x) * d).sum((1, 2)))
    true = float(torch.einsum("bto,bti->oi", d.double(), x.double()).norm())
    assert float(record.norms()[0]) == pytest.approx(true, rel=1e-3)


def test_the_bound_does_not_depend_on_the_other_units() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 3)), torch.randn(30, 50, 24)

    def factors(rows: int) -> Tensor:
        return clipped_sum(record_of(model, lambda: model(x[:rows]).square().sum((1, 2))), Flat(0.1)).factors

    assert torch.allclose(factors(30)[:7], factors(7), rtol=1e-6)


def test_a_gradient_that_is_not_finite_adds_nothing() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    x = torch.randn(4, 5, 3)
    x[2, 1, 0] = math.inf
    x[3, 0, 0] = math.nan
    got = clipped_sum(record_of(model, lambda: model(x).square().sum((1, 2))), Flat(0.1))
    want = slow.clipped_sum(model, model(x[:2]).square().sum((1, 2)), 0.1)
    for name, gradient in got.gradients.items():
        assert torch.allclose(gradient, want[name].float(), atol=1e-3 * 0.1)
    assert not got.norms[2:].isfinite().any()


def test_a_zero_gradient_is_safe() -> None:
    model = nn.Linear(3, 2)
    for clip in (Flat(1.0), PerLayer(1.0), Automatic(1.0)):
        got = clipped_sum(record_of(model, lambda: (model(torch.randn(4, 3)) * 0).sum(1)), clip)
        assert all((g == 0).all() for g in got.gradients.values())


@pytest.mark.parametrize("clip", CLIPS, ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("cut", [0, 1, 4])
def test_parts_add_up_to_the_whole(case_of, clip, cut: int) -> None:
    case = case_of("distilbert")
    whole = clipped_sum(record_of(case.model, case.losses), clip)
    tape, parts, running = Tape(case.model), [], {}
    for rows in (slice(0, cut), slice(cut, 6)):
        if rows == slice(0, 0):
            record = tape.empty()
        else:
            with tape:
                losses = case.losses(rows)
            record = tape.backward(losses)
        parts.append(clipped_sum(record, clip, keep=True))
        clipped_sum(record, clip, into=running)
    total = parts[0] + parts[1]
    assert len(total) == len(whole) == 6
    assert torch.allclose(total.norms, whole.norms, rtol=1e-5)
    size = max(float(g.abs().max()) for g in whole.gradients.values())
    for name, gradient in whole.gradients.items():
        assert torch.allclose(total.gradients[name], gradient, atol=1e-5 * size)
        assert torch.allclose(running[name], gradient, atol=1e-5 * size)


def test_per_layer_bounds_are_each_kept(bert_case) -> None:
    record = record_of(bert_case.model, bert_case.losses)
    layers = record.layers
    bounds = {layer: 0.01 * (k + 1) for k, layer in enumerate(layers)}
    clip = PerLayer(bounds=bounds)
    assert clip.sensitivity == pytest.approx(math.sqrt(sum(b * b for b in bounds.values())))
    norms = record.layer_norms()
    factors = clip.factors(record)
    for layer in layers:
        assert (factors[layer] * norms[layer] <= bounds[layer]).all()
        assert torch.allclose(factors[layer], (bounds[layer] / norms[layer]).clamp_max(1.0), rtol=1e-3)
    with pytest.raises(SettingError, match="names of every trainable layer"):
        PerLayer(bounds={"elsewhere": 1.0}).factors(record)


def test_automatic_clipping_is_the_published_formula(bert_case) -> None:
    record = record_of(bert_case.model, bert_case.losses)
    norms = record.norms()
    got = clipped_sum(record, Automatic(norm=2.0, stability=0.5))
    assert torch.allclose(got.factors, 2.0 / (norms + 0.5), rtol=1e-3)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 1e-20])
def test_a_bound_that_is_none_is_refused(value: float) -> None:
    for make in (Flat, PerLayer, Automatic, lambda v: PerLayer(bounds={"a": v})):
        with pytest.raises(SettingError):
            make(value)
    with pytest.raises(SettingError):
        Automatic(1.0, stability=min(value, 0.0))
    with pytest.raises(SettingError):
        PerLayer()
