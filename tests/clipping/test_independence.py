"""Examples that depend on each other are found out."""

import pytest
import torch
from torch import Tensor, nn

from discreet.clipping import Tape, check_independent
from discreet.core.errors import UnsupportedError


def test_independent_models_pass(case) -> None:
    case.model.train()
    check_independent(Tape(case.model), case.losses, case.rows)
    assert case.model.training


@pytest.mark.parametrize("rows", [2, 4])
def test_a_table_for_all_rows_alike_is_found_out(rows: int) -> None:
    # With as many rows as steps, positions of shape (length, length) have the shape of a batch.
    torch.manual_seed(0)
    table, head, ids = nn.Embedding(4, 3), nn.Linear(3, 1), torch.randn(rows, 4, 3)
    model = nn.ModuleList((table, head))
    steps = torch.arange(4)

    def losses(some: Tensor) -> Tensor:
        place = table((steps[:, None] - steps[None]).abs()).mean(0)
        return head((ids[some] + place).tanh()).square().sum((1, 2))

    with pytest.raises(UnsupportedError, match="a gradient in row" if rows == 4 else "to return 2 rows"):
        check_independent(Tape(model), losses, rows)


def mixed(way: str):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(5, 4)

    def losses(rows: Tensor) -> Tensor:
        hidden = model[1](model[0](x[rows]))
        if way == "centred":
            hidden = hidden - hidden.mean(0)
        out = model[2](hidden).flatten().square()
        if way == "contrast":
            return out - out.logsumexp(0)
        return out / out.detach().max() if way == "hidden" else out

    return model, losses


def test_what_mixes_examples_is_refused() -> None:
    model, losses = mixed("none")
    check_independent(Tape(model), losses, 5)
    for way, message in [("centred", "a gradient in row"), ("contrast", "a gradient in row"), ("hidden", "without")]:
        model, losses = mixed(way)
        with pytest.raises(UnsupportedError, match=message):
            check_independent(Tape(model), losses, 5)
    with pytest.raises(UnsupportedError, match="rows=1"):
        check_independent(Tape(model), losses, 1)
