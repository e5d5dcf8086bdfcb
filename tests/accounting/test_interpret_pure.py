import itertools
import math

import pytest

from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    decompose,
)
from discreet.accounting.interpret import pure_epsilon
from discreet.accounting.losses import use_curve
from discreet.core.guarantee import Adjacency

ZERO, REPLACE = Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (RandomizedResponseDpEvent(0.4, 5), REPLACE),
        (RandomizedResponseDpEvent(0.4, 5), ZERO),
        (VonMisesFisherDpEvent(2.0, 4), REPLACE),
        (VonMisesFisherDpEvent(2.0, 4), ZERO),
        (VisibleVectorsDpEvent(EpsilonDeltaDpEvent(2.0), 1, 10), REPLACE),
        (VisibleVectorsDpEvent(EpsilonDeltaDpEvent(40.0), 1, 10), REPLACE),
        (VisibleVectorsDpEvent(VonMisesFisherDpEvent(2.0, 4), 1, 10), ZERO),
        (PoissonSampledDpEvent(0.3, EpsilonDeltaDpEvent(1.0)), Adjacency.ADD_REMOVE),
        (PoissonSampledDpEvent(0.3, VisibleVectorsDpEvent(EpsilonDeltaDpEvent(1.0), 9, 9)), REPLACE),
    ],
)
def test_the_curve_ends_at_the_largest_loss(event: DpEvent, adjacency: Adjacency) -> None:
    top = pure_epsilon(decompose(event, adjacency), adjacency)
    assert use_curve(event, adjacency).delta(top + 1e-9) <= 1e-12


def test_uses_add_up_and_unbounded_losses_are_infinite() -> None:
    thrice = SelfComposedDpEvent(EpsilonDeltaDpEvent(0.5), 3)
    assert pure_epsilon(decompose(thrice, REPLACE), REPLACE) == pytest.approx(1.5)
    for event in (
        GaussianDpEvent(1.0),
        EpsilonDeltaDpEvent(1.0, 1e-9),
        PoissonSampledDpEvent(0.1, ClippedSumDpEvent(1.0)),
    ):
        assert pure_epsilon(decompose(event, REPLACE), REPLACE) == math.inf


def test_pure_costs_add_up_the_same_in_any_order() -> None:
    """Added one by one, 0.1, 0.2 and 0.3 give 0.6000000000000001 from the front and 0.6 from the back."""
    prices = [0.1, 0.2, 0.3, 0.7, 1e-9, 12.3]
    found = {
        pure_epsilon(decompose(ComposedDpEvent([EpsilonDeltaDpEvent(e) for e in order]), REPLACE), REPLACE)
        for order in itertools.permutations(prices)
    }
    assert found == {math.fsum(prices)}
