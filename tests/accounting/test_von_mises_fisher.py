import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from discreet.accounting import von_mises_fisher as vmf
from discreet.accounting.curve import Curve, interval_for
from discreet.accounting.gdp import gaussian_epsilon
from discreet.accounting.powers import Powers
from discreet.core.errors import SettingError


@pytest.mark.parametrize("kappa", [0.1, 2.0, 40.0])
def test_in_three_dimensions_everything_has_a_closed_form(kappa: float) -> None:
    """There t has density kappa e^(kappa t) / (2 sinh kappa)."""
    assert vmf.log_mean(kappa, 3) == pytest.approx(
        kappa + math.log(-math.expm1(-2 * kappa)) - math.log(2 * kappa), abs=1e-12
    )
    for eps in (0.0, 0.3 * kappa, 1.7 * kappa):
        cut = eps / (2 * kappa)
        above = math.expm1(kappa * (cut - 1)) / math.expm1(-2 * kappa)
        below = (math.exp(eps - kappa * (cut + 1)) - math.exp(eps - 2 * kappa)) / -math.expm1(-2 * kappa)
        assert vmf.replaced_delta(kappa, 3, eps) == pytest.approx(above - below, abs=1e-11)
    for share in (0.01, 0.3):
        edge = 1 - 2 * share
        assert vmf.cap_success(kappa, 3, share) == pytest.approx(
            math.expm1(kappa * (edge - 1)) / math.expm1(-2 * kappa), rel=1e-9
        )


def exact_log_mean(kappa: float, d: int) -> float:
    with mpmath.workdps(60):
        v, k = mpmath.mpf(d) / 2 - 1, mpmath.mpf(kappa)
        if kappa * kappa < 1600 * (v + 1):
            return float(mpmath.log(mpmath.hyp0f1(v + 1, k * k / 4)))
        return float(mpmath.log(mpmath.besseli(v, k)) + mpmath.loggamma(v + 1) + v * mpmath.log(2 / k))


@pytest.mark.parametrize("d", [2, 3, 4, 10, 100, 121, 122, 123, 300, 3072, 592_130, 2_000_000])
@pytest.mark.parametrize("kappa", [1e-9, 0.5, 3.0, 30.0, 300.0, 1e4, 1e5])
def test_the_normaliser_agrees_with_sixty_digits(kappa: float, d: int) -> None:
    assert vmf.log_mean(kappa, d) == pytest.approx(exact_log_mean(kappa, d), rel=1e-11, abs=1e-14)


@pytest.mark.parametrize("d", [2, 3, 100, 122, 300, 3072])
def test_the_normaliser_is_right_past_the_range_of_scipy(d: int) -> None:
    assert vmf.log_mean(2e8, d) == pytest.approx(exact_log_mean(2e8, d), rel=1e-12)


def test_the_normaliser_does_not_overflow() -> None:
    for d in (2, 3, 1000, 10**7):
        for kappa in (0.0, 1e-300, 1.0, 1e7, 1e10):
            value = vmf.log_mean(kappa, d)
            assert math.isfinite(value)
            assert -1e-14 <= value <= kappa + 1e-14


def test_on_the_circle_it_is_the_bessel_function() -> None:
    from scipy.special import ive

    for kappa in (0.5, 5.0, 500.0):
        assert vmf.log_mean(kappa, 2) == pytest.approx(kappa + math.log(ive(0, kappa)), rel=1e-9)


@pytest.mark.parametrize(("dimension", "kappa"), [(3, 1.0), (4, 10.0), (30, 5.0), (500, 60.0), (592_130, 1000.0)])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_antipodal_is_the_worst_pair_over_all_angles(dimension: int, kappa: float, share: float) -> None:
    """The maximum over angles, by two integrals, is at the opposite one; docs/von_mises_fisher.md has the proof."""
    eps = share * vmf.replaced_epsilon(kappa, dimension, 1e-5)
    angles = np.linspace(0.1, 1.0, 10) * math.pi
    found = [_angle_delta(kappa, dimension, float(a), eps) for a in angles]
    opposite = vmf.replaced_delta(kappa, dimension, eps)
    assert found[-1] == pytest.approx(opposite, rel=1e-5, abs=1e-12)
    assert all(a <= b * (1 + 1e-6) + 1e-12 for a, b in pairwise(found))
    assert max(found) <= opposite * (1 + 1e-5) + 1e-12


def test_it_is_the_gaussian_with_two_kappa_over_root_d_where_kappa_is_small() -> None:
    for dimension, kappa in ((592_130, 300.0), (10_000_000, 3000.0), (3072, 10.0)):
        limit = gaussian_epsilon(2 * kappa / math.sqrt(dimension), 1e-5)
        assert vmf.replaced_epsilon(kappa, dimension, 1e-5) == pytest.approx(limit, rel=2e-3)
    # and no longer where it is not: the Gaussian would say 804 for 725
    assert vmf.replaced_epsilon(1000.0, 3072, 1e-5) < 0.91 * gaussian_epsilon(2000 / math.sqrt(3072), 1e-5)


