"""Every kind of layer against the slow loop."""

import itertools

import pytest
import torch
from tests.clipping import slow
from torch import Tensor, nn

from discreet.clipping import Tape
from discreet.core.errors import UnsupportedError

UNITS = [None, torch.tensor([0, 1, 0, 2, 2])]
ROWS, LENGTH, WIDTH = 5, 7, 6


def losses_of(model: nn.Module, x: Tensor):
    return lambda: model(x).flatten(1).square().sum(1)


class First(nn.Module):
    """The first result of a module that returns several, with a linear layer before it."""

    def __init__(self, module: nn.Module, width: int = WIDTH) -> None:
        super().__init__()
        self.before, self.module = nn.Linear(width, width), module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(self.before(x))[0]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("units", UNITS, ids=["rows", "units"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *itertools.product((nn.LSTM, nn.GRU, nn.RNN), ({}, {"num_layers": 2, "bidirectional": True}, {"bias": False})),
        (nn.LSTM, {"proj_size": 2, "num_layers": 2, "bidirectional": True}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
)
def test_recurrent_layers(assert_exact, kind: type[nn.RNNBase], options: dict[str, object], units) -> None:
    torch.manual_seed(0)
    model = First(kind(WIDTH, 4, batch_first=True, **options))
    assert_exact(model, losses_of(model, torch.randn(ROWS, LENGTH, WIDTH)), units)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_a_recurrent_layer_computes_what_its_module_does(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    for batch_first, ways in itertools.product((False, True), (1, 2)):
        module = kind(WIDTH, 4, num_layers=2, bidirectional=ways == 2, batch_first=batch_first)
        x = torch.randn(ROWS, LENGTH, WIDTH) if batch_first else torch.randn(LENGTH, ROWS, WIDTH)
        start = torch.randn(2 * ways, ROWS, 4)
        for state in (None, (start, torch.randn_like(start)) if kind is nn.LSTM else start):
            expected = module(x, state)
            with Tape(module):
                torch.testing.assert_close(module(x, state), expected)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("lengths", [[7, 3, 5, 1, 5], [7, 7, 5, 2, 1]], ids=["unsorted", "sorted"])
def test_packed_sequences(assert_exact, kind: type[nn.RNNBase], lengths: list[int]) -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(WIDTH, 4, bidirectional=True, num_layers=2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(
                x, torch.tensor(lengths), batch_first=True, enforce_sorted=lengths[1] == 7
            )
            out, states = self.rnn(packed)
            last = states[0] if kind is nn.LSTM else states
            padded = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)[0]
            return torch.cat((padded.flatten(1), last.transpose(0, 1).flatten(1)), 1)

    torch.manual_seed(0)
    model = Packed()
    x = torch.randn(ROWS, LENGTH, WIDTH)
    expected = model(x)
    with Tape(model):
        torch.testing.assert_close(model(x), expected)
    assert_exact(model, losses_of(model, x))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize("units", UNITS, ids=["rows", "units"])
@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3},
        {"kernel_size": 3, "stride": 2, "padding": 2, "dilation": 2},
        {"kernel_size": 2, "padding": "same", "bias": False},
        {"kernel_size": 3, "padding": 1, "padding_mode": "circular"},
        {"kernel_size": 3, "groups": 2},
        {"kernel_size": 1, "groups": 6},
    ],
    ids=str,
)
def test_convolutions(assert_exact, options: dict[str, object], units) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(6, 6, 2), nn.Tanh(), nn.Conv1d(6, 12, **options))
    assert_exact(model, losses_of(model, torch.randn(ROWS, 6, 13)), units)


@pytest.mark.parametrize("units", UNITS, ids=["rows", "units"])
def test_tied_convolutions(assert_exact, units) -> None:
    # One keeps factors, the other, with groups, the gradients themselves.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(5, 10, 3), nn.Tanh(), nn.Conv1d(10, 10, 3, groups=2))
    model[2].weight = model[0].weight
    assert_exact(model, losses_of(model, torch.randn(ROWS, 5, 9)), units)


