import pytest

from discreet.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    leaves,
    simplify,
)
from discreet.core.errors import SettingError, UnsupportedError

A, B = GaussianDpEvent(1.0), LaplaceDpEvent(2.0)


@pytest.mark.parametrize(
    ("event", "same"),
    [
        (A, A),
        (SelfComposedDpEvent(A, 1), A),
        (SelfComposedDpEvent(A, 0), NoOpDpEvent()),
        (SelfComposedDpEvent(SelfComposedDpEvent(A, 2), 3), SelfComposedDpEvent(A, 6)),
        (ComposedDpEvent([]), NoOpDpEvent()),
        (ComposedDpEvent([NoOpDpEvent(), ComposedDpEvent([A])]), A),
        (ComposedDpEvent([A, ComposedDpEvent([B, A])]), ComposedDpEvent([A, B, A])),
        (PoissonSampledDpEvent(1.0, ComposedDpEvent([A])), A),
        (PoissonSampledDpEvent(0.0, A), NoOpDpEvent()),
        (PoissonSampledDpEvent(0.5, SelfComposedDpEvent(A, 1)), PoissonSampledDpEvent(0.5, A)),
        (VisibleVectorsDpEvent(ComposedDpEvent([A]), 3, 3), VisibleVectorsDpEvent(A, 3, 3)),
        (
            SampledWithoutReplacementDpEvent(9, 3, SelfComposedDpEvent(A, 1)),
            SampledWithoutReplacementDpEvent(9, 3, A),
        ),
    ],
)
def test_wrappings_that_say_nothing_are_taken_off(event: DpEvent, same: DpEvent) -> None:
    assert simplify(event) == same


def test_what_was_done_is_counted() -> None:
    event = SelfComposedDpEvent(ComposedDpEvent([A, SelfComposedDpEvent(PoissonSampledDpEvent(0.5, B), 4)]), 3)
    assert list(leaves(event)) == [(A, 3), (PoissonSampledDpEvent(0.5, B), 12)]


@pytest.mark.parametrize(
    "event",
    [
        SelfComposedDpEvent(A, -1),
        PoissonSampledDpEvent(1.5, A),
        PoissonSampledDpEvent(0.0, GaussianDpEvent(-1.0)),
        ComposedDpEvent([VisibleVectorsDpEvent(LaplaceDpEvent(-1.0), 3, 3)]),
        SampledWithoutReplacementDpEvent(3, 4, A),
    ],
)
def test_every_parameter_is_checked_however_deep(event: DpEvent) -> None:
    with pytest.raises(SettingError):
        simplify(event)
    with pytest.raises(UnsupportedError, match="got int"):
        simplify(PoissonSampledDpEvent(0.5, 3))
