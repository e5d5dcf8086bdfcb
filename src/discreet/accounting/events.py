"""What happened to the data, as frozen values: dp_accounting's events where it has them, ours where it lacks them.

An event says what was done and what is visible; an accountant (`discreet.accounting.interpret`) says what that costs.

Sensitivity is always ours. `GaussianDpEvent(z)` and `LaplaceDpEvent(z)` mean noise of z times the sensitivity *that was
declared*, under whichever adjacency it was declared for: nothing is doubled behind your back. Where the sensitivity
itself depends on the adjacency, as for a sum of clipped vectors, there is an event that says so: `ClippedSumDpEvent`.

>>> from discreet.accounting.events import ClippedSumDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
>>> SelfComposedDpEvent(PoissonSampledDpEvent(0.01, ClippedSumDpEvent(1.0)), 1000).count
1000

Events as JSON and back, exactly: only classes named here, only plain values, nothing is ever executed.

An event is an object with one key, its class name, whose value holds its fields:

>>> from discreet.accounting.events import GaussianDpEvent, PoissonSampledDpEvent
>>> event_to_json(PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0)))
'{"PoissonSampledDpEvent":{"sampling_probability":0.01,"event":{"GaussianDpEvent":{"noise_multiplier":1.0}}}}'
>>> event_from_json('{"GaussianDpEvent":{"noise_multiplier":1.0}}')
GaussianDpEvent(noise_multiplier=1.0)

Floats are written with the digits that give back the same float. JSON has no infinity and no tuple, so these are
`{"number": "inf"}` and `{"tuple": [...]}`; class names begin with a capital and cannot be mistaken for either.
"""

from __future__ import annotations

import dataclasses
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
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
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
    whole,
)

__all__ = [
    "ClippedSumDpEvent",
    "ComposedDpEvent",
    "DiscreteGaussianDpEvent",
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
    "PoissonSampledDpEvent",
    "RandomizedResponseDpEvent",
    "SampledWithoutReplacementDpEvent",
    "SelfComposedDpEvent",
    "VisibleVectorsDpEvent",
    "VonMisesFisherDpEvent",
    "ZCDpEvent",
]


@attr.s(frozen=True, slots=True, auto_attribs=True)
class EpsilonDeltaDpEvent(DpEvent):  # type: ignore[misc]
    """A mechanism known only to be (epsilon, delta)-private, under the adjacency it is accounted for.

    Whoever makes one states that adjacency, as with the sensitivity of Gaussian noise: L2-Laplace noise on a sum is an
    example, with delta 0. What is proven for single records only is a `LocalDpEvent`.
    """

    epsilon: float
    delta: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot be a privacy parameter."""
        non_negative("epsilon", self.epsilon, "Use NoGuaranteeDpEvent(reason) where nothing is guaranteed.")
        probability("delta", self.delta)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class LocalDpEvent(DpEvent):  # type: ignore[misc]
    """One record's own release, (epsilon, delta)-private when the record is exchanged for any other or for a null one.

    PrivUnit is such an event. The receiver sees the release itself, so under add/remove, where it would be missed,
    nothing is proven, and no sampling of a sum hides it: `VisibleVectorsDpEvent` says how it was drawn.
    """

    epsilon: float
    delta: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Refuse what cannot be a privacy parameter."""
        non_negative("epsilon", self.epsilon, "Use NoGuaranteeDpEvent(reason) where nothing is guaranteed.")
        probability("delta", self.delta)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class ClippedSumDpEvent(DpEvent):  # type: ignore[misc]
    """A sum of vectors of norm at most C plus Gaussian noise of noise_multiplier * C; only the noisy sum is visible.

    One vector more or less, or one vector set to zero, moves the sum by at most C; one vector exchanged for another
    moves it by at most 2C. `occurrences` is how many vectors one record can contribute to (1 unless records are mixed);
    inside a sampling it is the record that is drawn, with all its vectors. Vectors that were mixed first and are then
    drawn one by one are not this event.
    """

    noise_multiplier: float
    occurrences: int = 1

    def __attrs_post_init__(self) -> None:
        """Refuse negative noise and records that are in no vector."""
        non_negative("noise_multiplier", self.noise_multiplier, "It is the noise's standard deviation over C.")
        whole("occurrences", self.occurrences)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class DiscreteGaussianDpEvent(DpEvent):  # type: ignore[misc]
    """One integer plus discrete Gaussian noise of parameter sigma; `sensitivity` is how far the number may move.

    For a vector with L2 sensitivity s (in grid steps) use `ZCDpEvent(rho=s**2 / (2 * sigma**2))`, which is proven.
    """

    sigma: float
    sensitivity: int = 1

    def __attrs_post_init__(self) -> None:
        """Refuse noise of no width and a sensitivity that is not an integer."""
        positive("sigma", self.sigma)
        whole("sensitivity", self.sensitivity)