def test_no_parameter_overflows() -> None:
    for dimension in (2, 3, 10, 5_000_000):
        for kappa in (0.0, 1e-6, 1.0, 1e4, 1e6):
            for found in (vmf.replaced_epsilon(kappa, dimension, 1e-5), vmf.zeroed_epsilon(kappa, dimension, 1e-5)):
                assert 0 <= found <= 2 * kappa + 1e-9
            assert vmf.zeroed_epsilon(kappa, dimension, 1e-5) <= vmf.replaced_epsilon(kappa, dimension, 1e-5) + 1e-9


@pytest.mark.parametrize(("kappa", "dimension"), [(3.0, 2), (2.0, 3), (100.0, 592_130), (50.0, 50), (1e4, 592_130)])
def test_the_grid_is_pessimistic_and_close(kappa: float, dimension: int) -> None:
    for made, exact in (
        (vmf.replaced(kappa, dimension), vmf.replaced_epsilon(kappa, dimension, 1e-5)),
        (vmf.zeroed(kappa, dimension), vmf.zeroed_epsilon(kappa, dimension, 1e-5)),
    ):
        found = Powers.of(made.losses(interval_for(made))).epsilon(1, 1e-5)
        assert exact <= found + 1e-9
        assert found <= exact * 1.001 + 1e-3


def test_many_uses_compose_like_the_gaussian_they_resemble() -> None:
    made: Curve = vmf.replaced(100.0, 592_130)
    found = Powers.of(made.losses()).epsilon(50, 1e-5)
    assert found == pytest.approx(gaussian_epsilon(math.sqrt(50) * 200 / math.sqrt(592_130), 1e-5), rel=2e-3)


@pytest.mark.parametrize(("kappa", "dimension"), [(math.inf, 10), (-1.0, 10), (math.nan, 10), (1.0, 1)])
def test_what_is_no_distribution_is_refused(kappa: float, dimension: int) -> None:
    with pytest.raises(SettingError, match="Expected"):
        vmf.replaced_delta(kappa, dimension, 1.0)


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("kappa", "dimension"), [(1e11, 384), (1e16, 100), (1e26, 11_000_000)])
def test_a_direction_released_nearly_as_it_is_costs_its_largest_loss(
    adjacency: str, accountant: str, kappa: float, dimension: int
) -> None:
    """Doubles hold kappa t to 1e-16 of kappa only, so past 1e10 no smaller figure is proven."""
    from discreet.accounting.events import SelfComposedDpEvent, VonMisesFisherDpEvent
    from discreet.accounting.interpret import delta, guarantee_of
    from discreet.accounting.risk import most_identified

    one = VonMisesFisherDpEvent(kappa, dimension)
    for event, times in ((one, 1), (SelfComposedDpEvent(one, 3), 3)):
        found = guarantee_of(event, delta=1e-5, adjacency=adjacency, accountant=accountant)
        assert found.certified and found.epsilon == pytest.approx(2 * kappa * times, rel=1e-4)
    assert delta(one, kappa, adjacency) > 0.5
    assert most_identified(one, 64, adjacency) == 1.0


def test_a_mean_that_doubles_cannot_hold_is_refused() -> None:
    with pytest.raises(SettingError, match="kappa to be .*, got "):
        vmf.log_mean(1e26, 11_000_000)


def _angle_delta(kappa: float, dimension: int, angle: float, epsilon: float) -> float:
    """Return the delta at epsilon for two directions at any angle, by two integrals, to check the proof.

    With a the bisector, u across it and s = <y, a>, the rest of y lies on a sphere of radius sqrt(1 - s²) in one
    dimension less; given s the loss is 2 kappa sin(angle/2) <y, u>.
    """
    across, along = kappa * math.sin(angle / 2), kappa * math.cos(angle / 2)
    s_phi, s_weight = vmf._nodes(vmf._support(0.0, dimension)[0], vmf._support(kappa, dimension)[1], pieces=6)
    total, mass = 0.0, 0.0
    reference = vmf._log_total(kappa, dimension)
    for phi, weight in zip(s_phi, s_weight, strict=True):
        inner = across * math.cos(phi)
        # both directions give s the same law: the outer weight times the mass of the smaller sphere
        log_w = float(vmf._log_shape(along, dimension, np.array([phi]))[0]) + vmf._log_total(inner, dimension - 1)
        share = weight * math.exp(log_w - reference)
        mass += share
        total += share * vmf._tail_delta(inner, dimension - 1, 2 * inner, 0.0, epsilon, pieces=24)
    return total / mass if mass > 0 else 0.0
