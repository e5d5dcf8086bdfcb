"""An event as a tree: every parameter checked, every wrapping that says nothing taken off, and its kind in words."""

from __future__ import annotations

from collections.abc import Iterator

from discreet.accounting.events import (
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    ZCDpEvent,
)
from discreet.core.checks import non_negative, positive, probability, whole
from discreet.core.errors import UnsupportedError

SAMPLED = (PoissonSampledDpEvent, SampledWithoutReplacementDpEvent, VisibleVectorsDpEvent)


def simplest(event: DpEvent) -> DpEvent:
    """Return the same event, checked, without compositions of one, repetitions of one and coins that always fall alike.

    A fixed draw of everything stays as it is: under some adjacencies it is not the same as no draw at all.

    >>> simplest(SelfComposedDpEvent(PoissonSampledDpEvent(0.5, ComposedDpEvent([GaussianDpEvent(1.0)])), 1))
    PoissonSampledDpEvent(sampling_probability=0.5, event=GaussianDpEvent(noise_multiplier=1.0))
    """
    if not isinstance(event, DpEvent):
        raise UnsupportedError(f"Expected an event, found {type(event).__name__}. See discreet.accounting.events.")
    _check(event)
    if isinstance(event, SelfComposedDpEvent):
        return _repeated(event)
    if isinstance(event, ComposedDpEvent):
        return _composed(event)
    if isinstance(event, SAMPLED):
        return _sampled(event)
    return event


def _repeated(event: SelfComposedDpEvent) -> DpEvent:
    count, inner = whole("count", event.count, 0), simplest(event.event)
    if count == 0 or isinstance(inner, NoOpDpEvent):
        return NoOpDpEvent()
    if count == 1:
        return inner
    if isinstance(inner, SelfComposedDpEvent):
        return SelfComposedDpEvent(inner.event, inner.count * count)
    return event if inner is event.event else SelfComposedDpEvent(inner, count)


def _composed(event: ComposedDpEvent) -> DpEvent:
    parts: list[DpEvent] = []
    for part in map(simplest, event.events):
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
    inner = simplest(event.event)
    if isinstance(event, PoissonSampledDpEvent):
        if event.sampling_probability == 0 or isinstance(inner, NoOpDpEvent):
            return NoOpDpEvent()
        if event.sampling_probability == 1:
            return inner
    if inner is event.event:
        return event
    if isinstance(event, PoissonSampledDpEvent):
        return PoissonSampledDpEvent(event.sampling_probability, inner)
    if isinstance(event, VisibleVectorsDpEvent):
        return VisibleVectorsDpEvent(inner, event.drawn, event.population)
    return SampledWithoutReplacementDpEvent(event.source_dataset_size, event.sample_size, inner)


def leaves(event: DpEvent, count: int = 1) -> Iterator[tuple[DpEvent, int]]:
    """Yield everything that was done, sampled or not, with how often; a composition is gone through."""
    if isinstance(event, SelfComposedDpEvent):
        yield from leaves(event.event, count * event.count)
    elif isinstance(event, ComposedDpEvent):
        for part in event.events:
            yield from leaves(part, count)
    elif not isinstance(event, NoOpDpEvent):
        yield event, count


def draws_all(event: DpEvent) -> bool:
    """Return whether an event is a draw of a fixed number that is everything."""
    if isinstance(event, VisibleVectorsDpEvent):
        return bool(event.drawn == event.population)
    return isinstance(event, SampledWithoutReplacementDpEvent) and event.sample_size == event.source_dataset_size


def describe(event: DpEvent) -> str:
    """Return an event's kind as words, with what is inside it."""
    name = type(event).__name__.removesuffix("DpEvent")
    inner = getattr(event, "event", None)
    return f"{name} of {describe(inner)}" if isinstance(inner, DpEvent) else name


def _check(event: DpEvent) -> None:
    """Refuse parameters that no mechanism can have; the library's own events check nothing."""
    if isinstance(event, GaussianDpEvent | LaplaceDpEvent):
        non_negative("noise_multiplier", event.noise_multiplier, "It is the noise over the sensitivity.")
    elif isinstance(event, DiscreteLaplaceDpEvent):
        positive("noise_parameter", event.noise_parameter, "It is epsilon for a sensitivity of one grid step.")
        whole("sensitivity", event.sensitivity)
    elif isinstance(event, RandomizedResponseDpEvent):
        probability("noise_parameter", event.noise_parameter, "It is how often the answer is drawn at random.")
        whole("num_buckets", event.num_buckets)
    elif isinstance(event, ZCDpEvent):
        non_negative("rho", event.rho)
        non_negative("xi", event.xi)
    elif isinstance(event, PoissonSampledDpEvent):
        probability(
            "sampling_rate", event.sampling_probability, "It is a probability: expected batch size / corpus size."
        )
    elif isinstance(event, SampledWithoutReplacementDpEvent):
        whole("sample_size", event.sample_size)
        whole("source_dataset_size", event.source_dataset_size, event.sample_size)
