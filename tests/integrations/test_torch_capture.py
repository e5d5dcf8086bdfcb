"""A captured step is the eager step: on the CPU, and with a stand-in for CUDA graphs that computes again in place."""

from __future__ import annotations

import copy
from collections import UserDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from tests.training.graphs import Graphs
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import DPSGD, DirDPSGD, Rng, make_private
from discreet.core.device import constants_in, mapped, tensors_in
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Caveat
from discreet.data.batches import Batch
from discreet.integrations.torch import PrivateTraining
from discreet.training import independence
from discreet.training.capture import Captured, Lane
from discreet.training.steps import GraphedStep

ROWS = 24
NOISE = DPSGD(noise_multiplier=0.5, clip_norm=0.5)


class Net(nn.Module):
    """A small network with dropout."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.hidden, self.drop, self.head = nn.Linear(5, 7), nn.Dropout(0.3), nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(torch.tanh(self.hidden(x))))


def rows(bad: int | None = None) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    made = [{"x": torch.randn(5, generator=generator), "y": torch.tensor(i % 3)} for i in range(ROWS)]
    if bad is not None:
        made[bad]["x"] = torch.full((5,), torch.inf)
    return made


Take = Callable[[PrivateTraining, Callable[[Any], Tensor]], Callable[[Any, torch.optim.Optimizer], bool]]


def eagerly(private: PrivateTraining, losses_of: Callable[[Any], Tensor]) -> Any:
    return lambda part, optimizer: private.step(losses_of, optimizer)


def captured_by(graphs: Any) -> Take:
    def take(private: PrivateTraining, losses_of: Callable[[Any], Tensor]) -> Any:
        if isinstance(graphs, Graphs):
            graphs.engine = private._engine
        private._engine.capture(losses_of, graphs)
        return partial(private._take_captured, losses_of)

    return take


def trained(
    how: Take, dataset: list[dict[str, Tensor]], protect: Any = NOISE, check: bool = False, **options: Any
) -> tuple[Tensor, frozenset[Caveat]]:
    model = Net()

    def losses_of(part: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(part["x"]), part["y"], reduction="none")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_private(
        model, protect, num_units=options.pop("num_units", ROWS), batch_size=8, steps=6, secret=Rng(3)
    ) as private:
        if check:
            private.check(losses_of, rows()[:6])
        take = how(private, losses_of)
        for part in private.batches(dataset, **options):
            take(part, optimizer)
        return torch.cat([p.detach().flatten() for p in model.parameters()]), private.guarantee.caveats


def test_without_a_gpu_it_is_the_eager_step() -> None:
    expected, caveats = trained(eagerly, rows())
    result, same = trained(lambda private, losses_of: private.capture(losses_of), rows())
    assert torch.equal(result, expected) and same == caveats


@pytest.mark.parametrize("max_rows", [3, 24])
def test_replayed_parts_give_the_weights_of_eager_ones(max_rows: int) -> None:
    graphs = Graphs()
    expected, _ = trained(eagerly, rows(), max_rows=max_rows)
    result, _ = trained(captured_by(graphs), rows(), max_rows=max_rows)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)
    assert graphs.captured == 1 and graphs.replayed >= 4


def test_a_unit_that_is_not_finite_adds_nothing() -> None:
    graphs = Graphs()
    expected, _ = trained(eagerly, rows(bad=4), max_rows=24)
    result, _ = trained(captured_by(graphs), rows(bad=4), max_rows=24)
    assert torch.isfinite(expected).all() and graphs.replayed > 2
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-7)


def test_units_are_tried_in_the_graph_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def repeats(values_of: Callable[[Tensor], list[Tensor]], units: int, full: int) -> bool:
        """Compare a part with itself: kernels that tell places apart are another matter, and the processor's."""
        one, two = ([value.clone() for value in values_of(torch.arange(units))] for _ in range(2))
        return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))

    monkeypatch.setattr(independence, "bitwise_invariant", repeats)
    assert trained(captured_by(Graphs()), rows(), check=True, max_rows=24)[1] == {Caveat.FIXED_SEED}
    assert Caveat.UNSTEADY_KERNELS in trained(captured_by(Graphs(1e-6)), rows(), check=True, max_rows=24)[1]
    assert Caveat.UNCHECKED_LOSSES in trained(captured_by(Graphs()), rows(), max_rows=24)[1]


