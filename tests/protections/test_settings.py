import pytest
from torch import nn

from discreet.core.errors import SettingError
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.settings import ProtectSettings

MODEL = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def build(**changes: object) -> object:
    return ProtectSettings(**changes).build(MODEL, sampling_rate=0.1, steps=50, delta=1e-5)


def test_the_stricter_of_two_targets_wins() -> None:
    by_budget = build(epsilon=8.0)
    by_risk = build(true_positive_rate=0.05)
    both = build(epsilon=8.0, true_positive_rate=0.05)
    assert isinstance(both, DPSGD) and isinstance(by_budget, DPSGD) and isinstance(by_risk, DPSGD)
    assert both.noise_multiplier == max(by_budget.noise_multiplier, by_risk.noise_multiplier)


def test_a_partition_by_layers() -> None:
    found = build(name="dir-dp-sgd", kappa=5.0, partition="layers")
    assert isinstance(found, DirDPSGD)
    assert [block.names for block in found.blocks] == [("0.weight", "0.bias"), ("1.weight", "1.bias")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "Expected --epsilon, --noise-multiplier or --true-positive-rate"),
        ({"name": "dp-sdg", "epsilon": 1.0}, "Did you mean 'dp-sgd'"),
        ({"epsilon": 0.0}, "epsilon=0.0 > 0"),
        ({"epsilon": 1.0, "delta": 1.0}, "delta=1.0"),
        ({"epsilon": 1.0, "clip_norm": 0.0}, "clip_norm=0.0"),
        ({"epsilon": 1.0, "kappa": 3.0}, "kappa=3.0 left out for dp-sgd"),
        ({"name": "dir-dp-sgd"}, "Expected --kappa"),
        ({"name": "dir-dp-sgd", "kappa": float("inf")}, "kappa=inf"),
        ({"name": "dir-dp-sgd", "kappa": 1.0, "noise_multiplier": 1.0}, "left out for dir-dp-sgd"),
        ({"true_positive_rate": 2.0}, "true_positive_rate=2.0"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        ProtectSettings(**changes)
