"""Order statistics: the exact law of the errors, tight for Gaussian noise, and unsound for shared randomness."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from discreet.accounting.gdp import gaussian_delta, gaussian_epsilon
from discreet.audit.one_run import Guesses, fdp_rejects, fdp_strength
from discreet.audit.order_statistics import order_epsilon, order_mu, order_p_value
from discreet.audit.trade_off import gaussian


@pytest.mark.parametrize(("mu", "n", "r"), [(0.5, 40, 40), (1.0, 60, 20), (2.0, 60, 12)])
def test_the_distribution_of_the_errors_is_exact(mu: float, n: int, r: int) -> None:
    rng = np.random.default_rng(5)
    runs = 20_000
    bits = rng.random((runs, n)) < 0.5
    losses = mu * (rng.normal(size=(runs, n)) + mu * bits) - mu * mu / 2
    top = np.argsort(-np.abs(losses), axis=1)[:, :r]
    errors = np.take_along_axis((losses > 0) != bits, top, axis=1).sum(1)
    for limit in (0, 1, 2, 4, 8):
        expected = order_p_value(Guesses(n, r, r - limit), mu)
        assert (errors <= limit).mean() == pytest.approx(expected, abs=4 * math.sqrt(0.25 / runs))


def test_it_is_tighter_than_the_fdp_audit_and_seldom_above_the_truth() -> None:
    rng = np.random.default_rng(1)
    mu, n, r, above, gains = 1.0, 1000, 300, 0, []
    for _ in range(30):
        bits = rng.random(n) < 0.5
        losses = mu * (rng.normal(size=n) + mu * bits) - mu * mu / 2
        top = np.argsort(-np.abs(losses))[:r]
        outcome = Guesses(n, r, int(((losses > 0) == bits)[top].sum()))
        found = order_mu(outcome)
        above += found > mu
        gains.append(found - fdp_strength(outcome, gaussian()))
    assert above <= 5 and np.mean(gains) > 0.2


def test_one_shared_coin_is_refuted_by_order_statistics_and_not_by_the_fdp_audit() -> None:
    """With probability p one coin lets every canary answer by randomized response, else nothing is released.

    Each canary alone is 1-GDP, so a test of mu = 1 that rejects more than 5% of the runs is not valid for it.
    """
    epsilon, p, n = 1.5, 0.394, 200
    # 1-GDP: the curve p (e^1.5 - e^x) / (1 + e^1.5) is below that of the Gaussian at every x
    for x in np.linspace(0, epsilon, 40).tolist():
        shared = p * (math.exp(epsilon) - math.exp(x)) / (1 + math.exp(epsilon))
        assert shared <= gaussian_delta(1.0, x) + 1e-3
    right = np.arange(n + 1)
    answers = p * binom.pmf(right, n, 1 / (1 + math.exp(-epsilon))) + (1 - p) * binom.pmf(right, n, 0.5)

    def rejected_share(rejects: object) -> float:
        return float(sum(answers[v] for v in right if rejects(int(v))))  # type: ignore[operator]

    assert rejected_share(lambda v: order_p_value(Guesses(n, n, v), 1.0) <= 0.05) > 0.35
    assert rejected_share(lambda v: fdp_rejects(Guesses(n, n, v), gaussian().trade_off(1.0))) < 1e-5


def test_no_errors_show_a_large_mu_and_no_guesses_show_nothing() -> None:
    assert order_mu(Guesses(1000, 100, 100)) > 1.0
    assert order_mu(Guesses(10, 0, 0)) == 0.0
    assert order_epsilon(Guesses(100, 100, 50), 1e-5) == 0.0
    found = order_mu(Guesses(1000, 100, 100))
    assert order_epsilon(Guesses(1000, 100, 100), 1e-5) == pytest.approx(gaussian_epsilon(found, 1e-5))
