import math

import pytest

from discreet.accounting import calibrate
from discreet.accounting.events import (
    ClippedSumDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
)
from discreet.accounting.interpret import epsilon
from discreet.core.errors import SettingError


def training(noise: float, rate: float = 0.01, steps: int = 2000) -> DpEvent:
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, ClippedSumDpEvent(noise)), steps)


@pytest.mark.parametrize("target", [0.1, 1.0, 3.0, 20.0])
@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp"])
def test_least_noise_keeps_the_budget_and_wastes_little(target: float, accountant: str) -> None:
    noise = calibrate.least_noise(training, epsilon=target, delta=1e-5, accountant=accountant)
    assert epsilon(training(noise), 1e-5, accountant=accountant) <= target
    assert epsilon(training(noise * 0.999), 1e-5, accountant=accountant) > target


def test_any_parameter_of_any_event_can_be_solved_for() -> None:
    def seen(noise: float) -> DpEvent:
        return SelfComposedDpEvent(VisibleVectorsDpEvent(GaussianDpEvent(noise), 1, 100), 100)

    noise = calibrate.least_noise(seen, epsilon=2.0, delta=1e-5, adjacency="replace-one")
    assert 1.99 < epsilon(seen(noise), 1e-5, "replace-one") <= 2.0
    kappa = calibrate.largest_rate(
        lambda k: VonMisesFisherDpEvent(k, 10_000),
        epsilon=2.0,
        delta=1e-5,
        adjacency="replace-one",
        low=1e-3,
        high=1e6,
        guess=1.0,
    )
    assert 1.99 < epsilon(VonMisesFisherDpEvent(kappa, 10_000), 1e-5, "replace-one") <= 2.0
    scale = calibrate.least_noise(LaplaceDpEvent, epsilon=0.5, delta=1e-9)
    assert scale == pytest.approx(2.0, rel=1e-3)


def test_most_steps_is_the_last_that_fits() -> None:
    step = PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0))
    steps = calibrate.most_steps(step, epsilon=2.0, delta=1e-5)
    assert epsilon(SelfComposedDpEvent(step, steps), 1e-5) <= 2.0 < epsilon(SelfComposedDpEvent(step, steps + 1), 1e-5)
    assert calibrate.most_steps(GaussianDpEvent(0.1), epsilon=1.0, delta=1e-5) == 0
    assert calibrate.most_steps(GaussianDpEvent(1e6), epsilon=1.0, delta=1e-5, limit=1000) == 1000


def test_largest_rate_is_the_largest_that_fits() -> None:
    rate = calibrate.largest_rate(lambda q: training(1.0, q), epsilon=3.0, delta=1e-5)
    assert epsilon(training(1.0, rate), 1e-5) <= 3.0 < epsilon(training(1.0, rate * 1.001), 1e-5)
    assert calibrate.largest_rate(lambda q: training(100.0, q, 1), epsilon=3.0, delta=1e-5) == 1.0


def test_the_solver_finds_roots_of_awkward_costs() -> None:
    def cliff(x: float) -> float:
        return math.inf if x < 2 else 1 / (x - 1.5)

    assert calibrate.least(cliff, 0.5, low=1e-3, high=1e6, guess=1.0) == pytest.approx(3.5, rel=2e-4)
    assert calibrate.least(lambda x: 0.0, 1.0, low=0.5, high=10.0, guess=3.0) == 0.5
    assert calibrate.least(lambda x: 2.0 if x < 7 else 0.0, 1.0, low=0.5, high=10.0, guess=1.0) == pytest.approx(
        7, rel=2e-4
    )
    with pytest.raises(SettingError, match="Not even 10"):
        calibrate.least(lambda x: 2.0, 1.0, low=0.5, high=10.0, guess=3.0)
    with pytest.raises(SettingError, match="epsilon"):
        calibrate.least_noise(training, epsilon=0.0, delta=1e-5)
