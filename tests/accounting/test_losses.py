import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library

from discreet.accounting import curve as curves
from discreet.accounting.events import (
    ComposedDpEvent,
    DiscreteGaussianDpEvent,
    DiscreteLaplaceDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SelfComposedDpEvent,
    ZCDpEvent,
)
from discreet.accounting.gdp import gaussian_deltas
from discreet.accounting.interpret import epsilon
from discreet.accounting.losses import curve_of
from discreet.accounting.powers import Powers
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency

ADD = Adjacency.ADD_REMOVE


def test_repeated_answers_are_composed_as_often_as_they_are_given() -> None:
    """dp_accounting 0.6 composes them once; its loss distribution itself is right."""
    theirs = library.from_randomized_response(0.9, 5, value_discretization_interval=1e-4).self_compose(20)
    ours = epsilon(SelfComposedDpEvent(RandomizedResponseDpEvent(0.9, 5), 20), 1e-5, "replace-one")
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=1e-3)


def test_discrete_noise_is_what_the_library_says() -> None:
    laplace = library.from_discrete_laplace_mechanism(0.1, 3, value_discretization_interval=1e-4).self_compose(20)
    assert epsilon(SelfComposedDpEvent(DiscreteLaplaceDpEvent(0.1, 3), 20), 1e-5) == pytest.approx(
        laplace.get_epsilon_for_delta(1e-5), rel=1e-3
    )
    gaussian = library.from_discrete_gaussian_mechanism(5.0, 2, value_discretization_interval=1e-3).self_compose(20)
    assert epsilon(SelfComposedDpEvent(DiscreteGaussianDpEvent(5.0, 2), 20), 1e-5) == pytest.approx(
        gaussian.get_epsilon_for_delta(1e-5), rel=1e-3
    )
    with pytest.raises(UnsupportedError, match="ZCDpEvent"):
        epsilon(DiscreteGaussianDpEvent(1e7), 1e-5)


def test_a_whole_composition_can_be_sampled() -> None:
    """Two Gaussian releases of a drawn record are one Gaussian release of it."""
    two = PoissonSampledDpEvent(0.1, SelfComposedDpEvent(GaussianDpEvent(2.0), 4))
    one = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0))
    assert epsilon(two, 1e-5) == pytest.approx(epsilon(one, 1e-5))
    mixed = PoissonSampledDpEvent(0.1, ComposedDpEvent([GaussianDpEvent(1.0), LaplaceDpEvent(1e7)]))
    assert epsilon(mixed, 1e-5) == pytest.approx(epsilon(one, 1e-5), abs=2e-3)
    assert epsilon(mixed, 1e-5) >= epsilon(one, 1e-5) - 1e-9


def test_the_curve_of_a_composition_is_a_bound_everywhere() -> None:
    eps = np.linspace(-2, 3, 501)
    found = curve_of(ComposedDpEvent([GaussianDpEvent(1.0), LaplaceDpEvent(1e6)]), ADD)
    assert np.all(found.present(eps) >= gaussian_deltas(1.0, eps) - 1e-12)
    assert np.all(found.present(eps) <= gaussian_deltas(1.0, eps) + 2e-3)
    assert math.isfinite(found.high)


def test_a_discrete_gaussian_too_narrow_for_floating_point_is_bounded_by_its_concentration() -> None:
    """At a ratio of 25 and more the likelihoods of the two neighbours share no outcome in double precision."""
    for sigma, s in ((0.01, 1), (0.02, 1), (1.0, 40)):
        found = epsilon(DiscreteGaussianDpEvent(sigma, s), 1e-5)
        assert found == pytest.approx(epsilon(ZCDpEvent((s / sigma) ** 2 / 2), 1e-5), rel=1e-3)
        assert found >= (s / sigma) ** 2 / 2 * (1 - 1e-9)  # the loss at the most likely outcome
    wide, narrow = (epsilon(DiscreteGaussianDpEvent(sigma, 1), 1e-5) for sigma in (1 / 24.9, 1 / 25.1))
    assert wide < narrow < wide * 1.5


def test_two_distributions_without_a_common_outcome_have_an_infinite_loss() -> None:
    apart = curves.discrete(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    assert apart.delta(0.0) == apart.delta(500.0) == 1.0
    assert Powers.of(apart.losses()).epsilon(3, 0.5) == math.inf
