import math

import pytest

from discreet.core import errors as checks
from discreet.core.errors import SettingError


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, "many", None])
def test_positive_refuses(value: object) -> None:
    with pytest.raises(SettingError, match="Expected noise to be > 0 and finite.*, got .*. Add more."):
        checks.positive("noise", value, "Add more.")


@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan])
def test_probability_refuses(value: float) -> None:
    with pytest.raises(SettingError, match=r"in \[0, 1\]"):
        checks.probability("rate", value)


@pytest.mark.parametrize("value", [0, 1, math.nan])
def test_open_probability_refuses(value: float) -> None:
    with pytest.raises(SettingError, match=r"in \(0, 1\)"):
        checks.open_probability("delta", value)


@pytest.mark.parametrize("value", [0, 1.5, True, -3])
def test_whole_refuses(value: float) -> None:
    with pytest.raises(SettingError, match="an integer >= 1, got "):
        checks.whole("steps", value)


def test_good_values_pass_through() -> None:
    assert checks.positive("x", 2) == 2.0
    assert checks.probability("x", 1) == 1.0
    assert checks.non_negative("x", 0) == 0.0
    assert checks.whole("x", 3.0) == 3
    assert checks.one_of("x", "a", ["a", "b"]) == "a"
