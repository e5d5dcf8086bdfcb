"""Events as JSON and back, exactly: only classes named here, only plain values, nothing is ever executed.

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

from discreet.accounting import events
from discreet.core.checks import did_you_mean
from discreet.core.errors import DataError, DiscreetError, UnsupportedError

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
    "EpsilonDeltaDpEvent",
    "LocalDpEvent",
    "ClippedSumDpEvent",
    "DiscreteGaussianDpEvent",
    "VonMisesFisherDpEvent",
    "MetricDpEvent",
    "NoGuaranteeDpEvent",
    "VisibleVectorsDpEvent",
)
KNOWN: dict[str, type[Any]] = {
    **{name: getattr(dp_accounting.dp_event, name) for name in _LIBRARY},
    **{name: getattr(events, name) for name in _OURS},
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
