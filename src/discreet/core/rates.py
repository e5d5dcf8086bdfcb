"""One-sided Clopper-Pearson bounds of rates, for arrays of counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def lower_rates(successes: npt.ArrayLike, trials: int, miss: float) -> Floats:
    """Return lower bounds of rates, each wrong with probability at most `miss`.

    >>> lower_rates([0, 5, 10], 10, 0.025).round(3).tolist()
    [0.0, 0.187, 0.692]
    """
    from scipy.special import betaincinv  # undefined for no success

    counts: npt.NDArray[Any] = np.asarray(successes)
    safe = np.maximum(counts, 1)
    return np.where(counts > 0, betaincinv(safe, trials - safe + 1, miss), 0.0)


def upper_rates(successes: npt.ArrayLike, trials: int, miss: float) -> Floats:
    """Return upper bounds of rates, each wrong with probability at most `miss`.

    >>> upper_rates([0, 5, 10], 10, 0.025).round(3).tolist()
    [0.308, 0.813, 1.0]
    """
    from scipy.special import betainccinv  # undefined for no failure; its tail keeps a small `miss` exact

    counts: npt.NDArray[Any] = np.asarray(successes)
    safe = np.minimum(counts, trials - 1)
    return np.where(counts < trials, betainccinv(safe + 1, trials - safe, miss), 1.0)
