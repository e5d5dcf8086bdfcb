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
    with pytest.raises(UnsupportedError, match="rows to be .*, got 1"):
        check_independent(Tape(model), losses, 1)


def mixes_three(hidden: Tensor, x: Tensor) -> Tensor:
    return hidden + hidden.roll(1, 0) * hidden.roll(2, 0) * (len(hidden) >= 3)


def mixes_at_a_distance(hidden: Tensor, x: Tensor) -> Tensor:
    return torch.cat((hidden[:2], hidden[2:] + hidden[:-2]))


def mixes_equal_tokens(hidden: Tensor, x: Tensor) -> Tensor:
    same = (x[:, None, 0] == x[None, :, 0]).float()
    return same @ hidden / same.sum(1, keepdim=True).detach() * (1 + 0.1 * (same.sum(1, keepdim=True) - 1))


def scales_by_the_third(hidden: Tensor, x: Tensor) -> Tensor:
    return hidden if len(hidden) < 3 else hidden * (1 + hidden[2].detach().mean())


def scales_gradients_alone(hidden: Tensor, x: Tensor) -> Tensor:
    factor = 1 + hidden.detach().mean() * (len(hidden) >= 3)  # the value is that of the row alone, the gradient is not
    return (hidden - hidden.detach()) * factor + hidden.detach()


MIXING = (mixes_three, mixes_at_a_distance, mixes_equal_tokens, scales_by_the_third, scales_gradients_alone)


@pytest.mark.parametrize("rows", [2, 3, 6, 20])
@pytest.mark.parametrize("mix", MIXING)
def test_mixing_that_two_rows_do_not_show_is_found(mix, rows: int) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)), torch.randn(rows, 4)

    def losses(some: Tensor) -> Tensor:
        return model[2](mix(model[1](model[0](x[some])), x[some])).flatten().square()

    with pytest.raises(UnsupportedError, match="mixes the examples"):
        check_independent(Tape(model), losses, rows)


def test_dropout_is_no_mixing() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)), torch.randn(5, 4)
    check_independent(Tape(model), lambda some: model(x[some]).flatten().square(), 5)
    assert model[1].training
