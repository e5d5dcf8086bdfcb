"""Every layer and every model against the slow loop."""

import copy
import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.clipping import slow
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.clipping import Flat, Record, Tape, clipped_sum
from discreet.core.errors import UnsupportedError

CLOSE = 1e-5
ROOM = 1e-3  # what a clip leaves for rounding in float32
UNITS = [None, torch.tensor([0, 1, 0, 2, 2, 2])]


def distance(got: dict[str, Tensor], want: dict[str, Tensor]) -> float:
    assert list(got) == list(want) or set(got) == set(want)
    off = sum(float((got[n].double() - want[n].double()).square().sum()) for n in want)
    size = sum(float(want[n].double().square().sum()) for n in want)
    return (off / size) ** 0.5


def record_of(tape: Tape, losses, units: Tensor | None = None) -> Record:
    with tape:
        values = losses()
    return tape.backward(values, units)


@pytest.mark.parametrize("units", UNITS, ids=["rows", "units"])
def test_a_model_agrees_with_the_slow_loop(case, units: Tensor | None) -> None:
    truth = slow.gradients(case.model, case.losses(), units)
    norms = torch.tensor([slow.norm(g) for g in truth])
    record = record_of(Tape(case.model), case.losses, units)
    assert torch.allclose(record.norms(), norms, rtol=CLOSE)
    for name, each in record.gradients().items():
        whole = max(float(norms.max()), 1e-12)
        assert max(float((e - g[name]).abs().max()) for e, g in zip(each, truth, strict=True)) <= CLOSE * whole, name
    bound = float(norms.median())
    got = clipped_sum(record, Flat(bound))
    weighted = {n: sum(f * g[n].double() for f, g in zip(got.factors, truth, strict=True)) for n in truth[0]}
    assert distance(got.gradients, weighted) <= CLOSE
    assert distance(got.gradients, slow.clipped_sum(case.model, case.losses(), bound, units)) <= ROOM
    assert (got.factors <= (bound / norms).clamp_max(1)).all()
    assert ((got.factors < 1) == (norms >= bound)).all()


def test_the_model_is_left_as_it_was(bert_case) -> None:
    model, before = bert_case.model, copy.deepcopy(bert_case.model.state_dict())
    tape = Tape(model)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    record_of(tape, bert_case.losses)
    assert all((p.grad == 7).all() and p.requires_grad for p in model.parameters())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert not any("forward" in vars(m) for m in model.modules())
    with pytest.raises(ZeroDivisionError), tape:
        1 / 0  # noqa: B018
    assert not any("forward" in vars(m) for m in model.modules())


def test_the_forward_pass_is_the_same_inside_the_tape(case) -> None:
    plain = case.losses()
    with Tape(case.model):
        assert torch.allclose(case.losses(), plain, rtol=1e-5, atol=1e-6)


def test_dropout_is_the_same_for_the_tape_and_the_loop(bert_case) -> None:
    bert_case.model.train()
    torch.manual_seed(5)
    record = record_of(Tape(bert_case.model), bert_case.losses)
    torch.manual_seed(5)
    norms = torch.tensor([slow.norm(g) for g in slow.gradients(bert_case.model, bert_case.losses())])
    assert torch.allclose(record.norms(), norms, rtol=CLOSE)


@pytest.mark.parametrize("only", ["bias", "LayerNorm", "weight", "position_embeddings", "classifier"])
def test_some_parameters_frozen(bert_case, only: str) -> None:
    for name, parameter in bert_case.model.named_parameters():
        parameter.requires_grad_(only in name)
    record = record_of(Tape(bert_case.model), bert_case.losses)
    truth = slow.gradients(bert_case.model, bert_case.losses())
    assert set(record.names) == set(truth[0])
    assert torch.allclose(record.norms(), torch.tensor([slow.norm(g) for g in truth]), rtol=CLOSE, atol=1e-7)


