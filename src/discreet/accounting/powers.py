"""Fast self-composition of a loss distribution: the cost after any number of steps in a few milliseconds.

This is the computation of dp_accounting's `self_compose` and `get_epsilon_for_delta`: a power of the Fourier transform
on a grid that holds all but 1e-15 of the mass, which is counted as an infinite loss. It is arranged for repeated use by
a training loop or a solver. It adds a rounding margin in delta, which grows with the number of uses: see `_slack`. If
the margin of double precision is too large for the delta, the losses are exponentially tilted first, which makes the
margin a fraction of delta (see `Losses.epsilon_of`), or extended precision is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft
from scipy.signal import lfilter

from discreet.accounting.curve import Array

_CUT = 1e-15
_ROUNDING = 1e-12
_PER_USE = 2.0**-53  # rounding error, in delta, of the curve of one use
_MARGIN = 1e-3  # largest rounding margin of double precision, as a fraction of delta
_NEGLIGIBLE = 1e-40  # smaller Fourier coefficients are dropped


@dataclass(frozen=True)
class Losses:
    """Losses at (first + i) * interval with these masses, and the mass of the infinite loss.

    `rounding` bounds their error in delta, compared with the curve of one use.
    """

    masses: Array
    first: int
    interval: float
    infinite: float
    rounding: float = _PER_USE

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 at which the hockey-stick divergence is at most delta, or infinity."""
        if self.infinite > delta:
            return math.inf
        deltas, above, below = self._at_grid_points()
        start = max(0, -self.first)  # epsilon >= 0
        held = deltas[start:] <= delta
        if not held.any():
            return max(0.0, (self.first + len(self.masses) - 1) * self.interval) if len(held) else 0.0
        j = start + int(np.argmax(held))
        if j == 0 or j == start:
            return max(0.0, (self.first + j) * self.interval) if self.first + j > 0 else 0.0
        # between grid points j-1 and j, delta(eps) is above_j + infinite - e^(eps - loss_j) (mass_j + below_j)
        top = float(above[j] + self.masses[j]) + self.infinite
        slope = float(self.masses[j] + below[j])
        if slope <= 0 or top <= delta:
            return max(0.0, (self.first + j - 1) * self.interval)
        return max(0.0, (self.first + j) * self.interval + math.log((top - delta) / slope))

    def delta(self, epsilon: float) -> float:
        """Return the hockey-stick divergence at epsilon."""
        losses = (self.first + np.arange(len(self.masses))) * self.interval
        over = losses > epsilon
        return self.infinite + float(np.dot(-np.expm1(epsilon - losses[over]), self.masses[over]))

    def deltas(self, epsilons: Array) -> Array:
        """Return the hockey-stick divergence at many epsilons."""
        _, above, below = self._grid
        place = epsilons / self.interval - self.first
        j = np.clip(np.ceil(place).astype(int), 0, len(self.masses) - 1)  # the first grid point not below
        gap = epsilons - (self.first + j) * self.interval
        inside = above[j] + self.masses[j] + self.infinite - np.exp(np.minimum(gap, 0.0)) * (self.masses[j] + below[j])
        return np.asarray(np.where(place > len(self.masses) - 1, self.infinite, np.maximum(inside, self.infinite)))

    @cached_property
    def _grid(self) -> tuple[Array, Array, Array]:
        return self._at_grid_points()

    def _at_grid_points(self) -> tuple[Array, Array, Array]:
        """Return, at each grid point x, the delta, the mass above x and the mean of exp(x - loss) over that mass."""
        shrink = math.exp(-self.interval)
        backwards = self.masses[::-1]
        above = np.cumsum(backwards)[::-1] - self.masses
        weighted = lfilter([1.0], [1.0, -shrink], backwards)[::-1] - self.masses
        return above - weighted + self.infinite, above, weighted

    def power(self, count: int, delta: float | None = None) -> Losses:
        """Return the losses of `count` uses, in double precision if its margin is small enough, else in extended."""
        if count == 1:
            return self
        if self.infinite >= 1 or not self.masses.any():
            return Losses(self.masses, self.first * count, self.interval, 1.0)
        quick, slack = self._raised(count, np.float64)
        return quick if slack <= _allowed_slack(delta) else self._raised(count, np.longdouble)[0]

    def epsilon_of(self, count: int, delta: float) -> float:
        """Return epsilon at delta after `count` uses, as tightly as double precision allows."""
        if count == 1 or self.infinite >= 1 or not self.masses.any():
            return self.power(count, delta).epsilon(delta)
        best = math.inf
        for kind in (np.float64, np.longdouble):
            if _least_slack(count, kind) + _ROUNDING > _MARGIN * delta:
                continue  # the margin is too large for any losses
            raised, slack = self._raised(count, kind)
            best = raised.epsilon(delta)
            if slack + _CUT + _ROUNDING <= _MARGIN * delta:
                return best
        tilted = self._tilted(count, delta)
        if tilted is None:
            return min(best, self.power(count, delta).epsilon(delta))
        return min(best, tilted.epsilon(delta))

    def _tilted(self, count: int, delta: float) -> Losses | None:
        """Return the largest losses of `count` uses, those that delta depends on, or None if there are none.

        Each mass p at index i is multiplied by e^(t i) / M, with M their sum, before taking the power. In the sum of
        all uses a mass at index s is then too large by a factor of e^(t s) / M^count, and so is its error. After
        undoing the tilt, an error e of all masses above s together is at most e M^count e^(-t s), which is Chernoff's
        bound on their mass times e. The losses start where that is a thousandth of delta.
        """
        index = np.arange(len(self.masses), dtype=np.float64)
        with np.errstate(divide="ignore"):
            log_masses = np.log(self.masses)
        mean = float(np.dot(index, self.masses) / self.masses.sum())
        variance = max(float(np.dot((index - mean) ** 2, self.masses)), 1e-12)
        # log of the rounding error over its allowed part of delta; the start is optimized for about this value
        needed = max(math.log(100 * _least_slack(count, np.float64) / (_MARGIN * delta)), 1.0)
        normal = math.sqrt(2 * needed / (count * variance))
        orders = np.geomspace(min(0.1 * normal, 5 / len(index)), 2 * normal, 12).tolist()
        logs = [_log_mean_exp(index, order, log_masses) for order in orders]
        starts = [(count * log + needed) / order for order, log in zip(orders, logs, strict=True)]
        best = int(np.argmin(starts))
        order, log = orders[best], logs[best]
        tilted = Losses(np.exp(log_masses + order * index - log), 0, self.interval, 0.0)
        low, high, back, slack = tilted._wave_power(count, np.float64)
        # rounding of the tilt: a few units in the last place of its exponents, per use
        share = count * (16 + order * len(index) + 4 * abs(log)) * 2.0**-52
        if share > _MARGIN:
            return None
        start = math.ceil((count * log + math.log((slack + _CUT) / (_MARGIN * delta))) / order)
        start = max(start, low, min(-self.first * count, high))
        if start >= high:
            return None
        places = np.arange(start, high + 1, dtype=np.float64)
        masses = back[start - low :] * np.exp(count * log - order * places) * (1 + 2 * share)
        infinite = _MARGIN * delta + count * self.rounding - math.expm1(count * math.log1p(-self.infinite))
        return Losses(masses, self.first * count + start, self.interval, min(infinite, 1.0))

    def _raised(self, count: int, kind: type[Any]) -> tuple[Losses, float]:
        low, _, masses, slack = self._wave_power(count, kind)
        infinite = _CUT + _ROUNDING + slack + count * self.rounding - math.expm1(count * math.log1p(-self.infinite))
        return Losses(masses, self.first * count + low, self.interval, min(infinite, 1.0)), slack

    def _wave_power(self, count: int, kind: type[Any]) -> tuple[int, int, Array, float]:
        """Return the index range that holds nearly all of the sum of uses, its masses, and the slack."""
        low, high = self._reach(count)
        size = fft.next_fast_len(max(high - low + 1, len(self.masses)), real=True)
        wave = fft.rfft(self.masses.astype(kind), size)
        height = np.abs(wave).astype(np.float64)
        with np.errstate(divide="ignore"):
            kept = count * np.log(height) > math.log(_NEGLIGIBLE)
        raised = np.zeros_like(wave)
        raised[kept] = wave[kept] ** count
        back = fft.irfft(raised, size).astype(np.float64)
        masses = np.maximum(np.roll(back, -low)[: high - low + 1], 0.0)
        return low, high, masses, _slack(height, count, size, kind)

    def compose(self, other: Losses, delta: float | None = None) -> Losses:
        """Return the losses of this and another release together; the precision is chosen as in `power`."""
        quick, slack = self._joined(other, np.float64)
        return quick if slack <= _allowed_slack(delta) else self._joined(other, np.longdouble)[0]

    def _joined(self, other: Losses, kind: type[Any]) -> tuple[Losses, float]:
        length = len(self.masses) + len(other.masses) - 1
        size = fft.next_fast_len(length, real=True)
        waves = [fft.rfft(each.masses.astype(kind), size) for each in (self, other)]
        back = fft.irfft(waves[0] * waves[1], size).astype(np.float64)
        masses = np.maximum(back[:length], 0.0)
        # two different transforms: bounded by the square of the larger one
        slack = _slack(np.maximum(*(np.abs(wave).astype(np.float64) for wave in waves)), 2, size, kind)
        # masses far above count as infinite, masses far below are moved to their nearest neighbour
        top = len(masses) - int(np.searchsorted(np.cumsum(masses[::-1]), _CUT))
        bottom = min(int(np.searchsorted(np.cumsum(masses), _CUT)), max(top - 1, 0))
        middle = masses[bottom : max(top, bottom + 1)].copy()
        middle[0] += masses[:bottom].sum()
        infinite = self.infinite + other.infinite + _CUT + _ROUNDING + slack
        return Losses(middle, self.first + other.first + bottom, self.interval, min(infinite, 1.0)), slack

    def on(self, interval: float) -> Losses:
        """Return losses on a coarser grid that cost at least as much at every epsilon.

        The mass of a loss is split between the neighbouring grid points such that the mean of e^-loss is preserved. The
        hockey-stick divergence is the mean of max(0, 1 - e^epsilon e^-loss), which is convex in e^-loss, so it does not
        decrease (Jensen). This is what connect-the-dots does to a curve, without cancellation.
        """
        at = (self.first + np.arange(len(self.masses))) * (self.interval / interval)
        below = np.floor(at)
        share = np.expm1((below - at) * interval) / math.expm1(-interval)  # of the grid point above
        first = int(below[0])
        place = (below - first).astype(np.intp)
        size = int(place[-1]) + 2
        lower, upper = self.masses * (1 - share), self.masses * share
        masses = np.asarray(np.bincount(place, lower, size) + np.bincount(place + 1, upper, size), dtype=np.float64)
        # a loss has a few relative rounding errors, and a sum has one per mass in it
        rounding = (8 + 4 * float(np.abs(at[[0, -1]]).max()) * interval + interval / self.interval) * _PER_USE
        return Losses(masses, first, interval, min(self.infinite + rounding, 1.0))

    @property
    def reach(self) -> float:
        """The width of the range of losses."""
        return len(self.masses) * self.interval

    def _reach(self, count: int) -> tuple[int, int]:
        """Return the range of sums of indices that holds all but 1e-15 of the mass, by Chernoff's bound."""
        index = np.arange(len(self.masses), dtype=np.float64)
        mean = float(np.dot(index, self.masses))
        variance = max(float(np.dot((index - mean) ** 2, self.masses)), 1e-12)
        normal = math.sqrt(2 * math.log(2 / _CUT) / (count * variance))  # best for a normal sum; smaller for long tails
        orders = np.geomspace(min(0.4 * normal, 5 / len(index)), 2 * normal, 12)
        low, high = 0, (len(self.masses) - 1) * count
        log_cut = math.log(2 / _CUT)
        with np.errstate(divide="ignore"):
            log_masses = np.log(self.masses)
        for order in orders.tolist():
            high = min(high, math.ceil((count * _log_mean_exp(index, order, log_masses) + log_cut) / order))
            low = max(low, math.floor(-(count * _log_mean_exp(index, -order, log_masses) + log_cut) / order))
        return low, max(high, low + 1)


