"""What an event costs: epsilon, delta, and the guarantee in words.

Three accountants. `pld` (the default) composes loss distributions and is a proven upper bound; all Gaussian noise that
is not sampled, and a single von Mises–Fisher direction, are answered by their exact curves instead. `rdp` is a proven
bound that is mostly looser: where it is smaller, the default reports it, and the guarantee names it. `gdp` is exact for
Gaussian noise that is not sampled and otherwise a central-limit estimate below the truth, which is never certified.

>>> from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
>>> steps = SelfComposedDpEvent(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0)), 1000)
>>> round(epsilon(steps, 1e-5), 3)
1.829
>>> round(epsilon(steps, 1e-5, accountant="gdp"), 3)
1.618

The cost with delta 0: the largest loss of every use, added up; infinite where a loss has no largest value.

The cost so far, step by step: one step is taken apart once, then any number of steps is asked for cheaply.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

from discreet.accounting import von_mises_fisher as vmf
from discreet.accounting.curve import Array
from discreet.accounting.events import (
    ClippedSumDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    LaplaceDpEvent,
    LocalDpEvent,
    MetricDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
)
from discreet.accounting.gdp import (
    central_limit_mu,
    central_limit_mu_fixed,
    gaussian_delta,
    gaussian_epsilon,
)
from discreet.accounting.losses import powers_of, use_curve
from discreet.accounting.parts import Parts, refuse_pair, take_apart
from discreet.accounting.powers import Powers
from discreet.accounting.renyi import ORDERS, renyi_delta, renyi_divergences, renyi_epsilon
from discreet.core.errors import UnsupportedError, invalid, non_negative, one_of, open_probability, probability, whole
from discreet.core.guarantee import Adjacency, Caveat, Guarantee

ACCOUNTANTS = ("pld", "rdp", "gdp")


def epsilon(
    event: DpEvent, delta: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE, accountant: str = "pld"
) -> float:
    """Return epsilon at delta: an upper bound by pld and rdp, perhaps an estimate by gdp; infinite if nothing holds."""
    return _named_epsilon(event, delta, _known(adjacency, accountant), accountant)[0]


def _named_epsilon(event: DpEvent, delta: float, adjacency: Adjacency, accountant: str) -> tuple[float, str]:
    """Return epsilon, and the accountant that proved it."""
    delta = probability("delta", delta)
    parts = take_apart(event, adjacency)
    if parts.reasons:
        return math.inf, accountant
    if delta == 1 or (not parts.uses and not parts.mu_squared):
        return 0.0, accountant
    best = pure_epsilon(parts, adjacency)
    if delta == 0:
        if math.isinf(best):
            raise invalid(
                "delta", delta, "in (0, 1)", "Gaussian and such noise has no largest loss; 1e-5 or below 1/n is usual."
            )
        return best, accountant
    found, name = _epsilon(parts, delta, adjacency, accountant)
    return (best, accountant) if best <= found else (found, name)


def _epsilon(parts: Parts, delta: float, adjacency: Adjacency, accountant: str) -> tuple[float, str]:
    if accountant == "rdp":
        return renyi_epsilon(parts, delta, adjacency), accountant
    if accountant == "gdp":
        return gaussian_epsilon(limit_mu(parts, adjacency), delta), accountant
    if not parts.uses:
        return gaussian_epsilon(parts.mu, delta), accountant
    direction = _one_direction(parts)
    if direction is not None and adjacency is Adjacency.REPLACE_ONE:
        return vmf.replaced_epsilon(direction.kappa, direction.dimension, delta), accountant
    if direction is not None and adjacency is Adjacency.ZERO_OUT:
        return vmf.zeroed_epsilon(direction.kappa, direction.dimension, delta), accountant
    try:
        step, count = powers_of(parts, adjacency, delta)
        found = step.epsilon(count, delta)
    except OverflowError:
        found = math.inf
    other = renyi_if_covered(parts, delta, adjacency)
    return (found, accountant) if found <= other else (other, "rdp")


def renyi_if_covered(parts: Parts, delta: float, adjacency: Adjacency) -> float:
    """Return epsilon by the rdp accountant, infinite where it does not cover the event."""
    try:
        return renyi_epsilon(parts, delta, adjacency)
    except UnsupportedError:
        return math.inf


def delta(
    event: DpEvent, epsilon: float, adjacency: Adjacency | str = Adjacency.ADD_REMOVE, accountant: str = "pld"
) -> float:
    """Return delta at epsilon: an upper bound by pld and rdp, possibly an estimate by gdp; 1 if nothing holds.

    >>> from discreet.accounting.events import GaussianDpEvent
    >>> round(delta(GaussianDpEvent(1.0), 1.0), 6)
    0.126937
    """
    adjacency, epsilon = _known(adjacency, accountant), non_negative("epsilon", epsilon)
    parts = take_apart(event, adjacency)
    if parts.reasons:
        return 1.0
    if not parts.uses and not parts.mu_squared:
        return 0.0
    if pure_epsilon(parts, adjacency) <= epsilon:
        return 0.0
    if accountant == "rdp":
        return min(1.0, renyi_delta(parts, epsilon, adjacency))
    if accountant == "gdp":
        return gaussian_delta(limit_mu(parts, adjacency), epsilon)
    if not parts.uses:
        return gaussian_delta(parts.mu, epsilon)
    if len(parts.uses) == 1 and parts.uses[0][1] == 1 and not parts.mu_squared:
        return use_curve(parts.uses[0][0], adjacency).delta(epsilon)
    try:
        other = renyi_delta(parts, epsilon, adjacency)
    except UnsupportedError:
        other = 1.0
    try:
        step, count = powers_of(parts, adjacency)
    except OverflowError:
        return min(1.0, other)
    return min(step.delta(count, epsilon), other)


def guarantee(
    event: DpEvent,
    *,
    delta: float,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    accountant: str = "pld",
    unit: str = "record",
    assumptions: Sequence[str] = (),
) -> Guarantee:
    """Return what an event guarantees, with everything it rests on.

    >>> from discreet.accounting.events import GaussianDpEvent, NoGuaranteeDpEvent
    >>> print(guarantee(GaussianDpEvent(1.0), delta=1e-5, unit="note"))  # doctest: +ELLIPSIS, +NORMALIZE_WHITESPACE
    Certified: differential privacy with epsilon = 4.378 and delta = 1e-05 for each note (...), by the pld accountant.
    >>> print(guarantee(NoGuaranteeDpEvent("the masks are secret, not random"), delta=1e-5))
    No guarantee for any record: the masks are secret, not random.
    """
    adjacency = _known(adjacency, accountant)
    parts = take_apart(event, adjacency)
    found, accountant = _named_epsilon(event, delta, adjacency, accountant)
    if parts.reasons:
        reason: str | None = "; ".join(parts.reasons)
    elif math.isinf(found):
        reason = f"the {accountant} accountant finds no epsilon at so small a delta"
    else:
        reason = None
    caveats = {Caveat.CENTRAL_LIMIT} if reason is None and accountant == "gdp" and parts.uses else set()
    stated = tuple(dict.fromkeys((*assumptions, *_assumed(parts, adjacency))))
    return Guarantee(found, delta, unit, adjacency, accountant, reason is None, stated, reason, frozenset(caveats))


def limit_mu(parts: Parts, adjacency: Adjacency) -> float:
    """Return mu by Gaussian differential privacy: exact without sampling, the central-limit estimate with it."""
    total = parts.mu_squared
    for use, count in parts.uses:
        inside = take_apart(use.event, adjacency) if hasattr(use, "event") else None
        if inside is None or inside.uses or not inside.mu_squared:
            raise refuse_pair(use, adjacency, "gdp", "Its central limit is known for sampled Gaussian noise only.")
        if isinstance(use, PoissonSampledDpEvent) and adjacency is not Adjacency.REPLACE_ONE:
            total += central_limit_mu(inside.mu, use.sampling_probability, count) ** 2
        elif isinstance(use, VisibleVectorsDpEvent) and adjacency is Adjacency.REPLACE_ONE:
            total += central_limit_mu_fixed(inside.mu, use.drawn / use.population, count) ** 2
        elif isinstance(use, SampledWithoutReplacementDpEvent) and adjacency is Adjacency.REPLACE_ONE:
            total += central_limit_mu_fixed(inside.mu, use.sample_size / use.source_dataset_size, count) ** 2
        else:
            raise refuse_pair(use, adjacency, "gdp", "Use the pld accountant.")
    return math.sqrt(total)


def _one_direction(parts: Parts) -> VonMisesFisherDpEvent | None:
    if len(parts.uses) == 1 and parts.uses[0][1] == 1 and not parts.mu_squared:
        only = parts.uses[0][0]
        if isinstance(only, VonMisesFisherDpEvent):
            return only
    return None


def _assumed(parts: Parts, adjacency: Adjacency) -> list[str]:
    found = []
    for use, _ in parts.uses:
        if isinstance(use, PoissonSampledDpEvent):
            found.append("records are drawn independently at the stated rate and nobody learns which were drawn")
            if adjacency is Adjacency.ADD_REMOVE:
                found.append("rate, divisor, steps and delta were chosen without looking at the number of records")
            if isinstance(use.event, ClippedSumDpEvent):
                found.append("only the noisy sum is visible")
        elif isinstance(use, SampledWithoutReplacementDpEvent | VisibleVectorsDpEvent):
            found.append("a fixed number of records is drawn at random and nobody learns which or in what order")
        elif isinstance(use, RandomizedResponseDpEvent) and adjacency is Adjacency.ZERO_OUT:
            found.append("an empty record answers uniformly at random")
    return found


def _known(adjacency: Adjacency | str, accountant: str) -> Adjacency:
    one_of("accountant", accountant, ACCOUNTANTS)
    return Adjacency(one_of("adjacency", str(adjacency), [a.value for a in Adjacency]))


def pure_epsilon(parts: Parts, adjacency: Adjacency) -> float:
    """Return the epsilon at delta 0 of all uses together, by basic composition.

    >>> from discreet.accounting.events import RandomizedResponseDpEvent, SelfComposedDpEvent
    >>> twice = SelfComposedDpEvent(RandomizedResponseDpEvent(0.5, 2), 2)
    >>> round(pure_epsilon(take_apart(twice, Adjacency.REPLACE_ONE), Adjacency.REPLACE_ONE) / math.log(3), 6)
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
        told, other = 1 - p + p / k, p / k
        if adjacency is Adjacency.ZERO_OUT:
            return max(math.log(told * k), -math.log(other * k))
        return math.log(told / other)
    if isinstance(use, VonMisesFisherDpEvent):
        if adjacency is Adjacency.ZERO_OUT:
            return vmf.largest_zeroed_loss(use.kappa, use.dimension)
        return 2 * use.kappa
    if isinstance(use, ZCDpEvent):
        return use.xi if use.rho == 0 else math.inf
    if isinstance(use, PoissonSampledDpEvent):
        return _sampled_loss(use.event, use.sampling_probability, adjacency)
    if isinstance(use, SampledWithoutReplacementDpEvent):
        return _sampled_loss(use.event, use.sample_size / use.source_dataset_size, Adjacency.REPLACE_ONE)
    if isinstance(use, VisibleVectorsDpEvent):
        return _sampled_loss(use.event, use.drawn / use.population, Adjacency.REPLACE_ONE)
    return math.inf