@pytest.mark.parametrize("length", [5, 24])
def test_long_sequences_keep_gradients_and_agree(length: int) -> None:
    # 24 steps of width 8 are long enough that the gradients are smaller than their factors.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    x = torch.randn(6, length, 8)
    for units in UNITS:
        record = record_of(Tape(model), lambda: model(x).square().sum((1, 2)), units)
        kinds = {type(slot).__name__ for slot in record.slots if len(slot.shape) == 2}
        assert units is not None or kinds == ({"Vectors"} if length == 24 else {"Pair"})
        truth = slow.gradients(model, model(x).square().sum((1, 2)), units)
        norms = torch.tensor([slow.norm(g) for g in truth])
        assert torch.allclose(record.norms(), norms, rtol=CLOSE)
        total = {n: sum(g[n] for g in truth) for n in record.names}
        assert distance(record.weighted_sum(torch.ones(len(norms))), total) <= CLOSE


class Twice(nn.Module):
    """A layer, a norm and a table that are each used twice, with different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm, self.layer = nn.Embedding(9, 6), nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        a = self.layer(self.norm(self.table(one))).mean(1)
        b = self.layer(self.norm(self.table(two))).mean(1)
        return self.layer(a - b).square().sum(1)


@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 7), st.integers(0, 10**6))
@settings(max_examples=20, deadline=None)
def test_layers_used_twice_agree_for_any_shape(rows: int, first: int, second: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = Twice().double()
    one, two = torch.randint(0, 9, (rows, first)), torch.randint(0, 9, (rows, second))
    units = torch.randint(0, max(1, rows // 2), (rows,))
    units = torch.unique(units, return_inverse=True)[1]
    for index in (None, units):
        record = record_of(Tape(model), lambda: model(one, two), index)
        truth = slow.gradients(model, model(one, two), index)
        assert torch.allclose(
            record.norms(), torch.tensor([slow.norm(g) for g in truth], dtype=torch.float64), rtol=1e-9
        )
        weights = torch.rand(len(truth), dtype=torch.float64)
        total = {n: sum(w * g[n] for w, g in zip(weights, truth, strict=True)) for n in record.names}
        assert distance(record.weighted_sum(weights), total) <= 1e-9


def test_norms_of_every_kind_with_odd_weights() -> None:
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm  # it scales by one plus its weight

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.LayerNorm(6, bias=False), GemmaRMSNorm(6), nn.RMSNorm(6), nn.Linear(6, 2))
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    for shape in ((4, 5), (4, 3, 5), (4, 2, 3, 5)):
        x = torch.randn(shape)
        record = record_of(Tape(model), lambda x=x: model(x).flatten(1).square().sum(1))
        truth = slow.gradients(model, model(x).flatten(1).square().sum(1))
        assert torch.allclose(record.norms(), torch.tensor([slow.norm(g) for g in truth]), rtol=CLOSE)


def test_positions_broadcast_over_the_batch_need_the_batch_size() -> None:
    torch.manual_seed(0)

    class Places(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place, self.head = nn.Embedding(7, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head((x + self.place(torch.arange(x.shape[1])[None])).tanh()).sum((1, 2))

    model, x = Places(), torch.randn(3, 5, 4)
    norms = torch.tensor([slow.norm(g) for g in slow.gradients(model, model(x))])
    assert torch.allclose(record_of(Tape(model), lambda: model(x)).norms(), norms, rtol=CLOSE)
    tape = Tape(model)
    with pytest.raises(UnsupportedError, match=r"'place' to return 3 rows.*expect\(batch_size\)"):
        record_of(tape, lambda: Places.forward(model, x))
    with tape.expect(3):
        losses = Places.forward(model, x)
    assert torch.allclose(tape.backward(losses).norms(), norms, rtol=CLOSE)


class Positions(nn.Module):
    """Tokens and positions; the positions are looked up in one of several shapes."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.token, self.place, self.head = way, nn.Embedding(20, 4), nn.Embedding(16, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        steps = torch.arange(ids.shape[1])
        if self.way == "table":  # as the relative positions of T5: (length, length), for all rows alike
            place = self.place((steps[:, None] - steps[None]).abs()).mean(0)
        else:
            place = self.place({"flat": steps, "once": steps[None], "each": steps.expand(ids.shape)}[self.way])
        return self.head((self.token(ids) + place).tanh().mean(1))


