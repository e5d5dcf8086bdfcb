from __future__ import annotations

import numpy as np
import pytest

from discreet.core.errors import SettingError
from discreet.metrics.intervals import clopper_pearson, true_positive_rates


def test_scores_without_a_difference_give_no_more_than_chance() -> None:
    draw = np.random.default_rng(0)
    rates = [0.01, 0.1, 0.5]
    found = true_positive_rates(draw.normal(size=20_000), draw.normal(size=20_000), rates)
    for rate, row in zip(rates, found, strict=True):
        assert row is not None
        assert row[0] == pytest.approx(rate, abs=0.01)
        assert row[1] <= rate


def test_few_others_show_no_small_rate() -> None:
    none, some, every = true_positive_rates([5.0, 6.0], list(range(-20, 0)), [0.05, 0.2, 1.0])
    assert none is None  # 20 others cannot show that at most one in 20 is accused
    assert some is not None
    assert some[0] == 1.0
    assert every is not None
    assert every[0] == 1.0


def test_a_tie_is_not_counted_as_found() -> None:
    found = true_positive_rates([1.0], [1.0] * 100, [0.05])[0]
    assert found is not None
    assert found[0] == 0.0


def test_nobody_has_no_rate() -> None:
    with pytest.raises(SettingError, match="at least 1"):
        true_positive_rates([], [1.0], [0.1])


@pytest.mark.parametrize("others", [1, 7, 58, 59, 300])
@pytest.mark.parametrize("rate", [0.01, 0.05, 0.5, 0.94])
def test_the_threshold_is_the_lowest_whose_false_positives_show_the_rate(others: int, rate: float) -> None:
    """Compared with the search over all counts: the largest whose upper Clopper-Pearson bound is at most the rate."""
    shown = [count for count in range(others) if clopper_pearson(count, others, 0.90)[1] <= rate]
    found = true_positive_rates(np.arange(others) + 0.5, np.arange(others), [rate])[0]
    if not shown:
        assert found is None
    else:  # members above the non-member in that place, each half a step above one of them
        assert found is not None and round(found[0] * others) == shown[-1] + 1
