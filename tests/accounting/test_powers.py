import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting import curve as curves
from discreet.accounting.gdp import gaussian_epsilon
from discreet.accounting.powers import Losses, Powers

MADE = [
    (curves.poisson(curves.gaussian(1.0), 0.01), 1000),
    (curves.poisson(curves.gaussian(2.0), 0.2), 7),
    (curves.fixed_size(curves.gaussian(1.0), 0.05), 300),
    (curves.pure(0.1), 100),
    (curves.laplace(0.5), 2),
]


@pytest.mark.parametrize(("made", "count"), MADE)
def test_many_uses_are_what_the_library_composes(made: curves.Curve, count: int) -> None:
    theirs = made.losses().self_compose(count)
    ours = Powers.of(made.losses())
    for delta in (0.2, 1e-3, 1e-7):
        assert ours.epsilon(count, delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=1e-4, abs=1e-9)
    for epsilon in (0.0, 0.4, 2.0):
        assert ours.delta(count, epsilon) == pytest.approx(theirs.get_delta_for_epsilon(epsilon), rel=1e-6, abs=2e-12)


def test_gaussian_uses_compose_to_their_closed_form_and_never_below_it() -> None:
    step = Powers.of(curves.gaussian(0.2).losses())
    for delta in (1e-2, 1e-5, 1e-8, 1e-10):
        exact = gaussian_epsilon(2.0, delta)
        assert exact <= step.epsilon(100, delta) <= exact * 1.001


@pytest.mark.parametrize("count", [10_000, 1_000_000, 3_000_000, 10_000_000])
@pytest.mark.parametrize("delta", [1e-5, 1e-7, 1e-9])
def test_millions_of_uses_never_cost_less_than_the_closed_form(count: int, delta: float) -> None:
    """The error of a Fourier transform grows with the power it is raised to, and so must its margin."""
    made = curves.gaussian(2 / math.sqrt(count))
    step = Powers.of(made.losses(curves.interval_for(made)))
    exact = gaussian_epsilon(2.0, delta)
    found = step.epsilon(count, delta)
    assert found >= exact
    if delta > 1e-15 * count:
        assert found <= exact * 1.01
    assert step.delta(count, exact) >= delta


@pytest.mark.parametrize("count", [2, 100, 10_000, 1_000_000])
def test_the_margin_bounds_the_difference_to_extended_precision(count: int) -> None:
    if np.finfo(np.longdouble).eps > 1e-18:
        pytest.skip("no extended precision on this machine")
    for made in (curves.gaussian(1 / math.sqrt(count)), curves.poisson(curves.gaussian(1.0), 1 / math.sqrt(count))):
        losses = Powers.of(made.losses(curves.interval_for(made))).present
        (rough, slack), (fine, less) = (losses._raised(count, kind) for kind in (np.float64, np.longdouble))
        assert 0 < np.abs(rough.masses - fine.masses).sum() <= slack
        assert less < slack / 500


def test_two_different_releases_compose() -> None:
    both = Powers.of(curves.gaussian(1.0).losses()).compose(Powers.of(curves.gaussian(0.5).losses()))
    exact = gaussian_epsilon(math.sqrt(1.25), 1e-5)
    assert exact <= both.epsilon(1, 1e-5) <= exact * 1.001
    uneven = Powers.of(curves.poisson(curves.gaussian(1.0), 0.1).losses()).compose(Powers.of(curves.pure(0.0).losses()))
    assert uneven.epsilon(1, 1e-5) == pytest.approx(
        Powers.of(curves.poisson(curves.gaussian(1.0), 0.1).losses()).epsilon(1, 1e-5), abs=1e-6
    )


def test_epsilon_is_exact_between_the_dots_and_at_the_edges() -> None:
    losses = Losses(np.array([0.25, 0.75]), -1, 1.0, 0.0)  # losses -1 and 0
    assert losses.epsilon(0.1) == 0.0
    losses = Losses(np.array([0.5, 0.5]), 0, 1.0, 0.0)  # losses 0 and 1
    for delta in (0.01, 0.2, 0.31):
        assert losses.delta(losses.epsilon(delta)) == pytest.approx(delta)
    assert losses.epsilon(0.9) == 0.0
    assert Losses(np.array([1.0]), 0, 1.0, 0.1).epsilon(0.05) == math.inf
    assert Losses(np.array([0.9]), 3, 1.0, 0.1).epsilon(0.1) == pytest.approx(3.0)


def test_many_deltas_at_once_are_the_same_as_one_by_one() -> None:
    losses = Powers.of(curves.poisson(curves.gaussian(1.0), 0.3).losses()).present.power(5)
    eps = np.array([-9.0, -0.4567, 0.0, 0.0004, 1.0, 3.3333, 80.0])
    np.testing.assert_allclose(losses.deltas(eps), [losses.delta(float(e)) for e in eps], atol=1e-9)


def test_a_coarser_grid_never_costs_less_and_hardly_more() -> None:
    eps = np.linspace(-4.0, 6.0, 401)
    for made, count in MADE:
        fine = Powers.of(made.losses(1e-4)).present.power(count)
        for interval in (1.7e-4, 1e-3, 3e-3):
            coarse = fine.on(interval)
            above = coarse.deltas(eps) - fine.deltas(eps)
            assert above.min() > -1e-12  # what adding up a hundred thousand masses may hide
            assert above.max() < interval / 10
            assert coarse.masses.sum() == pytest.approx(fine.masses.sum(), abs=1e-14)
            assert coarse.masses.min() >= 0 and coarse.infinite > fine.infinite


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=2, max_size=30),
    st.integers(-40, 40),
    st.floats(1e-3, 0.5),
    st.floats(1.0, 20.0),
)
def test_any_losses_may_be_put_on_any_coarser_grid(masses: list[float], first: int, fine: float, ratio: float) -> None:
    total = sum(masses) or 1.0
    losses = Losses(np.array(masses) / total, first, fine, 0.0)
    coarse = losses.on(fine * ratio)
    for epsilon in np.linspace(-3.0, 3.0, 25).tolist():
        assert coarse.delta(epsilon) >= losses.delta(epsilon) - 1e-15


@pytest.mark.parametrize("count", [1000, 100_000, 1_000_000])
@pytest.mark.parametrize("delta", [1e-10, 1e-12, 1e-15])
def test_a_tiny_delta_is_met_in_double_precision_and_never_below_the_closed_form(count: int, delta: float) -> None:
    """The error of the transform is made a share of delta by tilting the losses first, and stays on the safe side."""
    made = curves.gaussian(2 / math.sqrt(count)).within(1e-4 * delta / count)
    step = Powers.of(made.losses(curves.interval_for(made)), rounding=0.0)
    exact = gaussian_epsilon(2.0, delta)
    assert exact <= step.epsilon(count, delta) <= exact * 1.002
