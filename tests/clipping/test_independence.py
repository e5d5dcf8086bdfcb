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
