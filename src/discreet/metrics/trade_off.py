"""Trade-off (ROC) curves of a membership test: how many members it finds at each share of false alarms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from discreet.core.errors import invalid
from discreet.metrics.intervals import clopper_pearson

Floats = npt.NDArray[np.float64]
Rate = tuple[float, float, float]


def true_positive_rates(
    members: Sequence[float] | Floats, others: Sequence[float] | Floats, false_positive_rates: Sequence[float]
) -> list[Rate | None]:
    """Return the share of members found at each share of false alarms, with its exact 95% interval.

    Scores are higher for what looks like a member. The threshold is the lowest at which false alarms are within the
    rate with 95% confidence, so that a few others are not taken to show a rate they cannot show: where even none above
    the threshold would not, there is no figure.

    >>> found = true_positive_rates([3, 4], [1, 2, 0, 1] * 25, [0.05, 0.001])
    >>> found[0][0], found[1]
    (1.0, None)
    """
    inside, outside = np.asarray(members, dtype=np.float64), np.sort(np.asarray(others, dtype=np.float64))[::-1]
    if not inside.size or not outside.size:
        raise invalid("members", inside.size, "at least 1, with at least 1 other", "There is no rate of none.")
    found: list[Rate | None] = []
    for rate in false_positive_rates:
        allowed = _allowed(len(outside), rate)
        if allowed is None:
            found.append(None)
            continue
        hits = len(inside) if allowed == len(outside) else int((inside > outside[allowed]).sum())
        found.append((hits / len(inside), *clopper_pearson(hits, len(inside))))
    return found


def _allowed(others: int, rate: float) -> int | None:
    """Return how many others may stand above the threshold for the rate to hold with 95% confidence."""
    if rate >= 1:
        return others
    low, high = -1, others  # the largest count that shows the rate lies from `low` to below `high`
    while high - low > 1:
        middle = (low + high) // 2
        if clopper_pearson(middle, others, 0.90)[1] <= rate:
            low = middle
        else:
            high = middle
    return None if low < 0 else low
