import pytest

from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    ZCDpEvent,
    decompose,
    describe,
)
from discreet.core.guarantee import Adjacency

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def test_equal_uses_are_counted_and_gaussian_noise_is_one() -> None:
    whole = SelfComposedDpEvent(
        ComposedDpEvent([LaplaceDpEvent(2.0), GaussianDpEvent(2.0), ClippedSumDpEvent(2.0), LaplaceDpEvent(2.0)]), 3
    )
    assert decompose(whole, ADD).uses == ((LaplaceDpEvent(2.0), 6),)
    assert decompose(whole, ADD).mu_squared == pytest.approx(6 / 4)
    assert decompose(whole, REPLACE).mu_squared == pytest.approx(3 / 4 + 3)


def test_a_draw_of_everything_is_no_draw() -> None:
    for event in (
        PoissonSampledDpEvent(1.0, LaplaceDpEvent(1.0)),
        VisibleVectorsDpEvent(LaplaceDpEvent(1.0), 7, 7),
        PoissonSampledDpEvent(1.0, VisibleVectorsDpEvent(LaplaceDpEvent(1.0), 7, 7)),
    ):
        assert decompose(event, REPLACE).uses == ((LaplaceDpEvent(1.0), 1),)
    assert decompose(PoissonSampledDpEvent(0.0, LaplaceDpEvent(1.0)), ADD).uses == ()
    assert decompose(NoOpDpEvent(), ADD).uses == ()


def test_concentrated_costs_add_up_before_they_are_converted() -> None:
    uses = decompose(SelfComposedDpEvent(ZCDpEvent(0.1, 0.01), 5), ADD).uses
    assert uses == ((ZCDpEvent(0.5, 0.05), 1),)


def test_an_event_with_a_list_inside_is_counted_too() -> None:
    inner = PoissonSampledDpEvent(0.5, ComposedDpEvent([LaplaceDpEvent(1.0), GaussianDpEvent(1.0)]))
    assert decompose(SelfComposedDpEvent(inner, 4), ADD).uses == ((inner, 4),)
    assert describe(inner) == "PoissonSampled of Composed"
