"""Trade-off (ROC) curves of a membership test: how many members it finds at each share of false alarms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from discreet.core.checks import refuse
from discreet.metrics.intervals import clopper_pearson

Floats = npt.NDArray[np.float64]


def true_positive_rates(
    members: Sequence[float] | Floats, others: Sequence[float] | Floats, false_positive_rates: Sequence[float]
) -> list[tuple[float, float, float]]:
    """Return the share of members found at each share of false alarms, with its exact 95% interval.

    Scores are higher for what looks like a member. The threshold is the smallest at which the share of others above it
    is within the rate, so the curve never claims more than it may.

    >>> true_positive_rates([3, 4], [1, 2, 3, 0], [0.25])[0][0]
    1.0
    """
    inside, outside = np.asarray(members, dtype=np.float64), np.sort(np.asarray(others, dtype=np.float64))[::-1]
    if not inside.size or not outside.size:
        raise refuse("members", inside.size, "some, and some others", "There is no rate of none.")
    found = []
    for rate in false_positive_rates:
        allowed = int(np.floor(rate * len(outside) + 1e-12))
        threshold = -np.inf if allowed >= len(outside) else outside[allowed]
        hits = int((inside > threshold).sum()) if np.isfinite(threshold) else len(inside)
        found.append((hits / len(inside), *clopper_pearson(hits, len(inside))))
    return found
