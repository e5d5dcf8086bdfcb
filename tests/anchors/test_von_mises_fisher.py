"""The exact cost of one direction in 592,130 dimensions, the head of the calibration paper's GPT-2 and BERT models."""

import pytest

from discreet.accounting.events import VonMisesFisherDpEvent
from discreet.accounting.interpret import epsilon

DIMENSION = 592_130


@pytest.mark.parametrize(
    ("kappa", "replaced", "zeroed"), [(100.0, 0.967, 0.45), (300.0, 3.289, 1.51), (1000.0, 13.87, 5.95)]
)
def test_one_direction_of_a_large_head(kappa: float, replaced: float, zeroed: float) -> None:
    """Our own quadrature; the pure bound of Weggenmann and Kerschbaum 2021 says 2 kappa."""
    event = VonMisesFisherDpEvent(kappa, DIMENSION)
    assert epsilon(event, 1e-5, "replace-one") == pytest.approx(replaced, rel=0.01)
    assert epsilon(event, 1e-5, "zero-out") == pytest.approx(zeroed, rel=0.01)
    assert epsilon(event, 0.0, "replace-one") == 2 * kappa


@pytest.mark.parametrize(("kappa", "replaced"), [(10.0, 1.39), (100.0, 21.2), (300.0, 102.0), (1000.0, 725.0)])
def test_one_direction_of_a_small_head(kappa: float, replaced: float) -> None:
    """3,072 dimensions, where kappa is no longer small against the dimension."""
    assert epsilon(VonMisesFisherDpEvent(kappa, 3072), 1e-5, "replace-one") == pytest.approx(replaced, rel=0.01)


def test_a_great_concentration() -> None:
    assert epsilon(VonMisesFisherDpEvent(1e4, DIMENSION), 1e-5, "replace-one") == pytest.approx(448.0, rel=0.01)
