from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from discreet.core.rates import lower_rates, upper_rates


@pytest.mark.parametrize(("trials", "miss"), [(1, 0.025), (50, 0.05), (400, 1e-6)])
def test_each_bound_is_wrong_exactly_as_often_as_it_says(trials: int, miss: float) -> None:
    """At the bound itself, so many or more (or so few or fewer) successes have the probability `miss`."""
    counts = np.arange(trials + 1)
    low, high = lower_rates(counts, trials, miss), upper_rates(counts, trials, miss)
    assert (low[0], high[-1]) == (0.0, 1.0)
    assert stats.binom.sf(counts[1:] - 1, trials, low[1:]) == pytest.approx(miss, rel=1e-6)
    assert stats.binom.cdf(counts[:-1], trials, high[:-1]) == pytest.approx(miss, rel=1e-6)


def test_a_bound_far_in_the_tail_keeps_its_digits() -> None:
    """`scipy.stats.binomtest` searches with an absolute tolerance, and returns 0 for the lower bound here."""
    low = float(lower_rates(1, 10**7, 5e-10))
    assert low == pytest.approx(5e-17, rel=1e-6)
    assert stats.binomtest(1, 10**7).proportion_ci(1 - 1e-9).low == 0.0
