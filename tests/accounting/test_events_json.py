"""Events as JSON and back, exactly."""

import json
import math

import attr
import dp_accounting.dp_event as library
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.accounting import events
from discreet.accounting.events import KNOWN, event_from_json, event_to_json
from discreet.core.errors import DataError, DiscreetError, UnsupportedError

GAUSSIAN = library.GaussianDpEvent(1.1)
EXAMPLES = [
    library.NoOpDpEvent(),
    library.NonPrivateDpEvent(),
    library.UnsupportedDpEvent(),
    library.RandomizedResponseDpEvent(0.25, 2),
    GAUSSIAN,
    library.LaplaceDpEvent(0.1),
    library.DiscreteLaplaceDpEvent(0.3, 2),
    library.SelfComposedDpEvent(GAUSSIAN, 7),
    library.ComposedDpEvent([GAUSSIAN, library.LaplaceDpEvent(2.0)]),
    library.ComposedDpEvent((GAUSSIAN,)),
    library.ComposedDpEvent([]),
    library.PoissonSampledDpEvent(0.01, GAUSSIAN),
    library.SampledWithReplacementDpEvent(100, 10, GAUSSIAN),
    library.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN),
    library.SingleEpochTreeAggregationDpEvent(1.0, [3, 4]),
    library.SingleEpochTreeAggregationDpEvent(1.0, 3),
    library.RepeatAndSelectDpEvent(GAUSSIAN, 2.0, math.inf),
    library.MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), [0.5, 0.5]),
    library.ZCDpEvent(0.5),
    library.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0),
    events.EpsilonDeltaDpEvent(1.0, 1e-6),
    events.LocalDpEvent(2.0, 1e-7),
    events.ClippedSumDpEvent(1.0, 2),
    events.DiscreteGaussianDpEvent(3.0, 2),
    events.DiscreteGaussianSumDpEvent(3.0, 6, 2.5, 4.0, 10),
    events.SkellamDpEvent(30.0, 2.0, 3.0),
    events.VonMisesFisherDpEvent(300.0, 592_130),
    events.MetricDpEvent(0.5, "euclidean"),
    events.MetricDpEvent(0.5, "euclidean", 2.0),
    events.NoGuaranteeDpEvent("the „paper” proves none\n"),
    events.VisibleVectorsDpEvent(GAUSSIAN, 3, 9),
    events.RandomAllocationDpEvent(GAUSSIAN, 5),
    events.OneOfDpEvent((GAUSSIAN, library.LaplaceDpEvent(2.0))),
]


@pytest.mark.parametrize("event", EXAMPLES, ids=repr)
def test_every_event_comes_back_equal(event: object) -> None:
    text = event_to_json(event)
    assert "\n" not in text
    back = event_from_json(text)
    assert back == event
    assert type(back) is type(event)
    assert event_to_json(back) == text
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def _classes(module: object) -> set[str]:
    kinds = {n: k for n, k in vars(module).items() if isinstance(k, type) and issubclass(k, library.DpEvent)}
    return {name for name, kind in kinds.items() if kind is not library.DpEvent and attr.has(kind)}


def test_every_event_class_of_ours_has_a_name_here_and_each_name_an_example() -> None:
    assert _classes(events) <= set(KNOWN) <= _classes(events) | _classes(library)
    assert {type(event).__name__ for event in EXAMPLES} == set(KNOWN)


@given(st.floats(min_value=0, allow_infinity=False), st.floats(0, 1))
def test_floats_come_back_to_the_last_bit(noise: float, rate: float) -> None:
    event = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))
    back = event_from_json(event_to_json(event))
    assert (back.sampling_probability.hex(), back.event.noise_multiplier.hex()) == (rate.hex(), noise.hex())


def test_equal_events_are_equal_text() -> None:
    assert event_to_json(library.GaussianDpEvent(1)) == event_to_json(library.GaussianDpEvent(1.0))
    assert event_to_json(library.GaussianDpEvent(np.float64(1))) == event_to_json(library.GaussianDpEvent(1.0))
    assert event_to_json(library.SelfComposedDpEvent(GAUSSIAN, np.int64(3))) == event_to_json(
        library.SelfComposedDpEvent(GAUSSIAN, 3)
    )
    assert event_to_json(events.ClippedSumDpEvent(1)) == event_to_json(events.ClippedSumDpEvent(1.0))
    assert event_to_json(events.MetricDpEvent(1, "l2", 2)) == event_to_json(events.MetricDpEvent(1.0, "l2", 2.0))


def test_a_single_precision_number_keeps_its_value() -> None:
    event = library.GaussianDpEvent(np.float32(0.1))
    assert event_from_json(event_to_json(event)) == event


@attr.s(frozen=True, auto_attribs=True)
class GaussianDpEvent(library.DpEvent):
    noise_multiplier: float


@attr.s(frozen=True, auto_attribs=True)
class HomeMadeDpEvent(library.DpEvent):
    noise: float


@pytest.mark.parametrize("event", [3, "text", None, [GAUSSIAN]])
def test_what_is_no_event_is_refused(event: object) -> None:
    with pytest.raises(UnsupportedError, match=type(event).__name__):
        event_to_json(event)


@pytest.mark.parametrize("event", [GaussianDpEvent(1.0), HomeMadeDpEvent(1.0), object(), {"noise_multiplier": 1.0}])
def test_an_unknown_class_is_refused_by_name_even_inside(event: object) -> None:
    with pytest.raises(UnsupportedError, match=type(event).__name__):
        event_to_json(event)
    with pytest.raises(UnsupportedError, match=type(event).__name__):
        event_to_json(library.SelfComposedDpEvent(event, 3))


def test_not_a_number_is_refused() -> None:
    with pytest.raises(DataError, match="NaN"):
        event_to_json(library.GaussianDpEvent(math.nan))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        "{}",
        "null",
        "[" * 100_000,
        '{"GaussianDpEvent":3}',
        '{"GaussianDpEvent":{}}',
        '{"GaussianDpEvent":{"noise_multiplier":1.0,"colour":2}}',
        '{"GaussianDpEvent":{"noise_multiplier":NaN}}',
        '{"GaussianDpEvent":{"noise_multiplier":Infinity}}',
        '{"GaussianDpEvent":{"noise_multiplier":1.0},"LaplaceDpEvent":{"noise_multiplier":1.0}}',
        '{"SelfComposedDpEvent":{"event":{"tuple":3},"count":1}}',
        '{"ClippedSumDpEvent":{"noise_multiplier":-1.0}}',
        '{"ClippedSumDpEvent":{"noise_multiplier":1.0,"occurrences":0}}',
    ],
)
def test_damaged_text_is_refused(text: str) -> None:
    with pytest.raises(DiscreetError):
        event_from_json(text)


@pytest.mark.parametrize("name", ["os.system", "DpEvent", "__class__", "GaussianDpEven"])
def test_a_name_in_a_file_loads_nothing(name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        event_from_json(json.dumps({name: {"noise_multiplier": 1.0}}))
