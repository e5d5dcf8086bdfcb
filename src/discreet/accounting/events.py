"""Privacy events as frozen values, and their JSON form. Classes that dp_accounting lacks are defined here.

An event describes a mechanism and what it makes visible. An accountant (`discreet.accounting.interpret`) computes its
cost.

The caller declares the sensitivity. `GaussianDpEvent(z)` and `LaplaceDpEvent(z)` mean noise of z times the declared
sensitivity, under the adjacency it was declared for; nothing is doubled implicitly. Where the sensitivity depends on
the adjacency, as for a sum of clipped vectors, use `ClippedSumDpEvent`.

>>> from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
>>> SelfComposedDpEvent(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0)), 1000).count
1000

JSON round-trips are exact. Only the classes listed here are decoded, only plain values are accepted, and no code is
executed. An event is an object with one key, its class name, whose value holds its fields:

>>> from discreet.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
>>> event_to_json(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)))
'{"PoissonSampledDpEvent":{"sampling_probability":0.01,"event":{"GaussianDpEvent":{"noise_multiplier":1.0}}}}'
>>> event_from_json('{"GaussianDpEvent":{"noise_multiplier":1.0}}')
GaussianDpEvent(noise_multiplier=1.0)

Floats are written with enough digits to restore the same float. JSON has no infinity and no tuple, so these are
written as `{"number": "inf"}` and `{"tuple": [...]}`. Class names begin with a capital letter, so they cannot collide.

`decompose` checks the parameters of an event, simplifies its tree, counts each use, and rejects what no proof covers
under an adjacency, so every accountant applies the same rules. Two kinds of release differ in what the receiver sees.
Noise on a *sum* gives one value regardless of who took part, so a record may be absent. A release *per record* (von
Mises–Fisher, PrivUnit, randomized response, a word, anything inside `VisibleVectorsDpEvent`) is visibly missing when
its record is absent: under add/remove nothing is proven for it, and sampling a sum does not hide it.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import attr
import dp_accounting.dp_event
from dp_accounting.dp_event import (
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    RepeatAndSelectDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
    ZCDpEvent,
)

from discreet.core.errors import (
    DataError,
    DiscreetError,
    UnsupportedError,
    did_you_mean,
    invalid,
    non_negative,
    positive,
    probability,
    shown,
    whole,
)
from discreet.core.guarantee import Adjacency

__all__ = [
    "ClippedSumDpEvent",
    "ComposedDpEvent",
    "DiscreteGaussianDpEvent",
    "DiscreteGaussianSumDpEvent",
    "DiscreteLaplaceDpEvent",
    "DpEvent",
    "EpsilonDeltaDpEvent",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "LocalDpEvent",
    "MetricDpEvent",
    "NoGuaranteeDpEvent",
    "NoOpDpEvent",
    "NonPrivateDpEvent",
    "OneOfDpEvent",
    "PoissonSampledDpEvent",
    "RandomAllocationDpEvent",
    "RandomizedResponseDpEvent",
    "RepeatAndSelectDpEvent",
    "SampledWithoutReplacementDpEvent",
    "SelfComposedDpEvent",
    "SkellamDpEvent",
    "TruncatedSubsampledGaussianDpEvent",
    "VisibleVectorsDpEvent",
    "VonMisesFisherDpEvent",
    "ZCDpEvent",
]


def _check_epsilon_delta(event: DpEvent) -> None:
    non_negative("epsilon", event.epsilon, "Use NoGuaranteeDpEvent(reason) if nothing is guaranteed.")
    probability("delta", event.delta)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class EpsilonDeltaDpEvent(DpEvent):  # type: ignore[misc]
    """A mechanism known only to be (epsilon, delta)-private, under the adjacency it is accounted for.

    The caller is responsible for the adjacency, as for the sensitivity of Gaussian noise. L2-Laplace noise on a sum is
    an example, with delta 0. Use `LocalDpEvent` for a mechanism that is proven for single records only.
    """

    epsilon: float
    delta: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Check epsilon and delta."""
        _check_epsilon_delta(self)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class LocalDpEvent(DpEvent):  # type: ignore[misc]
    """The release of one record, (epsilon, delta)-private when the record is replaced by any other or by a null record.

    PrivUnit is an example. The receiver sees the release itself. Under add/remove nothing is proven, because a missing
    release is visible, and sampling a sum does not hide it. Use `VisibleVectorsDpEvent` to describe the sampling.
    """

    epsilon: float
    delta: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Check epsilon and delta."""
        _check_epsilon_delta(self)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ClippedSumDpEvent(DpEvent):  # type: ignore[misc]
    """A sum of vectors of norm at most C plus Gaussian noise of noise_multiplier * C; only the noisy sum is visible.

    Adding or removing one vector, or setting it to zero, moves the sum by at most C. Replacing one vector by another
    moves it by at most 2C. `occurrences` is the number of vectors that one record contributes to (1 unless records are
    mixed). Inside a sampling event, records are sampled with all their vectors. This event does not cover vectors that
    are mixed first and sampled individually afterwards.
    """

    noise_multiplier: float
    occurrences: int = 1

    def __attrs_post_init__(self) -> None:
        """Check the fields."""
        non_negative(
            "noise_multiplier", self.noise_multiplier, "It is the standard deviation of the noise divided by C."
        )
        whole("occurrences", self.occurrences)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class DiscreteGaussianDpEvent(DpEvent):  # type: ignore[misc]
    """One integer plus discrete Gaussian noise of parameter sigma; `sensitivity` is the largest change of the integer.

    For a vector with L2 sensitivity s (in grid steps) use `ZCDpEvent(rho=s**2 / (2 * sigma**2))`, which is proven.
    """

    sigma: float
    sensitivity: int = 1

    def __attrs_post_init__(self) -> None:
        """Check the fields."""
        positive("sigma", self.sigma)
        whole("sensitivity", self.sensitivity)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class DiscreteGaussianSumDpEvent(DpEvent):  # type: ignore[misc]
    """An integer vector plus the sum of `terms` independent discrete Gaussian vectors of parameter sigma each.

    The sum of discrete Gaussians is not one, but very close to it. The sensitivities are the largest L2 and L1 norms of
    the change of the vector, in grid steps.
    """

    sigma: float
    terms: int
    l2_sensitivity: float
    l1_sensitivity: float
    dimension: int

    def __attrs_post_init__(self) -> None:
        """Check the fields."""
        positive("sigma", self.sigma)
        whole("terms", self.terms)
        whole("dimension", self.dimension)
        _check_norms(self)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class SkellamDpEvent(DpEvent):  # type: ignore[misc]
    """An integer vector plus Skellam noise of this variance in every coordinate, the difference of two Poisson numbers.

    The sensitivities are the largest L2 and L1 norms of the change of the vector, in grid steps.
    """

    variance: float
    l2_sensitivity: float
    l1_sensitivity: float

    def __attrs_post_init__(self) -> None:
        """Check the fields."""
        positive("variance", self.variance)
        _check_norms(self)


def _check_norms(event: DpEvent) -> None:
    l2 = positive("l2_sensitivity", event.l2_sensitivity)
    if positive("l1_sensitivity", event.l1_sensitivity) < l2 * (1 - 1e-12):
        raise invalid("l1_sensitivity", event.l1_sensitivity, f">= {l2:g}, the L2 sensitivity", "No vector has less.")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class VonMisesFisherDpEvent(DpEvent):  # type: ignore[misc]
    """A unit vector x, released as one sample y with density proportional to exp(kappa <x, y>).

    Replace-one: the true direction is replaced by any other. Zero-out: the null record is a uniform direction.
    """

    kappa: float
    dimension: int

    def __attrs_post_init__(self) -> None:
        """Check the fields."""
        non_negative("kappa", self.kappa, "An infinite kappa releases the direction itself.")
        whole("dimension", self.dimension, 2, "A direction needs at least two coordinates.")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class MetricDpEvent(DpEvent):  # type: ignore[misc]
    """A release whose log-likelihood ratio is at most epsilon_per_distance times the distance between two records.

    It is differential privacy only if the distance is bounded: set `diameter` to the largest distance of two records.
    """

    epsilon_per_distance: float
    metric: str
    diameter: float | None = None

    def __attrs_post_init__(self) -> None:
        """Check the fields."""
        non_negative("epsilon_per_distance", self.epsilon_per_distance)
        if not self.metric:
            raise invalid("metric", self.metric, "a non-empty name", "Name the distance, such as 'euclidean'.")
        if self.diameter is not None:
            non_negative("diameter", self.diameter, "Use None if the distance is unbounded.")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class NoGuaranteeDpEvent(DpEvent):  # type: ignore[misc]
    """A release without a guarantee, and the reason. Any composition that contains it has infinite epsilon."""

    reason: str

    def __attrs_post_init__(self) -> None:
        """Check that a reason is given."""
        if not self.reason:
            raise invalid("reason", self.reason, "a non-empty sentence", "Say why there is no guarantee.")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class VisibleVectorsDpEvent(DpEvent):  # type: ignore[misc]
    """`drawn` of `population` records, sampled without replacement, each released individually through `event`.

    The receiver sees every vector in shuffled order, not their sum. It must not learn whose vector it is, the sampling
    order, or anything else: a label sent with a vector must be part of `event`, or it narrows down the record.
    `population` counts every record that can be sampled, including decoys. With drawn = population the cost is that of
    `event` itself. Inside a `PoissonSampledDpEvent` that means each vector is sent independently with a probability,
    and all sent vectors are visible. A missing vector is visible too, so under add/remove nothing is proven.
    """

    event: DpEvent
    drawn: int
    population: int

    def __attrs_post_init__(self) -> None:
        """Check that no more records are sampled than exist."""
        whole("drawn", self.drawn)
        whole("population", self.population, self.drawn, "It must be at least `drawn`.")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class RandomAllocationDpEvent(DpEvent):  # type: ignore[misc]
    """`bins` noisy sums, such as those of an epoch, and each record is in exactly one of them, chosen at random.

    Every record is assigned uniformly and independently of the others, and only the sums are visible. `event` is one
    sum, for a record that is in it. Also known as balls-and-bins sampling.
    """

    event: DpEvent
    bins: int

    def __attrs_post_init__(self) -> None:
        """Check the number of sums."""
        whole("bins", self.bins, 1, "It is the number of sums, of which each record is in one.")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class OneOfDpEvent(DpEvent):  # type: ignore[misc]
    """One of several events, chosen without the data; which one may be known.

    Tuning is an example: each trial trains with settings that are drawn at random. The same bound holds if a record is
    in one of several disjoint parts, each with its own event, and its part does not depend on its content.
    """

    events: tuple[DpEvent, ...]

    def __attrs_post_init__(self) -> None:
        """Check that there is at least one event."""
        if not self.events:
            raise invalid("events", self.events, "not empty", "Name at least one event.")


# Listed explicitly: a name read from a file must never decide which code is loaded.
_LIBRARY = (
    "NoOpDpEvent",
    "NonPrivateDpEvent",
    "UnsupportedDpEvent",
    "RandomizedResponseDpEvent",
    "GaussianDpEvent",
    "LaplaceDpEvent",
    "DiscreteLaplaceDpEvent",
    "SelfComposedDpEvent",
    "ComposedDpEvent",
    "PoissonSampledDpEvent",
    "SampledWithReplacementDpEvent",
    "SampledWithoutReplacementDpEvent",
    "SingleEpochTreeAggregationDpEvent",
    "RepeatAndSelectDpEvent",
    "MixtureOfGaussiansDpEvent",
    "ZCDpEvent",
    "TruncatedSubsampledGaussianDpEvent",
)
_OURS = (
    EpsilonDeltaDpEvent,
    LocalDpEvent,
    ClippedSumDpEvent,
    DiscreteGaussianDpEvent,
    DiscreteGaussianSumDpEvent,
    SkellamDpEvent,
    VonMisesFisherDpEvent,
    MetricDpEvent,
    NoGuaranteeDpEvent,
    VisibleVectorsDpEvent,
    RandomAllocationDpEvent,
    OneOfDpEvent,
)
KNOWN: dict[str, type[Any]] = {
    **{name: getattr(dp_accounting.dp_event, name) for name in _LIBRARY},
    **{event.__name__: event for event in _OURS},
}
_REMEDY = "Known: " + ", ".join(KNOWN) + "."


def event_to_json(event: Any) -> str:
    """Return an event as one line of JSON; equal events of one class give equal text."""
    _checked_class(type(event))
    return json.dumps(_encode(event), separators=(",", ":"), allow_nan=False)


def event_from_json(text: str) -> Any:
    """Return the event that `event_to_json` wrote. Classes that are not listed here are rejected.

    Args:
        text: What `event_to_json` returned.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"Expected an event as JSON, got {shown(text, 80)}. {error}.") from None
    return event_from_value(value)


