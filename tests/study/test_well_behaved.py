from __future__ import annotations

import pytest

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.study.frontier import Measured
from discreet.study.well_behaved import well_behaved

NOISES = [0.1, 0.2, 0.5, 1.0, 2.0]


def curve(values: list[float], half: float = 0.02) -> list[Measured]:
    return [Measured(value, value - half, value + half, 1) for value in values]


def test_a_steady_fall_is_well_behaved() -> None:
    found = well_behaved(NOISES, curve([0.9, 0.6, 0.3, 0.15, 0.05]), rng=Rng(0))
    assert found.correlation == pytest.approx(-1)
    assert found.steady


def test_a_significant_rise_is_counted_and_a_small_one_is_not() -> None:
    rising = well_behaved(NOISES, curve([0.9, 0.3, 0.6, 0.15, 0.05]), rng=Rng(0))
    assert (rising.inversions, rising.steady) == (1, False)
    noisy = well_behaved(NOISES, curve([0.9, 0.60, 0.61, 0.15, 0.05]), rng=Rng(0))
    assert noisy.inversions == 0


def test_a_flat_curve_says_nothing() -> None:
    found = well_behaved(NOISES, curve([0.50, 0.51, 0.49, 0.5, 0.5], half=0.1), rng=Rng(0))
    assert found.low < 0 < found.high
    assert not found.steady


def test_two_points_are_too_few() -> None:
    with pytest.raises(SettingError, match="at least 3"):
        well_behaved([1, 2], curve([0.5, 0.4]), rng=Rng(0))
