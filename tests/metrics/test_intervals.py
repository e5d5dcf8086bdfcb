import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.metrics.intervals import bootstrap, clopper_pearson, score_interval


def test_the_bootstrap_is_close_to_the_normal_interval_of_a_large_sample() -> None:
    values = np.random.default_rng(0).normal(3.0, 2.0, 900)
    low, high = bootstrap(values, rng=Rng(1))
    half = 1.96 * values.std() / 30
    assert low == pytest.approx(values.mean() - half, abs=0.02)
    assert high == pytest.approx(values.mean() + half, abs=0.02)
    assert bootstrap(values, rng=Rng(1)) == (low, high)


def test_a_constant_sample_has_no_width_and_holds_its_mean() -> None:
    low, high = bootstrap([0.1] * 7, rng=Rng(0))
    assert low == pytest.approx(0.1) and high == pytest.approx(0.1) and low <= np.mean([0.1] * 7) <= high


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (1, 20), (37, 50), (5, 5)])
def test_rates_agree_with_scipy(successes: int, trials: int) -> None:
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert clopper_pearson(successes, trials) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_exact_interval_covers_at_least_as_often_as_it_says() -> None:
    trials, rate = 20, 0.13
    covered = sum(
        stats.binom.pmf(k, trials, rate)
        for k in range(trials + 1)
        if clopper_pearson(k, trials)[0] <= rate <= clopper_pearson(k, trials)[1]
    )
    assert covered >= 0.95


def test_what_has_no_interval_is_refused() -> None:
    with pytest.raises(SettingError, match="at most trials=3"):
        clopper_pearson(4, 3)
    with pytest.raises(SettingError, match="trials to be .*, got 0"):
        clopper_pearson(0, 0)
    with pytest.raises(SettingError, match="finite number"):
        bootstrap([], rng=Rng(0))
    with pytest.raises(SettingError, match="confidence to be .*, got 1"):
        bootstrap([1.0], rng=Rng(0), confidence=1)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_few_scores_have_an_interval_that_holds_for_any_sample(values: list[float]) -> None:
    low, high = score_interval(values, rng=Rng(0))
    mean = sum(values) / len(values)
    assert 0 <= low <= mean + 1e-12
    assert mean - 1e-12 <= high <= 1
    assert high - low >= 0.3, "so few scores cannot say more"


def test_scores_without_spread_have_an_interval_of_some_width_and_others_the_bootstraps() -> None:
    assert score_interval([0.0] * 50, rng=Rng(0)) == pytest.approx((0.0, 0.0711), abs=1e-3)
    mixed = [0.2, 0.8] * 20
    assert score_interval(mixed, rng=Rng(1)) == bootstrap(mixed, rng=Rng(1))
    low, _ = score_interval([1.0] * 3, rng=Rng(0), least=-1.0)
    assert -0.5 < low < 0.0
    with pytest.raises(SettingError, match="between"):
        score_interval([1.7], rng=Rng(0))
