import math

import numpy as np
import pytest
from scipy import stats

from discreet.accounting.events import (
    ClippedSumDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoGuaranteeDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SelfComposedDpEvent,
    VonMisesFisherDpEvent,
)
from discreet.accounting.risk import (
    least_noise_for_risk,
    most_identified,
    most_named,
    most_true_positives,
    most_true_positives_at,
)
from discreet.accounting.von_mises_fisher import zeroed_delta
from discreet.core.errors import SettingError


def test_gaussian_risk_is_the_normal_trade_off() -> None:
    assert most_true_positives(GaussianDpEvent(1.0), 0.01) == pytest.approx(
        stats.norm.cdf(stats.norm.ppf(0.01) + 1), rel=1e-9
    )
    assert [round(most_identified(GaussianDpEvent(s), 64), 3) for s in (0.2, 0.5, 1.0, 2.0)] == [
        0.998,
        0.439,
        0.124,
        0.049,
    ]


def test_laplace_risk_is_its_own_best_test() -> None:
    """At small false-positive rates the best test against Laplace noise gains e^epsilon."""
    assert most_true_positives(LaplaceDpEvent(1.0), 0.01) == pytest.approx(0.01 * np.e, rel=2e-3)


def test_the_direction_is_from_null_to_record() -> None:
    """Sampling hides the record: the record's side is a mixture, so the two directions differ."""
    step = PoissonSampledDpEvent(0.1, ClippedSumDpEvent(0.5))
    found = most_true_positives(step, 0.01)
    exact = 0.9 * 0.01 + 0.1 * stats.norm.cdf(stats.norm.ppf(0.01) + 2)
    assert exact <= found <= exact + 1e-3
    # the other way round it would be 1 - f at most 0.01 / 0.9 for very small rates
    assert found > 0.01 / 0.9


def test_simulated_attackers_stay_below_the_bound() -> None:
    rng = np.random.default_rng(5)
    draws, rounds = 40_000, 30
    event = SelfComposedDpEvent(PoissonSampledDpEvent(0.2, ClippedSumDpEvent(1.0)), rounds)
    absent = rng.normal(size=(draws, rounds))
    present = absent + (rng.random((draws, rounds)) < 0.2)

    def score(x: np.ndarray) -> np.ndarray:
        return np.log1p(0.2 * np.expm1(x - 0.5)).sum(axis=1)  # the likelihood ratio: no attack is better

    threshold = np.quantile(score(absent), 0.95)
    reached = float((score(present) > threshold).mean())
    bound = most_true_positives(event, 0.05)
    assert reached <= bound + 0.01
    assert reached >= bound - 0.01  # and the bound is not idle


def test_the_best_guess_among_n_directions_is_the_cap() -> None:
    rng = np.random.default_rng(3)
    kappa, d, n = 6.0, 8, 10
    bound = most_identified(VonMisesFisherDpEvent(kappa, d), n, "zero-out")
    centres = rng.normal(size=(n, d))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    seen = stats.vonmises_fisher(centres[0], kappa).rvs(20_000, random_state=rng)
    success = float(((seen @ centres.T).argmax(axis=1) == 0).mean())
    assert success <= bound + 0.01
    # the cap is the trade-off curve itself
    eps = np.linspace(0, 8, 801)
    other = min(zeroed_delta(kappa, d, float(e)) + np.exp(e) / n for e in eps)
    assert bound <= other + 1e-3


def test_many_rates_at_once_and_no_protection() -> None:
    rates = [0.0, 0.001, 0.5, 1.0]
    found = most_true_positives_at(RandomizedResponseDpEvent(0.5, 2), rates, "replace-one")
    # straight lines from (0, 0) to (1/4, 3/4) to (1, 1)
    np.testing.assert_allclose(found, [0.0, 0.003, 0.75 + 0.25 / 3, 1.0], atol=1e-3)
    assert np.all(np.diff(found) >= 0)
    assert most_true_positives(NoGuaranteeDpEvent("none"), 0.01) == 1.0


def test_noise_for_a_risk_keeps_it() -> None:
    def training(noise: float) -> SelfComposedDpEvent:
        return SelfComposedDpEvent(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(noise)), 500)

    noise = least_noise_for_risk(training, true_positive_rate=0.05, false_positive_rate=0.01)
    assert most_true_positives(training(noise), 0.01) <= 0.05 < most_true_positives(training(noise * 0.99), 0.01)
    with pytest.raises(SettingError, match="Random guessing"):
        least_noise_for_risk(training, true_positive_rate=0.01, false_positive_rate=0.05)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (0.1, 1e-5), (3.0, 1e-5), (20.0, 0.0), (1000.0, 0.1)])
def test_the_bound_from_epsilon_and_delta_lies_between_chance_and_certainty(epsilon: float, delta: float) -> None:
    assert 1 / 64 <= most_named(epsilon, delta, 64) <= 1
    if epsilon == 0 and delta == 0:
        assert most_named(epsilon, delta, 64) == pytest.approx(1 / 64)


def test_randomised_response_reaches_the_bound_of_two_candidates() -> None:
    """It names the truth with e^eps / (1 + e^eps): no more than the bound, and close to it."""
    reached = math.e / (1 + math.e)
    assert reached <= most_named(1.0, 0.0, 2) <= reached * 1.12