def event_from_value(value: Any) -> Any:
    """Return an event from its decoded JSON value."""
    if not isinstance(value, dict) or len(value) != 1:
        raise DataError(f"Expected an event as one class name and its fields, got {shown(value, 80)}.")
    (name, fields), *_ = value.items()
    if name not in KNOWN:
        raise _unknown_class(name)
    if not isinstance(fields, dict):
        raise DataError(f"Expected the fields of {name} as an object, got {shown(fields, 80)}.")
    try:
        return KNOWN[name](**{key: _decode(inner) for key, inner in fields.items()})
    except DiscreetError:
        raise
    except (TypeError, ValueError) as error:  # an unknown or missing field, or a value that the class rejects
        raise DataError(f"Expected the fields of {name}, got {shown(fields, 80)}. {error}.") from None


def _encode(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return _number(float(value))
    if isinstance(value, tuple):
        return {"tuple": [_encode(inner) for inner in value]}
    if isinstance(value, list):
        return [_encode(inner) for inner in value]
    kind = _checked_class(type(value))
    fields = {field.name: _field(getattr(value, field.name), field.type) for field in attr.fields(kind)}
    return {kind.__name__: fields}


def _field(value: Any, hint: Any) -> Any:
    # An integer in a float field is written as a float, so that the equal events GaussianDpEvent(1) and
    # GaussianDpEvent(1.0) have equal JSON.
    encoded = _encode(value)
    if str(hint) in _FLOAT and type(encoded) is int and -(2**53) <= encoded <= 2**53:
        return float(encoded)
    return encoded


_FLOAT = {"float", "float | None", str(float)}


def _number(value: float) -> Any:
    if math.isnan(value):
        raise DataError("Expected numbers in an event, got NaN, which cannot be accounted for.")
    return value if math.isfinite(value) else {"number": "inf" if value > 0 else "-inf"}


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return [_decode(inner) for inner in value]
    if isinstance(value, dict):
        if value.keys() == {"tuple"} and isinstance(value["tuple"], list):
            return tuple(_decode(inner) for inner in value["tuple"])
        if value in ({"number": "inf"}, {"number": "-inf"}):
            return float(value["number"])
        return event_from_value(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"Expected a finite number in an event, got {value}.")
    return value


def _checked_class(kind: type[Any]) -> type[Any]:
    if KNOWN.get(kind.__name__) is not kind:
        raise _unknown_class(kind.__name__)
    return kind


def _unknown_class(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"Expected event to be of a known class, got {name!r}. {did_you_mean(name, list(KNOWN)) or _REMEDY}"
    )


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
