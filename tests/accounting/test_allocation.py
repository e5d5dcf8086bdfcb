"""Random allocation against exact integrals for few bins, and the laws of its discretized likelihood ratio."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from discreet.accounting.allocation import _sum_of, random_allocation
from discreet.accounting.curve import Array, gaussian
from discreet.accounting.events import (
    ClippedSumDpEvent,
    EpsilonDeltaDpEvent,
    PoissonSampledDpEvent,
    RandomAllocationDpEvent,
    SelfComposedDpEvent,
)
from discreet.accounting.interpret import epsilon, guarantee_of
from discreet.core.errors import SettingError, UnsupportedError
from discreet.core.guarantee import Adjacency

few = settings(max_examples=5, deadline=None)
X = np.linspace(-9.5, 9.5, 401)
WEIGHTS = np.exp(-X * X / 2) * (X[1] - X[0]) / math.sqrt(2 * math.pi)  # exact to 1e-14 for smooth integrands


def call(mu: float, strike: Array) -> Array:
    """Return the mean of max(0, w - strike) for w = exp(mu x - mu²/2), x normal: the formula of Black and Scholes."""
    positive = np.maximum(strike, 1e-300)
    d = (-np.log(positive) + mu * mu / 2) / mu
    return np.where(strike > 0, ndtr(d) - strike * ndtr(d - mu), 1 - strike)


def exact(mu: float, bins: int, eps: float) -> tuple[float, float]:
    """Return both deltas for 2 or 3 bins, by integrating over all ratios but the last."""
    w = np.exp(mu * X - mu * mu / 2)
    others, weights = w, WEIGHTS
    if bins == 3:
        others, weights = (w[:, None] + w[None, :]).ravel(), (WEIGHTS[:, None] * WEIGHTS[None, :]).ravel()
    strike = bins * math.exp(eps) - others
    present = float(np.dot(weights, call(mu, strike))) / bins
    strike = bins * math.exp(-eps) - others
    put = call(mu, strike) - 1 + strike  # put-call parity: the mean of max(0, strike - w)
    absent = math.exp(eps) * float(np.dot(weights, np.where(strike > 0, put, 0.0))) / bins
    return present, absent


@pytest.mark.parametrize(("mu", "bins"), [(0.3, 2), (1.0, 2), (2.5, 2), (0.6, 3), (1.2, 3)])
def test_few_bins_are_those_of_the_integral(mu: float, bins: int) -> None:
    curve = random_allocation(mu, bins)
    assert curve.absent is not None
    for eps in (0.0, 0.2, 0.5, 1.0):
        present, absent = exact(mu, bins, eps)
        for bound, truth in ((curve.present, present), (curve.absent, absent)):
            value = float(bound(np.array([eps]))[0])
            assert value >= truth * (1 - 1e-9) - 1e-14
            assert value <= truth * 1.02 + 1e-9


def test_one_bin_is_no_amplification() -> None:
    eps = np.linspace(-2, 4, 13)
    ours, gauss = random_allocation(1.0, 1).present(eps), gaussian(1.0).present(eps)
    assert (ours >= gauss * (1 - 1e-9)).all() and (ours <= gauss * 1.002).all()
    event = RandomAllocationDpEvent(ClippedSumDpEvent(1.0), 1)
    assert epsilon(event, 1e-5) == epsilon(ClippedSumDpEvent(1.0), 1e-5)


@few
@given(st.floats(0.05, 4.0), st.integers(1, 120))
def test_the_ratio_keeps_its_mean_and_hardly_spreads(mu: float, bins: int) -> None:
    law = _sum_of(mu, bins)
    ratio = np.exp(law.logs - math.log(bins))
    assert float(law.masses.sum()) + law.zero == pytest.approx(1, abs=1e-10)
    assert float(np.dot(law.masses, ratio)) + law.infinite / bins == pytest.approx(1, abs=1e-10)
    variance = math.expm1(mu * mu) / bins  # of the exact ratio
    spread = float(np.dot(law.masses, ratio * ratio)) - 1
    # the largest ratios are beyond the grid, where their mean counts as an infinite loss
    assert spread <= variance * 1.004
    if mu < 2:
        assert spread >= variance * 0.9999


@few
@given(st.floats(0.6, 5.0), st.integers(2, 30), st.integers(1, 20))
def test_it_costs_less_than_no_sampling_and_more_with_less_noise(noise: float, bins: int, epochs: int) -> None:
    def cost(z: float) -> float:
        return epsilon(SelfComposedDpEvent(RandomAllocationDpEvent(ClippedSumDpEvent(z), bins), epochs), 1e-5)

    unsampled = epsilon(SelfComposedDpEvent(ClippedSumDpEvent(noise), epochs), 1e-5)
    assert cost(noise) <= unsampled * 1.001
    assert cost(noise * 1.2) <= cost(noise) + 1e-6


def test_what_is_covered() -> None:
    sums = RandomAllocationDpEvent(ClippedSumDpEvent(2.0), 9)
    assert epsilon(sums, 1e-5, "add/remove") == epsilon(sums, 1e-5, "zero-out")
    with pytest.raises(UnsupportedError, match="add/remove and zero-out"):
        epsilon(sums, 1e-5, "replace-one")
    for inner in (EpsilonDeltaDpEvent(1.0), PoissonSampledDpEvent(0.5, ClippedSumDpEvent(1.0))):
        with pytest.raises(UnsupportedError, match="Gaussian noise on a sum"):
            epsilon(RandomAllocationDpEvent(inner, 9), 1e-5)
    with pytest.raises(SettingError, match="bins"):
        RandomAllocationDpEvent(ClippedSumDpEvent(1.0), 0)
    assert epsilon(RandomAllocationDpEvent(ClippedSumDpEvent(0.0), 9), 1e-5) == math.inf
    stated = guarantee_of(sums, delta=1e-5, adjacency=Adjacency.ZERO_OUT)
    assert stated.certified and any("one of the sums" in text for text in stated.assumptions)
