"""One-run audit by order statistics: the tightest for Gaussian noise, valid for independent canaries only.

If every canary has an output of its own, independent of the others given the coins, and each is mu-GDP, then the best
attacker sees n independent losses L and guesses the r canaries with the largest |L|. Given the next smaller |L|, t, the
guessed ones are independent draws beyond t, so the number of errors is binomial with rate e(t), and t is an order
statistic: one integral is the exact distribution of the errors, and no outputs of a mu-GDP mechanism give fewer.

It does NOT hold for mechanisms whose canaries share randomness: one coin for all canaries that decides whether anything
is released is mu-GDP for each of them, and this test rejects it far too often. Canaries in orthogonal directions under
Gaussian noise and local randomizers are independent.

Paper: Xiang et al. 2025, arXiv 2509.08704.
Differs: the exact distribution of the number of errors at every number of guesses; the paper bounds a sum of
    independent Bernoulli variables with the mean errors of the ranks, whose variance is smaller than the true one.
"""

from __future__ import annotations

import numpy as np
from scipy.special import bdtr, betaincinv, ndtr

from discreet.accounting.curve import Array
from discreet.accounting.gdp import gaussian_epsilon
from discreet.audit.one_run import CONFIDENCE, Guesses, largest
from discreet.core.errors import open_probability, positive

LABEL = "valid if the canaries' outputs are independent given the coins"
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)


def order_p_value(outcome: Guesses, mu: float) -> float:
    """Return the probability of at most this many errors in the r best guesses among n independent mu-GDP canaries."""
    n, r, errors = outcome.canaries, outcome.guesses, outcome.guesses - outcome.right
    positive("mu", mu)
    if r == 0:
        return 1.0
    if r == n:
        return float(bdtr(errors, r, float(ndtr(-mu / 2))))
    # the (n - r)-th smallest of n uniform numbers, at Gauss-Legendre nodes of its own quantiles
    share = betaincinv(n - r, r + 1, (_NODES + 1) / 2)
    return float(np.dot(bdtr(errors, r, _error_beyond(_quantile(share, mu), mu)), _WEIGHTS / 2))


def _above(t: Array, mu: float) -> tuple[Array, Array]:
    """Return the probabilities that |L| > t and the guess is wrong, and that |L| > t.

    L = mu z - mu^2 / 2 is N(mu^2/2, mu^2) for an included canary; a guess is wrong if L < 0.
    """
    wrong = ndtr(-t / mu - mu / 2)
    return wrong, wrong + ndtr(mu / 2 - t / mu)


def _quantile(share: Array, mu: float) -> Array:
    """Return t with P[|L| <= t] = share, by bisection."""
    low, high = np.zeros_like(share), np.full_like(share, mu * mu / 2 + 40 * mu)
    for _ in range(100):
        middle = (low + high) / 2
        more = 1 - _above(middle, mu)[1] < share
        low, high = np.where(more, middle, low), np.where(more, high, middle)
    return low


def _error_beyond(t: Array, mu: float) -> Array:
    wrong, all_beyond = _above(t, mu)
    return np.asarray(wrong / np.maximum(all_beyond, 1e-300), dtype=np.float64)


def order_mu(outcome: Guesses, confidence: float = CONFIDENCE) -> float:
    """Return the largest mu that the outcome refutes, rounded down; 0 if there is none."""
    level = 1 - open_probability("confidence", confidence)
    return largest(lambda mu: order_p_value(outcome, mu) <= level)


def order_epsilon(outcome: Guesses, delta: float, confidence: float = CONFIDENCE) -> float:
    """Return a lower bound on epsilon at delta for mu-GDP canaries that are independent given the coins."""
    mu = order_mu(outcome, confidence)
    return gaussian_epsilon(mu, delta) if mu else 0.0