@attr.s(frozen=True, slots=True, auto_attribs=True)
class VonMisesFisherDpEvent(DpEvent):  # type: ignore[misc]
    """A unit vector of the given dimension, released as one draw of density proportional to exp(kappa <x, y>).

    Replace-one: the true direction is exchanged for any other. Zero-out: the null record is a uniform direction.
    """

    kappa: float
    dimension: int

    def __attrs_post_init__(self) -> None:
        """Refuse an infinite concentration and a sphere of no dimension."""
        non_negative("kappa", self.kappa, "An infinite kappa releases the direction itself.")
        whole("dimension", self.dimension, 2, "A direction needs at least two coordinates.")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class MetricDpEvent(DpEvent):  # type: ignore[misc]
    """A release whose log-likelihood ratio is at most epsilon_per_distance times the distance of the two records.

    It is differential privacy only where the distance is bounded: give `diameter`, the largest distance of two records.
    """

    epsilon_per_distance: float
    metric: str
    diameter: float | None = None

    def __attrs_post_init__(self) -> None:
        """Refuse a negative price and a nameless metric."""
        non_negative("epsilon_per_distance", self.epsilon_per_distance)
        if not self.metric:
            raise invalid("metric", self.metric, "a name", "Say which distance, such as 'euclidean'.")
        if self.diameter is not None:
            non_negative("diameter", self.diameter, "Use None where the distance is unbounded.")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class NoGuaranteeDpEvent(DpEvent):  # type: ignore[misc]
    """A release with no guarantee, and why; composed with anything it makes the whole infinite."""

    reason: str

    def __attrs_post_init__(self) -> None:
        """Refuse silence about the reason."""
        if not self.reason:
            raise invalid("reason", self.reason, "a sentence", "Say why there is no guarantee.")


@attr.s(frozen=True, slots=True, auto_attribs=True)
class VisibleVectorsDpEvent(DpEvent):  # type: ignore[misc]
    """`drawn` of `population` records, without replacement, each released through `event` and seen one by one.

    Not the sum: the receiver sees every vector, shuffled, but neither whose it is nor in what order it was drawn, nor
    anything else of it: a label beside it must be a part of `event`, or it shows among how few it was drawn.
    `population` counts everything that could have been drawn, decoys included. With drawn = population nothing is
    hidden and the cost is that of `event` itself; inside a `PoissonSampledDpEvent` that says each vector is sent by its
    own coin, all of them seen. A missing vector is seen too, so under add/remove nothing is proven.
    """

    event: DpEvent
    drawn: int
    population: int

    def __attrs_post_init__(self) -> None:
        """Refuse more draws than records."""
        whole("drawn", self.drawn)
        whole("population", self.population, self.drawn, "It cannot be smaller than the number drawn.")


# Named one by one: a name read from a file must never choose which code is loaded.
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
    VonMisesFisherDpEvent,
    MetricDpEvent,
    NoGuaranteeDpEvent,
    VisibleVectorsDpEvent,
)
KNOWN: dict[str, type[Any]] = {
    **{name: getattr(dp_accounting.dp_event, name) for name in _LIBRARY},
    **{event.__name__: event for event in _OURS},
}
_REMEDY = "Known: " + ", ".join(KNOWN) + "."


def event_to_json(event: Any) -> str:
    """Return an event as one line of JSON; equal events of one class give equal text."""
    _known(type(event))
    return json.dumps(_encode(event), separators=(",", ":"), allow_nan=False)


def event_from_json(text: str) -> Any:
    """Return the event that `event_to_json` wrote, refusing any class it does not know."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"Expected an event as JSON, found {_short(text)}. {error}.") from None
    return event_from_value(value)


def event_from_value(value: Any) -> Any:
    """Return an event from its decoded JSON value."""
    if not isinstance(value, dict) or len(value) != 1:
        raise DataError(f"Expected an event as one class name and its fields, found {_short(value)}.")
    (name, fields), *_ = value.items()
    if name not in KNOWN:
        raise _unknown(name)
    if not isinstance(fields, dict):
        raise DataError(f"Expected the fields of {name} as an object, found {_short(fields)}.")
    try:
        return KNOWN[name](**{key: _decode(inner) for key, inner in fields.items()})
    except DiscreetError:
        raise
    except (TypeError, ValueError) as error:  # a field too many, one too few, or a value its class refuses
        raise DataError(f"Expected the fields of {name}, found {_short(fields)}. {error}.") from None


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
    kind = _known(type(value))
    return {kind.__name__: {name: _field(getattr(value, name), hint) for name, hint in _fields(kind)}}


def _field(value: Any, hint: Any) -> Any:
    # An integer in a float's place is written as a float, so that GaussianDpEvent(1) and GaussianDpEvent(1.0),
    # which are equal, are also equal as text.
    encoded = _encode(value)
    if str(hint) in _FLOAT and type(encoded) is int and -(2**53) <= encoded <= 2**53:
        return float(encoded)
    return encoded


_FLOAT = {"float", "float | None", str(float)}


def _fields(kind: type[Any]) -> list[tuple[str, Any]]:
    if attr.has(kind):
        return [(field.name, field.type) for field in attr.fields(kind)]
    return [(field.name, field.type) for field in dataclasses.fields(kind)]


def _number(value: float) -> Any:
    if math.isnan(value):
        raise DataError("Expected numbers in an event, found nan. Nothing can be accounted for with it.")
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
        raise DataError(f"Expected a finite number in an event, found {value}.")
    return value


def _known(kind: type[Any]) -> type[Any]:
    if KNOWN.get(kind.__name__) is not kind:
        raise _unknown(kind.__name__)
    return kind


def _unknown(name: str) -> UnsupportedError:
    return UnsupportedError(
        f"Expected event to be of a known class, got {name!r}. {did_you_mean(name, list(KNOWN)) or _REMEDY}"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
