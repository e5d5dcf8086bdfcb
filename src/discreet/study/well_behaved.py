"""Is an attack a good ruler? Whether what it reads falls steadily as noise grows, as a statistic.

Paper: Faustini, Fernandes, McIver and Dras, Empirical calibration and metric differential privacy in language models:
an attack is well-behaved if more noise means less reconstruction.
Differs: the paper looks at the curves; here it is Spearman's correlation with its interval, and a count of the
inversions that chance does not explain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from discreet.core.checks import refuse
from discreet.core.randomness import Rng
from discreet.study.frontier import Measured


@dataclass(frozen=True)
class WellBehaved:
    """Spearman's correlation of leakage with noise, its 95% interval, and the pairs that are significantly inverted.

    `steady` is the verdict: the whole interval is below -0.5 and no pair is inverted.
    """

    correlation: float
    low: float
    high: float
    inversions: int
    pairs: int

    @property
    def steady(self) -> bool:
        """Whether the attack is well-behaved."""
        return self.high < -0.5 and self.inversions == 0


def well_behaved(noises: Sequence[float], leakages: Sequence[Measured], *, rng: Rng, draws: int = 2000) -> WellBehaved:
    """Return how steadily leakage falls with noise.

    The interval redraws every leakage from a normal distribution with the spread of its own interval (a parametric
    bootstrap), so a curve that is flat within its error has an interval around 0. A pair is inverted if more noise
    goes with significantly more leakage: a difference over 1.96 of its standard errors, for as many pairs as there are
    corrected after Bonferroni.

    >>> steps = [Measured(v, v - 0.02, v + 0.02, 1) for v in (0.9, 0.5, 0.2, 0.1)]
    >>> found = well_behaved([0.1, 0.2, 0.5, 1.0], steps, rng=Rng(0))
    >>> found.correlation, found.inversions, found.steady
    (-1.0, 0, True)
    """
    from scipy.stats import norm, rankdata

    if len(noises) != len(leakages) or len(noises) < 3:
        raise refuse("noises", len(noises), "at least 3, as many as leakages", "Two points cannot bend.")
    x = rankdata(noises)
    values = np.array([found.value for found in leakages])
    errors = np.array([max((found.high - found.low) / (2 * 1.96), 1e-12) for found in leakages])
    again = values + errors * rng.fork("bootstrap").numpy().standard_normal((draws, len(values)))
    ranks = rankdata(again, axis=1)
    drawn = np.array([_spearman(x, row) for row in ranks])
    low, high = np.quantile(drawn, [0.025, 0.975])
    mine = _spearman(x, rankdata(values))
    pairs = [(i, j) for i in range(len(x)) for j in range(len(x)) if x[i] < x[j]]
    limit = float(norm.ppf(1 - 0.025 / max(1, len(pairs))))
    inverted = sum((values[j] - values[i]) / math.hypot(errors[i], errors[j]) > limit for i, j in pairs)
    return WellBehaved(mine, min(float(low), mine), max(float(high), mine), int(inverted), len(pairs))


def _spearman(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    a, b = x - x.mean(), y - y.mean()
    length = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / length if length else 0.0
