"""Many uses of one loss distribution, quickly: the cost after any number of steps in a few milliseconds.

The same computation as dp_accounting's `self_compose` and `get_epsilon_for_delta` (a power of the Fourier transform on
a grid that holds all but 1e-15 of the mass, which is counted as an infinite loss), arranged so that a training loop or
a solver can ask again and again, and with a margin in delta for what floating point can hide, which grows with the
number of uses: see `_slack`. Where the margin of double precision would be felt, the losses are tilted first, which
makes the margin a share of delta: see `Losses.epsilon_of`; or extended precision is used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft
from scipy.signal import lfilter

from discreet.accounting.curve import Array

_CUT = 1e-15
_ROUNDING = 1e-12
_PER_USE = 2.0**-53  # how far, in delta, the curve of one use may lie from what its formula says
_FELT = 1e-3  # the share of delta that the margin of double precision may take
_FORGOTTEN = 1e-40  # a Fourier coefficient below it adds nothing


@dataclass(frozen=True)
class Losses:
    """Losses at (first + i) * interval with these masses, and the mass of the infinite loss.

    `rounding` is how far, in delta, they may lie from the curve of one use.
    """

    masses: Array
    first: int
    interval: float
    infinite: float
    rounding: float = _PER_USE

    def epsilon(self, delta: float) -> float:
        """Return the least epsilon >= 0 at which the hockey stick is at most delta, or infinity."""
        if self.infinite > delta:
            return math.inf
        deltas, above, below = self._at_dots()
        start = max(0, -self.first)  # epsilon >= 0
        held = deltas[start:] <= delta
        if not held.any():
            return max(0.0, (self.first + len(self.masses) - 1) * self.interval) if len(held) else 0.0
        j = start + int(np.argmax(held))
        if j == 0 or j == start:
            return max(0.0, (self.first + j) * self.interval) if self.first + j > 0 else 0.0
        # between dots j-1 and j the hockey stick is above_j + infinite - e^(eps - loss_j) (mass_j + below_j)
        top = float(above[j] + self.masses[j]) + self.infinite
        slope = float(self.masses[j] + below[j])
        if slope <= 0 or top <= delta:
            return max(0.0, (self.first + j - 1) * self.interval)
        return max(0.0, (self.first + j) * self.interval + math.log((top - delta) / slope))

    def delta(self, epsilon: float) -> float:
        """Return the hockey stick at epsilon."""
        losses = (self.first + np.arange(len(self.masses))) * self.interval
        over = losses > epsilon
        return self.infinite + float(np.dot(-np.expm1(epsilon - losses[over]), self.masses[over]))

    def deltas(self, epsilons: Array) -> Array:
        """Return the hockey stick at many epsilons."""
        _, above, below = self._at_dots()
        place = epsilons / self.interval - self.first
        j = np.clip(np.ceil(place).astype(int), 0, len(self.masses) - 1)  # the first dot not below
        gap = epsilons - (self.first + j) * self.interval
        inside = above[j] + self.masses[j] + self.infinite - np.exp(np.minimum(gap, 0.0)) * (self.masses[j] + below[j])
        return np.asarray(np.where(place > len(self.masses) - 1, self.infinite, np.maximum(inside, self.infinite)))

    def _at_dots(self) -> tuple[Array, Array, Array]:
        """Return at each dot the delta, the mass above it and its mean of exp(dot - loss) there."""
        shrink = math.exp(-self.interval)
        backwards = self.masses[::-1]
        above = np.cumsum(backwards)[::-1] - self.masses
        weighted = lfilter([1.0], [1.0, -shrink], backwards)[::-1] - self.masses
        return above - weighted + self.infinite, above, weighted

    def power(self, count: int, delta: float | None = None) -> Losses:
        """Return the losses of `count` uses; of the two precisions the faster whose margin this delta does not feel."""
        if count == 1:
            return self
        if self.infinite >= 1 or not self.masses.any():
            return Losses(self.masses, self.first * count, self.interval, 1.0)
        quick, slack = self._raised(count, np.float64)
        return quick if slack <= _unfelt(delta) else self._raised(count, np.longdouble)[0]

    def epsilon_of(self, count: int, delta: float) -> float:
        """Return epsilon at delta after `count` uses, as tightly as double precision allows."""
        if count == 1 or self.infinite >= 1 or not self.masses.any():
            return self.power(count, delta).epsilon(delta)
        best = math.inf
        for kind in (np.float64, np.longdouble):
            if _least_slack(count, kind) + _ROUNDING > _FELT * delta:
                continue  # the margin would be felt, whatever the losses are
            found, slack = self._raised(count, kind)
            best = found.epsilon(delta)
            if slack + _CUT + _ROUNDING <= _FELT * delta:
                return best
        tilted = self._tilted(count, delta)
        if tilted is None:
            return min(best, self.power(count, delta).epsilon(delta))
        return min(best, tilted.epsilon(delta))

    def _tilted(self, count: int, delta: float) -> Losses | None:
        """Return the largest losses of `count` uses, those that delta depends on, or nothing if there are none.

        Each mass p at place i is multiplied by e^(t i) / M, M their sum, and the power taken of these. In the sum of
        all uses a mass at place s is then too large by e^(t s) / M^count, and so is its error: taken back, an error e
        of all masses above s together is at most e M^count e^(-t s), which is Chernoff's bound on their mass times e.
        The losses start where that is a thousandth of delta.
        """
        index = np.arange(len(self.masses), dtype=np.float64)
        with np.errstate(divide="ignore"):
            log_masses = np.log(self.masses)
        mean = float(np.dot(index, self.masses) / self.masses.sum())
        variance = max(float(np.dot((index - mean) ** 2, self.masses)), 1e-12)
        # how often the rounding error holds the part of delta that it may take; the best start is found for about that
        needed = max(math.log(100 * _least_slack(count, np.float64) / (_FELT * delta)), 1.0)
        normal = math.sqrt(2 * needed / (count * variance))
        orders = np.geomspace(min(0.1 * normal, 5 / len(index)), 2 * normal, 12).tolist()
        logs = [_log_mean_exp(index, order, log_masses) for order in orders]
        starts = [(count * log + needed) / order for order, log in zip(orders, logs, strict=True)]
        best = int(np.argmin(starts))
        order, log = orders[best], logs[best]
        tilted = Losses(np.exp(log_masses + order * index - log), 0, self.interval, 0.0)
        low, high, back, slack = tilted._wave_power(count, np.float64)
        # rounding of the tilt: a few units in the last place of its exponents, for each use
        share = count * (16 + order * len(index) + 4 * abs(log)) * 2.0**-52
        if share > _FELT:
            return None
        start = math.ceil((count * log + math.log((slack + _CUT) / (_FELT * delta))) / order)
        start = max(start, low, min(-self.first * count, high))
        if start >= high:
            return None
        places = np.arange(start, high + 1, dtype=np.float64)
        masses = back[start - low :] * np.exp(count * log - order * places) * (1 + 2 * share)
        infinite = _FELT * delta + count * self.rounding - math.expm1(count * math.log1p(-self.infinite))
        return Losses(masses, self.first * count + start, self.interval, min(infinite, 1.0))

    def _raised(self, count: int, kind: type[Any]) -> tuple[Losses, float]:
        low, _, masses, slack = self._wave_power(count, kind)
        infinite = _CUT + _ROUNDING + slack + count * self.rounding - math.expm1(count * math.log1p(-self.infinite))
        return Losses(masses, self.first * count + low, self.interval, min(infinite, 1.0)), slack

    def _wave_power(self, count: int, kind: type[Any]) -> tuple[int, int, Array, float]:
        """Return the ends of the places that hold nearly all of the sum of uses, their masses, and the slack."""
        low, high = self._reach(count)
        size = fft.next_fast_len(max(high - low + 1, len(self.masses)), real=True)
        wave = fft.rfft(self.masses.astype(kind), size)
        height = np.abs(wave).astype(np.float64)
        with np.errstate(divide="ignore"):
            heard = count * np.log(height) > math.log(_FORGOTTEN)
        raised = np.zeros_like(wave)
        raised[heard] = wave[heard] ** count
        back = fft.irfft(raised, size).astype(np.float64)
        masses = np.maximum(np.roll(back, -low)[: high - low + 1], 0.0)
        return low, high, masses, _slack(height, count, size, kind)

    def compose(self, other: Losses, delta: float | None = None) -> Losses:
        """Return the losses of this and another release together; the precision is chosen as for a power."""
        quick, slack = self._joined(other, np.float64)
        return quick if slack <= _unfelt(delta) else self._joined(other, np.longdouble)[0]

    def _joined(self, other: Losses, kind: type[Any]) -> tuple[Losses, float]:
        length = len(self.masses) + len(other.masses) - 1
        size = fft.next_fast_len(length, real=True)
        waves = [fft.rfft(each.masses.astype(kind), size) for each in (self, other)]
        back = fft.irfft(waves[0] * waves[1], size).astype(np.float64)
        masses = np.maximum(back[:length], 0.0)
        # two different transforms: no worse than the square of the larger one
        slack = _slack(np.maximum(*(np.abs(wave).astype(np.float64) for wave in waves)), 2, size, kind)
        # what lies far above is counted as infinite, what lies far below as its nearest neighbour
        top = len(masses) - int(np.searchsorted(np.cumsum(masses[::-1]), _CUT))
        bottom = min(int(np.searchsorted(np.cumsum(masses), _CUT)), max(top - 1, 0))
        kept = masses[bottom : max(top, bottom + 1)].copy()
        kept[0] += masses[:bottom].sum()
        infinite = self.infinite + other.infinite + _CUT + _ROUNDING + slack
        return Losses(kept, self.first + other.first + bottom, self.interval, min(infinite, 1.0)), slack

    def on(self, interval: float) -> Losses:
        """Return losses on a coarser grid that cost at least as much at every epsilon.

        The mass of a loss goes to the dots on either side, shared so that the mean of e^-loss is kept. The hockey stick
        is the mean of max(0, 1 - e^epsilon e^-loss), which is convex in e^-loss, so it does not fall (Jensen). This is
        what connect-the-dots does to a curve, without the differences of nearly equal numbers.
        """
        at = (self.first + np.arange(len(self.masses))) * (self.interval / interval)
        below = np.floor(at)
        share = np.expm1((below - at) * interval) / math.expm1(-interval)  # of the dot above
        first = int(below[0])
        place = (below - first).astype(np.intp)
        size = int(place[-1]) + 2
        kept, moved = self.masses * (1 - share), self.masses * share
        masses = np.asarray(np.bincount(place, kept, size) + np.bincount(place + 1, moved, size), dtype=np.float64)
        # a loss is off by a few roundings of its size, and a sum by one for every mass in it
        rounding = (8 + 4 * float(np.abs(at[[0, -1]]).max()) * interval + interval / self.interval) * _PER_USE
        return Losses(masses, first, interval, min(self.infinite + rounding, 1.0))

    @property
    def reach(self) -> float:
        """How far the losses spread."""
        return len(self.masses) * self.interval

    def _reach(self, count: int) -> tuple[int, int]:
        """Return between which sums of indices all but a share of 1e-15 lies, by Chernoff's bound."""
        index = np.arange(len(self.masses), dtype=np.float64)
        mean = float(np.dot(index, self.masses))
        variance = max(float(np.dot((index - mean) ** 2, self.masses)), 1e-12)
        normal = math.sqrt(2 * math.log(2 / _CUT) / (count * variance))  # best for a normal sum; long tails want less
        orders = np.geomspace(min(0.4 * normal, 5 / len(index)), 2 * normal, 12)
        low, high = 0, (len(self.masses) - 1) * count
        room = math.log(2 / _CUT)
        with np.errstate(divide="ignore"):
            log_masses = np.log(self.masses)
        for order in orders.tolist():
            high = min(high, math.ceil((count * _log_mean_exp(index, order, log_masses) + room) / order))
            low = max(low, math.floor(-(count * _log_mean_exp(index, -order, log_masses) + room) / order))
        return low, max(high, low + 1)


