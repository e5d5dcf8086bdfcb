"""Exact Poisson and Skellam numbers."""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import ive
from scipy.stats import chi2
from scipy.stats import poisson as reference

from discreet import Rng
from discreet.core.errors import SettingError
from discreet.mechanisms.poisson import _entries, _slowly, poisson, skellam


@pytest.mark.parametrize("mean", [0.01, 0.75, 7.3, 300.0, 12345.678])
def test_the_table_holds_the_cumulative_probabilities(mean: float) -> None:
    first, entries = _entries(mean, 64)
    with mpmath.workdps(60):
        weight = mpmath.exp(-mpmath.mpf(mean))
        below, total = mpmath.mpf(0), mpmath.mpf(0)
        for k in range(first + len(entries)):
            total += weight
            if k < first:
                below = total
            else:
                assert abs(total * 2**64 - entries[k - first]) < 2
            weight *= mpmath.mpf(mean) / (k + 1)
        assert below < mpmath.mpf(2) ** -64 and 1 - total < mpmath.mpf(2) ** -64


@pytest.mark.parametrize("mean", [0.3, 4.0, 90.0])
def test_samples_have_the_distribution(mean: float) -> None:
    samples = poisson(mean, 20_000, Rng(5))
    edges = np.unique(reference.ppf(np.linspace(0.02, 0.98, 20), mean))
    cells = np.searchsorted(edges, samples, side="left")
    expected = np.diff(np.concatenate(([0.0], reference.cdf(edges, mean), [1.0]))) * len(samples)
    observed = np.bincount(cells, minlength=len(expected))
    kept = expected > 5
    statistic = ((observed - expected)[kept] ** 2 / expected[kept]).sum()
    assert statistic < chi2.isf(1e-6, kept.sum())


class Words:
    """A source whose first words are given, and the others random."""

    def __init__(self, words: list[int]) -> None:
        self.given, self.rest = words, Rng(9)

    def words(self, count: int) -> np.ndarray:
        return np.array(self.given[:count], dtype=np.uint64)

    def bytes(self, count: int) -> bytes:
        return self.rest.bytes(count)


def test_words_at_an_entry_of_the_table_are_decided_by_more_bits() -> None:
    first, entries = _entries(5.5, 64)
    k = 6 - first
    at = [entries[k] - 3, entries[k] - 1, entries[k], entries[k] + 1, entries[k] + 3, 2**64 - 1, 0]
    result = poisson(5.5, len(at), Words(at)).tolist()  # type: ignore[arg-type]
    assert result[0] == 6 and result[4] == 7 and set(result[1:4]) <= {6, 7}
    assert result[5] > 30 and result[6] == 0
    decided = {_slowly(5.5, entries[k], 64, Rng(seed)) for seed in range(40)}
    assert decided <= {6, 7}
    # words far from all entries give the same number with any further bits
    assert {_slowly(5.5, entries[k] + 10**9, 64, Rng(seed)) for seed in range(5)} == {7}


def test_skellam_numbers_add_up_to_a_skellam_number() -> None:
    total = sum(skellam(2.0, 30_000, Rng(seed)) for seed in range(3))
    k = np.arange(-12, 13)
    expected = ive(np.abs(k), 6.0) * len(total)
    observed = np.array([(total == value).sum() for value in k])
    kept = expected > 5
    assert ((observed - expected)[kept] ** 2 / expected[kept]).sum() < chi2.isf(1e-6, kept.sum())


def test_a_large_mean_has_mean_and_variance() -> None:
    samples = skellam(2e8, 40_000, Rng(1)).astype(np.float64)
    assert abs(samples.mean()) < 6 * math.sqrt(2e8 / 40_000)
    assert abs(samples.var() / 2e8 - 1) < 6 * math.sqrt(2 / 40_000)


@pytest.mark.parametrize("mean", [0.0, -1.0, 1e11, math.nan])
def test_means_without_a_table_are_rejected(mean: float) -> None:
    with pytest.raises(SettingError):
        poisson(mean, 1, Rng(1))
