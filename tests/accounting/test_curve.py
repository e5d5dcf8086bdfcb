"""Each curve against slow integration of the two distributions it stands for."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as library
from scipy import stats

from discreet.accounting import curve as curves
from discreet.accounting.curve import Array

EPS = np.array([-3.0, -0.7, -0.05, 0.0, 0.02, 0.3, 1.0, 2.5])
X = np.linspace(-25, 25, 200_001)
GAP = X[1] - X[0]
Density = Callable[[Array], Array]


def normal(mean: float) -> Array:
    return stats.norm.pdf(X, mean)


def hockey(p: Array, q: Array, eps: Array) -> Array:
    return np.array([np.maximum(p - math.exp(e) * q, 0).sum() * GAP for e in eps])


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.7, 0.999])
@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_poisson_sampling_is_exact_both_ways(rate: float, mu: float) -> None:
    found = curves.poisson(curves.gaussian(mu), rate)
    there, absent = (1 - rate) * normal(0) + rate * normal(mu), normal(0)
    assert found.absent is not None
    np.testing.assert_allclose(found.present(EPS), hockey(there, absent, EPS), atol=2e-7)
    np.testing.assert_allclose(found.absent(EPS), hockey(absent, there, EPS), atol=2e-7)


@pytest.mark.parametrize("rate", [0.01, 0.4, 0.95])
@pytest.mark.parametrize("mu", [0.3, 1.5])
def test_poisson_under_replacement_is_exact_for_opposite_records(rate: float, mu: float) -> None:
    found = curves.poisson_replaced(mu, rate)
    here, there = ((1 - rate) * normal(0) + rate * normal(s * mu) for s in (1, -1))
    np.testing.assert_allclose(found.present(EPS), hockey(here, there, EPS), atol=2e-7)


def test_opposite_records_are_the_worst_pair_for_a_sampled_sum() -> None:
    """The proof in docs/accounting.md, checked in the plane over lengths and angles."""
    side = np.linspace(-9, 9, 361)
    x, y = np.meshgrid(side, side)

    def blob(point: tuple[float, float]) -> Array:
        return np.exp(-((x - point[0]) ** 2 + (y - point[1]) ** 2) / 2) / (2 * math.pi)

    for rate, mu, eps in ((0.1, 1.5, 0.1), (0.5, 1.0, 0.4), (0.3, 2.5, 1.0)):
        worst = float(curves.poisson_replaced(mu, rate).present(np.array([eps]))[0])
        for length_u in (0.4, 1.0):
            for length_v in (0.0, 0.5, 1.0):
                for angle in np.linspace(0, math.pi, 7):
                    u = (mu * length_u, 0.0)
                    v = (mu * length_v * math.cos(angle), mu * length_v * math.sin(angle))
                    p = (1 - rate) * blob((0, 0)) + rate * blob(u)
                    q = (1 - rate) * blob((0, 0)) + rate * blob(v)
                    true = np.maximum(p - math.exp(eps) * q, 0).sum() * (side[1] - side[0]) ** 2
                    assert true <= worst + 1e-4


@pytest.mark.parametrize("n", [2, 5])
def test_one_vector_of_n_seen_is_never_above_the_fixed_size_bound(n: int) -> None:
    """One of n records is drawn and its noisy value seen: the true pair against the bound, for many other records."""
    mu = 2.0  # the distance of opposite records
    bound = curves.fixed_size(curves.gaussian(mu), 1 / n)
    for others in (-1.0, -0.3, 0.0, 1.0):
        rest = (n - 1) / n * normal(others * mu / 2)
        p, q = rest + normal(mu / 2) / n, rest + normal(-mu / 2) / n
        assert np.all(hockey(p, q, EPS) <= bound.present(EPS) + 1e-7)


@pytest.mark.parametrize("n", [2, 5])
def test_zeroed_records_of_a_fixed_draw_stay_below_their_bound(n: int) -> None:
    bound = curves.fixed_size_zeroed(curves.gaussian(1.0), curves.gaussian(2.0), 1 / n)
    assert bound.absent is not None
    fine = np.linspace(-3, 3, 201)
    for others in (-1.0, -0.5, 0.0, 0.6, 1.0):
        rest = (n - 1) / n * normal(others)
        p, q = rest + normal(1.0) / n, rest + normal(0.0) / n
        assert np.all(hockey(p, q, fine) <= bound.present(fine) + 1e-7)
        assert np.all(hockey(q, p, fine) <= bound.absent(fine) + 1e-7)


def test_zeroing_with_the_zero_out_distance_alone_would_not_be_a_bound() -> None:
    """Why the draws that miss the record must pay replace-one."""
    n, eps = 5, np.array([0.1])
    rest = (n - 1) / n * normal(-1.0)
    true = hockey(rest + normal(1.0) / n, rest + normal(0.0) / n, eps)
    naive = curves.fixed_size(curves.gaussian(1.0), 1 / n).present(eps)
    assert true[0] > naive[0] * 1.2


def test_coins_average_over_the_number_sent() -> None:
    n, rate, mu = 12, 0.25, 1.5
    found = curves.bernoulli_visible(curves.gaussian(mu), rate, n)
    eps = np.array([0.0, 0.2, 1.0])
    average = sum(
        stats.binom.pmf(k, n, rate) * curves.fixed_size(curves.gaussian(mu), k / n).present(eps)
        for k in range(1, n + 1)
    )
    np.testing.assert_allclose(found.present(eps), average, rtol=1e-9)


def test_grouping_many_numbers_only_adds() -> None:
    n, rate = 20_000, 0.05
    eps = np.array([0.0, 0.1, 0.5])
    grouped = curves.bernoulli_visible(curves.gaussian(1.0), rate, n).present(eps)
    k = np.arange(1, 4000)
    weights = stats.binom.pmf(k, n, rate)
    exact = sum(
        w * curves.fixed_size(curves.gaussian(1.0), i / n).present(eps)
        for i, w in zip(k, weights, strict=True)
        if w > 0
    )
    assert np.all(grouped >= exact * (1 - 1e-12))
    assert np.all(grouped <= exact * 1.02)


def test_laplace_and_pure_are_the_textbook_pairs() -> None:
    e = 1.3
    p, q = stats.laplace.pdf(X, 0, 1 / e), stats.laplace.pdf(X, 1, 1 / e)
    np.testing.assert_allclose(curves.laplace(e).present(EPS), hockey(p, q, EPS), atol=1e-4)
    told = math.exp(e) / (1 + math.exp(e))
    pair = curves.discrete(np.array([told, 1 - told]), np.array([1 - told, told]))
    np.testing.assert_allclose(curves.pure(e).present(EPS), pair.present(EPS), atol=1e-12)
    np.testing.assert_allclose(curves.pure(e, 0.1).present(EPS), 0.1 + 0.9 * pair.present(EPS), atol=1e-12)


def test_zero_concentrated_lies_above_every_gaussian_that_has_it() -> None:
    for mu in (0.1, 1.0, 4.0):
        bound, eps = curves.concentrated([(mu * mu / 2, 0.0)]), np.linspace(-6, 12, 2001)
        gap = bound.present(eps) - curves.gaussian(mu).present(eps)
        assert gap.min() >= -1e-12


def test_curves_agree_with_the_library_where_it_has_them() -> None:
    ours = curves.poisson(curves.laplace(1.0), 0.2).losses()
    theirs = library.from_laplace_mechanism(1.0, value_discretization_interval=1e-3, sampling_prob=0.2)
    for delta in (1e-1, 1e-3, 1e-6):
        assert ours.get_epsilon_for_delta(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), abs=2e-3)


@pytest.mark.parametrize(
    "made",
    [
        curves.gaussian(0.7),
        curves.laplace(0.9),
        curves.pure(1.2, 1e-4),
        curves.poisson(curves.gaussian(1.0), 0.05),
        curves.poisson_replaced(0.8, 0.1),
        curves.fixed_size(curves.gaussian(2.0), 0.1),
        curves.fixed_size_zeroed(curves.gaussian(1.0), curves.gaussian(2.0), 0.1),
        curves.concentrated([(0.4, 0.01)]),
    ],
)
def test_a_curve_falls_is_convex_and_its_losses_are_pessimistic(made: curves.Curve) -> None:
    eps = np.linspace(-2, 4, 601)
    for side in (made.present, made.absent or made.present):
        d = side(eps)
        assert np.all(np.diff(d) <= 1e-12)
        assert np.all(d >= np.maximum(0, -np.expm1(eps)) - 1e-9)
        slopes = np.diff(d) / np.diff(np.exp(eps))
        assert np.all(np.diff(slopes) >= -1e-7)
    losses = made.losses()
    for e in (0.0005, 0.0123, 0.5555, 1.9999):
        assert losses.get_delta_for_epsilon(e) >= made.delta(e) - 1e-12
