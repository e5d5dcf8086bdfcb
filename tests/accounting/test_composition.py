import math

import pytest

from discreet.accounting.composition import (
    advanced_composition,
    basic_composition,
    group_privacy,
)
from discreet.accounting.events import (
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    SelfComposedDpEvent,
)
from discreet.accounting.interpret import delta, epsilon
from discreet.core.guarantee import Adjacency, Guarantee

ONE = Guarantee(1.0, 1e-6, "note", Adjacency.ADD_REMOVE, "pld")


def test_basic_adds_and_advanced_is_smaller_for_many_small_uses() -> None:
    assert basic_composition([(0.1, 0.0)] * 100) == (pytest.approx(10.0), 0.0)
    many, slack = advanced_composition(0.1, 0.0, 100, 1e-5)
    assert many < 10.0
    assert slack == pytest.approx(1e-5)
    assert advanced_composition(2.0, 1e-8, 3, 1e-5) == (6.0, pytest.approx(3e-8))  # basic is better here


def test_advanced_composition_is_above_the_exact_cost() -> None:
    for per, count in ((0.1, 100), (0.5, 10), (0.01, 10_000)):
        bound, at = advanced_composition(per, 0.0, count, 1e-5)
        assert epsilon(SelfComposedDpEvent(EpsilonDeltaDpEvent(per), count), at) <= bound


def test_a_group_pays_for_each_of_its_members() -> None:
    three = group_privacy(ONE, 3)
    assert three.epsilon == 3.0
    assert three.delta == pytest.approx(1e-6 * (math.exp(3) - 1) / (math.e - 1))
    assert three.unit == "group of 3 notes"
    # it holds for the Gaussian, whose group is a Gaussian of thrice the distance
    single = Guarantee(1.0, delta(GaussianDpEvent(1.0), 1.0), "note", Adjacency.ADD_REMOVE, "pld")
    assert delta(GaussianDpEvent(1 / 3), 3.0) <= group_privacy(single, 3).delta
    assert group_privacy(Guarantee(500.0, 1e-9, "note", Adjacency.ADD_REMOVE, "pld"), 2).delta == 1.0
    assert group_privacy(ONE, 1) is ONE


def test_basic_composition_adds_up_deltas() -> None:
    total, slack = basic_composition([(0.5, 1e-6), (0.25, 2e-6), (0.0, 3e-6)])
    assert (total, slack) == (0.75, pytest.approx(6e-6))
    assert basic_composition([(0.1, 0.6), (0.1, 0.7)])[1] == 1.0