def _slack(height: Array, count: int, size: int, kind: type[Any]) -> float:
    """Return a bound on the rounding error, in delta, of the inverse transform of a power of a Fourier transform.

    Let u be the unit roundoff and L = log2(size). The error of a transform is at most 8uL in every coefficient, for
    masses that sum to 1, and at most 8uL times its Euclidean norm (Higham 2002, Accuracy and Stability of Numerical
    Algorithms, section 24.1). A power turns an error e into count |z|^(count-1) e and adds at most 16u count |z|^count.
    After the inverse transform, the total error of the masses is at most the Euclidean norm of the errors of the
    coefficients, by Cauchy-Schwarz and Parseval; delta is a sum of masses with weights in [0, 1].
    """
    roundoff = float(np.finfo(kind).eps) / 2
    length = math.sqrt(2 * float(np.sum(height ** (2.0 * (count - 1)))))
    dropped = _NEGLIGIBLE * size
    return (count + 1) * 8 * roundoff * (math.log2(size) + 2) * length + dropped


def _least_slack(count: int, kind: type[Any]) -> float:
    """Return a lower bound on the slack of `count` uses: that of a transform of one coefficient."""
    return (count + 1) * 8 * float(np.finfo(kind).eps) / 2


def _allowed_slack(delta: float | None) -> float:
    """Return the largest acceptable margin at this delta, or at any delta if it is None."""
    return _ROUNDING if delta is None else max(_MARGIN * delta, _ROUNDING)


