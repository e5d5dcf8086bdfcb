import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.errors import SettingError
from discreet.models.settings import TrainSettings


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
        ({"epochs": 0}, "epochs to be .*, got 0"),
        ({"batch_size": 0}, "batch_size to be .*, got 0"),
        ({"learning_rate": -1.0}, "learning_rate to be .*, got -1.0"),
        ({"warmup": 2.0}, "warmup to be .*, got 2.0"),
        ({"accumulate": 64, "batch_size": 32}, "accumulate to be <= batch_size=32.*, got 64"),
        ({"patience": 0}, "patience to be .*, got 0"),
        ({"precision": "fp8"}, "precision to be .*, got 'fp8'"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        TrainSettings(**changes)


def test_a_head_can_learn_faster_than_the_encoder() -> None:
    from torch import nn

    from discreet.training.loop import optimizer_for, set_rate

    model = nn.ModuleDict({"encoder": nn.Linear(3, 4), "head": nn.Linear(4, 2)})
    optimizer = optimizer_for(model, TrainSettings(head_rate=10.0))
    set_rate(optimizer, 0.5)
    paces = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert paces[id(model["encoder"].weight)] == 0.5 and paces[id(model["head"].weight)] == 5.0
    assert len(paces) == 4
