import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from discreet.accounting.interpret import epsilon
from discreet.accounting.risk import most_true_positives
from discreet.catalog import protection_from_table
from discreet.clipping.tape import Tape
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.data.samplers import CyclicPoisson, Poisson
from discreet.protections.base import Conditions
from discreet.protections.dp_sgd import DPSGD


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


def _training(rate: float, steps: int) -> Callable[[float], DpEvent]:
    return lambda noise: SelfComposedDpEvent(PoissonSampledDpEvent(rate, ClippedSumDpEvent(noise)), steps)


def test_a_budget_is_kept_and_not_wasted() -> None:
    event = _training(0.05, 200)
    found = DPSGD.for_budget(2.0, 1e-5, sampling_rate=0.05, steps=200).noise_multiplier
    assert epsilon(event(found), 1e-5) <= 2.0
    assert epsilon(event(0.99 * found), 1e-5) > 2.0


def test_an_attack_bound_is_kept_and_not_wasted() -> None:
    event = _training(0.05, 200)
    asked = DPSGD(true_positive_rate=0.05, false_positive_rate=0.01)
    found = asked.resolve(Conditions(None, 1000, 1000, 50, 200, 10.0, 1e-5)).noise
    assert most_true_positives(event(found), 0.01) <= 0.05
    assert most_true_positives(event(0.99 * found), 0.01) > 0.05


METHODS = [
    {"sampler": "truncated-poisson"},
    {"sampler": "random-allocation"},
    {"correlation": "lambda-cgd", "decay": 0.8},
    {"correlation": "banded", "bands": 3},
]


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("steps", [1, 7, 23])
def test_the_names_of_the_steps_compose_to_the_training(method: dict[str, object], steps: int) -> None:
    """What the ledger counts, name by name, is what the noise is calibrated to; prefixes cost no more."""
    protect = DPSGD(2.0, **method)
    sampler = protect.sampler_for(10, 95)
    named = dict(reversed(protect.step_cost(sampler, step, 95)) for step in range(steps))
    counted = epsilon(ComposedDpEvent(list(named.values())), 1e-5, "zero-out")
    assert counted == pytest.approx(epsilon(protect.training_cost(sampler, steps, 95), 1e-5, "zero-out"), rel=1e-6)
    assert len(named) == sampler.spends(steps, 95)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_method_survives_its_calibration_and_its_settings_file(method: dict[str, object]) -> None:
    asked = DPSGD(epsilon=2.0, clip_norm=0.3, **method)
    conditions = Conditions(None, 95, 95, 10, 30, 3.0, 1e-3)
    resolved = asked.resolve(conditions)
    cost = resolved.training_cost(resolved.sampler_for(10, 95), 30, 95)
    assert 1.99 < epsilon(cost, 1e-3, "zero-out") <= 2.0
    assert all(getattr(resolved, name) == value for name, value in method.items())
    assert protection_from_table(asked.as_table()) == asked
    assert method.items() <= asked.facts().items()
    assert "sampler" not in DPSGD(1.0).facts() and "correlation" not in DPSGD(1.0).facts()


def test_without_noise_there_is_no_guarantee() -> None:
    assert math.isinf(epsilon(DPSGD(0.0).event, 1e-5))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DPSGD(-1.0), "noise_multiplier to be .*, got -1.0"),
        (lambda: DPSGD(1.0, clip_norm=0.0), "clip_norm to be > 0.*, got 0.0"),
        (lambda: DPSGD(1.0, clipping="flta"), "Did you mean 'flat'"),
        (lambda: DPSGD(1.0, sampler="poison"), "Did you mean 'poisson'"),
        (lambda: DPSGD(1.0, correlation="lambda"), "correlation to be one of"),
        (lambda: DPSGD(1.0, correlation="banded", sampler="poisson"), "sampler to be left out with correlation"),
        (lambda: DPSGD(1.0, decay=0.5), "decay to be used with correlation"),
        (lambda: DPSGD(1.0, correlation="lambda-cgd", bands=3), "bands to be used with correlation"),
        (lambda: DPSGD(1.0, correlation="lambda-cgd", decay=1.0), "decay to be in"),
        (lambda: DPSGD(1.0, correlation="banded", bands=1), "bands to be"),
        (lambda: DPSGD(1.0, correlation="banded", bands=9).sampler_for(20, 100), "bands to be <= 5"),
        (lambda: DPSGD(1.0, correlation="banded").step_cost(Poisson(0.1), 0, 100), "sampler to be CyclicPoisson"),
        (lambda: DPSGD(1.0, correlation="banded").step_cost(CyclicPoisson(3, 0.1), 0, 100), "groups to be >= 4"),
        (lambda: DPSGD(1.0, correlation="lambda-cgd").step_cost(CyclicPoisson(3, 0.1), 0, 100), "rate to be 1"),
        (lambda: DPSGD.for_budget(-1.0, 1e-5, sampling_rate=0.1, steps=10), "epsilon to be .*, got -1.0"),
        (lambda: DPSGD.for_budget(1.0, 1e-5, sampling_rate=1.7, steps=10), "sampling_rate to be .*, got 1.7"),
        (lambda: DPSGD.for_budget(1.0, 1e-5, sampling_rate=0.0, steps=10), "sampling_rate to be .*, got 0.0"),
        (lambda: DPSGD.for_budget(1.0, 0.0, sampling_rate=0.1, steps=10), "delta to be .*, got 0.0"),
    ],
)
def test_bad_values_are_refused(call, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        call()
