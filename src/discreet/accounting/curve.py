"""Privacy curves: delta as a function of epsilon in both directions, and their amplification by sampling.

A `Curve` holds two hockey-stick divergences: `present` (the record against its absence, or against another record)
and `absent` (the same pair in reverse order). Both are defined for every epsilon, including negative ones, because
composition needs them. A curve is an upper bound of the true curve everywhere, and so is every composition of curves.

Every amplification is exact or a proven bound for the sampling it names; docs/accounting.md has the proofs.

Paper: Balle, Barthe and Gaboardi 2018, Privacy Amplification by Subsampling; Zhu, Dong and Wang 2022, Optimal
Accounting of Differential Privacy via Characteristic Function; Doroshenko et al. 2022, Connect the Dots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy.special import log_ndtr, ndtr

from discreet.accounting.gdp import gaussian_deltas

Array = npt.NDArray[np.float64]
Deltas = Callable[[Array], Array]

INTERVAL = 1e-3
_TAIL = 10.4  # a normal variable exceeds it with probability 1.3e-25
_ENOUGH_POINTS = 500
_MOST_POINTS = 400_000
_PER_DEVIATION = 16  # grid points per standard deviation of the loss: connect-the-dots adds 1/(6 · 16²) to its variance
_ROUNDOFF = 2.0**-53
_CROWD = 10_000  # records beyond the size of a truncated batch that are summed over
_ESTIMATED = 30.0  # largest loss used to estimate the standard deviation; beyond it the grid is 1e-3 or coarser


@dataclass(frozen=True)
class Curve:
    """Delta as a function of epsilon in both directions; above `high` and `high_absent` delta is negligible.

    `rounding` bounds the floating-point error of a value. With sampling at rate q a value is q times another one, and
    so is its error.
    """

    present: Deltas
    high: float
    absent: Deltas | None = None
    high_absent: float | None = None
    rounding: float = _ROUNDOFF

    def delta(self, epsilon: float) -> float:
        """Return the delta that holds in both directions."""
        point = np.array([epsilon], dtype=np.float64)
        worst = float(self.present(point)[0])
        if self.absent is not None:
            worst = max(worst, float(self.absent(point)[0]))
        return min(max(worst, 0.0), 1.0)

    def losses(self, interval: float = INTERVAL) -> PrivacyLossDistribution:
        """Return the pessimistic loss distribution on a grid of this interval, by connect-the-dots."""
        low = self.high if self.high_absent is None else self.high_absent
        absent = self.absent or self.present
        present = _dots(self.present, absent, low, self.high, interval)
        if self.absent is None:
            return PrivacyLossDistribution(present)
        return PrivacyLossDistribution(present, _dots(absent, self.present, self.high, low, interval))

    @property
    def reach(self) -> float:
        """The width of the range of losses."""
        return self.high + (self.high if self.high_absent is None else self.high_absent)

    def within(self, negligible: float) -> Curve:
        """Return the curve with `high` lowered to where delta is at most `negligible`.

        Losses above it count as infinite, so any choice is pessimistic.
        """
        absent, high_absent = self.absent, self.high_absent
        high = _end(self.present, self.high, negligible)
        if absent is None or high_absent is None:
            return replace(self, high=high)
        return replace(self, high=high, high_absent=_end(absent, high_absent, negligible))

    def deviation(self) -> float:
        """Return the approximate standard deviation of the loss, the smaller of the two directions.

        It is computed on grid points whose distance from 0 grows by a tenth from one to the next.
        """
        low = self.high if self.high_absent is None else self.high_absent
        absent = self.absent or self.present
        deviation = _deviation(self.present, absent, low, self.high)
        return deviation if self.absent is None else min(deviation, _deviation(absent, self.present, self.high, low))


def interval_for(curve: Curve, spread: float = math.inf) -> float:
    """Return the grid interval for a curve: 1e-3, finer for small losses, coarser for very large ones.

    A sampled release has many small losses and a few that are thousands of times larger, so the grid follows the
    standard deviation, not only the reach. With `spread` it is also fine enough for other losses of that reach.
    """
    fine = max(min(curve.reach, spread) / _ENOUGH_POINTS, 1e-9)
    if spread == math.inf and 0 < curve.reach <= _MOST_POINTS * INTERVAL:
        fine = min(fine, max(curve.deviation() / _PER_DEVIATION, 1e-12))
    return max(min(INTERVAL, fine), curve.reach / _MOST_POINTS)


def _end(deltas: Deltas, high: float, negligible: float) -> float:
    """Return a loss at which delta is at most negligible, by bisection, or `high` if there is none."""
    low, end = 0.0, high
    if not 0 < high < math.inf or float(deltas(np.array([high]))[0]) > negligible:
        return high
    for _ in range(6):  # 32 points at a time: to one part in 32^6
        points = np.linspace(low, end, 33)
        inside = int(np.argmax(deltas(points) <= negligible))
        if inside == 0:
            return end
        low, end = float(points[inside - 1]), float(points[inside])
        if end - low <= 1e-3 * end:
            break
    return end


def _deviation(deltas: Deltas, absent: Deltas, low: float, high: float) -> float:
    away = np.concatenate((np.geomspace(1e-9, 1.0, 220), [1.1]))  # a mass may lie exactly at the end
    up = np.concatenate(([0.0], away * min(high, _ESTIMATED))) if high > 0 else np.zeros(1)
    down = np.concatenate((-away[::-1] * min(low, _ESTIMATED), [0.0])) if low > 0 else np.zeros(1)
    above = np.minimum.accumulate(np.clip(deltas(up), 0.0, 1.0))
    # below 0 the curve is this plus 1 - e^eps, which is linear and adds no bend
    below = np.exp(down) * np.clip(absent(-down), 0.0, 1.0)
    slopes = np.concatenate((np.diff(below) / np.diff(np.expm1(down)) - 1, np.diff(above) / np.diff(np.expm1(up))))
    losses = np.concatenate((down, up[1:]))
    masses = np.maximum(np.diff(slopes) * np.exp(losses[1:-1]), 0.0)
    if len(masses) == 0 or not masses.sum() > 0:
        return INTERVAL * _PER_DEVIATION
    mean = float(np.average(losses[1:-1], weights=masses))
    return math.sqrt(float(np.average((losses[1:-1] - mean) ** 2, weights=masses)))


def _dots(deltas: Deltas, absent: Deltas, low: float, high: float, interval: float) -> pld_pmf.PLDPmf:
    """Return the losses whose hockey stick equals the curve at every grid point and is linear in e^epsilon in between.

    The mass at a grid point is the bend of the curve there. Below 0 the curve is 1 - e^eps + e^eps absent(-eps). Its
    first part is linear and has no bend; leaving it out avoids cancellation of large numbers.
    """
    last, first = math.ceil(high / interval) + 1, math.ceil(low / interval) + 1
    growth = math.expm1(interval)
    up = np.minimum.accumulate(np.clip(deltas(np.arange(last + 1, dtype=np.float64) * interval), 0.0, 1.0))
    down = np.arange(first, -1, -1, dtype=np.float64) * -interval
    rest = np.minimum.accumulate(np.clip(absent(-down[::-1]), 0.0, 1.0))[::-1]
    up[0] = rest[-1] = max(up[0], rest[-1])  # both are delta at 0
    below = np.exp(down) * rest
    rises, falls = np.diff(below), np.diff(up)
    masses = np.empty(first + last + 1)
    masses[0] = rises[0] / growth - below[0]
    masses[1:first] = np.diff(rises) / growth - rises[:-1]
    masses[first] = 1 + (falls[0] - rises[-1]) / growth - rises[-1]
    masses[first + 1 : -1] = np.diff(falls) / growth - falls[:-1]
    masses[-1] = falls[-1] / math.expm1(-interval)
    return pld_pmf.DensePLDPmf(interval, -first, np.maximum(masses, 0.0), float(up[-1]), True)


def mirrored(half: Deltas) -> Deltas:
    """Return the deltas of a symmetric pair for every epsilon from those at epsilon >= 0."""
    return dual(half, half)


def dual(forward: Deltas, backward: Deltas) -> Deltas:
    """Return deltas for every epsilon: forward at epsilon >= 0, else 1 - e^epsilon + e^epsilon backward(-epsilon)."""

    def deltas(eps: Array) -> Array:
        up = forward(np.maximum(eps, 0.0))
        if (eps >= 0).all():
            return up
        down = backward(np.maximum(-eps, 0.0))
        shrunk = np.exp(np.minimum(eps, 0.0))
        return np.where(eps >= 0, up, -np.expm1(np.minimum(eps, 0.0)) + shrunk * down)

    return deltas


def gaussian(mu: float) -> Curve:
    """Return the exact curve of N(mu, 1) against N(0, 1)."""
    return Curve(lambda eps: gaussian_deltas(mu, eps), mu * mu / 2 + _TAIL * mu)


def laplace(epsilon: float) -> Curve:
    """Return the exact curve of Laplace noise whose scale is the L1 sensitivity over epsilon."""

    def deltas(eps: Array) -> Array:
        middle = -np.expm1((np.clip(eps, -epsilon, epsilon) - epsilon) / 2)
        return np.where(eps < -epsilon, -np.expm1(np.minimum(eps, 0.0)), np.where(eps > epsilon, 0.0, middle))

    return Curve(deltas, epsilon)


def pure(epsilon: float, delta: float = 0.0) -> Curve:
    """Return the largest curve of any (epsilon, delta)-private mechanism."""

    def deltas(eps: Array) -> Array:
        # (e^E - e^x) / (1 + e^E), without overflow
        middle = -np.expm1(np.clip(eps, -epsilon, epsilon) - epsilon) / (1 + math.exp(-epsilon))
        line = np.where(eps < -epsilon, -np.expm1(np.minimum(eps, 0.0)), np.where(eps > epsilon, 0.0, middle))
        return delta + (1 - delta) * line

    return Curve(deltas, epsilon)


def discrete(present: Array, absent: Array) -> Curve:
    """Return the exact curve of two distributions on the same finite outcomes."""
    possible = (present > 0) | (absent > 0)
    present, absent = present[possible], absent[possible]
    return Curve(
        _finite(present, absent),
        _largest_loss(present, absent),
        _finite(absent, present),
        _largest_loss(absent, present),
    )


def _finite(p: Array, q: Array) -> Deltas:
    with np.errstate(divide="ignore"):
        loss = np.log(p) - np.log(q)
    order = np.argsort(loss)
    above_p = np.append(np.cumsum(p[order][::-1])[::-1], 0.0)
    above_q = np.append(np.cumsum(q[order][::-1])[::-1], 0.0)
    ranked = loss[order]

    def deltas(eps: Array) -> Array:
        first = np.searchsorted(ranked, eps, side="right")
        return np.asarray(np.maximum(above_p[first] - np.exp(eps) * above_q[first], 0.0), dtype=np.float64)

    return deltas


def _largest_loss(p: Array, q: Array) -> float:
    both = (p > 0) & (q > 0)  # with disjoint supports every loss is infinite and the curve is 1 everywhere
    return float(np.max(np.log(p[both]) - np.log(q[both]), initial=0.0))


def concentrated(lines: Sequence[tuple[float, float]], *, integer_orders: bool = False) -> Curve:
    """Return a curve for Renyi divergences of order a that are at most xi + rho a, for every pair (rho, xi).

    With `integer_orders` the bounds hold for integers a > 1 only. The minimum over many orders is not convex, but the
    true curve is: the convex hull lies between them.
    """

    def half(eps: Array) -> Array:
        best = np.ones_like(eps)
        for rho, xi in lines:
            best = np.minimum(best, bounded(eps, rho, xi))
        return best

    def bounded(eps: Array, rho: float, xi: float) -> Array:
        best = np.ones_like(eps)
        middle = np.maximum((eps - xi - rho) / (2 * rho), 1e-3) if rho else np.full_like(eps, 1e6)
        # every order gives a bound; the best one is near the middle
        for factor in np.concatenate((np.geomspace(0.05, 0.5, 8), np.geomspace(0.55, 2, 80), np.geomspace(2.1, 20, 8))):
            a = 1 + factor * middle
            if integer_orders:
                a = np.maximum(np.rint(a), 2.0)
            power = (a - 1) * (xi + rho * a - eps) - np.log(a - 1) + a * np.log1p(-1 / a)
            best = np.minimum(best, np.exp(np.minimum(power, 0.0)))
        return best

    high = min(xi + rho + 2 * math.sqrt(58 * rho) for rho, xi in lines)  # where the best bound is about e^-58
    return Curve(convex(mirrored(half), high), high)


def convex(deltas: Deltas, high: float) -> Deltas:
    """Return a smaller curve that is nearly convex in e^epsilon; the true curve is convex, so this stays above it.

    It is the minimum of the curve and its convex hull on 8,001 points between -high and high.
    """

    @lru_cache(maxsize=1)
    def hull() -> tuple[Array, Array]:
        spread = math.asinh(min(high, 700.0) * 1e4)
        points = np.sinh(np.linspace(-spread, spread, 8001)) / 1e4  # dense around 0, where the curve bends most
        exponentials, raw = np.exp(points), deltas(points)
        a, d = exponentials.tolist(), raw.tolist()
        keep: list[int] = []
        for i in range(len(a)):
            while len(keep) > 1:
                j, k = keep[-2], keep[-1]
                if (d[k] - d[j]) * (a[i] - a[j]) <= (d[i] - d[j]) * (a[k] - a[j]):
                    break
                keep.pop()
            keep.append(i)
        return exponentials[keep], raw[keep]

    def lower(eps: Array) -> Array:
        a, d = hull()
        chord = np.interp(np.exp(np.minimum(eps, 700.0)), a, d)
        return np.minimum(deltas(eps), np.where(np.abs(eps) <= min(high, 700.0), chord, 1.0))

    return lower


def poisson(curve: Curve, rate: float) -> Curve:
    """Return the curve under Poisson sampling at this rate, where an absent record equals one that is not sampled.

    Exact for the pair: the present side is a mixture of sampled and not sampled, the absent side is not sampled.
    """
    if rate == 1:
        return curve
    base = curve.present
    base_absent = curve.absent or base

    def present(eps: Array) -> Array:
        inner = np.maximum(np.expm1(np.minimum(eps, 30.0)), -rate * (1 - 1e-15)) / rate
        small = np.log1p(np.maximum(inner, -1 + 1e-15))
        large = eps - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(eps, 1.0)))
        sampled = rate * base(np.where(eps > 1, large, small))
        return np.where(np.expm1(np.minimum(eps, 30.0)) <= -rate, -np.expm1(np.minimum(eps, 0.0)), sampled)

    def absent(eps: Array) -> Array:
        exp_eps = np.exp(np.minimum(eps, 30.0))
        rest = rate * exp_eps - np.expm1(np.minimum(eps, 30.0))  # 1 - e^eps (1 - rate)
        safe = np.maximum(rest, 1e-300)
        return np.where(rest > 0, safe * base_absent(np.log(rate) + np.minimum(eps, 30.0) - np.log(safe)), 0.0)

    return Curve(present, sampled_loss(curve.high, rate), absent, -math.log1p(-rate), 4 * rate * curve.rounding)


def truncated_poisson(mu: float, rate: float, size: int, population: int) -> Curve:
    """Return the curve of a Poisson-sampled sum of at most `size` of `population` records, under zero-out.

    If more are sampled, a uniform subset of `size` remains. Given the other records that remain, the record is present
    with probability `rate` if fewer than size - 1 remain, with another one if size - 1 do, and never if all places are
    taken. A zeroed record keeps its place, so the others are equally distributed for both neighbours, and the curve is
    the average over them: exact if they are known to the attacker.
    """
    from scipy.stats import binom

    others, usual = population - 1, poisson(gaussian(mu), rate)
    full = float(binom.pmf(size - 1, others, rate))
    crowd = np.arange(size, min(others, size + _CROWD) + 1)
    kept = float(np.dot(binom.pmf(crowd, others, rate), size / (crowd + 1.0)))
    beyond = float(binom.sf(size + _CROWD, others, rate))  # counted as if the record always remained
    present = rate * (full + kept + beyond)
    edge = present + (1 - rate) * full  # probability that size - 1 others remain
    if edge <= 0:
        return usual
    inside, crowded = float(binom.cdf(size - 2, others, rate)), poisson(gaussian(mu), min(present / edge, 1.0))

    def average(one: Deltas, other: Deltas) -> Deltas:
        def half(eps: Array) -> Array:  # a binomial probability has a relative error below 1e-10
            return np.asarray(np.minimum((1 + 1e-9) * (inside * one(eps) + edge * other(eps)), 1.0), dtype=np.float64)

        return half

    forward = average(usual.present, crowded.present)
    backward = average(usual.absent or usual.present, crowded.absent or crowded.present)
    low = max(one.high if one.high_absent is None else one.high_absent for one in (usual, crowded))
    return Curve(dual(forward, backward), max(usual.high, crowded.high), dual(backward, forward), low, crowded.rounding)


def sampled_loss(high: float, rate: float) -> float:
    """Return the largest loss under sampling at a rate, from that without sampling; infinity if that is infinite."""
    return math.log1p(rate * math.expm1(high)) if high < 30 else high + math.log(rate + (1 - rate) * math.exp(-high))


def _inner(eps: Array, rate: float) -> Array:
    """Return ln(1 + (e^eps - 1) / rate) for eps >= 0."""
    small = np.log1p(np.expm1(np.minimum(eps, 1.0)) / rate)
    large = eps - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(eps, 1.0)))
    return np.where(eps > 1, large, small)


def fixed_size(replaced: Curve, rate: float) -> Curve:
    """Return the curve when a fixed fraction of the records is sampled without replacement, under replace-one.

    For any release, a sum or every vector, delta(eps) <= rate delta0(ln(1 + (e^eps - 1)/rate)) at eps >= 0.
    """
    if rate == 1:
        return replaced
    present, absent = replaced.present, replaced.absent

    def half(eps: Array) -> Array:
        inner = _inner(eps, rate)
        return rate * (present(inner) if absent is None else np.maximum(present(inner), absent(inner)))

    high = max(replaced.high, replaced.high_absent or 0.0)
    return Curve(mirrored(half), sampled_loss(high, rate), rounding=4 * rate * replaced.rounding)


def fixed_size_zeroed(zeroed: Curve, replaced: Curve, rate: float) -> Curve:
    """Return the curve when a fixed fraction is sampled without replacement and a record is replaced by a null record.

    Samples without the record contain another real record instead, so the present side pays replace-one for them; or
    each sample is compared with itself, which hides only whether the record was sampled. The smaller bound holds.
    """
    if rate == 1:
        return zeroed
    absent = zeroed.absent or zeroed.present
    high_absent = zeroed.high if zeroed.high_absent is None else zeroed.high_absent

    def forward(eps: Array) -> Array:
        inner = _inner(eps, rate)
        share = np.exp(eps - inner)
        mixed = (1 - share) * replaced.present(inner) + share * zeroed.present(inner)
        return rate * np.minimum(mixed, zeroed.present(eps))

    def backward(eps: Array) -> Array:
        return rate * absent(_inner(eps, rate))

    high, low = sampled_loss(max(replaced.high, zeroed.high), rate), sampled_loss(high_absent, rate)
    reach = max(high, low)
    return Curve(convex(dual(forward, backward), reach), high, convex(dual(backward, forward), reach), low)


def bernoulli_visible(replaced: Curve, rate: float, population: int) -> Curve:
    """Return the curve when each of `population` vectors is sent with probability `rate` and all are visible, shuffled.

    The number of vectors sent is visible and independent of the data; given that number, it is a fixed-size sample.
    Numbers are rounded up into at most 400 groups, which can only increase the cost.
    """
    from scipy.stats import binom

    middle, reach = population * rate, 10.5 * math.sqrt(population * rate * (1 - rate)) + 60
    edges = np.unique(np.linspace(max(1, middle - reach), min(middle + reach, population), 401).astype(int))
    below = np.concatenate(([binom.pmf(0, population, rate)], binom.cdf(edges, population, rate)))
    weights, beyond = np.diff(below), float(binom.sf(edges[-1], population, rate))
    parts = [fixed_size(replaced, float(k) / population) for k in edges]

    def half(eps: Array) -> Array:
        total = np.full_like(eps, beyond)
        for part, weight in zip(parts, weights, strict=True):
            if weight > 0:
                total = total + weight * part.present(eps)
        return total

    return Curve(mirrored(half), parts[-1].high)


def poisson_replaced(mu: float, rate: float) -> Curve:
    """Return the exact worst-case curve of a Poisson-sampled sum under replace-one; mu is clip norm over noise.

    The pair is (1-q) N(0) + q N(mu) against (1-q) N(0) + q N(-mu): opposite records of full norm are the worst case.
    """
    if rate == 1:
        return gaussian(2 * mu)
    log_odds = mu * mu / 2 + math.log1p(-rate) - math.log(rate)

    def half(eps: Array) -> Array:
        with np.errstate(divide="ignore"):
            log_sinh = np.where(eps > 0, eps / 2 + np.log(-np.expm1(-eps)) - math.log(2), -np.inf)
        log_r = log_odds + log_sinh
        log_root = np.logaddexp(log_r, 0.5 * np.logaddexp(2 * log_r, 0.0))
        x = (eps / 2 + log_root) / mu  # where the ratio of the densities crosses e^eps
        none, one = ndtr(-x), ndtr(mu - x)
        other = np.exp(eps + log_ndtr(-mu - x))
        shared = np.exp(np.minimum(eps + log_ndtr(-x), 700.0))
        return np.maximum((1 - rate) * (none - shared) + rate * (one - other), 0.0)

    x = mu + _TAIL
    high = float(np.logaddexp(0, math.log(rate) - math.log1p(-rate) + mu * x - mu * mu / 2))
    return Curve(mirrored(half), high)
