"""Correlated noise against the dense matrix C."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import toeplitz

from discreet.core.errors import DataError, SettingError
from discreet.core.randomness import Rng
from discreet.mechanisms.correlated import Banded, CorrelatedNormals, Correlation, LambdaCGD
from discreet.mechanisms.normals import NormalSource

CORRELATIONS = [LambdaCGD(0.3), LambdaCGD(0.95), Banded(2), Banded(5)]


def dense(correlation: Correlation, steps: int) -> np.ndarray:
    return np.tril(toeplitz(correlation.coefficients(steps)))


@pytest.mark.parametrize("correlation", CORRELATIONS, ids=repr)
def test_the_noise_is_the_inverse_of_the_matrix_times_independent_normals(correlation: Correlation) -> None:
    steps, source = 9, Rng.secret()
    values = {"a": torch.zeros(3, 2, dtype=torch.float64), "b": torch.zeros(4, dtype=torch.float64)}
    fresh = [NormalSource(source.fork("noise", step)) for step in range(steps)]
    for number, (name, value) in enumerate(values.items()):
        z = np.stack([one.draw(tuple(value.shape), torch.device("cpu"), number).numpy().ravel() for one in fresh])
        noise = CorrelatedNormals(correlation, 2.0, source)
        released = np.stack([noise.add(values, step)[name].numpy().ravel() for step in range(steps)])
        fresh = [NormalSource(source.fork("noise", step)) for step in range(steps)]
        np.testing.assert_allclose(released, 2 * np.linalg.solve(dense(correlation, steps), z), atol=1e-3)


@pytest.mark.parametrize("correlation", CORRELATIONS, ids=repr)
def test_a_resumed_run_has_the_same_noise(correlation: Correlation) -> None:
    source, values = Rng.secret(), {"a": torch.ones(5)}
    whole = CorrelatedNormals(correlation, 1.0, source)
    expected = [whole.add(values, step)["a"] for step in range(7)]
    resumed = CorrelatedNormals(correlation, 1.0, source)
    assert all(torch.equal(resumed.add(values, step)["a"], expected[step]) for step in (4, 5, 6, 2))


@given(st.floats(0.01, 0.99), st.integers(1, 7), st.integers(1, 5))
def test_cycles_add_up_to_the_largest_sensitivity_of_any_group(decay: float, period: int, cycles: int) -> None:
    """By brute force: the norm of all rows so far, for a record in the same step of every cycle."""
    correlation = LambdaCGD(decay)
    squared = correlation.squared_cycles(period, cycles)
    matrix = dense(correlation, period * cycles)
    for count in range(1, cycles + 1):
        rows = matrix[: count * period, : count * period]
        worst = max(float(np.square(rows[:, group::period].sum(1)).sum()) for group in range(period))
        assert float(squared[:count].sum()) == pytest.approx(worst, rel=1e-9)
        assert float(squared[:count].sum()) >= worst * (1 - 1e-14)


@given(st.integers(2, 6), st.integers(0, 3), st.integers(1, 4), st.integers(0, 100))
def test_uses_of_a_band_that_are_a_cycle_apart_are_in_different_rows(
    bands: int, more: int, cycles: int, seed: int
) -> None:
    groups = bands + more
    matrix = dense(Banded(bands), groups * cycles)
    gram = matrix.T @ matrix
    for group in range(groups):
        columns = gram[group::groups, group::groups]
        assert np.count_nonzero(columns - np.diag(np.diag(columns))) == 0
        assert np.diag(columns).max() <= Banded(bands).column_norm ** 2


@pytest.mark.parametrize("correlation", CORRELATIONS, ids=repr)
def test_its_figures_are_those_of_the_matrix(correlation: Correlation) -> None:
    matrix = dense(correlation, 300)
    assert (matrix >= 0).all()
    assert correlation.column_norm == pytest.approx(np.linalg.norm(matrix[:, 0]), rel=1e-9)
    assert correlation.deviation == pytest.approx(np.linalg.norm(np.linalg.inv(matrix)[-1]), rel=1e-6)


def test_invalid_settings_are_rejected() -> None:
    for decay in (0.0, 1.0, -0.5, 2.0, float("nan")):
        with pytest.raises(SettingError, match="decay"):
            LambdaCGD(decay)
    with pytest.raises(SettingError, match="bands"):
        Banded(1)
    with pytest.raises(SettingError, match="source"):
        CorrelatedNormals(Banded(2), 1.0, Rng.secure())
    with pytest.raises(DataError, match="finite"):
        CorrelatedNormals(Banded(2), 1.0, Rng(0)).add({"a": torch.tensor([float("nan")])}, 0)
