import logging

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.integrate import quad

from discreet.accounting import von_mises_fisher as vmf
from discreet.accounting.events import (
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    VonMisesFisherDpEvent,
    decompose,
)
from discreet.accounting.renyi import ORDERS, renyi_divergences, sampled_gaussian
from discreet.core.guarantee import Adjacency


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.3, 2.0), (0.025, 0.35)])
def test_sampled_noise_is_exact_and_never_above_the_library(rate: float, noise: float) -> None:
    ours = sampled_gaussian(rate, noise)
    logging.getLogger("absl").setLevel(logging.ERROR)  # it says which orders it gives up
    theirs = RdpAccountant(orders=list(ORDERS)).compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise))).rdp
    assert np.all(ours <= theirs * (1 + 1e-9) + 1e-15)
    whole = ORDERS.astype(int) == ORDERS
    np.testing.assert_allclose(ours[whole], theirs[whole], rtol=1e-9)
    for i in (0, 5, 18):
        a = float(ORDERS[i])
        z = 2 * noise * noise

        def excess(x: float, a: float = a, z: float = z) -> float:
            density = np.exp(-x * x / z) / (noise * np.sqrt(2 * np.pi))
            return float(density * np.expm1(a * np.log1p(rate * np.expm1((2 * x - 1) / z))))

        total = quad(excess, -12 * noise, a + 12 * noise, points=[0.0, 1.0, a], limit=400, epsabs=1e-14)[0]
        assert ours[i] == pytest.approx(np.log1p(total) / (a - 1), rel=1e-6)


def test_pure_events_are_randomized_response() -> None:
    pure = renyi_divergences(decompose(EpsilonDeltaDpEvent(np.log(3)), Adjacency.REPLACE_ONE), Adjacency.REPLACE_ONE)
    told = RandomizedResponseDpEvent(0.5, 2)
    np.testing.assert_allclose(
        pure, renyi_divergences(decompose(told, Adjacency.REPLACE_ONE), Adjacency.REPLACE_ONE), rtol=1e-9
    )
    large = renyi_divergences(decompose(EpsilonDeltaDpEvent(900.0), Adjacency.REPLACE_ONE), Adjacency.REPLACE_ONE)
    assert np.all(np.isfinite(large)) and np.all(large <= 900)


def test_directions_have_the_divergences_of_their_density() -> None:
    kappa, d = 3.0, 3
    t = np.linspace(-1, 1, 400_001)
    f = kappa * np.exp(kappa * t) / (2 * np.sinh(kappa))
    event = VonMisesFisherDpEvent(kappa, d)
    replaced = renyi_divergences(decompose(event, Adjacency.REPLACE_ONE), Adjacency.REPLACE_ONE)
    zeroed = renyi_divergences(decompose(event, Adjacency.ZERO_OUT), Adjacency.ZERO_OUT)
    for i in (4, 10, 40):
        a = float(ORDERS[i])
        assert replaced[i] == pytest.approx(np.log(np.trapezoid(f**a * f[::-1] ** (1 - a), t)) / (a - 1), rel=1e-6)
        there = np.log(np.trapezoid(f**a * 0.5 ** (1 - a), t)) / (a - 1)
        back = np.log(np.trapezoid(0.5**a * f ** (1 - a), t)) / (a - 1)
        assert zeroed[i] == pytest.approx(max(there, back), rel=1e-6)
    assert vmf.log_mean(0.0, d) == 0.0
