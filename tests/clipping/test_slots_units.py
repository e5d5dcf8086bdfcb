"""Rows and the units they belong to."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discreet.clipping.slots import Units
from discreet.core.errors import SettingError


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12))
def test_sums_and_layout_agree_with_a_loop(raw: list[int]) -> None:
    index = torch.unique(torch.tensor(raw), return_inverse=True)[1]
    rows = torch.arange(1.0, len(raw) + 1)
    units = Units.of(index, len(raw))
    want = [float(rows[index == u].sum()) for u in range(units.count)]
    assert units.total(rows).tolist() == want
    (laid,) = units.apply(lambda x: (x.sum((1, 2)),), rows[:, None, None])
    assert laid.tolist() == want
    assert [float(rows[units.rows_of(u)].sum()) for u in range(units.count)] == want
    assert units.rows(torch.arange(units.count)).tolist() == index.tolist()


def test_rows_in_order_are_their_own_units() -> None:
    assert Units.of(torch.arange(5), 5).index is None
    assert Units.of(torch.tensor([1, 0]), 2).index is not None


@pytest.mark.parametrize("index", [torch.tensor([0, 2]), torch.tensor([0]), torch.tensor([0.0, 1.0])])
def test_a_bad_index_is_refused(index: torch.Tensor) -> None:
    with pytest.raises(SettingError, match="units"):
        Units.of(index, 2)
