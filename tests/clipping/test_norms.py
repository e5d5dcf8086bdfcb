"""Gram matrices in blocks of columns: equal to the direct ones, with a bound that does not grow with the width."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.clipping import norms


@settings(max_examples=25)
@given(
    units=st.integers(1, 4),
    length=st.integers(1, 6),
    width=st.integers(1, 700),
    other=st.integers(1, 300),
    cancels=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_the_error_of_norms_from_blocks_is_within_its_bound(
    units: int, length: int, width: int, other: int, cancels: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scaled = torch.randn(units, length, width, generator=generator).bfloat16()
    wide = torch.randn(units, length, other, generator=generator).bfloat16()
    if cancels and length > 1:  # the second step almost undoes the first
        scaled[:, 1], wide[:, 1] = -scaled[:, 0], wide[:, 0]
    exact = torch.einsum("uts,uto->uso", scaled.double(), wide.double()).square().sum((1, 2))
    figures = norms.block_sizes(scaled, wide)
    assert bool(((figures.squares - exact).abs() <= figures.error + 1e-12).all())
    if length > 1:
        span = figures.span.square()
        assert bool((figures.error <= span * 4e-5 + 1e-12).all())


@pytest.mark.parametrize("chunk", [2**26, 1])
def test_blocks_of_any_size_give_the_same_gram_matrix(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(norms, "_CHUNK_BYTES", chunk)
    rows = torch.randn(5, 4, 1000, dtype=torch.float64)
    torch.testing.assert_close(norms.block_gram(rows), rows @ rows.mT)
