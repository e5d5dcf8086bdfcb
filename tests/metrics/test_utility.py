import numpy as np
import pytest

from discreet.metrics.utility import utility


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
