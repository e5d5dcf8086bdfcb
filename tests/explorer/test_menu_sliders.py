"""Dials keep to their ranges and to the protection they belong to."""

from __future__ import annotations

import math

import pytest

from discreet.catalog import PROTECTIONS, protection, protection_class
from discreet.core.errors import SettingError
from discreet.explorer.menu import SLIDERS, checked, sliders_of, started


@pytest.mark.parametrize("name", [name for name in PROTECTIONS if name != "santext+"])
def test_every_protection_can_be_set_by_where_its_dials_stand_at_first(name: str) -> None:
    dials = sliders_of(protection_class(name))
    start = started(dials)
    assert start and sum(dial.alone for dial in dials if dial.name in start) <= 1
    assert checked(dials, start) == start
    if name != "dir-dp-sgd":  # its concentration is solved from an epsilon when it is built
        assert protection(name, start).name == name


@pytest.mark.parametrize("value", [0.0, -1.0, 1e9, math.nan, math.inf, "8", None, True, [8.0]])
def test_what_is_outside_the_range_is_refused_with_value_rule_and_remedy(value: object) -> None:
    with pytest.raises(SettingError, match=r"epsilon to be a number in \[0.1, 1000\], got .*. Move the slider."):
        checked(sliders_of(protection_class("dp-sgd")), {"epsilon": value})


def test_counts_are_whole() -> None:
    with pytest.raises(SettingError, match="an integer"):
        checked(sliders_of(protection_class("texthide")), {"mix": 2.5})
    assert checked(sliders_of(protection_class("texthide")), {"mix": 2.0}) == {"mix": 2}


def test_settings_that_are_no_dials_cannot_be_moved_from_the_page() -> None:
    """Least of all those that name a file."""
    for name, key in (("ldp", "public"), ("dp-sgd", "clip_norm"), ("texthide", "epsilon")):
        with pytest.raises(SettingError, match="Expected dial to be .*, got "):
            checked(sliders_of(protection_class(name)), {key: 1.0})
    with pytest.raises(SettingError, match="choose one"):
        checked(sliders_of(protection_class("dp-sgd")), {"epsilon": 1.0, "noise_multiplier": 1.0})


def test_a_setting_s_own_value_may_lie_beyond_the_dial() -> None:
    """As the noise of a strict training does; any other value beyond it is refused."""
    dials = sliders_of(protection_class("dp-sgd"))
    assert checked(dials, {"noise_multiplier": 12.5}, {"noise_multiplier": 12.5}) == {"noise_multiplier": 12.5}
    for own in ({"noise_multiplier": 12.5}, {}, None):
        with pytest.raises(SettingError, match="Expected noise_multiplier to be .*, got 13"):
            checked(dials, {"noise_multiplier": 13.0}, own)


def test_every_dial_holds_its_own_start() -> None:
    for dial in SLIDERS:
        assert dial.low <= dial.start <= dial.high
        assert dial.whole or dial.low > 0, "it moves by its logarithm"
