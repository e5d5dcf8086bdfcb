"""What has a proof under which adjacency, case by case; tests/laws/test_accountants.py goes through many more."""

import math

import pytest

from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    LocalDpEvent,
    NoGuaranteeDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
)
from discreet.accounting.interpret import epsilon, guarantee_of
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency
from discreet.mechanisms.priv_unit import PrivUnit

ADD, ZERO, REPLACE = Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE
ALL_SEEN = VisibleVectorsDpEvent(GaussianDpEvent(1.0), 100, 100)
VMF = VonMisesFisherDpEvent(3.0, 20)


@pytest.mark.parametrize(
    ("event", "adjacency"),
    [
        (ALL_SEEN, ADD),
        (PoissonSampledDpEvent(1.0, ALL_SEEN), ADD),
        (PoissonSampledDpEvent(0.01, ALL_SEEN), ADD),
        (PoissonSampledDpEvent(0.01, ALL_SEEN), ZERO),
        (PoissonSampledDpEvent(0.01, SelfComposedDpEvent(ALL_SEEN, 1)), ADD),
        (PoissonSampledDpEvent(0.01, SelfComposedDpEvent(ALL_SEEN, 1)), ZERO),
        (PoissonSampledDpEvent(0.01, ComposedDpEvent([ALL_SEEN, EpsilonDeltaDpEvent(0.1)])), ADD),
        (PoissonSampledDpEvent(0.01, ComposedDpEvent([GaussianDpEvent(1.0), ALL_SEEN])), REPLACE),
        (PoissonSampledDpEvent(0.5, PoissonSampledDpEvent(0.5, ALL_SEEN)), ADD),
        (SampledWithoutReplacementDpEvent(10, 10, ClippedSumDpEvent(1.0)), ADD),
        (LocalDpEvent(1.0), ADD),
        (PoissonSampledDpEvent(0.01, LocalDpEvent(1.0)), ADD),
        (PoissonSampledDpEvent(0.01, LocalDpEvent(1.0)), ZERO),
        (PoissonSampledDpEvent(0.01, LocalDpEvent(1.0)), REPLACE),
        (PoissonSampledDpEvent(0.01, SelfComposedDpEvent(VMF, 2)), ZERO),
        (SampledWithoutReplacementDpEvent(10, 1, VMF), ZERO),
        (SampledWithoutReplacementDpEvent(10, 10, LocalDpEvent(1.0)), ZERO),
        (VisibleVectorsDpEvent(LocalDpEvent(1.0), 1, 10), ZERO),
    ],
)
@pytest.mark.parametrize("accountant", ["pld", "rdp", "gdp"])
def test_what_is_seen_record_by_record_is_refused_wherever_it_stands(
    event: DpEvent, adjacency: Adjacency, accountant: str
) -> None:
    for asked in (event, SelfComposedDpEvent(event, 100), ComposedDpEvent([GaussianDpEvent(5.0), event])):
        with pytest.raises(UnsupportedError, match=f"covers under {adjacency.value}, got "):
            epsilon(asked, 1e-5, adjacency, accountant)


@pytest.mark.parametrize(
    ("event", "adjacency", "same"),
    [
        (ALL_SEEN, ZERO, GaussianDpEvent(1.0)),
        (ALL_SEEN, REPLACE, GaussianDpEvent(1.0)),
        (PoissonSampledDpEvent(1.0, ALL_SEEN), ZERO, GaussianDpEvent(1.0)),
        (
            PoissonSampledDpEvent(1.0, ComposedDpEvent([GaussianDpEvent(1.0), VMF])),
            ZERO,
            ComposedDpEvent([GaussianDpEvent(1.0), VMF]),
        ),
        (
            VisibleVectorsDpEvent(LocalDpEvent(1.0), 1, 10),
            REPLACE,
            VisibleVectorsDpEvent(EpsilonDeltaDpEvent(1.0), 1, 10),
        ),
        (VisibleVectorsDpEvent(LocalDpEvent(1.0), 9, 9), ZERO, EpsilonDeltaDpEvent(1.0)),
        (LocalDpEvent(1.0, 1e-7), ZERO, EpsilonDeltaDpEvent(1.0, 1e-7)),
    ],
)
def test_what_is_proven_keeps_its_figure(event: DpEvent, adjacency: Adjacency, same: DpEvent) -> None:
    assert epsilon(event, 1e-5, adjacency) == pytest.approx(epsilon(same, 1e-5, adjacency), rel=1e-9)


def test_several_directions_of_one_record_are_drawn_together() -> None:
    """Zero-out of a fixed draw holds for every composition of directions and sums, not for one alone."""
    one, two = (VisibleVectorsDpEvent(SelfComposedDpEvent(VMF, n), 1, 10) for n in (1, 2))
    assert epsilon(one, 1e-5, ZERO) < epsilon(two, 1e-5, ZERO) < epsilon(two, 1e-5, REPLACE)


def test_the_worthless_is_not_refused_but_infinite() -> None:
    assert epsilon(ComposedDpEvent([ALL_SEEN, NoGuaranteeDpEvent("all was sent")]), 1e-5, ADD) == math.inf


def test_a_local_mechanism_says_so_itself() -> None:
    event = PrivUnit(2.0, 16).event
    assert epsilon(event, 0.0, REPLACE) == epsilon(event, 0.0, ZERO) == 2.0
    with pytest.raises(UnsupportedError, match="got Local"):
        epsilon(event, 0.0, ADD)


def test_an_answer_of_an_empty_record_is_stated() -> None:
    response = RandomizedResponseDpEvent(0.5, 2)
    assert (
        "an empty record answers uniformly at random" in guarantee_of(response, delta=1e-5, adjacency=ZERO).assumptions
    )
    assert guarantee_of(response, delta=1e-5, adjacency=REPLACE).assumptions == ()
