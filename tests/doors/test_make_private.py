"""What a careless user may do in a loop of their own, in each of the four forms of `make_private`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.doors.table import CERTIFIED, ESTIMATE, REJECTED, door
from torch import Tensor, nn
from torch.utils.data import default_collate

from discreet import DPSGD, Ledger, make_private
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.core.errors import DataError, LedgerError, UnsupportedError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.integrations.torch import PrivateTraining

UNITS, STEPS = 24, 3
NOISE = DPSGD(noise_multiplier=2.0, clip_norm=0.5)
DRAWN = ("step", "capture", "gradients")  # forms in which discreet draws the batches
FORMS = (*DRAWN, "record")


class Net(nn.Module):
    """A model of somebody else."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.hidden, self.head = nn.Linear(4, 6), nn.Linear(6, 2)
        self.register_buffer("scale", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(x) * self.scale))

    def losses(self, batch: Any) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1], reduction="none")


def rows(count: int = UNITS, seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, generator=generator), torch.tensor(row % 2)) for row in range(count)]


def make(net: nn.Module, folder: Path, **changes: Any) -> PrivateTraining:
    settings: dict[str, Any] = {"units": UNITS, "batch_size": 12, "steps": STEPS, "unit": "person"}
    return make_private(net, NOISE, **settings | {"ledger": folder / "ledger.jsonl"} | changes)


def steps(
    form: str,
    private: PrivateTraining,
    optimizer: torch.optim.Optimizer,
    losses_of: Callable[[Any], Tensor],
    data: list[Any],
) -> Iterator[None]:
    """Take the steps of a training in one of its forms, and yield after each."""
    if form == "gradients":
        drawn = private.rows(data, max_rows=8)
        while private.position < private.steps and private.gradients(drawn, losses_of):
            optimizer.step()
            optimizer.zero_grad()
            yield
    elif form == "record":
        while private.position < private.steps:
            for some in (data[:8], data[8:16]):
                private.accumulate(losses_of, batch=default_collate(some))
            private.release(optimizer)
            yield
    else:
        take = private.capture(losses_of) if form == "capture" else None
        for part in private.batches(data, max_rows=8):
            if take(part, optimizer) if take is not None else private.step(losses_of, optimizer):
                yield


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def trained(form: str, folder: Path, after: Callable[[Net, int], Any] | None = None, **changes: Any) -> PrivateTraining:
    """Train a checked model; `after` is what the user does after each step, and ends the loop if it returns True."""
    net = changes.pop("net", None) or Net()
    state, data = changes.pop("state", None), changes.pop("data", None) or rows()
    optimizer = sgd(net)
    with make(net, folder, **changes) as private:
        private.check(net.losses, rows(4, seed=5))
        if state is not None:
            private.load_state_dict(state)
        for number, _ in enumerate(steps(form, private, optimizer, net.losses, data)):
            if after is not None and after(net, number):
                break
    return private


def is_true(form: str, found: Guarantee, private: PrivateTraining, taken: int = STEPS) -> bool:
    """Whether a guarantee states the cost of so many steps, certified where discreet drew the batches."""
    plan = private.plan
    assert plan.adjacency is not None
    cost = epsilon_of(plan.training_cost(taken), private.delta, plan.adjacency)
    caveats = frozenset() if form in DRAWN else {Caveat.OWN_BATCHES}
    return abs(found.epsilon - cost) < 1e-9 and found.caveats == caveats and found.unit == "person"


