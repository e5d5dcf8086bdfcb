import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.errors import SettingError
from discreet.training.settings import TrainSettings


@given(st.integers(1, 500), st.floats(0, 1))
def test_the_rate_rises_to_its_peak_and_falls_to_almost_nothing(total: int, warmup: float) -> None:
    settings = TrainSettings(warmup=warmup)
    rates = [settings.rate_at(step, total, 1.0) for step in range(total)]
    top = rates.index(max(rates))
    assert max(rates) == pytest.approx(1.0)
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert all(rate > 0 for rate in rates)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"learning_rate": -1.0}, "learning_rate=-1.0"),
        ({"warmup": 2.0}, "warmup=2.0"),
        ({"accumulate": 64}, "accumulate=64 <= batch_size=32"),
        ({"patience": 0}, "patience=0"),
        ({"precision": "fp8"}, "precision='fp8'"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TrainSettings(**changes)