@pytest.mark.parametrize("rows", [5, 6, 7])
def test_positions_are_never_taken_for_rows(rows: int) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 20, (rows, 6))
    for way in ("once", "each"):
        model = Positions(way)
        norms = torch.tensor([slow.norm(g) for g in slow.gradients(model, model(ids).square().sum(1))])
        got = record_of(Tape(model), lambda model=model: model(ids).square().sum(1)).norms()
        assert torch.allclose(got, norms, rtol=CLOSE)
    model = Positions("flat")
    with pytest.raises(UnsupportedError, match=r"ids of layer 'place'.*got shape \(6,\)"):
        record_of(Tape(model), lambda: model(ids).square().sum(1))


@pytest.mark.parametrize("layer", [nn.Linear(6, 6), nn.LayerNorm(6), nn.RMSNorm(6)], ids=lambda m: type(m).__name__)
def test_an_input_without_a_batch_is_rejected(layer: nn.Module) -> None:
    model = nn.Sequential(layer)
    with pytest.raises(UnsupportedError, match=r"input of layer '0'.*got shape \(6,\)"):
        record_of(Tape(model), lambda: model(torch.randn(6)))


def test_parts_of_a_model_may_be_called_one_by_one(bert_case) -> None:
    model, ids = bert_case.model, torch.randint(2, 50, (4, 7))

    def losses() -> Tensor:
        return model.classifier(model.bert(ids).pooler_output).square().sum(1)

    norms = torch.tensor([slow.norm(g) for g in slow.gradients(model, losses())])
    assert torch.allclose(record_of(Tape(model), losses).norms(), norms, rtol=CLOSE)


def test_an_empty_batch_gives_zero_sums(case_of) -> None:
    case = case_of("recurrent")
    tape = Tape(case.model)
    for record in (tape.empty(), record_of(tape, lambda: case.losses(slice(0, 0)))):
        assert record.norms().shape == (0,)
        got = clipped_sum(record, Flat(1.0))
        shapes = {n: p.shape for n, p in case.model.named_parameters()}
        assert {n: g.shape for n, g in got.gradients.items()} == shapes
        assert all((g == 0).all() for g in got.gradients.values())


def test_the_record_does_not_keep_the_batch_alive(bert_case) -> None:
    tape = Tape(bert_case.model)
    gc.disable()
    try:
        with tape:
            losses = bert_case.losses()
        record = tape.backward(losses)
        kept = [weakref.ref(slot.grads) for slot in record.slots if hasattr(slot, "grads")]
        assert kept
        clipped_sum(record, Flat(1.0))
        assert not any(ref() is not None for ref in kept)
    finally:
        gc.enable()


def test_norms_can_be_differentiated() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)
    target = {n: torch.randn_like(p) for n, p in model.named_parameters()}
    tape = Tape(model, create_graph=True)

    def fast() -> Tensor:
        with tape:
            losses = model(x).square().sum((1, 2))
        record = tape.backward(losses)
        return (record.norms().square() - 2 * record.inner(target)).sum()

    def plain() -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for row in range(2):
            loss = model(x[row : row + 1]).square().sum()
            grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
            for grad, (name, _) in zip(grads, model.named_parameters(), strict=True):
                total = total + grad.square().sum() - 2 * (grad * target[name]).sum()
        return total

    assert torch.allclose(fast(), plain())
    assert torch.allclose(torch.autograd.grad(fast(), x)[0], torch.autograd.grad(plain(), x)[0])


@pytest.mark.parametrize("units", UNITS, ids=["rows", "units"])
def test_autocast_agrees_with_its_own_slow_loop(bert_case, units: Tensor | None) -> None:
    def losses() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return bert_case.losses().float()

    record = record_of(Tape(bert_case.model), losses, units)
    norms = torch.tensor([slow.norm(g) for g in slow.gradients(bert_case.model, losses(), units)])
    assert record.norms().dtype == torch.float32
    assert torch.allclose(record.norms(), norms, rtol=0.02)