@door("step", "unit", REJECTED)
@door("capture", "unit", REJECTED)
@door("gradients", "unit", REJECTED)
@pytest.mark.parametrize("form", DRAWN)
def test_rows_are_not_taken_for_people(form: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Expected 24 persons.*got 48"):
        trained(form, tmp_path, data=rows(2 * UNITS))
    assert Ledger.read(tmp_path / "ledger.jsonl").spends == 0


@door("record", "unit", ESTIMATE)
def test_whose_rows_a_batch_of_the_callers_holds_is_not_known(tmp_path: Path) -> None:
    assert Caveat.OWN_BATCHES in trained("record", tmp_path, data=rows(2 * UNITS)).guarantee.caveats


@door("step", "again", CERTIFIED)
@door("capture", "again", CERTIFIED)
@door("gradients", "again", CERTIFIED)
@door("record", "again", ESTIMATE)
@pytest.mark.parametrize("form", FORMS)
def test_a_second_training_in_the_same_ledger_states_both(form: str, tmp_path: Path) -> None:
    first = trained(form, tmp_path)
    second = trained(form, tmp_path, net=Net(seed=1))
    assert is_true(form, first.guarantee, first)
    assert is_true(form, second.guarantee, second, taken=2 * STEPS)
    assert Ledger.read(tmp_path / "ledger.jsonl").spends == 2 * STEPS


@door("step", "stop", CERTIFIED)
@door("capture", "stop", CERTIFIED)
@door("gradients", "stop", CERTIFIED)
@door("record", "stop", ESTIMATE)
@pytest.mark.parametrize("form", FORMS)
def test_a_training_that_is_left_early_costs_as_much_as_its_plan(form: str, tmp_path: Path) -> None:
    shown: list[Guarantee] = []
    net = Net()
    optimizer = sgd(net)
    with make(net, tmp_path) as private:
        private.check(net.losses, rows(4, seed=5))
        for _ in steps(form, private, optimizer, net.losses, rows()):
            shown.append(private.guarantee)
            if float(net.head.weight.detach().norm()) > 0:  # whatever the model shows
                break
    assert private.position == 1 and is_true(form, shown[0], private) and is_true(form, private.guarantee, private)
    ledger = Ledger.read(tmp_path / "ledger.jsonl")
    assert ledger.spends == STEPS and ledger.guarantee(private.delta).epsilon == private.guarantee.epsilon


@door("step", "error", REJECTED)
@door("capture", "error", REJECTED)
@door("gradients", "error", REJECTED)
@door("record", "error", REJECTED)
@pytest.mark.parametrize("form", FORMS)
def test_a_step_with_an_error_is_never_released(form: str, tmp_path: Path) -> None:
    class Bad(Net):
        bad: int | None = None

        def losses(self, batch: Any) -> Tensor:
            if self.bad is not None:
                self.bad += 1
                if self.bad == 2:
                    raise ValueError("a row that cannot be read")
            return super().losses(batch)

    net = Bad()
    before, optimizer = copy.deepcopy(net.state_dict()), sgd(net)
    with make(net, tmp_path, batch_size=UNITS) as private:
        private.check(net.losses, rows(4, seed=5))
        net.bad = 0
        if form in ("step", "capture"):
            take = private.capture(net.losses) if form == "capture" else lambda _, o: private.step(net.losses, o)
            with pytest.raises(UnsupportedError, match=r"got ValueError in one of them.*private\.batches"):
                for part in private.batches(rows(), max_rows=8):
                    try:
                        take(part, optimizer)
                    except ValueError:
                        continue  # skip the bad batch
            with pytest.raises(UnsupportedError, match="ValueError"):
                take(None, optimizer)
        else:
            with pytest.raises(ValueError, match="cannot be read"):
                next(steps(form, private, optimizer, net.losses, rows()))
            drawn: Any = None
            with pytest.raises(UnsupportedError, match="got ValueError in one of them"):
                private.release(optimizer) if form == "record" else private.gradients(drawn, net.losses)
        assert private.position == 0 and all(torch.equal(before[name], one) for name, one in net.state_dict().items())
        if form != "record":  # rows that are drawn again make the whole step
            next(steps(form, private, optimizer, net.losses, rows()))
            assert private.position == 1 and private.ledger.statement.spends == private.steps
        assert not private.guarantee.caveats - {Caveat.OWN_BATCHES}


def in_place(net: Net) -> None:
    with torch.no_grad():
        net.head.bias.copy_(rows()[0][0][:2])


def through_data(net: Net) -> None:
    net.head.weight.data[0, 0] = rows()[0][0][0]


def assigned_data(net: Net) -> None:
    net.hidden.bias.data = net.hidden.bias.data + 1.0


def buffer_data(net: Net) -> None:
    net.scale.data.mul_(1.5)


def attribute(net: Net) -> None:
    net.mean = rows()[0][0]  # type: ignore[assignment]


def ordinary_step(net: Net) -> None:
    net.losses(default_collate(rows()[:4])).mean().backward()  # type: ignore[no-untyped-call]
    torch.optim.AdamW(net.parameters(), fused=True).step()  # changes no version
    net.zero_grad()


@door("step", "state", ESTIMATE)
@door("capture", "state", ESTIMATE)
@door("gradients", "state", ESTIMATE)
@door("record", "state", ESTIMATE)
@pytest.mark.parametrize(
    ("write", "last"),
    [
        (in_place, True),
        (through_data, False),
        (through_data, True),
        (assigned_data, False),
        (buffer_data, True),
        (attribute, False),
        (ordinary_step, False),
        (ordinary_step, True),
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_without_noise_is_found(
    form: str, write: Callable[[Net], None], last: bool, tmp_path: Path
) -> None:
    def after(net: Net, number: int) -> None:
        if number == (STEPS - 1 if last else 0):
            write(net)

    private = trained(form, tmp_path, after)
    assert Caveat.UNPROTECTED_STATE in private.guarantee.caveats
    assert Caveat.UNPROTECTED_STATE in Ledger.read(tmp_path / "ledger.jsonl").terms.caveats


@door("step", "log", CERTIFIED)
@door("capture", "log", CERTIFIED)
@door("gradients", "log", CERTIFIED)
@door("record", "log", ESTIMATE)
@pytest.mark.parametrize("form", FORMS)
def test_nothing_that_is_written_depends_on_the_rows(form: str, tmp_path: Path) -> None:
    shown = []
    for name, seed in (("one", 1), ("other", 2)):
        (tmp_path / name).mkdir()
        private = trained(form, tmp_path / name, data=rows(seed=seed), secret=tmp_path / f"{name}.secret")
        state = private.state_dict()
        lines = (tmp_path / name / "ledger.jsonl").read_text().splitlines()
        shown.append((state.keys(), state["position"], state["max_rows"], [len(line) for line in lines]))
        assert is_true(form, private.guarantee, private)
        assert any("losses" in text and "are not released" in text for text in private.guarantee.assumptions)
    assert shown[0] == shown[1]


@door("step", "resume", CERTIFIED)
@door("capture", "resume", CERTIFIED)
@door("gradients", "resume", CERTIFIED)
@door("record", "resume", ESTIMATE)
@pytest.mark.parametrize("form", FORMS)
def test_steps_that_are_taken_again_from_other_weights_are_counted_again(form: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    net = Net()
    with make(net, tmp_path, secret=secret) as private:
        state = private.state_dict()
        private.check(net.losses, rows(4, seed=5))
        next(steps(form, private, sgd(net), net.losses, rows()))
    first = private._source
    same = trained(form, tmp_path, lambda *_: True, state=state, secret=secret)
    assert is_true(form, same.guarantee, same) and same._source.seed() == first.seed()
    other = trained(form, tmp_path, net=Net(seed=1), state=state, secret=secret)
    assert is_true(form, other.guarantee, other, taken=2 * STEPS) and other._source.seed() != first.seed()
    assert any("resumed" in text for text in same.guarantee.assumptions)


@door("step", "edit", REJECTED)
@door("capture", "edit", REJECTED)
@door("gradients", "edit", REJECTED)
@door("record", "edit", REJECTED)
@pytest.mark.parametrize("edit", ["cut", "noise"])
@pytest.mark.parametrize("form", FORMS)
def test_an_edited_ledger_is_rejected(form: str, edit: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    state = trained(form, tmp_path).state_dict()
    lines = path.read_text().splitlines(keepends=True)
    text = "".join(lines[:-2]) if edit == "cut" else "".join(lines).replace("2.0", "9.0", 1)
    assert text != "".join(lines)
    path.write_text(text)
    with pytest.raises(LedgerError):
        trained(form, tmp_path, state=state)


@door("step", "evaluate", ESTIMATE)
@door("capture", "evaluate", ESTIMATE)
@door("gradients", "evaluate", ESTIMATE)
@door("record", "evaluate", ESTIMATE)
@pytest.mark.parametrize("form", FORMS)
def test_weights_that_were_chosen_by_the_training_rows_are_an_estimate(form: str, tmp_path: Path) -> None:
    scores: list[tuple[float, dict[str, Tensor]]] = []

    def after(net: Net, number: int) -> None:
        with torch.no_grad():
            scores.append((float(net.losses(default_collate(rows())).mean()), copy.deepcopy(net.state_dict())))
        if number == STEPS - 1:
            net.load_state_dict(min(scores[:-1], key=lambda one: one[0])[1])

    assert Caveat.UNPROTECTED_STATE in trained(form, tmp_path, after).guarantee.caveats
    scores.clear()
    (tmp_path / "other").mkdir()
    looked = trained(form, tmp_path / "other", lambda net, _: net.losses(default_collate(rows())).sum().item() < 0)
    assert is_true(form, looked.guarantee, looked)  # looking alone writes nothing
