"""A cost under one adjacency, stated under a weaker one: never below the exact cost there, and never upwards."""

from __future__ import annotations

import math

import pytest

from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoGuaranteeDpEvent,
    PoissonSampledDpEvent,
    RandomAllocationDpEvent,
    SelfComposedDpEvent,
    VonMisesFisherDpEvent,
)
from discreet.accounting.interpret import can_restate, epsilon, restated, weakest
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency

ADD_REMOVE, ZERO_OUT, REPLACE_ONE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
DELTA = 1e-5


def test_the_weakest_is_the_one_in_which_all_can_be_stated() -> None:
    assert weakest(Adjacency) is REPLACE_ONE and weakest([ADD_REMOVE]) is ADD_REMOVE
    for one in Adjacency:
        for other in Adjacency:
            assert can_restate(one, other) is (weakest([one, other]) is other)
            if not can_restate(one, other):
                with pytest.raises(UnsupportedError):
                    restated(ClippedSumDpEvent(1.0), one, other, DELTA)


@pytest.mark.parametrize("noise", [0.7, 2.0, 20.0])
def test_by_group_privacy_it_is_never_below_the_exact_cost(noise: float) -> None:
    # The same Gaussian noise, once with a given sensitivity, for which only group privacy is known.
    exact = epsilon(ClippedSumDpEvent(noise), DELTA, REPLACE_ONE)
    assert epsilon(restated(ClippedSumDpEvent(noise), ZERO_OUT, REPLACE_ONE, DELTA), DELTA, REPLACE_ONE) == exact
    bound = restated(GaussianDpEvent(noise), ZERO_OUT, REPLACE_ONE, DELTA / 2)
    assert isinstance(bound, EpsilonDeltaDpEvent) and bound.delta <= DELTA / 2
    one = bound.epsilon / 2
    assert (1 + math.exp(one)) * _delta(noise, one) <= DELTA / 2 * 1.0001, "two steps of group privacy"
    assert exact <= epsilon(bound, DELTA, REPLACE_ONE) < 4 * exact


def _delta(noise: float, bound: float) -> float:
    from discreet.accounting.interpret import delta

    return delta(GaussianDpEvent(noise), bound, ZERO_OUT)


def test_pure_costs_double_without_delta() -> None:
    both = ComposedDpEvent([LaplaceDpEvent(2.0), EpsilonDeltaDpEvent(0.25, 0.0)])
    bound = restated(both, ADD_REMOVE, REPLACE_ONE, 1e-9)
    assert isinstance(bound, EpsilonDeltaDpEvent) and bound.epsilon == pytest.approx(1.5) and bound.delta <= 1e-9


def test_noise_relative_to_a_bound_on_each_vector_keeps_its_event() -> None:
    step = PoissonSampledDpEvent(0.05, ClippedSumDpEvent(1.0))
    kept = (SelfComposedDpEvent(step, 40), ComposedDpEvent([step, VonMisesFisherDpEvent(3.0, 100)]))
    for event in kept:
        assert restated(event, ZERO_OUT, REPLACE_ONE, DELTA) is event
    assert restated(step, ADD_REMOVE, ZERO_OUT, DELTA) is step


def test_what_has_no_proof_under_replace_one_is_counted_by_group_privacy() -> None:
    event = SelfComposedDpEvent(RandomAllocationDpEvent(ClippedSumDpEvent(4.0), 10), 3)
    bound = restated(event, ZERO_OUT, REPLACE_ONE, DELTA)
    assert isinstance(bound, EpsilonDeltaDpEvent) and bound.epsilon > 2 * epsilon(event, DELTA, ZERO_OUT)
    mixed = ComposedDpEvent([bound, ClippedSumDpEvent(3.0)])
    assert epsilon(mixed, 2 * DELTA, REPLACE_ONE) <= bound.epsilon + epsilon(ClippedSumDpEvent(3.0), DELTA, REPLACE_ONE)


def test_no_guarantee_stays_none_and_an_epsilon_beyond_all_measure_has_no_bound() -> None:
    lost = restated(NoGuaranteeDpEvent("no noise"), ZERO_OUT, REPLACE_ONE, DELTA)
    assert isinstance(lost, NoGuaranteeDpEvent) and lost.reason == "no noise"
    assert isinstance(restated(GaussianDpEvent(0.01), ZERO_OUT, REPLACE_ONE, DELTA), NoGuaranteeDpEvent)
