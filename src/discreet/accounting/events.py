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
"""

from __future__ import annotations

import json
import math
import numbers
from typing import Any

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
    """Return the event that `event_to_json` wrote. Classes that are not listed here are rejected."""
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
