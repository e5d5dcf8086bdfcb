"""Bounds for noise of several clients, beside the exact divergences of small cases."""

import math

import numpy as np
import pytest
from scipy.special import ive, logsumexp

from discreet.accounting.discrete_sums import at_real_orders, closeness, divergence, gaussian_sum, lines_of
from discreet.accounting.events import DiscreteGaussianSumDpEvent, GaussianDpEvent, SelfComposedDpEvent, SkellamDpEvent
from discreet.accounting.interpret import epsilon
from discreet.accounting.losses import use_curve
from discreet.core.guarantee import Adjacency

ZERO = Adjacency.ZERO_OUT


def summed(sigma: float, terms: int) -> np.ndarray:
    """The probabilities of a sum of discrete Gaussians around 0, by convolution."""
    reach = math.ceil(14 * sigma * math.sqrt(terms)) + 8
    k = np.arange(-reach, reach + 1)
    one = np.exp(-((k / sigma) ** 2) / 2)
    one /= one.sum()
    total = one
    for _ in range(terms - 1):
        total = np.convolve(total, one)
    middle = len(total) // 2
    return total[middle - reach : middle + reach + 1]


def renyi(p: np.ndarray, q: np.ndarray, order: float) -> float:
    both = (p > 0) & (q > 0)
    logs = order * np.log(p[both]) + (1 - order) * np.log(q[both])
    return float(logsumexp(logs)) / (order - 1)


def hockey_stick(p: np.ndarray, q: np.ndarray, eps: float) -> float:
    return float(np.maximum(p - math.exp(eps) * q, 0.0).sum())


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0, 2.5])
@pytest.mark.parametrize("terms", [1, 2, 6])
def test_a_sum_of_discrete_gaussians_is_within_its_bounds(sigma: float, terms: int) -> None:
    p = summed(sigma, terms)
    for shift in (1, 2, 3):
        use = DiscreteGaussianSumDpEvent(sigma, terms, float(shift), float(shift), 1)
        here, there = p[shift:], p[:-shift]
        for order in (1.5, 2.0, 5.0):
            if order * shift / sigma**2 < 30:  # else the sum lies outside the table
                assert renyi(here, there, order) <= divergence(lines_of(use), np.array([order]))[0] + 1e-9
        curve = gaussian_sum(use)
        for eps in (0.0, 0.3, 1.0, 2.0, 4.0):
            assert hockey_stick(here, there, eps) <= curve.delta(eps) + 1e-12


@pytest.mark.parametrize("terms", [2, 3, 7])
@pytest.mark.parametrize("sigma", [0.6, 0.8])
def test_closeness_bounds_the_ratio_to_one_discrete_gaussian(sigma: float, terms: int) -> None:
    p = summed(sigma, terms)
    k = np.arange(len(p)) - len(p) // 2
    q = np.exp(-(k**2) / (2 * terms * sigma**2))
    q /= q.sum()
    near = np.abs(k) <= 6 * sigma * math.sqrt(terms)
    assert np.abs(np.log(p[near] / q[near])).max() <= closeness(sigma, terms) / 2


def test_two_coordinates_of_noise_are_within_the_curve() -> None:
    p = summed(2.0, 3)
    for shift in ((1, 2), (3, 0), (2, 2)):
        rows, columns = (p[s:] if s else p for s in shift), (p[:-s] if s else p for s in shift)
        here, there = np.multiply.outer(*rows).ravel(), np.multiply.outer(*columns).ravel()
        l2, l1 = math.hypot(*shift), float(sum(shift))
        curve = use_curve(DiscreteGaussianSumDpEvent(2.0, 3, l2, l1, 2), ZERO)
        for eps in (0.0, 0.5, 1.0, 2.0):
            assert hockey_stick(here, there, eps) <= curve.delta(eps) + 1e-12


def test_on_a_fine_grid_the_cost_is_that_of_gaussian_noise() -> None:
    use = DiscreteGaussianSumDpEvent(10_000.0, 6, 5000.0, 5e6, 100_000)
    central = GaussianDpEvent(10_000.0 * math.sqrt(6) / 5000.0)
    for count in (1, 50):
        ours, gaussian = (epsilon(SelfComposedDpEvent(event, count), 1e-5, ZERO) for event in (use, central))
        assert gaussian <= ours <= gaussian * 1.002


@pytest.mark.parametrize("variance", [0.5, 3.0, 40.0, 1000.0])
def test_skellam_noise_is_within_its_bounds(variance: float) -> None:
    reach = math.ceil(16 * math.sqrt(variance)) + 80
    k = np.arange(-reach, reach + 1)
    for shift in (1, 2, 5):
        p, q = ive(np.abs(k), variance), ive(np.abs(k - shift), variance)
        use = SkellamDpEvent(variance, float(shift), float(shift))
        for order in (2.0, 3.0, 8.0):
            assert renyi(p, q, order) <= divergence(lines_of(use), np.array([order]))[0] + 1e-9
        for order in (1.3, 2.5, 3.9):
            assert renyi(p, q, order) <= at_real_orders(lines_of(use), np.array([order]))[0] + 1e-9
        curve = use_curve(use, ZERO)
        for eps in (0.0, 0.3, 1.0, 3.0):
            assert hockey_stick(p, q, eps) <= curve.delta(eps) + 1e-12


def test_skellam_costs_a_little_more_than_the_rdp_of_gaussian_noise() -> None:
    skellam, gaussian = SkellamDpEvent(1e8, 2500.0, 1e5), GaussianDpEvent(4.0)
    assert (
        epsilon(gaussian, 1e-5, ZERO, "rdp")
        <= epsilon(skellam, 1e-5, ZERO)
        < 1.01 * epsilon(gaussian, 1e-5, ZERO, "rdp")
    )
