from __future__ import annotations

import numpy as np
import pytest

from discreet.core.errors import SettingError
from discreet.metrics.intervals import true_positive_rates


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
