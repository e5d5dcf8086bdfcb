"""An event taken apart: which uses there were and how often, and what makes the whole worthless."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DiscreteLaplaceDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MetricDpEvent,
    NoGuaranteeDpEvent,
    NonPrivateDpEvent,
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
from discreet.core.guarantee import Adjacency

_SAMPLED = (PoissonSampledDpEvent, SampledWithoutReplacementDpEvent, VisibleVectorsDpEvent)


@dataclass(frozen=True)
class Parts:
    """Every single use with its count; all Gaussian noise as one mu²; and why nothing is guaranteed, where it is so."""

    uses: tuple[tuple[DpEvent, int], ...]
    mu_squared: float = 0.0
    reasons: tuple[str, ...] = ()

    @property
    def mu(self) -> float:
        """Return the mu of all unsampled Gaussian noise together."""
        return math.sqrt(self.mu_squared)


def take_apart(event: DpEvent, adjacency: Adjacency) -> Parts:
    """Return the single uses of an event under an adjacency, checked and counted."""
    mu_squared, rho, xi, reasons = 0.0, 0.0, 0.0, []
    counts: dict[Any, int] = {}
    odd: list[tuple[DpEvent, int]] = []
    for use, count in _walk(event, 1):
        reason = _worthless(use)
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
            odd.append((use, count))
    if rho or xi:
        odd.append((ZCDpEvent(rho, xi), 1))
    return Parts((*counts.items(), *odd), mu_squared, tuple(dict.fromkeys(reasons)))


def _walk(event: DpEvent, count: int) -> Iterator[tuple[DpEvent, int]]:
    if not isinstance(event, DpEvent):
        raise UnsupportedError(f"Expected an event, found {type(event).__name__}. See discreet.accounting.events.")
    if isinstance(event, NoOpDpEvent):
        return
    if isinstance(event, SelfComposedDpEvent):
        times = whole("count", event.count, 0)
        if times:
            yield from _walk(event.event, count * times)
    elif isinstance(event, ComposedDpEvent):
        for part in event.events:
            yield from _walk(part, count)
    else:
        _check(event)
        if not (isinstance(event, PoissonSampledDpEvent) and event.sampling_probability == 0):
            yield _simplest(event), count


def _simplest(event: DpEvent) -> DpEvent:
    """Return the event without a sampling that draws everything."""
    if (
        (isinstance(event, PoissonSampledDpEvent) and event.sampling_probability == 1)
        or (isinstance(event, VisibleVectorsDpEvent) and event.drawn == event.population)
        or (isinstance(event, SampledWithoutReplacementDpEvent) and event.sample_size == event.source_dataset_size)
    ):
        inner = event.event
        return inner if isinstance(inner, ComposedDpEvent | SelfComposedDpEvent) else _simplest(inner)
    return event


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
    if isinstance(event, _SAMPLED):
        for _ in _walk(event.event, 1):
            pass


def _worthless(event: DpEvent) -> str | None:
    """Return why a use gives no guarantee at all, or None."""
    if isinstance(event, NoGuaranteeDpEvent):
        return event.reason
    if isinstance(event, NonPrivateDpEvent):
        return "a release was made without protection"
    if isinstance(event, MetricDpEvent) and event.diameter is None and event.epsilon_per_distance > 0:
        return f"metric privacy over an unbounded {event.metric} distance protects near records only"
    if isinstance(event, GaussianDpEvent | LaplaceDpEvent | ClippedSumDpEvent) and event.noise_multiplier == 0:
        return "no noise was added"
    if isinstance(event, RandomizedResponseDpEvent) and event.noise_parameter == 0 and event.num_buckets > 1:
        return "every answer was given truthfully"
    if isinstance(event, _SAMPLED):
        for use, _ in _walk(event.event, 1):
            reason = _worthless(use)
            if reason:
                return reason
    return None


def gaussian_mu_of(event: DpEvent, adjacency: Adjacency) -> float | None:
    """Return the mu of one unsampled Gaussian use, with the sensitivity that the adjacency gives it, or None."""
    if isinstance(event, GaussianDpEvent):
        return 1 / positive("noise_multiplier", event.noise_multiplier)
    if isinstance(event, ClippedSumDpEvent):
        moved = 2 if adjacency is Adjacency.REPLACE_ONE else 1
        return moved * event.occurrences / positive("noise_multiplier", event.noise_multiplier)
    return None


def describe(event: DpEvent) -> str:
    """Return an event's kind as words, with what is inside it."""
    name = type(event).__name__.removesuffix("DpEvent")
    inner = getattr(event, "event", None)
    return f"{name} of {describe(inner)}" if isinstance(inner, DpEvent) else name
