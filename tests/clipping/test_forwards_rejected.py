"""What cannot be clipped is rejected by name."""

import pytest
import torch
from torch import nn

from discreet.clipping import Tape
from discreet.clipping.forwards import Kind, find_layers
from discreet.core.errors import UnsupportedError


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class Loud(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        return 2 * super().forward(input)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Own(), r"layer 'odd' \(Own\) to be one of the layers that can be clipped"),
        (Loud(3, 3), r"layer 'odd' \(Loud\)"),
        (nn.LSTMCell(3, 3), r"layer 'odd' \(LSTMCell\)"),
        (nn.Conv2d(2, 2, 1), r"layer 'odd' \(Conv2d\)"),
        (nn.BatchNorm1d(3), r"'odd' \(BatchNorm1d\).*mixes the examples"),
        (nn.BatchNorm1d(3, affine=False), r"'odd' \(BatchNorm1d\).*mixes the examples"),
        (nn.Embedding(5, 2, max_norm=1.0), "have no max_norm"),
        (nn.Embedding(5, 2, scale_grad_by_freq=True), "have no scale_grad_by_freq"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), r"ParametrizationList|ParametrizedLinear"),
    ],
)
def test_rejected_by_name(module: nn.Module, message: str) -> None:
    model = nn.Sequential()
    model.add_module("odd", module)
    with pytest.raises(UnsupportedError, match=message):
        find_layers(model)


def test_a_tied_weight_has_one_name_in_all_its_layers() -> None:
    table, head = nn.Embedding(5, 3), nn.Linear(3, 5)
    head.weight = table.weight
    first, second = find_layers(nn.Sequential(table, head))
    assert first.parameters == {"weight": "0.weight"}
    assert second.parameters == {"weight": "0.weight", "bias": "1.bias"}


def test_a_parameter_may_be_held_by_a_module_that_leaves_its_use_to_a_layer() -> None:
    class Head(nn.Module):
        def __init__(self, outside: bool) -> None:
            super().__init__()
            self.bias, self.decoder, self.outside = nn.Parameter(torch.randn(2)), nn.Linear(3, 2), outside
            self.decoder.bias = self.bias

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.decoder(x) + self.bias if self.outside else self.decoder(x)

    x = torch.randn(4, 3)
    for outside in (False, True):
        tape = Tape(model := Head(outside))
        assert [layer.parameters for layer in tape.layers] == [{"weight": "decoder.weight", "bias": "bias"}]
        with tape:
            losses = model(x).square().sum(1)
        if outside:
            with pytest.raises(UnsupportedError, match="'bias' to be used by its layers alone"):
                tape.backward(losses)
        else:
            assert tape.backward(losses).names == ("decoder.weight", "bias")


def test_frozen_layers_may_be_of_any_kind() -> None:
    model = nn.Sequential(nn.LSTMCell(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    assert [(layer.name, layer.kind) for layer in find_layers(model)] == [("1", Kind.LINEAR)]
    model.requires_grad_(False)
    with pytest.raises(UnsupportedError, match="got none"):
        find_layers(model)


def test_frozen_batch_norm_is_accepted_in_evaluation_mode_only() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3).requires_grad_(False)).eval()
    tape = Tape(model)
    model.train()
    with pytest.raises(UnsupportedError, match=r"'1' \(BatchNorm1d\)"), tape:
        pass


def test_gradient_checkpointing_is_rejected(bert_case) -> None:
    tape = Tape(bert_case.model)
    bert_case.model.gradient_checkpointing_enable()
    bert_case.model.train()
    with pytest.raises(UnsupportedError, match="to run without gradient checkpointing"), tape:
        pass


def test_a_replaced_forward_is_rejected() -> None:
    model = nn.Linear(2, 2)
    model.forward = lambda x: x
    with pytest.raises(UnsupportedError, match="forward of its class, got another"):
        find_layers(model)


def test_a_layer_named_like_a_norm_is_checked() -> None:
    class MeanRMSNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.mean()  # the mean over its own copies would differ

        extra = None

    class Summed(MeanRMSNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.weight.sum()

    Summed.__name__ = "SummedRMSNorm"
    tape = Tape(model := nn.Sequential(nn.Linear(3, 3), Summed()))
    with pytest.raises(UnsupportedError, match=r"'1' \(SummedRMSNorm\) to scale each row"), tape:
        model(torch.randn(4, 3))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is loaded
def test_a_compiled_model_is_rejected() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match="not to be compiled"):
        find_layers(torch.compile(model))
    model[0].compile()
    with pytest.raises(UnsupportedError, match="'0' not to be compiled"):
        find_layers(model)
