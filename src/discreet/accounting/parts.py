"""Decompose an event into its uses, after checking parameters and whether its cost is proven under an adjacency.

`decompose` simplifies the event tree, counts each use, and rejects what no proof covers, so that every accountant
applies the same rules.

Two kinds of release differ in what the receiver sees. Noise on a *sum* gives one value regardless of who took part, so
a record may be absent. A release *per record* (von Mises–Fisher, PrivUnit, randomized response, a word, anything inside
`VisibleVectorsDpEvent`) is visibly missing when its record is absent: under add/remove nothing is proven for it, and
sampling a sum does not hide it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import attr

from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DiscreteGaussianDpEvent,
    DiscreteGaussianSumDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    LocalDpEvent,
    MetricDpEvent,
    NoGuaranteeDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    OneOfDpEvent,
    PoissonSampledDpEvent,
    RandomAllocationDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    SkellamDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
)
from discreet.core.errors import UnsupportedError, invalid, non_negative, positive, probability, whole
from discreet.core.guarantee import Adjacency


@dataclass(frozen=True)
class Parts:
    """The uses of an event with their counts, its unsampled Gaussian noise as one mu², and why it has no guarantee."""

    uses: tuple[tuple[DpEvent, int], ...]
    mu_squared: float = 0.0
    reasons: tuple[str, ...] = ()

    @property
    def mu(self) -> float:
        """Return the mu of all unsampled Gaussian noise together."""
        return math.sqrt(self.mu_squared)

    @property
    def single(self) -> DpEvent | None:
        """The only use, if the event is one use and nothing else."""
        alone = len(self.uses) == 1 and self.uses[0][1] == 1 and not self.mu_squared
        return self.uses[0][0] if alone else None


def decompose(event: DpEvent, adjacency: Adjacency) -> Parts:
    """Return the uses of an event under an adjacency, checked and counted.

    Raises UnsupportedError for a use that has no proof under the adjacency, unless the event has no guarantee anyway.
    """
    event = simplify(event)
    mu_squared, rho, xi, reasons = 0.0, 0.0, 0.0, []
    counts: dict[Any, int] = {}
    unhashable: list[tuple[DpEvent, int]] = []
    for use, count in _walk(event, 1):
        reason = _no_guarantee(use)
        if reason:
            reasons.append(reason)
            continue
        mu = gaussian_mu_of(use, adjacency)
        if mu is not None:
            mu_squared += count * mu * mu
            continue
        if isinstance(use, ZCDpEvent):
            rho, xi = rho + count * use.rho, xi + count * use.xi
            continue
        try:
            counts[use] = counts.get(use, 0) + count
        except TypeError:  # an event that holds a list has no hash
            unhashable.append((use, count))
    if not reasons:
        check_covered(event, adjacency)
    if rho or xi:
        unhashable.append((ZCDpEvent(rho, xi), 1))
    return Parts((*counts.items(), *unhashable), mu_squared, tuple(dict.fromkeys(reasons)))


def _walk(event: DpEvent, count: int) -> Iterator[tuple[DpEvent, int]]:
    """Yield the uses of a simplified event. Sampling everything equals no sampling, once the adjacency is checked."""
    for use, times in leaves(event, count):
        if draws_all(use):
            yield from _walk(use.event, times)
        else:
            yield use, times


def _no_guarantee(event: DpEvent) -> str | None:
    """Return why a use has no guarantee, or None if it has one."""
    if isinstance(event, NoGuaranteeDpEvent):
        return event.reason
    if isinstance(event, NonPrivateDpEvent):
        return "a release was made without protection"
    if isinstance(event, MetricDpEvent) and event.diameter is None and event.epsilon_per_distance > 0:
        return f"metric privacy over an unbounded {event.metric} distance protects near records only"
    if isinstance(event, _WITH_MULTIPLIER) and event.noise_multiplier == 0:
        return "no noise was added"
    if isinstance(event, RandomizedResponseDpEvent) and event.noise_parameter == 0 and event.num_buckets > 1:
        return "every answer was given truthfully"
    if isinstance(event, SAMPLED):
        return next(filter(None, (_no_guarantee(use) for use, _ in _walk(event.event, 1))), None)
    if isinstance(event, CHOICES):
        inside = (use for part in inner_events(event) for use, _ in _walk(part, 1))
        return next(filter(None, map(_no_guarantee, inside)), None)
    return None


def gaussian_mu_of(event: DpEvent, adjacency: Adjacency) -> float | None:
    """Return the mu of one unsampled Gaussian use, with the sensitivity under the adjacency; None for other events."""
    if isinstance(event, GaussianDpEvent):
        return 1 / positive("noise_multiplier", event.noise_multiplier)
    if isinstance(event, ClippedSumDpEvent):
        moved = 2 if adjacency is Adjacency.REPLACE_ONE else 1
        return moved * event.occurrences / positive("noise_multiplier", event.noise_multiplier)
    return None


FIXED_SIZE = (SampledWithoutReplacementDpEvent, VisibleVectorsDpEvent)
SAMPLED = (PoissonSampledDpEvent, RandomAllocationDpEvent, *FIXED_SIZE)
_WITH_MULTIPLIER = (GaussianDpEvent, LaplaceDpEvent, ClippedSumDpEvent, TruncatedSubsampledGaussianDpEvent)
CHOICES = (RepeatAndSelectDpEvent, OneOfDpEvent)


def inner_events(event: DpEvent) -> tuple[DpEvent, ...]:
    """Return the events inside a sampling or a choice; empty for other events."""
    if isinstance(event, OneOfDpEvent):
        return tuple(event.events)
    return (event.event,) if isinstance(event, (*SAMPLED, RepeatAndSelectDpEvent)) else ()


def simplify(event: DpEvent) -> DpEvent:
    """Check an event and return it without redundant compositions, repetitions and sampling with probability 0 or 1.

    A fixed-size sample of everything is kept: under some adjacencies it differs from no sampling.

    >>> simplify(SelfComposedDpEvent(PoissonSampledDpEvent(0.5, ComposedDpEvent([GaussianDpEvent(1.0)])), 1))
    PoissonSampledDpEvent(sampling_probability=0.5, event=GaussianDpEvent(noise_multiplier=1.0))
    """
    if not isinstance(event, DpEvent):
        raise UnsupportedError(f"Expected an event, got {type(event).__name__}. See discreet.accounting.events.")
    _check(event)
    if isinstance(event, SelfComposedDpEvent):
        return _repeated(event)
    if isinstance(event, ComposedDpEvent):
        return _composed(event)
    if isinstance(event, SAMPLED):
        return _sampled(event)
    if isinstance(event, CHOICES):
        return _chosen(event)
    return event


def _repeated(event: SelfComposedDpEvent) -> DpEvent:
    count, inner = whole("count", event.count, 0), simplify(event.event)
    if count == 0 or isinstance(inner, NoOpDpEvent):
        return NoOpDpEvent()
    if count == 1:
        return inner
    if isinstance(inner, SelfComposedDpEvent):
        return SelfComposedDpEvent(inner.event, inner.count * count)
    return event if inner is event.event else SelfComposedDpEvent(inner, count)


def _composed(event: ComposedDpEvent) -> DpEvent:
    parts: list[DpEvent] = []
    for part in map(simplify, event.events):
        if isinstance(part, ComposedDpEvent):
            parts.extend(part.events)
        elif not isinstance(part, NoOpDpEvent):
            parts.append(part)
    if not parts:
        return NoOpDpEvent()
    if len(parts) == 1:
        return parts[0]
    same = len(parts) == len(event.events) and all(a is b for a, b in zip(parts, event.events, strict=True))
    return event if same else ComposedDpEvent(parts)


def _sampled(event: DpEvent) -> DpEvent:
    inner = simplify(event.event)
    if isinstance(event, PoissonSampledDpEvent):
        if event.sampling_probability == 0 or isinstance(inner, NoOpDpEvent):
            return NoOpDpEvent()
        if event.sampling_probability == 1:
            return inner
    if isinstance(event, RandomAllocationDpEvent) and (event.bins == 1 or isinstance(inner, NoOpDpEvent)):
        return inner
    return event if inner is event.event else attr.evolve(event, event=inner)


def _chosen(event: DpEvent) -> DpEvent:
    parts = tuple(map(simplify, inner_events(event)))
    if all(isinstance(part, NoOpDpEvent) for part in parts):
        return NoOpDpEvent()
    if isinstance(event, OneOfDpEvent):
        return parts[0] if len(parts) == 1 else OneOfDpEvent(parts)
    return RepeatAndSelectDpEvent(parts[0], event.mean, event.shape)


def leaves(event: DpEvent, count: int = 1) -> Iterator[tuple[DpEvent, int]]:
    """Yield every use, sampled or not, with its count; compositions are expanded."""
    if isinstance(event, SelfComposedDpEvent):
        yield from leaves(event.event, count * event.count)
    elif isinstance(event, ComposedDpEvent):
        for part in event.events:
            yield from leaves(part, count)
    elif not isinstance(event, NoOpDpEvent):
        yield event, count


def draws_all(event: DpEvent) -> bool:
    """Return whether an event is a fixed-size sample that takes every record."""
    return isinstance(event, FIXED_SIZE) and sampling_rate(event) == 1


def sampling_rate(event: DpEvent) -> float:
    """Return the probability with which a sampling event takes a record."""
    if isinstance(event, PoissonSampledDpEvent | TruncatedSubsampledGaussianDpEvent):
        return float(event.sampling_probability)
    if isinstance(event, RandomAllocationDpEvent):
        return 1 / event.bins
    if isinstance(event, VisibleVectorsDpEvent):
        return event.drawn / event.population
    return float(event.sample_size / event.source_dataset_size)


def describe(event: DpEvent) -> str:
    """Return the kind of an event and of the events inside it, as words."""
    name = type(event).__name__.removesuffix("DpEvent")
    inner = getattr(event, "event", None)
    return f"{name} of {describe(inner)}" if isinstance(inner, DpEvent) else name


def _check(event: DpEvent) -> None:
    """Check parameters of dp_accounting's events, which do not check them themselves."""
    if isinstance(event, GaussianDpEvent | LaplaceDpEvent):
        non_negative("noise_multiplier", event.noise_multiplier, "It is the noise scale divided by the sensitivity.")
    elif isinstance(event, DiscreteLaplaceDpEvent):
        positive("noise_parameter", event.noise_parameter, "It is epsilon for a sensitivity of one grid step.")
        whole("sensitivity", event.sensitivity)
    elif isinstance(event, RandomizedResponseDpEvent):
        probability("noise_parameter", event.noise_parameter, "It is the probability of a random answer.")
        whole("num_buckets", event.num_buckets)
    elif isinstance(event, ZCDpEvent):
        non_negative("rho", event.rho)
        non_negative("xi", event.xi)
    elif isinstance(event, PoissonSampledDpEvent):
        probability(
            "sampling_rate", event.sampling_probability, "It is a probability: expected batch size / corpus size."
        )
    elif isinstance(event, TruncatedSubsampledGaussianDpEvent):
        non_negative("noise_multiplier", event.noise_multiplier, "It is the noise scale divided by the sensitivity.")
        probability("sampling_rate", event.sampling_probability, "It is a probability.")
        whole("truncated_batch_size", event.truncated_batch_size)
        whole("dataset_size", event.dataset_size)
    elif isinstance(event, RepeatAndSelectDpEvent):
        if not 1 <= event.mean < math.inf:
            raise invalid("mean", event.mean, "finite and >= 1", "It is the mean number of runs.")
        if not event.shape >= 0:
            raise invalid("shape", event.shape, ">= 0", "Infinity is Poisson, 1 geometric, 0 logarithmic.")
    elif isinstance(event, SampledWithoutReplacementDpEvent):
        whole("sample_size", event.sample_size)
        whole("source_dataset_size", event.source_dataset_size, event.sample_size)