@pytest.mark.parametrize("shape", [(), (5,), (3, 4)])
def test_group_norm(assert_exact, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    norm = nn.GroupNorm(2, 6)
    nn.init.normal_(norm.weight)
    model = nn.Sequential(nn.Linear(shape[-1] if shape else 6, shape[-1] if shape else 6), norm)
    assert_exact(model, losses_of(model, torch.randn(ROWS, 6, *shape)))


class Attention(nn.Module):
    """Attention between two projected inputs, or within one."""

    def __init__(self, way: str, **options: object) -> None:
        super().__init__()
        self.way = way
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first="first" in way, **options)
        self.before = nn.Linear(WIDTH, WIDTH)
        if self.attention.in_proj_bias is not None:
            nn.init.normal_(self.attention.in_proj_bias)

    def forward(self, x: Tensor) -> Tensor:
        first = self.attention.batch_first
        query = self.before(x)
        key = query if "self" in self.way else torch.cat((query, x), 1).tanh()
        value = key if "self" in self.way else key.sin()[..., : self.attention.vdim]
        key = key[..., : self.attention.kdim]
        padding = torch.zeros(key.shape[:2], dtype=torch.bool)
        padding[1:, -2:] = True
        mask = torch.ones(query.shape[1], key.shape[1]).triu(1).bool() if "masked" in self.way else None
        if not first:
            moved = {id(t): t.transpose(0, 1) for t in (query, key, value)}
            query, key, value = (moved[id(t)] for t in (query, key, value))
        out, weights = self.attention(query, key, value, padding, need_weights="weights" in self.way, attn_mask=mask)
        out = out if first else out.transpose(0, 1)
        return out if weights is None else torch.cat((out.flatten(1), weights.flatten(1)), 1)


@pytest.mark.parametrize(
    ("way", "options"),
    [
        ("self first", {}),
        ("self weights", {"bias": False}),
        ("self masked", {"add_bias_kv": True, "add_zero_attn": True}),
        ("cross first masked weights", {"add_bias_kv": True}),
        ("cross", {"kdim": 4, "vdim": 5}),
        ("cross first weights", {"kdim": 4, "vdim": 5, "bias": False, "add_zero_attn": True}),
    ],
)
def test_multihead_attention(assert_exact, way: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    model, x = Attention(way, **options), torch.randn(ROWS, LENGTH, WIDTH)
    expected = model(x)
    with Tape(model):
        torch.testing.assert_close(model(x), expected)
    for units in UNITS:
        assert_exact(model, losses_of(model, x), units)


@pytest.mark.parametrize("trained", ["out_proj", "in_proj_weight", "in_proj_bias"])
def test_multihead_attention_partly_frozen(assert_exact, trained: str) -> None:
    torch.manual_seed(0)
    model = Attention("cross first")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained in name)
    assert_exact(model, losses_of(model, torch.randn(ROWS, LENGTH, WIDTH)))


def test_a_transformer_of_torch(assert_exact) -> None:
    torch.manual_seed(0)
    model = nn.Transformer(WIDTH, 2, 1, 1, 8, dropout=0.0, batch_first=True)
    x, y = torch.randn(ROWS, LENGTH, WIDTH), torch.randn(ROWS, 4, WIDTH)
    assert_exact(model, lambda: model(x, y).square().sum((1, 2)))


@pytest.mark.parametrize("module", [nn.LSTM(3, 3), nn.Conv1d(3, 3, 1), nn.MultiheadAttention(3, 1)], ids=str)
def test_an_input_without_a_batch_is_rejected(module: nn.Module) -> None:
    x = torch.randn(3, 3)
    with pytest.raises(UnsupportedError, match=r"batch dimension.*got shape \(3, 3\)"), Tape(module):
        module(x, x, x) if isinstance(module, nn.MultiheadAttention) else module(x)


def test_autocast() -> None:
    torch.manual_seed(0)
    model = First(nn.LSTM(WIDTH, 4, batch_first=True, bidirectional=True))
    x = torch.randn(ROWS, LENGTH, WIDTH)

    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().sum((1, 2))

    tape = Tape(model)
    with tape:
        values = losses()
    norms = tape.backward(values).norms()
    expected = torch.tensor([slow.norm(g) for g in slow.gradients(model, model(x).square().sum((1, 2)))])
    assert torch.allclose(norms, expected, rtol=0.1)
