"""Inner products, sums and what a record answers when."""

import pytest
import torch
from tests.clipping import slow
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from discreet.clipping import Flat, Tape, clipped_sum
from discreet.clipping.slots import vector_sizes
from discreet.core.errors import SettingError, UnsupportedError

CLOSE = 1e-5
UNITS = [None, torch.tensor([0, 1, 0, 2, 2, 2])]


@pytest.mark.parametrize("units", UNITS, ids=["rows", "units"])
def test_inner_products_and_gram_agree_with_the_slow_loop(case, units: Tensor | None) -> None:
    truth = slow.gradients(case.model, case.losses(), units)
    flat = torch.stack([torch.cat([g.flatten() for g in one.values()]) for one in truth]).double()
    vectors = {name: torch.randn_like(g) for name, g in truth[0].items()}
    vector = torch.cat([v.flatten() for v in vectors.values()]).double()
    tape = Tape(case.model)
    with tape:
        losses = case.losses()
    record = tape.backward(losses, units)
    size = float(flat.norm(dim=1).max() * vector.norm())
    assert float((record.inner(vectors) - flat @ vector).abs().max()) <= CLOSE * size
    for unit in range(len(truth)):
        assert float((record.inner(vectors, unit=unit) - flat[unit] @ vector).abs()) <= CLOSE * size
    assert torch.allclose(record.gram().double(), flat @ flat.mT, rtol=CLOSE, atol=CLOSE * float(flat.norm() ** 2))
    weights = torch.rand(len(truth))
    got = record.weighted_sum(weights, keep=True)
    joined = torch.cat([got[name].flatten() for name in truth[0]]).double()
    assert float((joined - weights.double() @ flat).norm()) <= CLOSE * float(flat.norm())
    doubled = record.weighted_sum(weights, into=got)
    assert doubled is got
    assert torch.allclose(torch.cat([got[n].flatten() for n in truth[0]]).double(), 2 * joined, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("units", UNITS, ids=["rows", "units"])
def test_the_gram_matrix_is_the_same_where_little_can_be_held(
    case, units: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    tape = Tape(case.model)
    with tape:
        losses = case.losses()
    found = tape.backward(losses, units)
    whole = found.gram()
    monkeypatch.setattr("discreet.clipping.record._HELD", 0)
    torch.testing.assert_close(found.gram(), whole, rtol=1e-4, atol=1e-5 * float(whole.abs().max()))


def test_a_part_of_the_parameters_can_be_asked_for(bert_case) -> None:
    truth = slow.gradients(bert_case.model, bert_case.losses())
    tape = Tape(bert_case.model)
    with tape:
        losses = bert_case.losses()
    record = tape.backward(losses)
    names = ["classifier.weight", "bert.embeddings.word_embeddings.weight"]
    want = torch.tensor([slow.norm({n: g[n] for n in names}) for g in truth])
    assert torch.allclose(record.norms(names), want, rtol=CLOSE)
    vectors = {names[0]: torch.ones(3, 32)}
    assert torch.allclose(record.inner(vectors), torch.stack([g[names[0]].sum() for g in truth]), rtol=1e-4, atol=1e-5)
    squares = torch.stack(list(record.layer_norms().values())).square().sum(0)
    assert torch.allclose(squares.sqrt(), record.norms(), rtol=CLOSE)
    assert record.inner({}).tolist() == [0.0] * 6
    with pytest.raises(SettingError, match="a trainable parameter"):
        record.norms(["classifer.weight"])
    with pytest.raises(SettingError, match="shape"):
        record.inner({names[0]: torch.ones(3)})
    with pytest.raises(SettingError, match="unit to be .*, got 6"):
        record.inner(vectors, unit=6)


@pytest.mark.parametrize("width", [1, 3, 255, 256, 257, 5003])
def test_the_norm_of_a_row_does_not_depend_on_its_place(width: int) -> None:
    generator = torch.Generator().manual_seed(width)
    values, order = torch.randn(37, width, generator=generator), torch.randperm(37, generator=generator)
    first, moved = vector_sizes(values), vector_sizes(values[order])
    assert torch.equal(first.squares[order], moved.squares)
    torch.testing.assert_close(first.squares, values.double().square().sum(1), rtol=1e-5, atol=0)


def test_a_freed_record_is_rejected(bert_case) -> None:
    tape = Tape(bert_case.model)
    with tape:
        losses = bert_case.losses()
    record = tape.backward(losses)
    record.weighted_sum(torch.ones(6))
    for ask in (record.norms, record.gram, lambda: record.weighted_sum(torch.ones(6))):
        with pytest.raises(UnsupportedError, match="not freed"):
            ask()


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // max(tensor.element_size(), 1))
        return out


def test_tied_embeddings_never_form_the_gradients_of_all_rows() -> None:
    torch.manual_seed(0)
    rows, length, vocabulary, width = 8, 6, 3000, 16
    table, head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
    head.weight = table.weight
    model = nn.Sequential(table, nn.Linear(width, width), nn.Tanh(), head)
    ids = torch.randint(0, vocabulary, (rows, length))
    tape = Tape(model)
    with Largest() as largest:
        with tape:
            losses = nn.functional.cross_entropy(model(ids).mT, ids.roll(1, 1), reduction="none").sum(1)
        clipped_sum(tape.backward(losses), Flat(0.1))
    assert largest.numbers <= rows * length * vocabulary < rows * vocabulary * width


@pytest.mark.parametrize("units", UNITS, ids=["rows", "units"])
@pytest.mark.parametrize("layers", ["lookups", "linears", "transposed", "all"])
def test_tied_weights_are_one_gradient(assert_exact, layers: str, units: Tensor | None) -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    vocabulary, width = 9, 5
    first, second = nn.Embedding(vocabulary, width, padding_idx=0), nn.Embedding(vocabulary, width, padding_idx=3)
    linear, again, turned = nn.Linear(width, vocabulary), nn.Linear(width, vocabulary), Conv1D(width, vocabulary)
    with torch.no_grad():
        first.weight[0] = 1.0
    second.weight = linear.weight = again.weight = turned.weight = first.weight
    pieces = {
        "lookups": [first, second],
        "linears": [first, linear, again],
        "transposed": [first, linear, turned],
        "all": [first, second, linear, again, turned],
    }[layers]
    model = nn.ModuleList(pieces)
    ids = torch.randint(0, vocabulary, (6, 4))

    def losses() -> Tensor:
        x = first(ids) + (second(ids.flip(1)) if second in pieces else 0)
        out = linear(x) if linear in pieces else x
        if again in pieces:
            out = out + again(x.tanh())
        if turned in pieces:
            out = out + turned(out.tanh()) @ torch.ones(width, vocabulary)
        return out.square().sum((1, 2))

    assert_exact(model, losses, units)


def test_cancelling_uses_of_a_tied_weight_stay_within_the_bound() -> None:
    # The two uses nearly cancel: their sum is formed in float64 to know its norm, and the clip leaves a margin.
    torch.manual_seed(0)
    table, head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
    head.weight = table.weight
    model, ids = nn.ModuleList((table, head)), torch.tensor([[4], [11]])
    for residue in (1e-3, 1e-5, 1e-7):

        def losses(residue: float = residue) -> Tensor:
            x = table(ids)
            fixed = x.detach()
            linear = head(fixed).gather(2, ids[..., None]).sum((1, 2))  # its gradient is x at row id
            return linear - (x * fixed).sum((1, 2)) * (1 + residue)

        tape = Tape(model)
        with tape:
            values = losses()
        record = tape.backward(values)
        expected = torch.tensor([slow.norm(g) for g in slow.gradients(model, losses())])
        assert torch.allclose(record.norms(), expected, rtol=1e-3)
        total = clipped_sum(record, Flat(1e-6)).gradients["0.weight"]
        assert all(float(total[row].norm()) <= 1e-6 for row in (4, 11))
