"""Trade-off curves are below the truth, close to it, and equal to it where it is known in closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from discreet.accounting import curve as curves
from discreet.accounting import events
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.audit.trade_off import TradeOff, epsilon_delta, family_of, gaussian, priv_unit, scaled, trade_off_of
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Adjacency
from discreet.mechanisms.priv_unit import PrivUnit

RATES = np.concatenate((np.geomspace(1e-6, 0.1, 20), np.linspace(0.1, 1, 20)))


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_the_gaussian_curve_is_rounded_down_by_little(mu: float) -> None:
    lines, exact = TradeOff.of_curve(curves.gaussian(mu)), gaussian().trade_off(mu)
    for rate in RATES.tolist():
        assert exact(rate) - 2e-4 <= lines(rate) <= exact(rate) + 1e-12


@given(st.floats(0, 6), st.floats(0, 0.3), st.floats(0, 1))
def test_the_curve_of_all_private_mechanisms_is_that_of_the_definition(eps: float, delta: float, rate: float) -> None:
    if not 0 < delta < 1:
        delta = 1e-9
    exact = max(0.0, 1 - delta - math.exp(eps) * rate, math.exp(-eps) * (1 - delta - rate))
    curve = epsilon_delta(delta).trade_off(eps)
    assert curve(rate) <= exact + 1e-9
    assert curve(rate) >= exact - 1e-9


def test_the_curve_of_a_direction_is_that_of_its_density() -> None:
    """With F the distribution of the cosine, f(x) = F(-F^-1(x)) for opposite directions."""
    kappa, d = 2.0, 8

    def density(t: float) -> float:
        return math.exp(kappa * t) * (1 - t * t) ** ((d - 3) / 2)

    total = quad(density, -1, 1)[0]

    def cdf(t: float) -> float:
        return quad(density, -1, t)[0] / total

    curve = trade_off_of(events.VonMisesFisherDpEvent(kappa, d), Adjacency.REPLACE_ONE)
    for rate in (0.01, 0.1, 0.3, 0.7):
        # reject "opposite" above t: the false-positive rate is P[t' > t] under the opposite direction
        cut = brentq(lambda t, rate=rate: cdf(-t) - rate, -1, 1)
        assert cdf(cut) - 1e-3 <= curve(rate) <= cdf(cut) + 1e-9


def test_the_curve_of_privunit_goes_through_its_two_points() -> None:
    mechanism = PrivUnit(2.0, 16)
    cap = mechanism.cap
    area = math.exp(cap.log_mass)
    other = (1 - cap.truth) * area / (1 - area)
    curve = priv_unit(16).trade_off(2.0)
    assert curve(other) == pytest.approx(1 - cap.truth, abs=1e-3)
    assert curve(1 - cap.truth) == pytest.approx(other, abs=1e-3)
    assert (1 - curve(1e-4)) / 1e-4 == pytest.approx(math.exp(2.0), rel=0.01)
    pure = TradeOff.of_curve(curves.pure(2.0))
    assert all(curve(rate) >= pure(rate) - 1e-9 for rate in RATES.tolist())


@pytest.mark.parametrize(
    "event",
    [
        events.ClippedSumDpEvent(1.3),
        events.LaplaceDpEvent(0.7),
        events.VonMisesFisherDpEvent(3.0, 5),
        events.LocalDpEvent(1.0),
        events.MetricDpEvent(1.0, "euclidean", 2.0),
        events.RandomizedResponseDpEvent(0.3, 4),
        events.DiscreteLaplaceDpEvent(0.5, 2),
        events.DiscreteGaussianDpEvent(2.0),
        events.ZCDpEvent(0.2, 0.1),
        events.SelfComposedDpEvent(events.PoissonSampledDpEvent(0.1, events.ClippedSumDpEvent(1.0)), 20),
        events.ComposedDpEvent([events.ClippedSumDpEvent(1.3), events.LocalDpEvent(1.0)]),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_stronger_event_is_less_private_and_the_same_one_is_the_same(event: events.DpEvent) -> None:
    adjacency = Adjacency.REPLACE_ONE if isinstance(event, events.MetricDpEvent) else Adjacency.ZERO_OUT
    alone = epsilon_of(event, 1e-5, adjacency)
    assert epsilon_of(scaled(event, 1.0), 1e-5, adjacency) == pytest.approx(alone, rel=1e-6)
    assert epsilon_of(scaled(event, 0.5), 1e-5, adjacency) < alone < epsilon_of(scaled(event, 2.0), 1e-5, adjacency)
    family = family_of(event, adjacency)
    strength = 1.0 if family.name != "mu-GDP" else 1 / 1.3
    assert family.epsilon(strength, 1e-5) == pytest.approx(alone, rel=1e-3)
    assert 0 <= family.trade_off(strength)(0.1) <= 0.9


def test_what_has_no_guarantee_cannot_be_audited_in_a_family() -> None:
    with pytest.raises(UnsupportedError, match="got none: no noise"):
        family_of(events.NoGuaranteeDpEvent("no noise"), Adjacency.ZERO_OUT)


def test_gaussian_trade_off_matches_the_normal_formula() -> None:
    assert gaussian().trade_off(1.5)(0.2) == pytest.approx(norm.cdf(norm.ppf(0.8) - 1.5))
