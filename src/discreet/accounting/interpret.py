"""Epsilon, delta and the guarantee of an event, and `Meter`, which computes epsilon after any number of equal steps.

There are three accountants. `pld` (the default) composes privacy loss distributions and is a proven upper bound. It
uses the exact curves for unsampled Gaussian noise and for a single von Mises–Fisher direction. `rdp` is a proven bound
that is mostly looser. Where it is smaller, the default reports it, and the guarantee names it. `gdp` is exact for
unsampled Gaussian noise and otherwise a central-limit estimate below the true value, which is never certified.

`pure_epsilon` is the cost at delta 0: the sum of the largest losses, or infinity if a loss is unbounded.

>>> from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
>>> steps = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0)), 1000)
>>> round(epsilon(steps, 1e-5), 3)
1.829
>>> round(epsilon(steps, 1e-5, accountant="gdp"), 3)
1.618
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

from discreet.accounting import von_mises_fisher as vmf
from discreet.accounting.curve import Array, sampled_loss
from discreet.accounting.events import (
    CHOICES,
    FIXED_SIZE,
    ClippedSumDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    LaplaceDpEvent,
    LocalDpEvent,
    MetricDpEvent,
    NoGuaranteeDpEvent,
    OneOfDpEvent,
    Parts,
    PoissonSampledDpEvent,
    RandomAllocationDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
    cached_by_event,
    check_covered,
    decompose,
    inner_events,
    leaves,
    sampling_rate,
    simplify,
    unsupported,
)
from discreet.accounting.gdp import (
    central_limit_mu,
    central_limit_mu_fixed,
    gaussian_delta,
    gaussian_epsilon,
)
from discreet.accounting.losses import powers_of, use_curve
from discreet.accounting.powers import Powers
from discreet.accounting.renyi import ORDERS, renyi_delta, renyi_divergences, renyi_epsilon
from discreet.core.errors import UnsupportedError, invalid, non_negative, one_of, open_probability, probability, whole
from discreet.core.guarantee import Adjacency, Caveat, Guarantee

ACCOUNTANTS = ("pld", "rdp", "gdp")


def epsilon(
    event: DpEvent, delta: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE, accountant: str = "pld"
) -> float:
    """Return epsilon at delta: an upper bound for pld and rdp, possibly an estimate for gdp; infinity if unbounded.

    Args:
        event: The event.
        delta: The delta at which epsilon is asked for.
        adjacency: add/remove, zero-out or replace-one.
        accountant: pld, rdp or gdp; the last may be an estimate.
    """
    return _named_epsilon(event, delta, _checked(adjacency, accountant), accountant)[0]


def _named_epsilon(event: DpEvent, delta: float, adjacency: Adjacency, accountant: str) -> tuple[float, str]:
    """Return epsilon and the name of the accountant that gives it."""
    delta = probability("delta", delta)
    parts = decompose(event, adjacency)
    if parts.reasons:
        return math.inf, accountant
    if delta == 1 or (not parts.uses and not parts.mu_squared):
        return 0.0, accountant
    pure = pure_epsilon(parts, adjacency)
    if delta == 0:
        if math.isinf(pure):
            raise invalid("delta", delta, "in (0, 1)", "The loss is unbounded. Use a delta below 1/n, such as 1e-5.")
        return pure, accountant
    composed, name = _epsilon(parts, delta, adjacency, accountant)
    return (pure, accountant) if pure <= composed else (composed, name)


@cached_by_event
def _epsilon(parts: Parts, delta: float, adjacency: Adjacency, accountant: str) -> tuple[float, str]:
    if accountant == "rdp":
        return renyi_epsilon(parts, delta, adjacency), accountant
    if accountant == "gdp":
        return gaussian_epsilon(limit_mu(parts, adjacency), delta), accountant
    if not parts.uses:
        return gaussian_epsilon(parts.mu, delta), accountant
    single = parts.single
    if isinstance(single, VonMisesFisherDpEvent):  # covered under replace-one and zero-out only
        exact = vmf.replaced_epsilon if adjacency is Adjacency.REPLACE_ONE else vmf.zeroed_epsilon
        return exact(single.kappa, single.dimension, delta), accountant
    try:
        step, count = powers_of(parts, adjacency, delta)
        by_pld = step.epsilon(count, delta)
    except OverflowError:
        by_pld = math.inf
    try:
        by_rdp = renyi_epsilon(parts, delta, adjacency)
    except UnsupportedError:
        by_rdp = math.inf
    return (by_pld, accountant) if by_pld <= by_rdp else (by_rdp, "rdp")


def delta(
    event: DpEvent, epsilon: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE, accountant: str = "pld"
) -> float:
    """Return delta at epsilon: an upper bound for pld and rdp, possibly an estimate for gdp; 1 without a guarantee.

    Args:
        event: The event.
        epsilon: The epsilon at which delta is asked for.
        adjacency: add/remove, zero-out or replace-one.
        accountant: pld, rdp or gdp; the last may be an estimate.

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> round(delta(GaussianDpEvent(1.0), 1.0), 6)
    0.126937
    """
    adjacency, epsilon = _checked(adjacency, accountant), non_negative("epsilon", epsilon)
    parts = decompose(event, adjacency)
    if parts.reasons:
        return 1.0
    if (not parts.uses and not parts.mu_squared) or pure_epsilon(parts, adjacency) <= epsilon:
        return 0.0
    if accountant == "rdp":
        return min(1.0, renyi_delta(parts, epsilon, adjacency))
    if accountant == "gdp":
        return gaussian_delta(limit_mu(parts, adjacency), epsilon)
    if not parts.uses:
        return gaussian_delta(parts.mu, epsilon)
    if parts.single is not None:
        return use_curve(parts.single, adjacency).delta(epsilon)
    try:
        by_rdp = renyi_delta(parts, epsilon, adjacency)
    except UnsupportedError:
        by_rdp = 1.0
    try:
        step, count = powers_of(parts, adjacency)
    except OverflowError:
        return min(1.0, by_rdp)
    return min(step.delta(count, epsilon), by_rdp)


def guarantee_of(
    event: DpEvent,
    *,
    delta: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
    unit: str = "record",
    assumptions: Sequence[str] = (),
) -> Guarantee:
    """Return the guarantee of an event, with its assumptions and caveats.

    Args:
        event: What is released, as an event of `discreet.accounting`.
        delta: Delta of the guarantee.
        adjacency: How two neighbouring data sets differ: add/remove, zero-out or replace-one.
        accountant: pld, rdp or gdp; the last may be an estimate.
        unit: The word for what is protected, such as note.
        assumptions: Further assumptions to state.

    >>> from discreet.accounting.events import GaussianDpEvent, NoGuaranteeDpEvent
    >>> print(guarantee_of(GaussianDpEvent(1.0), delta=1e-5, unit="note"))  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
    Certified: differential privacy with epsilon = 4.378 and delta = 1e-05 for each note (...), by the pld accountant.
    >>> print(guarantee_of(NoGuaranteeDpEvent("the masks are secret, not random"), delta=1e-5))
    No guarantee for any record: the masks are secret, not random.
    """
    adjacency = _checked(adjacency, accountant)
    parts = decompose(event, adjacency)
    bound, accountant = _named_epsilon(event, delta, adjacency, accountant)
    reason = "; ".join(parts.reasons) or None
    if reason is None and math.isinf(bound):
        reason = f"the {accountant} accountant finds no epsilon at so small a delta"
    caveats = {Caveat.CENTRAL_LIMIT} if reason is None and accountant == "gdp" and parts.uses else set()
    stated = tuple(dict.fromkeys((*assumptions, *_assumptions(parts, adjacency))))
    return Guarantee(bound, delta, unit, adjacency, accountant, reason is None, stated, reason, frozenset(caveats))


def limit_mu(parts: Parts, adjacency: Adjacency) -> float:
    """Return the mu of Gaussian differential privacy: exact without sampling, a central-limit estimate with it."""
    total = parts.mu_squared
    for use, count in parts.uses:
        if isinstance(use, TruncatedSubsampledGaussianDpEvent):
            total += central_limit_mu(1 / use.noise_multiplier, sampling_rate(use), count) ** 2
            continue
        inside = decompose(use.event, adjacency) if hasattr(use, "event") else None
        if inside is None or inside.uses or not inside.mu_squared:
            raise unsupported(
                use, adjacency, "gdp", "Its central limit is implemented for sampled Gaussian noise only."
            )
        if isinstance(use, PoissonSampledDpEvent) and adjacency is not Adjacency.REPLACE_ONE:
            total += central_limit_mu(inside.mu, use.sampling_probability, count) ** 2
        elif isinstance(use, RandomAllocationDpEvent):
            total += central_limit_mu(inside.mu, sampling_rate(use), count * use.bins) ** 2
        elif isinstance(use, FIXED_SIZE) and adjacency is Adjacency.REPLACE_ONE:
            total += central_limit_mu_fixed(inside.mu, sampling_rate(use), count) ** 2
        else:
            raise unsupported(use, adjacency, "gdp", "Use the pld accountant.")
    return math.sqrt(total)


_DRAWN = "records are drawn independently at the stated rate and nobody learns which were drawn"
_ALLOCATED = "each record is in one of the sums of an epoch, chosen at random, and nobody learns in which"
_BLIND = "rate, divisor, steps and delta were chosen without looking at the number of records"
_SUM = "only the noisy sum is visible"


def _assumptions(parts: Parts, adjacency: Adjacency) -> list[str]:
    assumptions: list[str] = []
    blind = [_BLIND] if adjacency is Adjacency.ADD_REMOVE else []
    for use, _ in parts.uses:
        if isinstance(use, PoissonSampledDpEvent):
            assumptions += [_DRAWN, *blind]
            if isinstance(use.event, ClippedSumDpEvent):
                assumptions.append(_SUM)
        elif isinstance(use, RandomAllocationDpEvent):
            assumptions += [_ALLOCATED, *blind, _SUM]
        elif isinstance(use, TruncatedSubsampledGaussianDpEvent):
            assumptions += [_DRAWN, "a record that is emptied keeps its place in a truncated batch", _SUM]
        elif isinstance(use, FIXED_SIZE):
            assumptions.append("a fixed number of records is drawn at random and nobody learns which or in what order")
        elif isinstance(use, RandomizedResponseDpEvent) and adjacency is Adjacency.ZERO_OUT:
            assumptions.append("an empty record answers uniformly at random")
        elif isinstance(use, CHOICES):
            if isinstance(use, RepeatAndSelectDpEvent):
                assumptions.append("the number of runs is random, and it and all results but the best stay secret")
            for inner in inner_events(use):
                assumptions += _assumptions(decompose(inner, adjacency), adjacency)
    return list(dict.fromkeys(assumptions))


def _checked(adjacency: Adjacency | str, accountant: str) -> Adjacency:
    one_of("accountant", accountant, ACCOUNTANTS)
    return Adjacency(one_of("adjacency", str(adjacency), [a.value for a in Adjacency]))


def pure_epsilon(parts: Parts, adjacency: Adjacency) -> float:
    """Return the epsilon at delta 0 of all uses together, by basic composition.

    >>> from discreet.accounting.events import RandomizedResponseDpEvent, SelfComposedDpEvent
    >>> twice = SelfComposedDpEvent(RandomizedResponseDpEvent(0.5, 2), 2)
    >>> round(pure_epsilon(decompose(twice, Adjacency.REPLACE_ONE), Adjacency.REPLACE_ONE) / math.log(3), 6)
    2.0
    """
    if parts.reasons or parts.mu_squared:
        return math.inf
    return math.fsum(count * _largest_loss(use, adjacency) for use, count in parts.uses)


def _largest_loss(use: DpEvent, adjacency: Adjacency) -> float:
    if isinstance(use, LaplaceDpEvent):
        return 1 / float(use.noise_multiplier)
    if isinstance(use, DiscreteLaplaceDpEvent):
        return float(use.noise_parameter) * int(use.sensitivity)
    if isinstance(use, EpsilonDeltaDpEvent | LocalDpEvent):
        return use.epsilon if use.delta == 0 else math.inf
    if isinstance(use, MetricDpEvent):
        return use.epsilon_per_distance * float(use.diameter or 0.0)
    if isinstance(use, RandomizedResponseDpEvent):
        k, p = use.num_buckets, use.noise_parameter
        if k == 1:
            return 0.0
        truthful, other = 1 - p + p / k, p / k
        if adjacency is Adjacency.ZERO_OUT:
            return max(math.log(truthful * k), -math.log(other * k))
        return math.log(truthful / other)
    if isinstance(use, VonMisesFisherDpEvent):
        if adjacency is Adjacency.ZERO_OUT:
            return vmf.largest_zeroed_loss(use.kappa, use.dimension)
        return 2 * use.kappa
    if isinstance(use, ZCDpEvent):
        return use.xi if use.rho == 0 else math.inf
    if isinstance(use, OneOfDpEvent):
        return max(pure_epsilon(decompose(event, adjacency), adjacency) for event in use.events)
    if isinstance(use, PoissonSampledDpEvent):
        return _sampled_loss(use.event, use.sampling_probability, adjacency)
    if isinstance(use, FIXED_SIZE):
        return _sampled_loss(use.event, sampling_rate(use), Adjacency.REPLACE_ONE)
    return math.inf


def _sampled_loss(event: DpEvent, rate: float, adjacency: Adjacency) -> float:
    if isinstance(event, VisibleVectorsDpEvent):
        rate, event = 1.0, event.event  # the number of visible vectors varies; all of them may be sent
    return sampled_loss(pure_epsilon(decompose(event, adjacency), adjacency), rate)


_MANY = 1_000_000  # the grid is wide enough for this many steps


@dataclass(frozen=True)
class Meter:
    """Compute epsilon after any number of equal steps, for a progress bar or a solver.

    One step is decomposed once; after that each number of steps is cheap.

    >>> from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent
    >>> meter = Meter(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0)), delta=1e-5)
    >>> [round(meter.epsilon(steps), 3) for steps in (0, 1, 1000, 10_000)]
    [0.0, 0.199, 1.829, 6.19]
    """

    step: DpEvent
    delta: float
    adjacency: Adjacency = Adjacency.ADD_REMOVE
    accountant: str = "pld"

    def __post_init__(self) -> None:
        """Check delta and the adjacency."""
        open_probability("delta", self.delta)
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))

    def epsilon(self, steps: int) -> float:
        """Return epsilon after this many steps; it is an upper bound wherever the function `epsilon` is one."""
        if whole("steps", steps, 0) == 0:
            return 0.0
        if steps == 1 or not self._parts.uses or self._parts.reasons or self.accountant == "gdp":
            return epsilon(SelfComposedDpEvent(self.step, steps), self.delta, self.adjacency, self.accountant)
        bounds = [steps * self._pure]
        try:
            bounds.append(float(compute_epsilon(ORDERS, steps * self._divergences, self.delta)[0]))
        except UnsupportedError:
            if self.accountant == "rdp":
                raise
        if self.accountant != "rdp":
            with contextlib.suppress(OverflowError):
                one, count = self._powers
                bounds.append(one.epsilon(count * steps, self.delta))
        return min(bounds)

    @cached_property
    def _parts(self) -> Parts:
        return decompose(self.step, self.adjacency)

    @cached_property
    def _pure(self) -> float:
        return pure_epsilon(self._parts, self.adjacency)

    @cached_property
    def _divergences(self) -> Array:
        return renyi_divergences(self._parts, self.adjacency)

    @cached_property
    def _powers(self) -> tuple[Powers, int]:
        return powers_of(self._parts, self.adjacency, self.delta, _MANY)


# From the strongest statement to the weakest.
_ORDER = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
_MOST_ROUNDS = 50
_LARGEST_EPSILON = 300.0  # e^epsilon times a delta must be representable


def weakest(adjacencies: Iterable[Adjacency]) -> Adjacency:
    """Return the adjacency under which releases under all of these can be stated together.

    >>> weakest([Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE]).value
    'zero-out'
    """
    return max(adjacencies, key=_ORDER.index)


def can_restate(adjacency: Adjacency, to: Adjacency) -> bool:
    """Return whether a release under one adjacency has a bound under another."""
    return _ORDER.index(adjacency) <= _ORDER.index(to)


def restated(event: DpEvent, adjacency: Adjacency, to: Adjacency, delta: float) -> DpEvent:
    """Return an event that costs under `to` at least what `event`, whose cost is known under `adjacency`, costs there.

    Where only group privacy gives a bound, it takes at most `delta` of the delta of the whole.

    >>> restated(ClippedSumDpEvent(2.0), Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE, 1e-6)
    ClippedSumDpEvent(noise_multiplier=2.0, occurrences=1)
    """
    if adjacency is to:
        return event
    if not can_restate(adjacency, to):
        raise UnsupportedError(
            f"Expected a release under {to.value} or a stronger adjacency, got {adjacency.value}. No bound is known."
        )
    if to is Adjacency.ZERO_OUT:
        return event if _is_covered(event, to) else _steps(event, adjacency, 1, delta)
    if _has_own_distance(event) and _is_covered(event, to):
        return event
    return _steps(event, adjacency, 2, delta)


def _is_covered(event: DpEvent, adjacency: Adjacency) -> bool:
    try:
        check_covered(simplify(event), adjacency)
    except UnsupportedError:
        return False
    return True


def _has_own_distance(event: DpEvent) -> bool:
    """Return whether all noise in an event is relative to a bound on each vector, not to a given sensitivity."""
    for use, _ in leaves(simplify(event)):
        inner = inner_events(use)
        if inner and not all(map(_has_own_distance, inner)):
            return False
        if not inner and not isinstance(use, ClippedSumDpEvent | VonMisesFisherDpEvent):
            return False
    return True


def _steps(event: DpEvent, adjacency: Adjacency, steps: int, delta: float) -> DpEvent:
    """Return the cost of one or two steps under an adjacency, by group privacy, with at most this delta."""
    parts = decompose(event, adjacency)
    if parts.reasons:
        return NoGuaranteeDpEvent("; ".join(parts.reasons))
    pure = pure_epsilon(parts, adjacency)
    one, bound = delta, math.inf
    for _ in range(_MOST_ROUNDS):
        # A smaller delta of one step has a larger epsilon, which makes the delta of two steps larger again.
        bound = epsilon(event, one, adjacency)
        factor = 1.0 if steps == 1 or bound > _LARGEST_EPSILON else 1.0 + math.exp(bound)
        if bound > _LARGEST_EPSILON or factor * one <= delta:
            break
        one = delta / factor / 1.01
    else:
        bound = math.inf
    if bound <= _LARGEST_EPSILON and bound < pure:
        return EpsilonDeltaDpEvent(steps * bound, delta)
    if math.isfinite(pure):
        return EpsilonDeltaDpEvent(steps * pure, 0.0)
    return NoGuaranteeDpEvent(f"no bound is known for a release under {adjacency.value} with so large an epsilon")
