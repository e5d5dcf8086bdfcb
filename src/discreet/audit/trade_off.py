"""Trade-off curves for audits: the smallest false-negative rate of any test at each false-positive rate, rounded down.

A guarantee (epsilon, delta) says that the false-negative rate of any test is at least 1 - delta - e^epsilon times its
false-positive rate, and the same with the two rates exchanged. Each point of a privacy curve therefore is two lines
below the trade-off curve, and the maximum of finitely many lines is below it too. An audit with a curve that is too
low reports less than it could, never more.

Paper: Dong, Roth and Su 2022, Gaussian Differential Privacy.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from discreet.accounting import curve as curves
from discreet.accounting import events
from discreet.accounting.curve import Array, Curve
from discreet.accounting.events import DpEvent
from discreet.accounting.gdp import bisect_up
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.accounting.losses import curve_of
from discreet.core.errors import UnsupportedError, non_negative, open_probability
from discreet.core.guarantee import Adjacency

_LINES = 4001
_LARGEST = 300.0  # e^epsilon beyond it says nothing that a rate can show, and its square must be a double


@dataclass(frozen=True)
class TradeOff:
    """The maximum of lines: at false-positive rate a, the false-negative rate is at least intercept - slope * a.

    `slopes` decrease, and `ends[i]` is where line i stops being the largest. Any of the lines is a lower bound, so the
    choice of the line affects only how close the bound is.

    >>> perfect = TradeOff.of_curve(curves.pure(0.0))
    >>> perfect(0.25), TradeOff.of_curve(curves.pure(math.log(3)))(0.25)
    (0.75, 0.25)
    """

    slopes: tuple[float, ...] = field(repr=False)
    intercepts: tuple[float, ...] = field(repr=False)
    ends: tuple[float, ...] = field(repr=False)

    @classmethod
    def of_curve(cls, curve: Curve) -> TradeOff:
        """Return the trade-off curve of a privacy curve: of both orders of the pair, whichever is lower."""
        reach = min(max(curve.high, curve.high_absent or 0.0), _LARGEST)
        points = np.linspace(0.0, 1.0, _LINES) ** 2 * reach  # closer together near 0
        deltas = np.clip(curve.present(points), 0.0, 1.0)
        if curve.absent is not None:
            deltas = np.maximum(deltas, np.clip(curve.absent(points), 0.0, 1.0))
        return cls.of_points(points, deltas)

    @classmethod
    def of_points(cls, epsilons: Array, deltas: Array) -> TradeOff:
        """Return the trade-off curve of (epsilon, delta) guarantees that all hold; epsilons are >= 0 and increase."""
        grow, shrink = np.exp(epsilons), np.exp(-epsilons)
        slopes = np.concatenate((grow[::-1], shrink[1:] if epsilons[0] == 0 else shrink))
        intercepts = np.concatenate(((1 - deltas)[::-1], (shrink * (1 - deltas))[1 if epsilons[0] == 0 else 0 :]))
        with np.errstate(divide="ignore", invalid="ignore"):
            crossings = (intercepts[:-1] - intercepts[1:]) / (slopes[:-1] - slopes[1:])
        crossings = np.maximum.accumulate(np.nan_to_num(crossings, nan=0.0, posinf=1.0, neginf=0.0))
        return cls(tuple(slopes.tolist()), tuple(intercepts.tolist()), tuple(crossings.tolist()))

    def __call__(self, false_positive_rate: float) -> float:
        """Return a lower bound on the false-negative rate of any test with this false-positive rate."""
        line = bisect.bisect_right(self.ends, false_positive_rate)
        return min(1.0, max(0.0, self.intercepts[line] - self.slopes[line] * false_positive_rate))


@dataclass(frozen=True)
class Family:
    """Trade-off curves that get lower as one parameter grows, and the epsilon of each at a delta.

    An audit that reports an epsilon assumes that the truth is in the family; testing one declared curve assumes
    nothing.
    """

    name: str
    trade_off: Callable[[float], Callable[[float], float]]
    epsilon: Callable[[float, float], float]


def gaussian() -> Family:
    """Return mu-GDP, by its closed form: the family of Gaussian noise."""
    from scipy.special import ndtr, ndtri

    from discreet.accounting.gdp import gaussian_epsilon

    def of(mu: float) -> Callable[[float], float]:
        return lambda rate: float(ndtr(-ndtri(rate) - mu))

    return Family("mu-GDP", of, gaussian_epsilon)


def epsilon_delta(delta: float) -> Family:
    """Return the family of all (epsilon, delta)-private mechanisms, at this delta: it assumes nothing else."""
    open_probability("delta", delta)

    def of(epsilon: float) -> TradeOff:
        return TradeOff.of_points(np.array([0.0, epsilon]), np.array([_at_zero(epsilon, delta), delta]))

    return Family("any (epsilon, delta) mechanism", of, lambda epsilon, _: epsilon)


def _at_zero(epsilon: float, delta: float) -> float:
    """Return delta at epsilon 0 of the largest curve that is (epsilon, delta)-private."""
    return float(curves.pure(epsilon, delta).present(np.zeros(1))[0])


def priv_unit(dimension: int) -> Family:
    """Return PrivUnit in this dimension, by its exact curve: two caps and the rest of the sphere are all that matters.

    The pair of opposite directions is the worst one. Its outcomes are the cap of one direction (probability p and
    (1 - p) A / (1 - A), with A the measure of a cap), the cap of the other (the same in reverse), and anywhere else.
    """
    from discreet.mechanisms.priv_unit import PrivUnit

    def curve(epsilon: float) -> Curve:
        cap = PrivUnit(epsilon, dimension).cap
        area = math.exp(cap.log_mass)
        other = cap.lie * area / (1 - area)
        rest = max(0.0, 1 - cap.truth - other)
        return curves.discrete(np.array([cap.truth, other, rest]), np.array([other, cap.truth, rest]))

    def epsilon(strength: float, delta: float) -> float:
        exact = curve(strength)
        return bisect_up(lambda one: exact.delta(one) <= delta, 0.0, strength)

    return Family("PrivUnit", lambda strength: TradeOff.of_curve(curve(strength)), epsilon)


def trade_off_of(event: DpEvent, adjacency: Adjacency) -> TradeOff:
    """Return the trade-off curve of an event; no guarantee at all is the curve that is 0 everywhere."""
    try:
        return TradeOff.of_curve(curve_of(event, adjacency))
    except OverflowError:
        return TradeOff((0.0,), (0.0,), ())


def family_of(event: DpEvent, adjacency: Adjacency) -> Family:
    """Return the family in which an event is audited: the same event with another strength.

    The strength of Gaussian noise is one over its noise multiplier, that of a direction its kappa, that of a pure
    mechanism its epsilon; sampling and the number of uses stay.
    """
    from discreet.accounting.events import decompose

    parts = decompose(event, adjacency)
    if parts.reasons:
        raise UnsupportedError(f"Expected an event with a guarantee, got none: {'; '.join(parts.reasons)}.")
    if not parts.uses:
        return gaussian()

    def of(strength: float) -> TradeOff:
        return trade_off_of(scaled(event, strength), adjacency)

    def epsilon(strength: float, delta: float) -> float:
        return epsilon_of(scaled(event, strength), delta, adjacency)

    return Family("this mechanism with any strength of noise", of, epsilon)


_WRAPPERS = (
    events.PoissonSampledDpEvent,
    events.RandomAllocationDpEvent,
    events.SampledWithoutReplacementDpEvent,
    events.SelfComposedDpEvent,
    events.VisibleVectorsDpEvent,
)
_STRENGTHS: dict[type[DpEvent], dict[str, int]] = {  # the power of the factor by which each field is multiplied
    events.GaussianDpEvent: {"noise_multiplier": -1},
    events.ClippedSumDpEvent: {"noise_multiplier": -1},
    events.LaplaceDpEvent: {"noise_multiplier": -1},
    events.TruncatedSubsampledGaussianDpEvent: {"noise_multiplier": -1},
    events.DiscreteGaussianDpEvent: {"sigma": -1},
    events.VonMisesFisherDpEvent: {"kappa": 1},
    events.LocalDpEvent: {"epsilon": 1},
    events.EpsilonDeltaDpEvent: {"epsilon": 1},
    events.MetricDpEvent: {"epsilon_per_distance": 1},
    events.DiscreteLaplaceDpEvent: {"noise_parameter": 1},
    events.ZCDpEvent: {"rho": 2, "xi": 1},
}


def scaled(event: DpEvent, factor: float) -> DpEvent:
    """Return an event whose noise is divided, or whose epsilon or kappa is multiplied, by a factor."""
    import attr

    non_negative("factor", factor)
    kind = type(event)
    if kind in _STRENGTHS:
        powers = _STRENGTHS[kind].items()
        return attr.evolve(event, **{name: getattr(event, name) * factor**power for name, power in powers})
    if kind is events.ComposedDpEvent:
        return events.ComposedDpEvent([scaled(one, factor) for one in event.events])
    if kind is events.RandomizedResponseDpEvent:
        noise, buckets = event.noise_parameter, event.num_buckets
        odds = math.log((1 - noise) * buckets / noise + 1) * factor
        return attr.evolve(event, noise_parameter=buckets / (math.expm1(min(odds, 700.0)) + buckets))
    if kind in _WRAPPERS:
        return attr.evolve(event, event=scaled(event.event, factor))
    raise UnsupportedError(
        f"Expected an event of Gaussian, Laplace, von Mises-Fisher or pure noise, got {kind.__name__}. Audit it in "
        "the family of all (epsilon, delta) mechanisms."
    )
