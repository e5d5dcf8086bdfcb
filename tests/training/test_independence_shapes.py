"""The shapes of parts follow from each unit alone, and hold every unit once."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discreet.data.batches import Shapes
from discreet.training.independence import without_zeros


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    expected=st.integers(1, 5000),
    max_length=st.integers(3, 70),
    data=st.data(),
)
def test_parts_hold_whole_units_once_in_shapes_of_their_own(
    device: str, sizes: list[int], expected: int, max_length: int, data: st.DataObject
) -> None:
    shapes = Shapes.of(device, max_length, expected)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.arange(starts[-1])
    lengths = np.array(
        data.draw(st.lists(st.integers(1, max_length), min_size=len(rows), max_size=len(rows))), dtype=np.int64
    )
    seen: list[int] = []
    for part in shapes.parts(rows, starts, lengths):
        assert part.units == shapes.units_of(part.rows_each, part.width)
        filled = part.rows.reshape(part.units, part.rows_each)
        assert (filled[part.real :] == -1).all() and 0 < part.real <= part.units
        for mine in filled[: part.real]:
            own = mine[mine >= 0]
            unit = int(np.searchsorted(starts, own[0], side="right")) - 1
            assert own.tolist() == rows[starts[unit] : starts[unit + 1]].tolist()
            assert part.rows_each == shapes.rows_of(len(own)) >= len(own)
            assert part.width == shapes.width_of(int(lengths[own].max())) >= lengths[own].max()
            assert part.width <= max_length
            seen.append(unit)
    assert sorted(seen) == list(range(len(sizes)))


def test_smaller_shapes_end_at_one_row() -> None:
    shapes: Shapes | None = Shapes.of("cpu", 64, 4096)
    assert shapes is not None
    fitted = shapes.at_most({width: 3 for width, _ in shapes.rows})
    assert {rows for _, rows in fitted.rows} == {3}
    while shapes is not None and (smaller := shapes.halved()) is not None:
        assert all(a >= b >= 1 for (_, a), (_, b) in zip(shapes.rows, smaller.rows, strict=True))
        shapes = smaller
    assert shapes is not None and {rows for _, rows in shapes.rows} == {1}


def test_small_batches_on_a_gpu_are_read_in_few_parts() -> None:
    shapes = Shapes.of("cuda", 128, 64)
    assert all(rows * width >= 8192 for width, rows in shapes.rows)
    assert shapes.units_of(4, 64) == 32  # 64 patients with four notes each: two parts, not six
    captured = Shapes.of("cuda", 128, 64, captured=True)
    assert captured.rows == ((16, 80), (32, 80), (64, 64), (128, 80))  # a batch of truncated texts is one part
    assert dict(Shapes.of("cuda", 1, 64).rows) == {1: 48}  # vectors of a frozen encoder


def test_the_probe_of_kernels_sees_no_zeros_and_restores_them() -> None:
    model = torch.nn.Linear(32, 2)
    torch.nn.init.zeros_(model.weight)
    model.weight.data[0, 0] = 3.0
    before = model.weight.detach().clone()
    with without_zeros(model):
        assert bool((model.weight != 0).all()) and float(model.weight[0, 0].detach()) != 3.0
    assert torch.equal(model.weight, before)
