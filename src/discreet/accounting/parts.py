"""An event taken apart: which uses there were and how often, and what makes the whole worthless."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from discreet.accounting.coverage import check_covered
from discreet.accounting.events import (
    ClippedSumDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    MetricDpEvent,
    NoGuaranteeDpEvent,
    NonPrivateDpEvent,
    RandomizedResponseDpEvent,
    ZCDpEvent,
)
from discreet.accounting.tree import SAMPLED, draws_all, leaves, simplest
from discreet.core.checks import positive
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
