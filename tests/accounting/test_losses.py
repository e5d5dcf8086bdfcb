import math
from functools import reduce

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from scipy.stats import binom

from discreet.accounting import curve as curves
from discreet.accounting.events import (
    ComposedDpEvent,
    DiscreteGaussianDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    LocalDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    ZCDpEvent,
    decompose,
)
from discreet.accounting.gdp import gaussian_deltas
from discreet.accounting.interpret import epsilon
from discreet.accounting.losses import curve_of, powers_of, use_curve
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


def slow_epsilon(event: DpEvent, delta: float, adjacency: Adjacency) -> float:
    """Return epsilon with every use on the finest of their grids, in the precision that no delta feels."""
    parts = decompose(event, adjacency)
    found = [(use_curve(use, adjacency), count) for use, count in parts.uses]
    if parts.mu_squared:
        found.append((curves.gaussian(parts.mu), 1))
    step = min(curves.interval_for(one) for one, _ in found)
    each = [Powers.of(one.losses(step)).power(count) for one, count in found]
    return reduce(Powers.compose, each).epsilon(1, delta)


DRAWN = VisibleVectorsDpEvent(LocalDpEvent(1.0), 1, 10)
RARE = PoissonSampledDpEvent(0.001, GaussianDpEvent(3.0))
MIXED = [
    ([(DRAWN, 30), (LocalDpEvent(1.0), 20)], Adjacency.REPLACE_ONE),
    ([(DRAWN, 1), (LocalDpEvent(1.0), 3)], Adjacency.REPLACE_ONE),
    ([(DRAWN, 300), (GaussianDpEvent(1.0), 5), (LocalDpEvent(0.3), 2)], Adjacency.REPLACE_ONE),
    ([(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)), 500), (LaplaceDpEvent(1.0), 4)], ADD),
    (
        [
            (PoissonSampledDpEvent(0.001, GaussianDpEvent(3.0)), 50),
            (PoissonSampledDpEvent(0.3, GaussianDpEvent(1.0)), 4),
        ],
        ADD,
    ),
    ([(PoissonSampledDpEvent(0.001, GaussianDpEvent(3.0)), 1), (LaplaceDpEvent(0.1), 2)], ADD),
]


@pytest.mark.parametrize(("uses", "adjacency"), MIXED)
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_uses_on_grids_of_their_own_cost_what_they_cost_on_the_finest(
    uses: list[tuple[DpEvent, int]], adjacency: Adjacency, delta: float
) -> None:
    event = ComposedDpEvent([SelfComposedDpEvent(use, count) for use, count in uses])
    step, count = powers_of(decompose(event, adjacency), adjacency, delta)
    slow, quick = slow_epsilon(event, delta, adjacency), step.epsilon(count, delta)
    # a grid of its own may be the better one: a loss of exactly 1 lies on dots 1e-3 apart, and margins are smaller
    assert slow * (1 - 1e-4) <= quick <= slow * (1 + 1e-3)


@pytest.mark.parametrize("counts", [(3, 5), (12, 40), (1, 1)])
@pytest.mark.parametrize("small", [0.0131, 0.00071])
def test_uses_on_grids_of_their_own_never_cost_less_than_every_outcome_added_up(
    counts: tuple[int, int], small: float
) -> None:
    each = (1.0, small)
    event = ComposedDpEvent([SelfComposedDpEvent(LocalDpEvent(e), n) for e, n in zip(each, counts, strict=True)])
    ups = [np.arange(n + 1) for n in counts]  # how many of the losses are +e, the others being -e
    chances = [binom.pmf(up, n, 1 / (1 + math.exp(-e))) for up, n, e in zip(ups, counts, each, strict=True)]
    losses = np.add.outer(each[0] * (2 * ups[0] - counts[0]), each[1] * (2 * ups[1] - counts[1]))
    masses = np.multiply.outer(*chances)
    for delta in (1e-2, 1e-4, 1e-6):
        step, count = powers_of(decompose(event, Adjacency.REPLACE_ONE), Adjacency.REPLACE_ONE, delta)
        found = step.epsilon(count, delta)
        exact = float((masses * np.maximum(-np.expm1(found - losses), 0.0)).sum())
        assert exact <= delta, "what is named must hold"
        nearer = float((masses * np.maximum(-np.expm1(found * 0.999 - losses), 0.0)).sum())
        assert nearer > 0.98 * delta or found == 0


@pytest.mark.parametrize(
    "uses", [((0.5, 3, 9), (0.99, 4, 30)), ((0.1, 20, 2), (0.998, 2, 60)), ((0.9, 2, 7), (0.3, 50, 1))]
)
def test_both_orders_of_a_lopsided_pair_are_bounds_on_grids_of_their_own(
    uses: tuple[tuple[float, int, int], ...],
) -> None:
    """Answers against uniform ones: every outcome added up, the record against none and none against the record."""
    event = ComposedDpEvent([SelfComposedDpEvent(RandomizedResponseDpEvent(p, k), n) for p, k, n in uses])
    here, there = [], []
    for p, k, n in uses:
        true = np.arange(n + 1)  # how many of the answers are the record's own
        here.append(binom.logpmf(true, n, 1 - p + p / k))
        there.append(binom.logpmf(true, n, 1 / k))
    present, absent = np.exp(np.add.outer(*here)), np.exp(np.add.outer(*there))
    step, count = powers_of(decompose(event, Adjacency.ZERO_OUT), Adjacency.ZERO_OUT)
    found = step.power(count)
    assert found.absent is not None
    for eps in np.linspace(-6.0, 6.0, 49).tolist():
        for losses, p, q in ((found.present, present, absent), (found.absent, absent, present)):
            exact = float(np.maximum(p - math.exp(eps) * q, 0.0).sum())
            assert exact * (1 - 1e-9) <= losses.delta(eps) <= exact * 1.001 + 1e-5
