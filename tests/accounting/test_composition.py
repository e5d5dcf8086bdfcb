import pytest

from discreet.accounting.composition import basic_composition


def test_basic_composition_adds_up_deltas() -> None:
    assert basic_composition([(0.1, 0.0)] * 100) == (pytest.approx(10.0), 0.0)
    total, slack = basic_composition([(0.5, 1e-6), (0.25, 2e-6), (0.0, 3e-6)])
    assert (total, slack) == (0.75, pytest.approx(6e-6))
    assert basic_composition([(0.1, 0.6), (0.1, 0.7)])[1] == 1.0