LARGEST_GRID = 4_000_000
# Noise on a sum: a null record adds nothing, exactly like a record that is not sampled.
_SUMS = (
    GaussianDpEvent,
    ClippedSumDpEvent,
    LaplaceDpEvent,
    DiscreteLaplaceDpEvent,
    DiscreteGaussianDpEvent,
    DiscreteGaussianSumDpEvent,
    SkellamDpEvent,
    ZCDpEvent,
)
_PER_RECORD = (VonMisesFisherDpEvent, RandomizedResponseDpEvent, LocalDpEvent, MetricDpEvent)
_MISSED = "The release of an absent record is visibly missing. Use replace-one, or zero-out where it is covered."


def unsupported(event: DpEvent, adjacency: Adjacency, accountant: str, remedy: str) -> UnsupportedError:
    """Return the error for an event that an accountant does not cover under an adjacency."""
    return UnsupportedError(
        f"Expected an event that the {accountant} accountant covers under {adjacency.value}, "
        f"got {describe(event)}. {remedy}"
    )


def check_covered(event: DpEvent, adjacency: Adjacency) -> None:
    """Raise UnsupportedError if a part of a simplified event has no proof under an adjacency.

    Events that pass are covered by the pld accountant. The other accountants cover less and check that themselves.
    """
    for use, _ in leaves(event):
        remedy = _unproven(use, adjacency)
        if remedy:
            raise unsupported(use, adjacency, "pld", remedy)
        for inner in inner_events(use):
            check_covered(inner, adjacency)


