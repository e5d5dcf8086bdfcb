import pytest

from discreet.accounting import interpret as meter_module
from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoGuaranteeDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from discreet.accounting.interpret import Meter, epsilon
from discreet.core.errors import SettingError

SAMPLED = PoissonSampledDpEvent(0.02, ClippedSumDpEvent(0.9))


@pytest.mark.parametrize("step", [SAMPLED, GaussianDpEvent(5.0), ComposedDpEvent([SAMPLED, LaplaceDpEvent(50.0)])])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_meter_shows_what_the_accountant_says(step: DpEvent, accountant: str) -> None:
    meter = Meter(step, 1e-5, accountant=accountant)
    for steps in (1, 2, 37, 400):
        whole = epsilon(SelfComposedDpEvent(step, steps), 1e-5, accountant=accountant)
        assert meter.epsilon(steps) == pytest.approx(whole, rel=2e-4)


def test_it_starts_at_nothing_and_only_rises() -> None:
    meter = Meter(SAMPLED, 1e-5)
    seen = [meter.epsilon(steps) for steps in range(0, 200, 7)]
    assert seen[0] == 0.0
    assert seen == sorted(seen)
    assert Meter(NoGuaranteeDpEvent("none"), 1e-5).epsilon(3) == float("inf")


def test_steps_that_fail_more_often_than_not_cost_everything() -> None:
    step = ComposedDpEvent([EpsilonDeltaDpEvent(1.0, 0.6), EpsilonDeltaDpEvent(2.0, 0.6)])
    assert Meter(step, 1e-5).epsilon(1) == Meter(step, 1e-5).epsilon(2) == float("inf")


def test_a_step_is_taken_apart_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    right = meter_module.powers_of
    monkeypatch.setattr(meter_module, "powers_of", lambda *given: made.append(given) or right(*given))
    monkeypatch.setattr(meter_module, "epsilon", lambda *given: pytest.fail("priced from the beginning"))
    meter = Meter(SAMPLED, 1e-5)
    for steps in (2, *range(1000, 1050)):
        meter.epsilon(steps)
    assert len(made) == 1


def test_bad_questions_are_refused() -> None:
    with pytest.raises(SettingError, match="steps to be .*, got -1"):
        Meter(SAMPLED, 1e-5).epsilon(-1)
    with pytest.raises(SettingError, match="delta"):
        Meter(SAMPLED, 0.0)