def _slack(height: Array, count: int, size: int, kind: type[Any]) -> float:
    """Return a bound on the rounding error, in delta, of a power of a Fourier transform taken back.

    Let u be the unit roundoff and L = log2(size). A transform is wrong by at most 8uL in every coefficient, for masses
    that sum to 1, and by a share of 8uL of its length as a vector (Higham 2002, Accuracy and Stability of Numerical
    Algorithms, section 24.1). A power turns an error e into count |z|^(count-1) e and adds at most 16u count |z|^count.
    A vector of errors in the coefficients, taken back, has masses that are wrong by at most its Euclidean length in
    sum, by Cauchy-Schwarz and Parseval; delta is a sum of masses with weights in [0, 1].
    """
    roundoff = float(np.finfo(kind).eps) / 2
    length = math.sqrt(2 * float(np.sum(height ** (2.0 * (count - 1)))))
    forgotten = _FORGOTTEN * size
    return (count + 1) * 8 * roundoff * (math.log2(size) + 2) * length + forgotten


def _least_slack(count: int, kind: type[Any]) -> float:
    """Return less than any slack of so many uses: that of a transform of one coefficient."""
    return (count + 1) * 8 * float(np.finfo(kind).eps) / 2


def _unfelt(delta: float | None) -> float:
    """Return how large a margin in delta may be that is not felt at this delta, or at any."""
    return _ROUNDING if delta is None else max(_FELT * delta, _ROUNDING)


