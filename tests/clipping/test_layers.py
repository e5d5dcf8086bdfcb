"""What cannot be clipped is refused, and the refusal names it."""

import pytest
import torch
from torch import nn

from discreet.clipping import Tape
from discreet.clipping.layers import Kind, find_layers
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
        (Own(), r"layer 'odd' \(Own\) among the layers that can be clipped"),
        (Loud(3, 3), r"layer 'odd' \(Loud\)"),
        (nn.LSTM(3, 3), r"layer 'odd' \(LSTM\).*hide their steps"),
        (nn.MultiheadAttention(4, 2), r"layer 'odd' \(MultiheadAttention\)"),
        (nn.Conv1d(2, 2, 1), r"layer 'odd' \(Conv1d\)"),
        (nn.GroupNorm(1, 2), r"layer 'odd' \(GroupNorm\)"),
        (nn.BatchNorm1d(3), r"'odd' \(BatchNorm1d\).*mixes the examples"),
        (nn.BatchNorm1d(3, affine=False), r"'odd' \(BatchNorm1d\).*mixes the examples"),
        (nn.Embedding(5, 2, max_norm=1.0), "without max_norm"),
        (nn.Embedding(5, 2, scale_grad_by_freq=True), "without scale_grad_by_freq"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), r"ParametrizationList|ParametrizedLinear"),
    ],
)
def test_refused_by_name(module: nn.Module, message: str) -> None:
    model = nn.Sequential()
    model.add_module("odd", module)
    with pytest.raises(UnsupportedError, match=message):
        find_layers(model)


def test_tied_weights_are_refused_by_name() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 20, "n_positions": 10}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=1, eos_token_id=1))
    with pytest.raises(UnsupportedError, match=r"'lm_head.weight'.*tied to 'transformer.wte.weight'"):
        Tape(model)


def test_what_is_frozen_is_not_refused() -> None:
    model = nn.Sequential(nn.LSTM(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    assert [(layer.name, layer.kind) for layer in find_layers(model)] == [("1", Kind.LINEAR)]
    model.requires_grad_(False)
    with pytest.raises(UnsupportedError, match="found none"):
        find_layers(model)


def test_batch_norm_is_let_pass_only_while_it_is_still() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3).requires_grad_(False)).eval()
    tape = Tape(model)
    model.train()
    with pytest.raises(UnsupportedError, match=r"'1' \(BatchNorm1d\)"), tape:
        pass


def test_gradient_checkpointing_is_refused(bert_case) -> None:
    tape = Tape(bert_case.model)
    bert_case.model.gradient_checkpointing_enable()
    bert_case.model.train()
    with pytest.raises(UnsupportedError, match="without gradient checkpointing"), tape:
        pass


def test_a_replaced_forward_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.forward = lambda x: x
    with pytest.raises(UnsupportedError, match="found it replaced"):
        find_layers(model)


def test_a_norm_that_is_none_is_refused() -> None:
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
def test_a_compiled_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match="not compiled"):
        find_layers(torch.compile(model))
    model[0].compile()
    with pytest.raises(UnsupportedError, match="'0' not compiled"):
        find_layers(model)