def test_rejected_losses(bert_case) -> None:
    tape = Tape(bert_case.model)
    for spoil, message in [
        (lambda v: v.mean(), "got a scalar"),
        (lambda v: v[:, None].expand(-1, 2), r"one loss for each of 6 rows, got losses of shape \(6, 2\)"),
        (lambda v: v[:4], r"one loss for each of 6 rows, got losses of shape \(4,\)"),
        (lambda v: v.detach(), "losses without a graph"),
    ]:
        with tape:
            values = bert_case.losses()
        with pytest.raises(UnsupportedError, match=message):
            tape.backward(spoil(values))
    with pytest.raises(UnsupportedError, match="before backward, got none"):
        tape.backward(bert_case.losses())


def test_the_scalar_loss_of_transformers_is_rejected(bert_case) -> None:
    tape = Tape(bert_case.model)
    with tape:
        loss = bert_case.model(
            input_ids=torch.ones(4, 5, dtype=torch.long), labels=torch.zeros(4, dtype=torch.long)
        ).loss
    with pytest.raises(UnsupportedError, match="reduction='none'"):
        tape.backward(loss)


def test_rejected_forward_passes() -> None:
    class Odd(nn.Module):
        def __init__(self, way: str) -> None:
            super().__init__()
            self.way, self.first, self.second = way, nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            if self.way == "unreached":
                return self.first(x).sum(1)
            if self.way == "outside":
                return F.linear(self.second(self.first(x)), self.first.weight).sum(1)
            if self.way == "in place":
                y = self.first(x)
                z = self.second(y)
                y.mul_(2)
                return (z + y).square().sum(1)
            return self.second(self.first(x).repeat(2, 1)).view(2, -1, 3).sum((0, 2))  # rows laid end to end

    for way, message in [
        ("unreached", "losses to depend on parameter 'second.weight'"),
        ("outside", "parameter 'first.weight' to be used by its layers alone"),
        ("in place", "input of layer 'second' to be unchanged"),
        ("repeated", "layer 'second' to return 4 rows, one for each loss, got 8"),
    ]:
        tape = Tape(model := Odd(way))
        with tape:
            losses = model(torch.randn(4, 3))
        with pytest.raises(UnsupportedError, match=message):
            tape.backward(losses)


def test_the_tape_is_used_in_order(bert_case) -> None:
    tape = Tape(bert_case.model)
    with tape:
        losses = bert_case.losses()
        with pytest.raises(UnsupportedError, match="Leave the block first"):
            tape.backward(losses)
        with pytest.raises(UnsupportedError, match="not recording"), tape:
            pass
    bert_case.model.classifier.weight.requires_grad_(False)
    with pytest.raises(UnsupportedError, match="'classifier.weight' to be trainable"), tape:
        pass


def test_a_small_change_of_units_is_seen(bert_case) -> None:
    tape = Tape(bert_case.model)
    joint = record_of(tape, bert_case.losses, torch.zeros(6, dtype=torch.long)).norms()
    truth = slow.gradients(bert_case.model, bert_case.losses(), torch.zeros(6, dtype=torch.long))
    assert joint.shape == (1,)
    assert torch.allclose(joint, torch.tensor([slow.norm(truth[0])]), rtol=CLOSE)


def test_weights_are_cast_once_for_all_layers_under_autocast(bert_case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, losses = bert_case.model, bert_case.losses
    copies = []
    copy_all = torch._foreach_copy_
    monkeypatch.setattr(torch, "_foreach_copy_", lambda to, source: copies.append(len(to)) or copy_all(to, source))
    with torch.autocast("cpu", torch.bfloat16):
        expected = losses()
    tape = Tape(model)
    for _ in range(2):  # the buffers are reused
        with tape, torch.autocast("cpu", torch.bfloat16):
            recorded = losses()
        torch.testing.assert_close(recorded, expected, rtol=0, atol=0)
        tape.backward(recorded)
    assert len(copies) == 2
    assert copies[0] > 10
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    with torch.autocast("cpu", torch.bfloat16):
        expected = losses()
    with tape, torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(losses(), expected, rtol=0, atol=0)  # not the weights of the last step