def _log_mean_exp(index: Array, order: float, log_masses: Array) -> float:
    power = index * order + log_masses
    top = float(power.max())
    return top + math.log(float(np.exp(power - top).sum()))


@dataclass(frozen=True)
class Powers:
    """The losses of one step in both directions; `absent` is None if they are equal."""

    present: Losses
    absent: Losses | None = field(default=None)

    @classmethod
    def of(cls, losses: PrivacyLossDistribution, rounding: float = _PER_USE) -> Powers:
        """Return the losses of a dp_accounting distribution; `rounding` is that of its curve."""
        present = replace(_dense(losses._pmf_remove), rounding=rounding)
        if losses._symmetric:
            return cls(present)
        return cls(present, replace(_dense(losses._pmf_add), rounding=rounding))

    def epsilon(self, count: int, delta: float) -> float:
        """Return epsilon at delta after `count` uses."""
        return max(losses.epsilon_of(count, delta) for losses in self._directions)

    def delta(self, count: int, epsilon: float) -> float:
        """Return delta at epsilon after `count` uses."""
        return min(1.0, max(losses.power(count).delta(epsilon) for losses in self._directions))

    def power(self, count: int, delta: float | None = None) -> Powers:
        """Return the losses of `count` uses."""
        return Powers(*(losses.power(count, delta) for losses in self._directions))

    def compose(self, other: Powers, delta: float | None = None) -> Powers:
        """Return the losses of this and another release together."""
        present = self.present.compose(other.present, delta)
        if self.absent is None and other.absent is None:
            return Powers(present)
        return Powers(present, (self.absent or self.present).compose(other.absent or other.present, delta))

    def on(self, interval: float) -> Powers:
        """Return losses on a coarser grid that cost at least as much; the same losses if the grid is not coarser."""
        if interval <= self.present.interval:
            return self
        return Powers(*(losses.on(interval) for losses in self._directions))

    @property
    def interval(self) -> float:
        """The grid interval of the losses."""
        return self.present.interval

    @property
    def reach(self) -> float:
        """The width of the range of losses, the smaller of the two directions."""
        return min(losses.reach for losses in self._directions)

    @property
    def _directions(self) -> tuple[Losses, ...]:
        return (self.present,) if self.absent is None else (self.present, self.absent)


def _dense(pmf: Any) -> Losses:
    dense = pmf.to_dense_pmf()
    masses = np.asarray(dense._probs, dtype=np.float64)
    return Losses(masses, int(dense._lower_loss), float(dense._discretization), float(dense._infinity_mass))
