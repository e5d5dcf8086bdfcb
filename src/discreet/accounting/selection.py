"""The cost of choosing: run a private mechanism a random number of times and release only the best result.

The number of runs K is random, independent of the data, and never released, nor are the other results. Then the release
costs little more than one run, whereas the best of a fixed number of runs may cost as much as all of them together.

`selected` turns the privacy curve of one run into that of the release. Let Q and Q' be the results of one run on two
neighbouring data sets, ordered by score (ties are broken at random), and for a result y let t = P[Q > y] and
t' = P[Q' > y]. With g(x) = E[x^K], the release has density q(y) h(t), where h(t) = g'(1 - t) decreases in t. No test
separates Q' from Q better than their curve allows, so t' <= T(t) with T(t) = min over a of e^a t + delta'(a), and
h(t) <= h(t') e^G(t) with G(t) = max over s <= t of ln h(s) - ln h(T(s)). For every epsilon, therefore,

    delta_release(epsilon) <= integral of h(t) [q - e^(epsilon - G(t)) q']_+ dy.

The mass of [q - e^(epsilon - G(t)) q']_+ on results with P[Q > y] <= t is at most t, and at most
delta(epsilon - G(t)), because G grows with t. Since h decreases, summation by parts gives

    delta_release(epsilon) <= h(1) m(1) + integral over t of -h'(t) m(t) dt,  m(t) = min(t, delta(epsilon - G(t))).

m grows with t, so a sum over intervals with the values at their right ends is an upper bound too.

Paper: Papernot and Steinke 2022, Hyperparameter tuning with Renyi differential privacy (the distributions, and the
    divergences that `selected_divergences` returns); Liu and Talwar 2019, Private selection from private candidates.
Differs: the curve above is ours. A Poisson number is conditioned on at least one run, so that there always is a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from scipy.optimize import brentq

from discreet.accounting.curve import Array, Curve, Deltas, dual
from discreet.core.errors import invalid
from discreet.core.randomness import Rng

POISSON = math.inf  # the shape of a Poisson number of runs
_PARTS = 1000  # intervals of t, and candidates for a
_KNOTS = 1200  # values of epsilon at which a curve is computed
_LARGEST = 600.0  # e^epsilon must be representable as a double
_MOST_RUNS = 1_000_000


def runs_for(mean: float, rng: Rng) -> int:
    """Return a random number of runs with this mean: Poisson, conditioned on at least one run.

    >>> [runs_for(1.0, Rng(seed)) for seed in range(4)]
    [1, 1, 1, 1]
    """
    rate = poisson_rate(mean)
    if rate == 0:
        return 1
    uniform = float(rng.uniform(1)[0]) * -math.expm1(-rate)  # below the probability of at least one run
    runs, term = 1, rate * math.exp(-rate)
    while uniform >= term and runs < _MOST_RUNS and term > 0:
        uniform -= term
        runs += 1
        term *= rate / runs
    return runs


def poisson_rate(mean: float) -> float:
    """Return the rate of the Poisson distribution whose mean, given at least one run, is `mean`.

    >>> round(poisson_rate(10.0), 4), poisson_rate(1.0)
    (9.9995, 0.0)
    """
    if not 1 <= mean <= 700:
        raise invalid("trials", mean, "between 1 and 700", "It is the mean of the random number of runs.")
    if mean == 1:
        return 0.0
    return float(brentq(lambda rate: rate / -math.expm1(-rate) - mean, 1e-12, mean, xtol=1e-12))


def either(curves: Sequence[Curve]) -> Curve:
    """Return the curve of one of several mechanisms, chosen without the data: the largest delta at every epsilon.

    It holds too if the choice is released: the delta of a mixture whose part is known is the mean of their deltas.
    """
    if len(curves) == 1:
        return curves[0]
    presents = [one.present for one in curves]
    absents = [one.absent or one.present for one in curves]
    high = max(one.high for one in curves)
    low = max(one.high if one.high_absent is None else one.high_absent for one in curves)
    rounding = max(one.rounding for one in curves)
    if all(one.absent is None for one in curves):
        return Curve(_largest(presents), high, rounding=rounding)
    return Curve(_largest(presents), high, _largest(absents), low, rounding)


def _largest(functions: Sequence[Deltas]) -> Deltas:
    def deltas(eps: Array) -> Array:
        return np.asarray(np.max([function(eps) for function in functions], axis=0), dtype=np.float64)

    return deltas


def selected(one: Curve, mean: float, shape: float = POISSON) -> Curve:
    """Return the curve of the best of a random number of runs, from the curve of one run.

    `shape` is infinite for a Poisson number, conditioned on at least one run or not; 1 for a geometric, 0 for a
    logarithmic, and any other positive number for a truncated negative binomial one.
    """
    number = _Number.of(mean, shape)
    forward, high = _half(one.present, one.absent or one.present, one.high, one.high_absent, number)
    if one.absent is None:
        return Curve(dual(forward, forward), high)
    backward, low = _half(one.absent, one.present, one.high_absent or one.high, one.high, number)
    return Curve(dual(forward, backward), high, dual(backward, forward), low)


@dataclass(frozen=True)
class _Number:
    """A random number of runs: h(t), and ln h(t) - ln h(t') as a function of t and t'; both are upper bounds.

    `concave`: the loss between t and T(t) is concave in t for every concave T.
    """

    weight: Callable[[Array], Array]
    loss: Callable[[Array, Array], Array]
    concave: bool = False

    @classmethod
    def of(cls, mean: float, shape: float) -> _Number:
        """Return the number with this mean and shape."""
        if shape == POISSON:
            rate = poisson_rate(mean)
            # given at least one run, h = mean e^(-rate t); otherwise mean e^(-mean t): the larger values count
            return cls(lambda t: mean * np.exp(-rate * t), lambda t, other: mean * (other - t), True)
        gamma = halting_probability(mean, shape)

        def log_base(t: Array) -> Array:
            return np.asarray(np.log(gamma + (1 - gamma) * t), dtype=np.float64)

        return cls(
            lambda t: mean * np.exp((shape + 1) * (math.log(gamma) - log_base(t))),
            lambda t, other: (shape + 1) * (log_base(other) - log_base(t)),
        )

    def gains(self, t: Array, separated: Array) -> Array:
        """Return G at the right end of every interval of t, where `separated` is T(t)."""
        bounds = self.loss(t[:-1], separated[1:])  # of an interval: the loss grows with T and falls with t
        if self.concave:
            ends = self.loss(t, separated)
            rising = np.append(ends[2:] >= ends[1:-1], False)  # still rising after an interval: largest at its end
            bounds = np.where(rising, ends[1:], bounds)
            falling = np.append(False, ends[1:-1] <= ends[:-2])  # falling before it: largest at its left end
            bounds = np.where(falling, ends[:-1], bounds)
        return np.asarray(np.maximum.accumulate(bounds), dtype=np.float64)


def halting_probability(mean: float, shape: float) -> float:
    """Return the gamma of the truncated negative binomial distribution with this mean, rounded down."""
    from dp_accounting.rdp.rdp_privacy_accountant import _gamma_truncated_negative_binomial

    return 1.0 if mean == 1 else float(_gamma_truncated_negative_binomial(shape, mean))


def _half(
    deltas: Deltas, reverse: Deltas, high: float, reverse_high: float | None, number: _Number
) -> tuple[Deltas, float]:
    """Return the deltas of the release in one direction at epsilon >= 0, and where they end."""
    t = np.concatenate(([0.0], np.geomspace(1e-8, 1.0, _PARTS)))
    end = min(high if reverse_high is None else reverse_high, _LARGEST)
    slopes = np.concatenate((np.linspace(0.0, end, _PARTS), np.geomspace(1e-6, 1.0, _PARTS // 4) * end))
    lines = np.exp(slopes) * t[:, None] + np.clip(reverse(slopes), 0.0, 1.0)
    gains = number.gains(t, np.clip(lines.min(axis=1), t, 1.0))
    weights = number.weight(t)
    drops = weights[:-1] - weights[1:]
    drops[-1] += weights[-1]
    end = min(high + float(gains[-1]), _LARGEST)
    knots = np.linspace(0.0, end, _KNOTS)
    values = np.empty_like(knots)
    for some in np.array_split(np.arange(_KNOTS), _KNOTS // 50):
        shifted = knots[some, None] - gains
        masses = np.clip(deltas(shifted.ravel()), 0.0, 1.0).reshape(shifted.shape)
        values[some] = np.minimum(masses, t[1:]) @ drops
    values = np.minimum.accumulate(np.minimum(values, 1.0))
    exponentials = np.exp(knots)

    def half(eps: Array) -> Array:
        # the true delta is convex in e^epsilon, so a chord between two upper bounds lies above it
        return np.interp(np.exp(np.minimum(eps, _LARGEST)), exponentials, values)

    return half, end


def selected_divergences(orders: Array, divergences: Array, mean: float, shape: float = POISSON) -> Array:
    """Return the Renyi divergences of the best of a random number of runs, from those of one run.

    At order a > 1 they are, for a Poisson number (theorem 6), D(a) + mean delta + ln(mean)/(a - 1), where one run is
    (ln(1 + 1/(a - 1)), delta)-private; and for a truncated negative binomial number (theorem 2), D(a) +
    (1 + shape) min over b of ((1 - 1/b) D(b) + ln(1/gamma)/b) + ln(mean)/(a - 1).

    Conditioning a Poisson number of rate r on at least one run divides both densities by 1 - e^-r, which adds
    -ln(1 - e^-r)/(a - 1). Since mean = r / (1 - e^-r) and r <= mean, the same formula holds with the new mean.
    """
    if shape == POISSON:
        added = np.array([mean * compute_delta(orders, divergences, math.log1p(1 / (a - 1)))[0] for a in orders])
    else:
        gamma = halting_probability(mean, shape)
        least = float(np.min((1 - 1 / orders) * divergences - math.log(gamma) / orders))
        added = np.full_like(divergences, (1 + shape) * least)
    release = divergences + added + math.log(mean) / (orders - 1)
    # divergences grow with the order
    return np.asarray(np.minimum.accumulate(release[::-1])[::-1], dtype=np.float64)
