"""An event taken apart: which uses there were and how often, and what makes the whole worthless.

An event as a tree: every parameter checked, every wrapping that says nothing taken off, and its kind in words.

Which events have a proven cost under which adjacency: one rule book, asked before any accountant.

Two kinds of release differ in what the receiver sees. Noise on a *sum* shows one value whoever took part, so a record
may be absent. A release *per record* (von Mises–Fisher, PrivUnit, randomized response, a word, anything inside
`VisibleVectorsDpEvent`) is seen to be missing when its record is: under add/remove nothing is proven for it, and no
sampling of a sum hides it.

Answers that are kept: what one use of a mechanism costs is worked out once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, TypeVar

from discreet.accounting.events import (
    ClippedSumDpEvent,
    ComposedDpEvent,
    DiscreteGaussianDpEvent,
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
    PoissonSampledDpEvent,
    RandomizedResponseDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    ZCDpEvent,
)
from discreet.core.errors import UnsupportedError, non_negative, positive, probability, whole
from discreet.core.guarantee import Adjacency


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
    """Return the single uses of an event under an adjacency, checked and counted.

    What has no proof under the adjacency is refused here, so every accountant and every question asks the same rules; a
    whole that is worthless in any case is not refused.
    """
    event = simplest(event)
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
    if not reasons:
        check_covered(event, adjacency)
    if rho or xi:
        odd.append((ZCDpEvent(rho, xi), 1))
    return Parts((*counts.items(), *odd), mu_squared, tuple(dict.fromkeys(reasons)))


def _walk(event: DpEvent, count: int) -> Iterator[tuple[DpEvent, int]]:
    """Yield the uses of a simplified event; a draw of everything is as good as none, once its adjacency is checked."""
    for use, times in leaves(event, count):
        if draws_all(use):
            yield from _walk(use.event, times)
        else:
            yield use, times


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
    if isinstance(event, SAMPLED):
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


LARGEST_GRID = 4_000_000
# noise on a sum: a null record adds nothing, exactly like one that was not drawn
_SUMS = (
    GaussianDpEvent,
    ClippedSumDpEvent,
    LaplaceDpEvent,
    DiscreteLaplaceDpEvent,
    DiscreteGaussianDpEvent,
    ZCDpEvent,
)
_PER_RECORD = (VonMisesFisherDpEvent, RandomizedResponseDpEvent, LocalDpEvent, MetricDpEvent)
_MISSED = "The release of a record that is absent would be missed: use replace-one, or zero-out where it is covered."


def refuse_pair(event: DpEvent, adjacency: Adjacency, accountant: str, remedy: str) -> UnsupportedError:
    """Return the refusal of an event under an adjacency by an accountant."""
    return UnsupportedError(
        f"Expected an event that the {accountant} accountant covers under {adjacency.value}, "
        f"found {describe(event)}. {remedy}"
    )


def check_covered(event: DpEvent, adjacency: Adjacency) -> None:
    """Refuse by name whatever in a simplified event has no proof under an adjacency.

    What passes is covered by the pld accountant; the others cover less and refuse the rest themselves.
    """
    for use, _ in leaves(event):
        remedy = _open(use, adjacency)
        if remedy:
            raise refuse_pair(use, adjacency, "pld", remedy)
        if isinstance(use, SAMPLED):
            check_covered(use.event, adjacency)


def _open(use: DpEvent, adjacency: Adjacency) -> str | None:
    """Return what is to be done instead where a use, taken without what is inside it, has no proof, else None."""
    if isinstance(use, PoissonSampledDpEvent):
        return _poisson(use.event, adjacency)
    if isinstance(use, VisibleVectorsDpEvent | SampledWithoutReplacementDpEvent):
        return _fixed(use, adjacency)
    if isinstance(use, MetricDpEvent):
        return None if adjacency is Adjacency.REPLACE_ONE else "A distance is between two records: use replace-one."
    if isinstance(use, _PER_RECORD):
        return _MISSED if adjacency is Adjacency.ADD_REMOVE else None
    if isinstance(use, DiscreteGaussianDpEvent) and 24 * use.sigma + 2 * use.sensitivity > LARGEST_GRID:
        return "Its grid is too fine; use ZCDpEvent(rho=sensitivity**2 / (2 * sigma**2))."
    if isinstance(use, (*_SUMS, EpsilonDeltaDpEvent)):
        return None
    return "No proof is at hand; account for it as EpsilonDeltaDpEvent."


def _poisson(inner: DpEvent, adjacency: Adjacency) -> str | None:
    if adjacency is Adjacency.REPLACE_ONE and isinstance(inner, ClippedSumDpEvent):
        return None
    if isinstance(inner, VisibleVectorsDpEvent) and draws_all(inner):
        if adjacency is Adjacency.REPLACE_ONE:
            return None
        return "Visible vectors drawn independently are covered by replace-one."
    if _holds(inner, VisibleVectorsDpEvent):
        return "Visible vectors inside another draw are covered alone, over all records and by replace-one."
    if _holds(inner, *_PER_RECORD):
        return "Each release is visible, and no sum hides it: use VisibleVectorsDpEvent."
    if adjacency is Adjacency.REPLACE_ONE:
        return (
            "It does not say what a record that is not drawn leaves behind: use ClippedSumDpEvent for a sum, "
            "VisibleVectorsDpEvent for vectors seen one by one."
        )
    if adjacency is Adjacency.ZERO_OUT and not all(isinstance(part, _SUMS) for part, _ in leaves(inner)):
        return "Its null record is not the same as a record that is not drawn."
    return None


def _fixed(use: DpEvent, adjacency: Adjacency) -> str | None:
    seen = isinstance(use, VisibleVectorsDpEvent)
    if adjacency is Adjacency.REPLACE_ONE:
        return None
    if adjacency is Adjacency.ADD_REMOVE:
        if seen:
            return "A vector that is missing is seen: use replace-one, or zero-out where it is covered."
        return "A fixed number drawn has no meaning when the corpus may have one record less. Use replace-one."
    if not seen and _holds(use.event, *_PER_RECORD):
        return "Each release is visible, and no sum hides it: use VisibleVectorsDpEvent."
    known = (ClippedSumDpEvent, VonMisesFisherDpEvent) if seen else (ClippedSumDpEvent,)
    if draws_all(use) or all(isinstance(part, known) for part, _ in leaves(use.event)):
        return None
    return (
        "Draws that miss the record exchange it for a real one, whose distance is not known here. Use replace-one, or "
        "ClippedSumDpEvent for vectors of bounded norm."
    )


def _holds(event: DpEvent, *kinds: type[DpEvent]) -> bool:
    return any(
        isinstance(part, kinds) or (isinstance(part, SAMPLED) and _holds(part.event, *kinds))
        for part, _ in leaves(event)
    )


Answer = TypeVar("Answer")
_MOST = 256  # questions; a training asks a handful


def remembered(answer: Callable[[DpEvent, Adjacency], Answer]) -> Callable[[DpEvent, Adjacency], Answer]:
    """Return a function that answers the same question about an event under an adjacency once."""
    kept = lru_cache(maxsize=_MOST)(answer)

    @wraps(answer)
    def ask(use: DpEvent, adjacency: Adjacency) -> Answer:
        try:
            hash(use)
        except TypeError:  # an event that holds a list has no hash
            return answer(use, adjacency)
        return kept(use, adjacency)

    return ask