def _log_mean_exp(index: Array, order: float, log_masses: Array) -> float:
    power = index * order + log_masses
    top = float(power.max())
    return top + math.log(float(np.exp(power - top).sum()))


@dataclass(frozen=True)
class Powers:
    """Both directions of one step's losses."""

    present: Losses
    absent: Losses | None = field(default=None)

    @classmethod
    def of(cls, losses: PrivacyLossDistribution, rounding: float = _PER_USE) -> Powers:
        """Return the losses of dp_accounting's distribution; `rounding` is that of the curve they were made from."""
        present = replace(_dense(losses._pmf_remove), rounding=rounding)
        if losses._symmetric:
            return cls(present)
        return cls(present, replace(_dense(losses._pmf_add), rounding=rounding))

    def epsilon(self, count: int, delta: float) -> float:
        """Return epsilon at delta after `count` uses."""
        found = self.present.epsilon_of(count, delta)
        return found if self.absent is None else max(found, self.absent.epsilon_of(count, delta))

    def delta(self, count: int, epsilon: float) -> float:
        """Return delta at epsilon after `count` uses."""
        found = self.present.power(count).delta(epsilon)
        if self.absent is not None:
            found = max(found, self.absent.power(count).delta(epsilon))
        return min(found, 1.0)

    def power(self, count: int, delta: float | None = None) -> Powers:
        """Return the losses of `count` uses."""
        absent = None if self.absent is None else self.absent.power(count, delta)
        return Powers(self.present.power(count, delta), absent)

    def compose(self, other: Powers, delta: float | None = None) -> Powers:
        """Return the losses of this and another release together."""
        present = self.present.compose(other.present, delta)
        if self.absent is None and other.absent is None:
            return Powers(present)
        return Powers(present, (self.absent or self.present).compose(other.absent or other.present, delta))

    def on(self, interval: float) -> Powers:
        """Return losses on a coarser grid that cost at least as much; on a grid as fine, these."""
        if interval <= self.present.interval:
            return self
        return Powers(self.present.on(interval), None if self.absent is None else self.absent.on(interval))

    @property
    def interval(self) -> float:
        """The grid of the losses."""
        return self.present.interval

    @property
    def reach(self) -> float:
        """How far the losses spread, in the direction in which they spread less."""
        return min(self.present.reach, math.inf if self.absent is None else self.absent.reach)


def _dense(pmf: Any) -> Losses:
    dense = pmf.to_dense_pmf()
    masses = np.asarray(dense._probs, dtype=np.float64)
    return Losses(masses, int(dense._lower_loss), float(dense._discretization), float(dense._infinity_mass))
