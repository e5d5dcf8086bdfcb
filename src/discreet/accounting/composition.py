"""Classical composition rules: basic, advanced and parallel composition, group privacy, and metric privacy.

They need only epsilon and delta, so they hold for any mechanism. If the event is known, `discreet.accounting.interpret`
gives smaller figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from discreet.accounting.events import ComposedDpEvent, DpEvent, MetricDpEvent, NoOpDpEvent, SelfComposedDpEvent
from discreet.core.errors import UnsupportedError, invalid, non_negative, open_probability, probability, whole
from discreet.core.guarantee import Guarantee


def basic_composition(costs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the (epsilon, delta) of several releases of the same data: both add up.

    >>> basic_composition([(1.0, 0.0), (0.5, 1e-6)])
    (1.5, 1e-06)
    """
    pairs = [(non_negative("epsilon", e), probability("delta", d)) for e, d in costs]
    return math.fsum(e for e, _ in pairs), min(1.0, math.fsum(d for _, d in pairs))


def advanced_composition(epsilon: float, delta: float, count: int, slack: float) -> tuple[float, float]:
    """Return the (epsilon, delta) of `count` adaptive (epsilon, delta) releases, spending `slack` more delta.

    The smaller of basic composition and count·epsilon·tanh(epsilon/2) + epsilon·sqrt(2·count·ln(1/slack)).

    Paper: Dwork, Rothblum and Vadhan 2010; the constant is that of Kairouz, Oh and Viswanath 2015, theorem 3.4.

    >>> [round(x, 6) for x in advanced_composition(0.1, 0.0, 100, 1e-5)]
    [5.29811, 1e-05]
    """
    epsilon, delta = non_negative("epsilon", epsilon), probability("delta", delta)
    count, slack = whole("count", count), open_probability("slack", slack)
    spread = count * epsilon * math.tanh(epsilon / 2) + epsilon * math.sqrt(2 * count * math.log(1 / slack))
    if spread >= count * epsilon:
        return count * epsilon, min(1.0, count * delta)
    log_success = count * math.log1p(-delta) + math.log1p(-slack) if delta < 1 else -math.inf
    return spread, -math.expm1(log_success)


def group_privacy(guarantee: Guarantee, size: int, unit: str | None = None) -> Guarantee:
    """Return the guarantee for a group of `size` units from the guarantee for one unit.

    epsilon grows to size·epsilon and delta to delta·(e^(size·epsilon) - 1)/(e^epsilon - 1).
    """
    size = whole("size", size)
    if not guarantee.exists or size == 1:
        return guarantee
    total = size * guarantee.epsilon
    if guarantee.epsilon == 0:
        delta = size * guarantee.delta
    elif total < 700:
        delta = guarantee.delta * math.expm1(total) / math.expm1(guarantee.epsilon)
    else:
        delta = 1.0 if guarantee.delta else 0.0
    stated = (*guarantee.assumptions, f"by group privacy from one {guarantee.unit}")
    return replace(
        guarantee,
        epsilon=total,
        delta=min(1.0, delta),
        unit=unit or f"group of {size} {guarantee.unit}s",
        assumptions=stated,
    )


def parallel_composition(guarantees: Sequence[Guarantee]) -> Guarantee:
    """Return the guarantee of releases that each use a disjoint part of the data: that of the worst part.

    It holds if the part of a record does not depend on its content, so that a changed record stays in its part. Parts
    that are formed by content pay twice under replace-one, once in each part, and are not covered.
    """
    if not guarantees:
        raise invalid("guarantees", guarantees, "not empty", "Give one guarantee per part.")
    if len({(g.unit, g.adjacency) for g in guarantees}) > 1:
        raise invalid(
            "guarantees", [g.adjacency.value for g in guarantees], "of one unit and adjacency", "Do not mix them."
        )
    worst = max(guarantees, key=lambda g: (g.epsilon, g.delta))
    reasons = "; ".join(dict.fromkeys(g.reason for g in guarantees if g.reason))
    stated = dict.fromkeys(a for g in guarantees for a in g.assumptions)
    return replace(
        worst,
        delta=max(g.delta for g in guarantees),
        certified=all(g.certified for g in guarantees),
        reason=reasons or None,
        caveats=frozenset().union(*(g.caveats for g in guarantees)),
        assumptions=(*stated, "the parts are disjoint and a record's part does not depend on its content"),
    )


def metric_epsilon(event: DpEvent, distance: float) -> float:
    """Return the total epsilon between two records at a distance, for metric events with one metric.

    >>> metric_epsilon(SelfComposedDpEvent(MetricDpEvent(2.0, "euclidean"), 3), 0.5)
    3.0
    """
    distance = non_negative("distance", distance)
    prices, metrics = _prices(event)
    if len(metrics) > 1:
        raise UnsupportedError(f"Expected one metric, got {', '.join(sorted(metrics))}. Distances cannot be converted.")
    return prices * distance


def _prices(event: DpEvent) -> tuple[float, set[str]]:
    if isinstance(event, MetricDpEvent):
        return event.epsilon_per_distance, {event.metric}
    if isinstance(event, NoOpDpEvent):
        return 0.0, set()
    if isinstance(event, SelfComposedDpEvent):
        price, metrics = _prices(event.event)
        return event.count * price, metrics
    if isinstance(event, ComposedDpEvent):
        parts = [_prices(part) for part in event.events]
        return math.fsum(p for p, _ in parts), set().union(*(m for _, m in parts))
    raise UnsupportedError(
        f"Expected metric events, got {type(event).__name__}. Set a diameter and use `epsilon` instead."
    )