def _sampled_loss(event: DpEvent, rate: float, adjacency: Adjacency) -> float:
    if isinstance(event, VisibleVectorsDpEvent):
        rate, event = 1.0, event.event  # how many are seen varies, and all of them may be
    inner = pure_epsilon(take_apart(event, adjacency), adjacency)
    if not math.isfinite(inner):
        return math.inf
    if inner < 30:
        return math.log1p(rate * math.expm1(inner))
    return inner + math.log(rate + (1 - rate) * math.exp(-inner))


_MANY = 1_000_000  # steps for which the grid is made to reach far enough


@dataclass(frozen=True)
class Meter:
    """Epsilon after any number of equal steps, for a progress line or a solver.

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
        """Refuse a delta of 0 or 1."""
        open_probability("delta", self.delta)
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))

    def epsilon(self, steps: int) -> float:
        """Return epsilon after this many steps, an upper bound wherever `discreet.accounting.interpret.epsilon` is."""
        if whole("steps", steps, 0) == 0:
            return 0.0
        if steps == 1 or not self._parts.uses or self._parts.reasons or self.accountant == "gdp":
            return epsilon(SelfComposedDpEvent(self.step, steps), self.delta, self.adjacency, self.accountant)
        most = steps * self._pure
        if self.accountant == "rdp":
            return min(most, float(compute_epsilon(ORDERS, steps * self._divergences, self.delta)[0]))
        other = self._renyi(steps)
        try:
            one, count = self._powers
        except OverflowError:
            return min(most, other)
        return min(most, other, one.epsilon(count * steps, self.delta))

    def _renyi(self, steps: int) -> float:
        """Return epsilon by Renyi divergences, infinite where they do not cover the step."""
        try:
            return float(compute_epsilon(ORDERS, steps * self._divergences, self.delta)[0])
        except UnsupportedError:
            return math.inf

    @cached_property
    def _parts(self) -> Parts:
        return take_apart(self.step, self.adjacency)

    @cached_property
    def _pure(self) -> float:
        return pure_epsilon(self._parts, self.adjacency)

    @cached_property
    def _divergences(self) -> Array:
        return renyi_divergences(self._parts, self.adjacency)

    @cached_property
    def _powers(self) -> tuple[Powers, int]:
        return powers_of(self._parts, self.adjacency, self.delta, _MANY)
