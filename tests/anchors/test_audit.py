"""Figures of audits that others published, and that were computed by hand from the formulas."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import norm

from discreet.audit.one_run import Guesses, best_of, fdp_epsilon, fdp_strength, guess, steinke_epsilon
from discreet.audit.trade_off import epsilon_delta, gaussian


@pytest.mark.parametrize(
    ("r", "right", "epsilon"), [(100, 90, 1.63), (100, 99, 3.02), (200, 190, 2.40), (1000, 550, 0.09)]
)
def test_steinke_2023_at_delta_0_is_the_logit_of_clopper_pearson(r: int, right: int, epsilon: float) -> None:
    """The logit of the one-sided Clopper-Pearson bound, by hand."""
    assert steinke_epsilon(Guesses(r, r, right)) == pytest.approx(epsilon, abs=0.005)


@pytest.mark.parametrize(("outcome", "mu"), [(Guesses(100, 100, 90), 0.84), (Guesses(1000, 100, 100), 1.23)])
def test_fdp_2024_shows_this_mu(outcome: Guesses, mu: float) -> None:
    """Algorithm 3 of arXiv 2410.22235 for Gaussian curves at 95%, by hand."""
    assert fdp_strength(outcome, gaussian()) == pytest.approx(mu, abs=0.006)


def test_fdp_2024_by_epsilon() -> None:
    assert fdp_epsilon(Guesses(1000, 100, 100), gaussian(), 1e-5) == pytest.approx(5.55, abs=0.005)
    assert fdp_epsilon(Guesses(100, 100, 90), epsilon_delta(1e-12), 1e-12) == pytest.approx(1.615, abs=0.002)


@pytest.mark.parametrize(
    ("shift", "steinke", "fdp"),
    [
        (1, 1.13346, 2.164749),
        pytest.param(2, 2.311945, 4.7218075, marks=pytest.mark.slow),
        (4, 4.395568, 9.133752),
    ],
)
def test_jax_privacy_on_the_quantiles_of_two_normal_distributions(shift: float, steinke: float, fdp: float) -> None:
    """Figures in the tests of jax_privacy 1.x (auditing_test.py, test_epsilon_one_run_close): 10,000 scores each.

    All thresholds on the convex hull of the counts are tried, at a Bonferroni-corrected level, from one side.
    """
    n = 10_000
    quantiles = norm.ppf((np.arange(n) + 0.5) / n)
    scores, included = np.concatenate((quantiles + shift, quantiles)), np.arange(2 * n) < n
    counts = [(int(k), 0) for k in guesses_on_the_hull(quantiles + shift, quantiles) if k]
    confidence = 1 - 0.05 / (len(counts) + 1)  # they count the threshold above every score too

    def largest(bound: Callable[[Guesses, float], float]) -> float:
        """Return the largest of all bounds, searched around the largest of every tenth: they have one peak."""
        coarse = [bound(guess(scores, included, *pair), confidence) for pair in counts[::10]]
        peak = 10 * int(np.argmax(coarse))
        near = counts[max(0, peak - 10) : peak + 11]
        return best_of(scores, included, near, bound, 1 - (1 - confidence) * len(near))

    assert largest(lambda o, c: steinke_epsilon(o, 1e-6, c)) == pytest.approx(steinke, rel=1e-3)
    assert largest(lambda o, c: fdp_epsilon(o, gaussian(), 1e-6, c)) == pytest.approx(fdp, rel=1e-3)


def guesses_on_the_hull(inside: np.ndarray, outside: np.ndarray) -> np.ndarray:
    """Return the numbers of guesses at the vertices of the convex hull of false and true negatives."""
    cuts = np.append(np.union1d(inside, outside), np.inf)
    below = np.stack([np.searchsorted(inside, cuts), np.searchsorted(outside, cuts)], axis=1)
    places = np.arange(len(below))
    while len(places) > 2:
        steps = np.diff(below[places], axis=0)
        bends = steps[:-1, 1] * steps[1:, 0] > steps[1:, 1] * steps[:-1, 0]
        if bends.all():
            break
        places = places[np.concatenate(([True], bends, [True]))]
    return len(inside) + len(outside) - below[places].sum(axis=1)
