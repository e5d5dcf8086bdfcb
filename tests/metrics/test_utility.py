import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.randomness import Rng
from discreet.metrics.utility import constant_utility, in_sentences, quality, utility, utility_intervals


def test_classification_scores_by_hand() -> None:
    found = utility("classification", np.array([1, 1, 0, 0, 1]), np.array([1, 0, 0, 0, 1]))
    assert found["accuracy"] == 0.8
    assert found["f1"] == pytest.approx((0.8 + 0.8) / 2)
    # tp 2, tn 2, fp 1, fn 0
    assert found["matthews"] == pytest.approx((2 * 2 - 0) / np.sqrt(3 * 2 * 3 * 2))


def test_regression_scores_by_hand() -> None:
    found = utility("regression", np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    assert found["spearman"] == pytest.approx(1.0)
    assert found["pearson"] == pytest.approx(np.corrcoef([1, 2, 3], [1, 4, 9])[0, 1])
    assert found["mean_squared_error"] == pytest.approx((0 + 4 + 36) / 3)


def test_a_constant_prediction_correlates_with_nothing() -> None:
    assert utility("regression", np.zeros(3), np.arange(3.0))["pearson"] == 0
    assert utility("classification", np.zeros(4, dtype=int), np.array([0, 1, 0, 1]))["matthews"] == 0


def test_a_constant_answer_is_called_one_even_where_it_scores_well() -> None:
    truth = np.array([0] * 9 + [1])
    found = quality("classification", np.zeros(10, dtype=int), truth)
    assert (found.value, found.baseline) == (0.9, 0.9)
    assert found.constant and found.learned_nothing
    assert quality("regression", np.full(5, 2.0), np.arange(5.0)).learned_nothing


def test_a_model_below_the_baseline_has_learned_nothing() -> None:
    truth = np.array([0] * 8 + [1] * 2)
    found = quality("classification", np.array([1] * 6 + [0] * 4), truth)
    assert not found.constant and found.value < found.baseline and found.learned_nothing


def test_few_rows_do_not_tell_a_model_from_a_constant_answer() -> None:
    truth = np.array([0, 1] * 5)
    found = quality("classification", np.array([0, 1] * 3 + [1, 1, 0, 1]), truth)
    assert found.value == 0.9 and found.interval[0] < 0.9 < found.interval[1]
    few = quality("classification", np.array([0, 1, 0, 1, 1, 0, 0, 1, 1, 0]), truth)
    assert "more rows are needed" in in_sentences(few.as_dict())[-1]
    many = quality("classification", np.tile([0, 1, 0, 1, 0, 1, 1, 1, 0, 1], 50), np.tile(truth, 50))
    assert "more rows" not in in_sentences(many.as_dict())[-1] and not many.learned_nothing


@given(st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_the_interval_holds_the_value_and_the_baseline_is_that_of_the_best_constant(rows: int, seed: int) -> None:
    draw = np.random.default_rng(seed)
    truth, predicted = draw.integers(0, 3, rows), draw.integers(0, 3, rows)
    found = quality("classification", predicted, truth)
    assert found.interval[0] <= found.value <= found.interval[1]
    best = max(utility("classification", np.full(rows, label), truth)["accuracy"] for label in range(3))
    assert found.baseline == pytest.approx(best)
    scores = quality("regression", draw.normal(size=rows), draw.normal(size=rows))
    assert scores.interval[0] <= scores.value <= scores.interval[1]


def test_a_constant_answer_has_the_metrics_of_the_most_frequent_class() -> None:
    truth = np.array([0, 1, 1, 2, 1])
    found = constant_utility("classification", truth)
    assert found == utility("classification", np.ones(5, dtype=np.int64), truth)
    assert found["accuracy"] == 0.6 and found["matthews"] == 0.0
    assert constant_utility("regression", np.array([1.0, 2.0, 6.0]))["mean_squared_error"] == pytest.approx(14 / 3)


def test_intervals_hold_every_metric_and_grow_with_fewer_rows() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=400)
    answers = np.where(rng.random(400) < 0.7, truth, rng.integers(3, size=400))
    many = utility_intervals("classification", answers, truth, Rng(0))
    few = utility_intervals("classification", answers[:40], truth[:40], Rng(0))
    for name, value in utility("classification", answers, truth).items():
        assert many[name][0] <= value <= many[name][1]
        assert many[name][1] - many[name][0] < few[name][1] - few[name][0]
    wide = utility_intervals("regression", answers + 0.0, truth + 0.0, Rng(0))
    for name, value in utility("regression", answers + 0.0, truth + 0.0).items():
        assert wide[name][0] <= value <= wide[name][1]