def _unproven(use: DpEvent, adjacency: Adjacency) -> str | None:
    """Return the remedy if a use, apart from the events inside it, has no proof; None if it has one."""
    if isinstance(use, PoissonSampledDpEvent):
        return _poisson(use.event, adjacency)
    if isinstance(use, FIXED_SIZE):
        return _fixed(use, adjacency)
    if isinstance(use, RandomAllocationDpEvent):
        return _allocated(use.event, adjacency)
    if isinstance(use, TruncatedSubsampledGaussianDpEvent):
        return None if adjacency is Adjacency.ZERO_OUT else "Truncation depends on the number of records. Use zero-out."
    if isinstance(use, MetricDpEvent):
        return None if adjacency is Adjacency.REPLACE_ONE else "A distance is between two records. Use replace-one."
    if isinstance(use, _PER_RECORD):
        return _MISSED if adjacency is Adjacency.ADD_REMOVE else None
    if isinstance(use, DiscreteGaussianDpEvent) and 24 * use.sigma + 2 * use.sensitivity > LARGEST_GRID:
        return "Its grid is too fine. Use ZCDpEvent(rho=sensitivity**2 / (2 * sigma**2))."
    if isinstance(use, (*_SUMS, EpsilonDeltaDpEvent, *CHOICES)):
        return None
    return "No proof is implemented. Account for it as EpsilonDeltaDpEvent."


