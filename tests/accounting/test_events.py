import math

import attr
import pytest

from discreet.accounting import events
from discreet.core.errors import SettingError


@pytest.mark.parametrize("name", events.__all__)
def test_every_event_is_a_frozen_value(name: str) -> None:
    kind = getattr(events, name)
    assert issubclass(kind, events.DpEvent)
    assert attr.has(kind)
    with pytest.raises(attr.exceptions.FrozenInstanceError):
        events.ClippedSumDpEvent(1.0).noise_multiplier = 2.0
    assert events.VonMisesFisherDpEvent(1.0, 3) == events.VonMisesFisherDpEvent(1.0, 3)
    assert hash(events.MetricDpEvent(1.0, "euclidean")) == hash(events.MetricDpEvent(1.0, "euclidean"))


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (events.EpsilonDeltaDpEvent, (-1.0,)),
        (events.EpsilonDeltaDpEvent, (math.inf,)),
        (events.EpsilonDeltaDpEvent, (1.0, 1.5)),
        (events.LocalDpEvent, (-1.0,)),
        (events.LocalDpEvent, (1.0, 1.5)),
        (events.ClippedSumDpEvent, (-0.1,)),
        (events.ClippedSumDpEvent, (1.0, 0)),
        (events.DiscreteGaussianDpEvent, (0.0,)),
        (events.DiscreteGaussianDpEvent, (1.0, 0)),
        (events.DiscreteGaussianSumDpEvent, (0.0, 1, 1.0, 1.0, 1)),
        (events.DiscreteGaussianSumDpEvent, (1.0, 0, 1.0, 1.0, 1)),
        (events.DiscreteGaussianSumDpEvent, (1.0, 1, 2.0, 1.0, 1)),
        (events.SkellamDpEvent, (0.0, 1.0, 1.0)),
        (events.SkellamDpEvent, (1.0, 2.0, 1.0)),
        (events.VonMisesFisherDpEvent, (math.inf, 3)),
        (events.VonMisesFisherDpEvent, (1.0, 1)),
        (events.MetricDpEvent, (1.0, "")),
        (events.MetricDpEvent, (math.nan, "euclidean")),
        (events.NoGuaranteeDpEvent, ("",)),
        (events.VisibleVectorsDpEvent, (events.GaussianDpEvent(1.0), 5, 4)),
        (events.VisibleVectorsDpEvent, (events.GaussianDpEvent(1.0), 0, 4)),
    ],
)
def test_what_cannot_have_happened_is_refused(kind: type, arguments: tuple[object, ...]) -> None:
    with pytest.raises(SettingError, match="Expected"):
        kind(*arguments)
