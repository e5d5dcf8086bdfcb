"""Basic composition, the rule that needs only epsilon and delta, so that it holds for any mechanism.

If the event is known, `discreet.accounting.interpret` gives smaller figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from discreet.core.errors import non_negative, probability


def basic_composition(costs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Return the (epsilon, delta) of several releases of the same data: both add up.

    >>> basic_composition([(1.0, 0.0), (0.5, 1e-6)])
    (1.5, 1e-06)
    """
    pairs = [(non_negative("epsilon", e), probability("delta", d)) for e, d in costs]
    return math.fsum(e for e, _ in pairs), min(1.0, math.fsum(d for _, d in pairs))
