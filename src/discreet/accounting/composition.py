"""Classical composition rules: basic and advanced composition, and group privacy.

They need only epsilon and delta, so they hold for any mechanism. If the event is known, `discreet.accounting.interpret`
gives smaller figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from discreet.core.errors import non_negative, open_probability, probability, whole
from discreet.core.guarantee import Guarantee


def basic_composition(costs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the (epsilon, delta) of several releases of the same data: both add up.

    Args:
        costs: An epsilon and a delta for each release.

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