def _poisson(inner: DpEvent, adjacency: Adjacency) -> str | None:
    if adjacency is Adjacency.REPLACE_ONE and isinstance(inner, ClippedSumDpEvent):
        return None
    if isinstance(inner, VisibleVectorsDpEvent) and draws_all(inner):
        if adjacency is Adjacency.REPLACE_ONE:
            return None
        return "Independently sampled visible vectors are covered under replace-one."
    if _holds(inner, VisibleVectorsDpEvent):
        return "Visible vectors inside another sampling are covered only alone, over all records, under replace-one."
    if _holds(inner, *_PER_RECORD):
        return "Each release is visible and not hidden in a sum. Use VisibleVectorsDpEvent."
    if adjacency is Adjacency.REPLACE_ONE:
        return (
            "It does not define the release without the record. Use ClippedSumDpEvent for a sum, "
            "VisibleVectorsDpEvent for individually visible vectors."
        )
    if adjacency is Adjacency.ZERO_OUT and not all(isinstance(part, _SUMS) for part, _ in leaves(inner)):
        return "Its null record differs from a record that is not sampled."
    return None


def _allocated(inner: DpEvent, adjacency: Adjacency) -> str | None:
    if adjacency is Adjacency.REPLACE_ONE:
        return "Random allocation is covered under add/remove and zero-out."
    if all(isinstance(part, GaussianDpEvent | ClippedSumDpEvent) for part, _ in leaves(inner)):
        return None
    return "Random allocation is covered for Gaussian noise on a sum only."


def _fixed(use: DpEvent, adjacency: Adjacency) -> str | None:
    visible = isinstance(use, VisibleVectorsDpEvent)
    if adjacency is Adjacency.REPLACE_ONE:
        return None
    if adjacency is Adjacency.ADD_REMOVE:
        if visible:
            return "A missing vector is visible. Use replace-one, or zero-out where it is covered."
        return "A fixed sample size is undefined when the corpus may have one record less. Use replace-one."
    if not visible and _holds(use.event, *_PER_RECORD):
        return "Each release is visible and not hidden in a sum. Use VisibleVectorsDpEvent."
    covered = (ClippedSumDpEvent, VonMisesFisherDpEvent) if visible else (ClippedSumDpEvent,)
    if draws_all(use) or all(isinstance(part, covered) for part, _ in leaves(use.event)):
        return None
    return (
        "Samples without the record contain another real record at an unknown distance. Use replace-one, or "
        "ClippedSumDpEvent for vectors of bounded norm."
    )


def _holds(event: DpEvent, *kinds: type[DpEvent]) -> bool:
    return any(
        isinstance(part, kinds) or any(_holds(inner, *kinds) for inner in inner_events(part))
        for part, _ in leaves(event)
    )


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_CACHE_SIZE = 256  # a training run needs a few entries


def cached_by_event(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Cache a function whose first argument is an event or its parts; those without a hash are computed each time."""
    cached = lru_cache(maxsize=_CACHE_SIZE)(function)

    @wraps(function)
    def call(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        try:
            hash(args[0])
        except TypeError:  # an event that holds a list has no hash
            return function(*args, **options)
        return cached(*args, **options)  # type: ignore[arg-type]

    call.cache_clear = cached.cache_clear  # type: ignore[attr-defined]
    return call
