import math

import pytest
import torch
from torch import nn

from discreet.accounting.interpret import epsilon
from discreet.accounting.risk import most_true_positives
from discreet.clipping.tape import Tape
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.protections.dp_sgd import DPSGD, _training


def record_of(rows: int, scale: float = 1.0, units: torch.Tensor | None = None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    x = scale * torch.randn(rows, 5)
    tape = Tape(model)
    with tape:
        losses = nn.functional.cross_entropy(scale * model(x), torch.arange(rows) % 3, reduction="none")
    return tape.backward(losses, units)


@pytest.mark.parametrize("clipping", ["flat", "per-layer", "automatic"])
def test_no_unit_adds_more_than_the_clip_norm(clipping: str) -> None:
    protect = DPSGD(0.0, clip_norm=0.3, clipping=clipping)
    for scale in (1e-6, 1.0, 1e6):
        sums: dict[str, torch.Tensor] = {}
        protect.gather(record_of(1, scale), sums, Rng(0))
        assert math.sqrt(sum(float(g.double().square().sum()) for g in sums.values())) <= 0.3


def test_the_noise_has_the_declared_width_and_is_fresh() -> None:
    protect = DPSGD(noise_multiplier=2.0, clip_norm=0.5)
    zeros = {"a": torch.zeros(200, 500), "b": torch.zeros(100_000)}
    first, again, other = (protect.release(zeros, Rng(seed)) for seed in (1, 1, 2))
    for name in zeros:
        assert first[name].std().item() == pytest.approx(1.0, rel=0.02)
        assert abs(first[name].mean().item()) < 0.02
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
    assert abs(torch.corrcoef(torch.stack([first["a"].flatten(), first["b"]]))[0, 1]) < 0.02


def test_a_budget_is_kept_and_not_wasted() -> None:
    event = _training(0.05, 200)
    found = DPSGD.for_budget(2.0, 1e-5, sampling_rate=0.05, steps=200).noise_multiplier
    assert epsilon(event(found), 1e-5) <= 2.0
    assert epsilon(event(0.99 * found), 1e-5) > 2.0


def test_an_attack_bound_is_kept_and_not_wasted() -> None:
    event = _training(0.05, 200)
    found = DPSGD.for_risk(0.05, 0.01, sampling_rate=0.05, steps=200).noise_multiplier
    assert most_true_positives(event(found), 0.01) <= 0.05
    assert most_true_positives(event(0.99 * found), 0.01) > 0.05


def test_without_noise_there_is_no_guarantee() -> None:
    assert math.isinf(epsilon(DPSGD(0.0).event, 1e-5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DPSGD(-1.0), "noise_multiplier to be .*, got -1.0"),
        (lambda: DPSGD(1.0, clip_norm=0.0), "clip_norm to be > 0.*, got 0.0"),
        (lambda: DPSGD(1.0, clipping="flta"), "Did you mean 'flat'"),
        (lambda: DPSGD.for_budget(-1.0, 1e-5, sampling_rate=0.1, steps=10), "epsilon to be .*, got -1.0"),
        (lambda: DPSGD.for_budget(1.0, 1e-5, sampling_rate=1.7, steps=10), "sampling_rate to be .*, got 1.7"),
        (lambda: DPSGD.for_budget(1.0, 1e-5, sampling_rate=0.0, steps=10), "sampling_rate to be .*, got 0.0"),
        (lambda: DPSGD.for_budget(1.0, 0.0, sampling_rate=0.1, steps=10), "delta to be .*, got 0.0"),
    ],
)
def test_bad_values_are_refused(call, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        call()