def test_what_cannot_be_captured_is_computed_eagerly_and_says_so() -> None:
    def broken(function: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    expected, _ = trained(eagerly, rows(), max_rows=24)
    with pytest.warns(UserWarning, match="computed eagerly"):
        result, _ = trained(captured_by(broken), rows(), max_rows=24)
    assert torch.equal(result, expected)


def test_units_of_several_rows_are_never_captured() -> None:
    graphs, people = Graphs(), [row // 3 for row in range(ROWS)]
    expected, _ = trained(eagerly, rows(), num_units=8, groups=people, max_rows=24)
    result, _ = trained(captured_by(graphs), rows(), num_units=8, groups=people, max_rows=24)
    assert torch.equal(result, expected) and not graphs.captured


def test_directions_are_never_captured() -> None:
    assert DirDPSGD.draws_to_gather and not DPSGD.draws_to_gather
    model = Net()
    with make_private(model, DirDPSGD.for_model(model, 50.0), num_units=ROWS, batch_size=8, steps=6) as private:
        assert not private._engine.capture(lambda part: model(part["x"]).sum(1), Graphs())


@pytest.mark.parametrize("graphs", [None, Graphs()])
def test_a_second_function_is_not_captured(graphs: Graphs | None) -> None:
    model = Net()

    def first(part: dict[str, Tensor]) -> Tensor:
        return F.cross_entropy(model(part["x"]), part["y"], reduction="none")

    def second(part: dict[str, Tensor]) -> Tensor:
        return 2 * first(part)

    with make_private(model, NOISE, num_units=ROWS, batch_size=8, steps=6) as private:
        private._engine.capture(first, graphs)
        known = private._engine.graphs
        with pytest.raises(UnsupportedError, match="another one"):
            private._engine.capture(second, graphs)
        with pytest.raises(UnsupportedError, match="another one"):
            private.capture(second)
        private.capture(first)
        assert private._engine.graphs is known and (known is None or known.losses_of is first)


def test_a_graph_rejects_what_it_was_not_captured_with() -> None:
    model, inputs = Net(), (torch.zeros(2, 5), torch.zeros(2, dtype=torch.int64))
    with make_private(model, NOISE, num_units=ROWS, batch_size=8, steps=6) as private:
        lane = Lane(private.tape, private.protect, torch.device("cpu"), Graphs())
        captured = Captured(lane, inputs, torch.ones(2), lambda: None, (), set(), True)
        lane.run(captured, [torch.ones(2, 5), torch.ones(2, dtype=torch.int64)], torch.ones(2))
        assert all(bool((one == 1).all()) for one in inputs)
        for other in ([torch.ones(2, 4), inputs[1]], [inputs[0], torch.ones(2)], [inputs[0]]):
            with pytest.raises(RuntimeError, match="shapes and types"):
                lane.run(captured, other, torch.ones(2))


def test_a_plain_step_rejects_a_batch_of_other_types_than_its_graph() -> None:
    step: Any = lambda batch: batch.inputs["x"].sum() + batch.targets.sum()  # noqa: E731
    take = GraphedStep(step, Graphs())
    for _ in range(3):
        assert float(take(Batch({"x": torch.ones(2, 3)}, torch.ones(2)))) == 8
    with pytest.raises(RuntimeError, match="shapes and types"):
        take(Batch({"x": torch.ones(2, 3, dtype=torch.float64)}, torch.ones(2)))


def test_a_batch_keeps_its_form_and_what_is_no_tensor_is_part_of_its_shape() -> None:
    @dataclass
    class Pair:
        left: Tensor
        name: str

    named = namedtuple("named", ["a", "b"])
    ones = torch.ones(2)
    batch = UserDict({"a": [ones, (ones, 3)], "b": Pair(ones, "x"), "c": named(ones, None)})
    found = mapped(batch, lambda value: value + 1 if isinstance(value, Tensor) else value)
    assert isinstance(found, UserDict) and isinstance(found["b"], Pair) and isinstance(found["c"], named)
    assert [tensor.tolist() for tensor in tensors_in(found)] == [[2.0, 2.0]] * 4
    assert all(tensor.tolist() == [1.0, 1.0] for tensor in tensors_in(batch))
    assert [one for one in constants_in(batch) if one not in {"a", "b", "c"}] == [3, "x", None]
    assert copy.copy(batch).data == batch.data
