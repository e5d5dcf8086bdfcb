"""What a careless user may do in a loop of their own, in each of the four forms of `make_private`."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.doors.table import CERTIFIED, ESTIMATE, REJECTED, door
from torch import Tensor, nn
from torch.utils.data import default_collate

from discreet import DPSGD, Ledger, Rng, make_private
from discreet.accounting.interpret import epsilon as epsilon_of
from discreet.core.errors import DataError, LedgerError, UnsupportedError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.integrations.torch import PrivateTraining
from discreet.runs.people import People

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
    settings: dict[str, Any] = {"num_units": UNITS, "batch_size": 12, "steps": STEPS, "unit": "person"}
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


def forked(function: Callable[[], object]) -> type[BaseException] | None:
    """Call a function in a fork of this process; return what it raised: a LedgerError, something else, or nothing.

    The fork computes with one thread: OpenMP's other threads do not exist in it, and it would wait for them forever.
    """
    kinds: tuple[type[BaseException] | None, ...] = (None, LedgerError, BaseException)
    child = os.fork()
    if child == 0:
        code = 0
        try:
            torch.set_num_threads(1)
            function()
        except LedgerError:
            code = 1
        except BaseException:
            code = 2
        finally:
            os._exit(code)
    return kinds[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])]


@door("step", "again", REJECTED)
@door("capture", "again", REJECTED)
@door("gradients", "again", REJECTED)
@door("record", "again", REJECTED)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_fork_of_the_process_takes_no_step_with_the_same_noise(form: str, in_memory: bool, tmp_path: Path) -> None:
    net = Net()
    optimizer = sgd(net)
    with make(net, tmp_path, **{"ledger": None} if in_memory else {}) as private:
        private.check(net.losses, rows(4, seed=5))
        loop = steps(form, private, optimizer, net.losses, rows())
        next(loop)
        before = copy.deepcopy(net.state_dict())
        assert forked(lambda: next(loop)) is LedgerError
        assert all(torch.equal(before[name], one) for name, one in net.state_dict().items())
        assert len(list(loop)) == STEPS - 1
    assert is_true(form, private.guarantee, private)


@door("step", "again", REJECTED)
@door("record", "again", REJECTED)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked here")
@pytest.mark.parametrize("form", ["step", "record"])
def test_a_fork_in_the_middle_of_a_step_does_not_release_it(form: str, tmp_path: Path) -> None:
    net = Net()
    optimizer = sgd(net)
    with make(net, tmp_path, batch_size=UNITS) as private:
        private.check(net.losses, rows(4, seed=5))
        if form == "record":
            private.accumulate(net.losses, batch=default_collate(rows()[:8]))
            assert forked(lambda: private.release(optimizer)) is LedgerError
            private.release(optimizer)
        for _ in private.batches(rows(), max_rows=UNITS):
            if form == "step":
                assert forked(lambda: private.step(net.losses, optimizer)) is LedgerError
            private.step(net.losses, optimizer)


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
    records = [one.assumptions for one in People().records()]
    for texts in (same.guarantee.assumptions, Ledger.read(tmp_path / "ledger.jsonl").terms.assumptions, *records):
        assert sum("resumed" in text for text in texts) == 1
    other = trained(form, tmp_path, net=Net(seed=1), state=state, secret=secret)
    assert is_true(form, other.guarantee, other, taken=2 * STEPS) and other._source.seed() != first.seed()
    assert len(records) == 1


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


# What the loop does to a part, and to a gradient, is not what was checked.


def centred(part: Any) -> None:
    part[0].sub_(part[0].mean(0))


def centred_data(part: Any) -> None:
    part[0].data.sub_(part[0].mean(0))


def swapped_rows(part: Any) -> None:
    part[0].copy_(part[0].flip(0))


def other_labels(part: Any) -> None:
    part[1].fill_(int(part[1].sum()) % 2)


def other_storage(part: Any) -> None:
    part[0].data = part[0] - part[0].mean(0)


def loop_over_parts(
    form: str, folder: Path, change: Callable[[Any], Any], collate: Any = None, **settings: Any
) -> PrivateTraining:
    net = Net()
    optimizer = sgd(net)
    with make(net, folder, **settings) as private:
        private.check(net.losses, rows(4, seed=5), collate)
        take = private.capture(net.losses) if form == "capture" else lambda _, o: private.step(net.losses, o)
        for part in private.batches(rows(), collate, max_rows=8):
            change(part)
            take(part, optimizer)
    return private


@pytest.mark.parametrize("change", [centred, centred_data, swapped_rows, other_labels, other_storage])
@pytest.mark.parametrize("form", ["step", "capture"])
def test_a_part_that_the_loop_wrote_into_is_not_checked(
    form: str, change: Callable[[Any], None], tmp_path: Path
) -> None:
    assert loop_over_parts(form, tmp_path, change).guarantee.caveats == {Caveat.UNCHECKED_LOSSES}
    assert Ledger.read(tmp_path / "ledger.jsonl").terms.caveats == {Caveat.UNCHECKED_LOSSES}


def by_name(chosen: list[Any]) -> dict[Any, Tensor]:
    first, second = default_collate(chosen)
    return {0: first, 1: second}


class Pair:
    """A part of a type that nobody knows."""

    def __init__(self, chosen: list[Any]) -> None:
        self.first, self.second = default_collate(chosen)

    def __getitem__(self, number: int) -> Tensor:
        return self.second if number else self.first


@pytest.mark.parametrize("collate", [default_collate, by_name])
@pytest.mark.parametrize("form", ["step", "capture"])
def test_other_tensors_in_a_part_are_not_used(form: str, collate: Any, tmp_path: Path) -> None:
    def replace(part: Any) -> None:
        part[0] = part[0] - part[0].mean(0)

    weights = []
    for number, change in enumerate((lambda _: None, replace)):
        (tmp_path / str(number)).mkdir()
        given = {"secret": Rng(3)}
        if number:
            with pytest.warns(UserWarning, match="got other tensors in it"):
                private = loop_over_parts(form, tmp_path / "1", change, collate, **given)
        else:
            private = loop_over_parts(form, tmp_path / "0", change, collate, **given)
        weights.append(private.model.state_dict())
        assert private.guarantee.caveats == {Caveat.FIXED_SEED}
    assert all(torch.equal(weights[0][name], one) for name, one in weights[1].items())


def test_an_object_whose_tensors_were_replaced_is_not_checked(tmp_path: Path) -> None:
    def replace(part: Any) -> None:
        part.first = part.first - part.first.mean(0)

    with pytest.warns(UserWarning, match="got other tensors in it"):
        assert loop_over_parts("step", tmp_path, replace, Pair).guarantee.caveats == {Caveat.UNCHECKED_LOSSES}
    (tmp_path / "same").mkdir()
    assert loop_over_parts("step", tmp_path / "same", lambda _: None, Pair).guarantee.certified


@pytest.mark.parametrize("as_function", [False, True])
def test_a_scale_that_runs_over_parts_of_one_unit_is_not_checked(as_function: bool, tmp_path: Path) -> None:
    net = Net()
    optimizer, scale = sgd(net), torch.ones(())
    with make(net, tmp_path) as private:
        private.check(net.losses, rows(4, seed=5))
        for part in private.batches(rows(), max_rows=1):
            scale = torch.maximum(scale, part[0].abs().max())
            losses = net.losses((part[0] / scale, part[1]))
            private.step((lambda _, losses=losses: losses) if as_function else losses, optimizer)
    assert private.guarantee.caveats == {Caveat.UNCHECKED_LOSSES}


@pytest.mark.parametrize("form", FORMS)
def test_the_figure_stands_when_the_training_is_closed(form: str, tmp_path: Path) -> None:
    net = Net()
    private = trained(form, tmp_path, net=net)
    net.load_state_dict({name: one * 0.5 for name, one in net.state_dict().items()})  # such as an average of weights
    assert is_true(form, private.guarantee, private)
    net.double()
    assert is_true(form, private.guarantee, private) and not private.caveats - {Caveat.OWN_BATCHES}


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("how", ["in place", "assigned", "data", "through data", "hook"])
def test_a_gradient_that_somebody_adds_to_is_an_estimate(how: str, last: bool, tmp_path: Path) -> None:
    net = Net()
    optimizer = sgd(net)
    # Values are compared after 1, 2, 4, … steps and the last; what `.data` hides is found there, all else at any step.

    def add(*_: Any) -> None:
        for parameter in net.parameters():
            assert parameter.grad is not None
            if how == "assigned":
                parameter.grad = parameter.grad + rows()[0][0].mean()
            elif how == "data":
                parameter.grad.data = parameter.grad + rows()[0][0].mean()
            elif how == "through data":
                parameter.grad.data.add_(rows()[0][0].mean())
            else:
                parameter.grad.add_(rows()[0][0].mean())

    with make(net, tmp_path, steps=6) as private:
        private.check(net.losses, rows(4, seed=5))
        drawn = private.rows(rows(), max_rows=8)
        while private.position < private.steps and private.gradients(drawn, net.losses):
            handle = None
            if private.position == (private.steps if last else 1 if how == "through data" else 3):
                handle = optimizer.register_step_pre_hook(add) if how == "hook" else add()
            optimizer.step()
            if handle is not None:
                handle.remove()
            optimizer.zero_grad()
    assert private.guarantee.caveats == {Caveat.UNPROTECTED_STATE}


def add_to(net: Net, *_: Any) -> None:
    assert net.head.bias.grad is not None
    net.head.bias.grad.add_(rows()[0][0].mean())


def test_a_hook_of_the_optimizer_that_adds_to_a_gradient_is_an_estimate(tmp_path: Path) -> None:
    found = []
    for adds in (False, True):
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True)  # writes too
        if adds:
            optimizer.register_step_pre_hook(partial(add_to, net))
        (tmp_path / str(adds)).mkdir()
        with make(net, tmp_path / str(adds)) as private:
            private.check(net.losses, rows(4, seed=5))
            for _ in private.batches(rows(), max_rows=8):
                private.step(net.losses, optimizer)
        assert len(optimizer._optimizer_step_pre_hooks) == adds
        found.append(private.guarantee.caveats)
    assert found == [frozenset(), {Caveat.UNPROTECTED_STATE}]
