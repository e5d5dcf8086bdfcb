"""Truncated Poisson batches against every batch that can be drawn, one by one."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.accounting.curve import Array, truncated_poisson
from discreet.accounting.events import (
    ClippedSumDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    TruncatedSubsampledGaussianDpEvent,
)
from discreet.accounting.interpret import epsilon
from discreet.core.errors import UnsupportedError

GRID = np.linspace(-12.0, 12.0, 4001)


def batches(n: int, rate: float, size: int) -> dict[tuple[int, ...], float]:
    """Return every batch of at most `size` of n units with its probability; unit 0 is the record."""
    found: dict[tuple[int, ...], float] = {}
    for count in range(n + 1):
        for sampled in itertools.combinations(range(n), count):
            chance = rate**count * (1 - rate) ** (n - count)
            kept = list(itertools.combinations(sampled, min(count, size)))
            for batch in kept:
                found[batch] = found.get(batch, 0.0) + chance / len(kept)
    return found


def density(n: int, rate: float, size: int, noise: float, vectors: Array) -> Array:
    """Return the density of the noisy sum of a batch."""
    total = np.zeros_like(GRID)
    for batch, chance in batches(n, rate, size).items():
        centre = sum(vectors[unit] for unit in batch)
        total += chance * np.exp(-(((GRID - centre) / noise) ** 2) / 2) / (noise * math.sqrt(2 * math.pi))
    return total


@settings(max_examples=25, deadline=None)
@given(
    st.integers(2, 4), st.floats(0.1, 0.9), st.integers(1, 4), st.floats(0.5, 1.2),
    st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=3, max_size=3), st.sampled_from([-1.0, 1.0]),
)  # fmt: skip
def test_no_batch_costs_more(n: int, rate: float, size: int, noise: float, others: list[float], record: float) -> None:
    curve = truncated_poisson(1 / noise, rate, size, n)
    present, absent = (density(n, rate, size, noise, np.array([first, *others])) for first in (record, 0.0))
    gap = GRID[1] - GRID[0]
    assert curve.absent is not None or size >= n
    for eps in (-0.5, 0.0, 0.3, 0.8, 1.5):
        here = float(np.maximum(present - math.exp(eps) * absent, 0).sum() * gap)
        there = float(np.maximum(absent - math.exp(eps) * present, 0).sum() * gap)
        at = np.array([eps])
        assert here <= float(curve.present(at)[0]) + 1e-5
        assert there <= float((curve.absent or curve.present)(at)[0]) + 1e-5


def test_a_truncation_that_never_happens_costs_nothing_and_one_that_does_costs_more() -> None:
    def cost(size: int) -> float:
        return epsilon(
            SelfComposedDpEvent(TruncatedSubsampledGaussianDpEvent(10_000, 0.02, size, 1.5), 500), 1e-6, "zero-out"
        )

    poisson = epsilon(SelfComposedDpEvent(PoissonSampledDpEvent(0.02, ClippedSumDpEvent(1.5)), 500), 1e-6, "zero-out")
    assert cost(10_001) == cost(10_000) == pytest.approx(poisson, rel=1e-6)
    assert poisson <= cost(320) <= poisson * 1.0001
    assert cost(200) > cost(230) > poisson


@pytest.mark.parametrize("adjacency", ["add/remove", "replace-one"])
def test_only_zero_out_is_covered(adjacency: str) -> None:
    with pytest.raises(UnsupportedError, match="zero-out"):
        epsilon(TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0), 1e-5, adjacency)
    assert epsilon(TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 0.0), 1e-5, "zero-out") == math.inf
