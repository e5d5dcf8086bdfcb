from typing import Any

import pytest
from torch import nn

from discreet.catalog import PROTECTIONS, protection, protection_class, protection_from_table, settings_of_protection
from discreet.core.errors import SettingError
from discreet.protections.base import Conditions
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD

MODEL = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def build(name: str = "dp-sgd", **values: Any) -> object:
    given = Conditions(MODEL, units=100, rows=100, batch_size=10, steps=50, epochs=5.0, delta=1e-5)  # type: ignore[arg-type]
    return protection(name, values).resolve(given)


def test_the_stricter_of_two_targets_wins() -> None:
    by_budget = build(epsilon=8.0)
    by_risk = build(true_positive_rate=0.05)
    both = build(epsilon=8.0, true_positive_rate=0.05)
    assert isinstance(both, DPSGD) and isinstance(by_budget, DPSGD) and isinstance(by_risk, DPSGD)
    assert both.noise_multiplier == max(by_budget.noise_multiplier, by_risk.noise_multiplier)


def test_a_partition_by_layers() -> None:
    found = build("dir-dp-sgd", kappa=5.0, partition="layers")
    assert isinstance(found, DirDPSGD)
    assert [block.names for block in found.blocks] == [("0.weight", "0.bias"), ("1.weight", "1.bias")]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("dp-sgd", {"epsilon": 3.0, "clipping": "automatic"}),
        ("dir-dp-sgd", {"kappa": 2.0}),
        ("texthide", {"masks": 16, "mix": 2, "mix_cap": 0.7}),
    ],
)
def test_settings_come_back_from_a_file_as_they_were(name: str, values: dict[str, Any]) -> None:
    asked = protection(name, values)
    assert protection_from_table(asked.as_table()) == asked
    assert asked.as_table()["name"] == name


def test_every_registered_protection_has_settings_that_say_what_they_are_for() -> None:
    for name in PROTECTIONS:
        kind = protection_class(name)
        assert kind.name == name
        assert kind.place in {"text", "representation", "gradient"}
        assert kind.default_part in {"head", "all"} and kind.default_head in {"linear", "mlp"}


def test_the_command_line_has_an_option_for_each_setting_of_every_protection() -> None:
    from discreet.cli.train import options_of_protections

    options = {option.name for option in options_of_protections()} | {"epsilon", "delta"}
    for name in PROTECTIONS:
        assert set(settings_of_protection(name)) <= options, name


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("dp-sgd", {}, "Expected epsilon, noise_multiplier or true_positive_rate"),
        ("dp-sdg", {"epsilon": 1.0}, "Did you mean 'dp-sgd'"),
        ("dp-sgd", {"epsilon": 0.0}, "epsilon to be > 0.*, got 0.0"),
        ("dp-sgd", {"epsilon": 1.0, "delta": 1.0}, "delta to be .*, got 1.0"),
        ("dp-sgd", {"epsilon": 1.0, "clip_norm": 0.0}, "clip_norm to be .*, got 0.0"),
        (
            "dp-sgd",
            {"epsilon": 1.0, "kappa": 3.0},
            "kappa to be left out for dp-sgd, .* It belongs to dir-dp-sgd",
        ),
        ("dp-sgd", {"epsilon": 1.0, "colour": 3.0}, "No protection has it"),
        ("dir-dp-sgd", {}, "Expected kappa or epsilon"),
        ("dir-dp-sgd", {"kappa": float("inf")}, "kappa to be .*, got inf"),
        (
            "dir-dp-sgd",
            {"kappa": 1.0, "noise_multiplier": 1.0},
            "left out for dir-dp-sgd, got 1.0. It belongs to dp-sgd",
        ),
        ("dp-sgd", {"true_positive_rate": 2.0}, "true_positive_rate to be .*, got 2.0"),
        ("texthide", {"epsilon": 2.0}, "epsilon to be left out for texthide, got 2.0"),
        ("texthide", {"masks": 0, "fresh_masks": True}, "masks to be left out with fresh masks, got 0"),
        ("texthide", {"mix": 0}, "mix to be an integer >= 1, got 0"),
        ("texthide", {"mix": 4, "mix_cap": 0.2}, r"cap to be in \[0.25, 1\], got 0.2"),
        ("texthide", {"mix": 1, "public": "web.csv"}, "mix to be >= 2 with a public corpus, got 1"),
        ("texthide", {"public_label": "even"}, "public_label to be 'dropped' without public text, got 'even'"),
    ],
)
def test_bad_settings_are_refused(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        protection(name, values)


def test_a_file_without_a_name_is_refused() -> None:
    with pytest.raises(SettingError, match="Expected .protect. with a name"):
        protection_from_table({"epsilon": 3.0})
