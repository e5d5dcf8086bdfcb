"""Private training in the user's own loop: the same weights as a slow loop over units, and what is rejected."""

from __future__ import annotations

import copy
import math
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from discreet import DPSGD, DirDPSGD, Ledger, Rng, SanText, make_private
from discreet.core.errors import BudgetError, DataError, LedgerError, ModelError, SettingError, UnsupportedError
from discreet.core.guarantee import Adjacency, Caveat
from discreet.integrations.torch import PrivateTraining

ROWS, PEOPLE = 60, 24
NOISE = DPSGD(noise_multiplier=1.0, clip_norm=0.5)


class Net(nn.Module):
    """A module that is not ours: an embedding, a normalization, a hidden layer used twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.norm = nn.LayerNorm(8)
        self.hidden = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.norm(self.table(ids))
        states = self.hidden(self.drop(torch.tanh(self.hidden(states))))
        real = (ids > 0)[..., None]
        return self.head((states * real).sum(1) / real.sum(1))

    def losses(self, batch: Any) -> Tensor:
        return losses_of(self, batch)


def losses_of(model: nn.Module, batch: Any) -> Tensor:
    ids, labels = batch
    return F.cross_entropy(model(ids), labels, reduction="none")


@pytest.fixture
def model() -> Net:
    torch.manual_seed(1)
    return Net()


@pytest.fixture
def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(1, 20, (ROWS, 5), generator=generator)
    return TensorDataset(ids, torch.randint(0, 3, (ROWS,), generator=generator))


@pytest.fixture
def people() -> list[str]:
    return [f"p{(row * row) % PEOPLE:02}" if row >= PEOPLE else f"p{row:02}" for row in range(ROWS)]


def made_up() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randint(1, 20, (5,), generator=generator), torch.tensor(row % 3)) for row in range(8)]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in model.parameters()])


def slow_loop(model: nn.Module, private: PrivateTraining, dataset: TensorDataset, owners: list[int]) -> None:
    """Train by a loop over units: one autograd pass for each, clipped, added up, the same noise."""
    plan, protect, source = private.plan, NOISE, private._source
    optimizer, of_unit = adam(model), np.array(owners)
    for step in range(plan.steps):
        total = {name: torch.zeros_like(p, dtype=torch.float64) for name, p in model.named_parameters()}
        for unit in plan.sampler.draw(step, PEOPLE, source.fork("sampler")):
            rows = torch.from_numpy(np.flatnonzero(of_unit == unit))
            loss = losses_of(model, dataset[rows]).sum()
            grads = torch.autograd.grad(loss, list(model.parameters()))
            norm = torch.cat([g.flatten() for g in grads]).double().norm()
            scale = min(1.0, protect.clip_norm / float(norm))
            for (name, _), grad in zip(model.named_parameters(), grads, strict=True):
                total[name] += scale * grad.double()
        noisy = protect.release({name: value.float() for name, value in total.items()}, source.fork("noise", step))
        for name, parameter in model.named_parameters():
            parameter.grad = noisy[name] / plan.settings.size
        optimizer.step()


@pytest.mark.parametrize("max_rows", [1, 4, 7, 60])
def test_the_loop_ends_with_the_weights_of_a_slow_loop_over_units(
    model: Net, dataset: TensorDataset, people: list[str], max_rows: int
) -> None:
    slow = copy.deepcopy(model)
    optimizer = adam(model)
    with make_private(model, NOISE, num_units=PEOPLE, batch_size=6, steps=8, secret=Rng(5)) as private:
        for part in private.batches(dataset, groups=people, max_rows=max_rows):
            private.step(losses_of(model, part), optimizer)
        assert private.position == 8 == private.ledger.statement.spends
        slow_loop(slow, private, dataset, [int(person[1:]) for person in people])
    assert float((flat(model) - flat(slow)).abs().max()) < 1e-5
    assert float((flat(model) - flat(Net())).abs().max()) > 1e-3
    assert all(p.grad is None for p in model.parameters())


def test_sums_that_are_released_in_another_order_reach_their_parameters(model: Net, dataset: TensorDataset) -> None:
    class Backwards(DPSGD):
        def release(self, sums: dict[str, Tensor], rng: Rng) -> dict[str, Tensor]:
            return dict(reversed(super().release(sums, rng).items()))

    same = copy.deepcopy(model)
    for trained_model, protect in ((model, NOISE), (same, Backwards(noise_multiplier=1.0, clip_norm=0.5))):
        optimizer = adam(trained_model)
        with make_private(trained_model, protect, num_units=ROWS, batch_size=10, steps=2, secret=Rng(5)) as private:
            for part in private.batches(dataset):
                private.step(losses_of(trained_model, part), optimizer)
    assert torch.equal(flat(model), flat(same))


def test_one_row_is_one_unit_without_ids(model: Net, dataset: TensorDataset) -> None:
    slow = copy.deepcopy(model)
    with make_private(model, NOISE, num_units=ROWS, batch_size=10, epochs=0.5, secret=Rng(5)) as private:
        assert private.steps == 3
        optimizer = adam(model)
        for part in private.batches(dataset):
            private.step(losses_of(model, part), optimizer)
        plan, source = private.plan, private._source
        optimizer = adam(slow)
        for step in range(3):
            total = {name: torch.zeros_like(p) for name, p in slow.named_parameters()}
            for row in plan.sampler.draw(step, ROWS, source.fork("sampler")).tolist():
                slow.zero_grad()
                losses_of(slow, dataset[row : row + 1]).sum().backward()
                norm = torch.cat([p.grad.flatten() for p in slow.parameters() if p.grad is not None]).norm()
                for name, parameter in slow.named_parameters():
                    assert parameter.grad is not None
                    total[name] += parameter.grad * min(1.0, 0.5 / float(norm))
            for name, noisy in NOISE.release(total, source.fork("noise", step)).items():
                slow.get_parameter(name).grad = noisy / 10
            optimizer.step()
    assert float((flat(model) - flat(slow)).abs().max()) < 1e-5


def test_the_low_level_form_gives_the_same_sums_and_says_who_drew(model: Net, dataset: TensorDataset) -> None:
    again = copy.deepcopy(model)
    with make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=3, secret=Rng(5)) as private:
        optimizer = adam(model)
        for part in private.batches(dataset, max_rows=60):
            private.step(losses_of(model, part), optimizer)
    with make_private(again, NOISE, num_units=ROWS, batch_size=10, steps=3, secret=Rng(5)) as private:
        optimizer = adam(again)
        for step in range(3):
            rows = torch.from_numpy(private.plan.sampler.draw(step, ROWS, private._source.fork("sampler")))
            for some in (rows[:4], rows[4:]):
                with private.record():
                    losses = losses_of(again, dataset[some])
                private.accumulate(losses)
            private.release(optimizer)
        assert {Caveat.OWN_BATCHES, Caveat.UNCHECKED_LOSSES} <= private.guarantee.caveats
        assert Caveat.OWN_BATCHES in private.ledger.statement.terms.caveats
        with pytest.raises(BudgetError), private.record():
            pass
    assert float((flat(model) - flat(again)).abs().max()) < 1e-5


def test_an_empty_batch_releases_its_noise_without_a_part(model: Net, dataset: TensorDataset) -> None:
    before = flat(model)
    calls, moved = 0, 0
    with make_private(model, NOISE, num_units=ROWS, batch_size=1, steps=12, secret=Rng(4)) as private:
        optimizer = adam(model)
        sizes = [len(private.plan.sampler.draw(s, ROWS, private._source.fork("sampler"))) for s in range(12)]
        assert sizes[0] == 0 and 0 in sizes[1:], "the seed draws an empty batch first, and others later"
        for part in private.batches(dataset):
            calls += 1
            moved += private.step(losses_of(model, part), optimizer)
        assert private.position == 12 == private.ledger.statement.spends
    # The first optimizer is met on a part without units; later empty batches call nobody.
    assert calls == moved == 1 + sum(size > 0 for size in sizes)
    assert float((flat(model) - before).abs().max()) > 1e-3


def test_directional_dp_sgd_trains_and_is_certified(model: Net, dataset: TensorDataset, people: list[str]) -> None:
    with make_private(model, DirDPSGD(epsilon=50), num_units=PEOPLE, batch_size=6, steps=4, unit="person") as private:
        private.check(model.losses, made_up())
        optimizer = adam(model)
        for _ in private.batches(dataset, groups=people, max_rows=8):
            private.step(model.losses, optimizer)
        found = private.guarantee
    assert found.certified and 0 < found.epsilon <= 50 and found.adjacency is Adjacency.REPLACE_ONE


def trained(model: Net, dataset: Any, private: PrivateTraining, **settings: Any) -> PrivateTraining:
    optimizer = adam(model)
    for _ in private.batches(dataset, **settings):
        private.step(model.losses, optimizer)
    return private


class TestGuarantee:
    def test_checked_parts_are_certified(self, model: Net, dataset: TensorDataset) -> None:
        with make_private(model, DPSGD(epsilon=8), num_units=ROWS, batch_size=10, steps=4, unit="note") as private:
            private.check(model.losses, made_up())
            found = trained(model, dataset, private).guarantee
        assert found.certified and 7 < found.epsilon <= 8 and found.adjacency is Adjacency.ZERO_OUT
        assert found.unit == "note" and private.ledger.statement.terms.caveats == frozenset()

    def test_unchecked_parts_are_an_estimate(self, model: Net, dataset: TensorDataset) -> None:
        with make_private(model, DPSGD(epsilon=8), num_units=ROWS, batch_size=10, steps=2) as private:
            found = trained(model, dataset, private).guarantee
        assert not found.certified and found.caveats == {Caveat.UNCHECKED_LOSSES}
        assert private.ledger.statement.terms.caveats == {Caveat.UNCHECKED_LOSSES}

    def test_parts_of_one_unit_need_a_check_too(self, model: Net, dataset: TensorDataset) -> None:
        found = []
        for checks in (False, True):
            with make_private(model, DPSGD(epsilon=8), num_units=ROWS, batch_size=5, steps=2) as private:
                if checks:
                    private.check(model.losses, made_up())
                found.append(trained(model, dataset, private, max_rows=1).guarantee.caveats)
        assert found == [{Caveat.UNCHECKED_LOSSES}, frozenset()]

    def test_a_fixed_seed_is_an_estimate(self, model: Net, dataset: TensorDataset) -> None:
        with make_private(model, DPSGD(epsilon=8), num_units=ROWS, batch_size=5, steps=2, secret=Rng(1)) as private:
            private.check(model.losses, made_up())
            assert trained(model, dataset, private, max_rows=1).guarantee.caveats == {Caveat.FIXED_SEED}

    def test_padding_to_the_longest_row_of_a_part_is_an_estimate(self) -> None:
        torch.manual_seed(0)
        model = Net()
        rows = [(torch.randint(1, 20, (2 + row % 5,)), torch.tensor(row % 3)) for row in range(40)]

        def padded(width: int | None) -> Callable[[list[Any]], Any]:
            def collate(chosen: list[Any]) -> Any:
                ids = nn.utils.rnn.pad_sequence([ids for ids, _ in chosen], batch_first=True)
                ids = ids if width is None else F.pad(ids, (0, width - ids.shape[1]))
                return ids, torch.stack([label for _, label in chosen])

            return collate

        found = {}
        for width in (None, 6):
            with make_private(model, DPSGD(epsilon=8), num_units=40, batch_size=8, steps=3) as private:
                collate = padded(width)
                private.check(model.losses, rows[:8], collate)
                trained(model, rows, private, collate=collate)
                found[width] = private.guarantee
        assert found[None].caveats == {Caveat.UNSTEADY_KERNELS}
        assert found[6].certified

    def test_another_precision_than_the_one_that_was_checked_is_an_estimate(
        self, model: Net, dataset: TensorDataset
    ) -> None:
        with make_private(model, DPSGD(epsilon=8), num_units=ROWS, batch_size=10, steps=6) as private:
            private.check(model.losses, made_up())
            optimizer = adam(model)
            for number, _ in enumerate(private.batches(dataset, max_rows=8)):
                with torch.autocast("cpu", torch.bfloat16, enabled=number > 0):
                    private.step(model.losses, optimizer)
            assert private.guarantee.caveats == {Caveat.UNSTEADY_KERNELS}

    def test_a_collate_function_with_random_masks_can_be_certified(self, model: Net) -> None:
        rows = [{"ids": ids, "labels": label} for ids, label in made_up() * 5]

        def masked(chosen: list[dict[str, Tensor]]) -> dict[str, Tensor]:
            batch = torch.utils.data.default_collate(chosen)
            hidden = torch.rand(batch["ids"].shape) < 0.3
            hidden[:, 0] = False
            return batch | {"ids": batch["ids"].masked_fill(hidden, 0)}

        def losses(batch: dict[str, Tensor]) -> Tensor:
            return losses_of(model, (batch["ids"], batch["labels"]))

        with make_private(model, DPSGD(epsilon=8), num_units=40, batch_size=10, steps=3) as private:
            private.check(losses, rows[:8], masked)
            optimizer = adam(model)
            for _ in private.batches(rows, masked):
                private.step(losses, optimizer)
            assert private.guarantee.certified

    def test_a_population_hides_the_number_of_units(self, model: Net, dataset: TensorDataset) -> None:
        with make_private(model, DPSGD(epsilon=8), population=100, batch_size=10, steps=2) as private:
            private.check(model.losses, made_up())
            found = trained(model, dataset, private, max_rows=1).guarantee
        assert found.certified and found.adjacency is Adjacency.ADD_REMOVE
        assert private.plan.sampler.expected_size(100) == 10

    def test_the_size_of_parts_does_not_depend_on_the_number_of_rows(self, model: Net, dataset: TensorDataset) -> None:
        with make_private(model, NOISE, population=100, batch_size=20, steps=2) as private:
            few = private.rows(TensorDataset(*dataset[:30]))
            many = private.rows(dataset, groups=[row % 30 for row in range(ROWS)])
        assert few.shapes == many.shapes

    def test_training_ends_at_the_budget(self, model: Net, dataset: TensorDataset) -> None:
        protect = DPSGD(noise_multiplier=1.0, epsilon=6)
        with make_private(model, protect, num_units=ROWS, batch_size=20, steps=500) as private:
            trained(model, dataset, private)
            assert private.out_of_budget and 0 < private.position < 500
            assert private.guarantee.epsilon <= 6 and private.epsilon <= 6 * 1.2
            assert list(private.batches(dataset)) == []

    def test_a_ledger_without_budget_left_is_an_error(self, model: Net, dataset: TensorDataset, tmp_path: Path) -> None:
        for _ in range(2):
            with make_private(
                model, DPSGD(epsilon=3), num_units=ROWS, batch_size=20, steps=4, ledger=tmp_path / "ledger.jsonl"
            ) as private:
                if private.ledger.statement.spends:
                    with pytest.raises(BudgetError):
                        next(private.batches(dataset))
                else:
                    trained(model, dataset, private)
        assert Ledger.read(tmp_path / "ledger.jsonl").spends == 4

    def test_a_step_is_counted_before_its_part_is_read(self, model: Net, dataset: TensorDataset) -> None:
        spends = []

        def collate(rows: list[Any]) -> Any:
            spends.append(private.ledger.statement.spends)
            return torch.utils.data.default_collate(rows)

        with make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=3) as private:
            trained(model, dataset, private, collate=collate, max_rows=60)
        assert spends == [3, 3, 3]  # all planned steps, before the first

    def test_losses_that_the_loop_computed_are_an_estimate_also_if_a_part_holds_one_unit(
        self, model: Net, dataset: TensorDataset
    ) -> None:
        found = {}
        for size in (8, 1):
            with make_private(model, NOISE, num_units=ROWS, batch_size=4, steps=2) as private:
                private.check(model.losses, made_up())
                optimizer = adam(model)
                for part in private.batches(dataset, max_rows=size):
                    losses = model.losses(part)
                    private.step(losses / losses.detach().mean(), optimizer)
                found[size] = private.guarantee.caveats
        assert found == {8: {Caveat.UNCHECKED_LOSSES}, 1: {Caveat.UNCHECKED_LOSSES}}

    def test_a_training_that_never_began_a_step_spends_nothing(self, model: Net, tmp_path: Path) -> None:
        path = tmp_path / "ledger.jsonl"
        with make_private(model, DPSGD(epsilon=8), num_units=ROWS, batch_size=10, steps=4, ledger=path) as private:
            assert private.guarantee.epsilon == 0
        assert Ledger.read(path).spends == 0

    def test_an_error_in_the_loop_ends_a_training_that_costs_as_much_as_its_plan(
        self, model: Net, dataset: TensorDataset, tmp_path: Path
    ) -> None:
        path = tmp_path / "ledger.jsonl"
        with (
            pytest.raises(KeyboardInterrupt),
            make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=5, ledger=path) as private,
        ):
            for _ in private.batches(dataset):
                if private.step(model.losses, adam(model)):
                    raise KeyboardInterrupt
        assert private.position == 1 and Ledger.read(path).spends == 5

    def test_two_loops_at_once_do_not_mix_their_parts(self, model: Net, dataset: TensorDataset) -> None:
        optimizer = adam(model)
        with make_private(model, NOISE, num_units=ROWS, batch_size=30, steps=3) as private:
            parts, later = private.batches(dataset, max_rows=8), private.batches(dataset, max_rows=8)
            next(parts)
            private.step(model.losses, optimizer)
            next(later)
            private.step(model.losses, optimizer)
            parts.close()  # type: ignore[attr-defined]
            assert private._engine.parts == 1, "the part of the later loop is still there"
            parts = private.batches(dataset, max_rows=8)
            next(parts)
            private.step(model.losses, optimizer)
            with pytest.raises(UnsupportedError, match=r"private\.step"):
                next(later)
            assert private.position == 0

    def test_gradients_are_applied_as_they_are(self, model: Net, dataset: TensorDataset) -> None:
        found = []
        for change in ("none", "backward", "scale"):
            optimizer = torch.optim.AdamW(model.parameters(), fused=True)
            with make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=3) as private:
                private.check(model.losses, made_up())
                rows = private.rows(dataset, max_rows=8)
                while private.position < private.steps and private.gradients(rows, model.losses):
                    if change == "scale":  # by anything: nobody knows by what
                        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                    if change == "backward" and private.position == 3:
                        model.losses(dataset[:4]).sum().backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    optimizer.zero_grad()
            found.append(private.guarantee.caveats)
        assert found == [frozenset(), {Caveat.UNPROTECTED_STATE}, {Caveat.UNPROTECTED_STATE}]

    def test_a_learning_rate_schedule_weight_decay_and_a_copy_of_the_weights_are_certified(
        self, model: Net, dataset: TensorDataset
    ) -> None:
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        average = torch.optim.swa_utils.AveragedModel(model)
        with make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=3) as private:
            private.check(model.losses, made_up())
            model.load_state_dict(Net().state_dict())  # before the first step
            for _ in private.batches(dataset, max_rows=8):
                if private.step(model.losses, optimizer):
                    schedule.step()
                    average.update_parameters(model)
                    optimizer.step()  # without gradients: nothing moves
                    model.eval()
                    with torch.no_grad():
                        model(dataset[:3][0])
                    model.train()
            assert private.guarantee.certified and private.guarantee.caveats == frozenset()


class TestRejected:
    def test_a_scalar_loss(self, model: Net, dataset: TensorDataset) -> None:
        before = flat(model)
        with (
            make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=3) as private,
            pytest.raises(UnsupportedError, match="scalar"),
        ):
            for part in private.batches(dataset):
                private.step(losses_of(model, part).mean(), adam(model))
        assert torch.equal(flat(model), before) and "forward" not in vars(model.head)

    def test_losses_of_some_rows_only(self, model: Net, dataset: TensorDataset) -> None:
        with (
            make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=3) as private,
            pytest.raises(UnsupportedError, match="each of the"),
        ):
            for part in private.batches(dataset):
                private.step(losses_of(model, part)[:-1], adam(model))

    @pytest.mark.parametrize(
        ("layer", "words"),
        [(nn.BatchNorm1d(8), "batch normalis|batch normaliz"), (nn.Bilinear(8, 8, 8), "Bilinear")],
    )
    def test_layers_by_name(self, layer: nn.Module, words: str) -> None:
        with pytest.raises(UnsupportedError, match=words):
            make_private(nn.Sequential(nn.Linear(4, 8), layer), NOISE, num_units=10, batch_size=5, steps=1)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when its compiler is loaded
    def test_a_compiled_model(self, model: Net) -> None:
        with pytest.raises(UnsupportedError, match="compiled"):
            make_private(torch.compile(model), NOISE, num_units=10, batch_size=5, steps=1)  # type: ignore[arg-type]

    def test_a_wrapped_model(self, model: Net) -> None:
        with pytest.raises(UnsupportedError, match="DataParallel"):
            make_private(nn.DataParallel(model), NOISE, num_units=10, batch_size=5, steps=1)

    def test_a_protection_of_text(self, model: Net) -> None:
        with pytest.raises(UnsupportedError, match="gradients"):
            make_private(model, SanText(20.0), num_units=10, batch_size=5, steps=1)

    def test_a_part_that_was_not_used(self, model: Net, dataset: TensorDataset) -> None:
        with (
            make_private(model, NOISE, num_units=ROWS, batch_size=30, steps=3) as private,
            pytest.raises(UnsupportedError, match=r"private\.step"),
        ):
            for part in private.batches(dataset):
                losses_of(model, part)
        assert "forward" not in vars(model.head)
        with (
            make_private(model, NOISE, num_units=ROWS, batch_size=30, steps=3) as private,
            pytest.raises(UnsupportedError, match=r"private\.batches"),
        ):
            private.step(torch.ones(3), adam(model))

    def test_a_wrong_number_of_units(self, model: Net, dataset: TensorDataset, people: list[str]) -> None:
        with make_private(model, NOISE, num_units=PEOPLE + 1, batch_size=5, steps=3) as private:
            with pytest.raises(DataError, match="25 units.*got 24"):
                private.batches(dataset, groups=people)
            with pytest.raises(DataError, match="one unit for each"):
                private.batches(dataset, groups=people[:-1])
            for ids in ([*range(ROWS - 1), None], [*range(ROWS - 1), "7"], [*map(float, range(ROWS - 1)), math.nan]):
                with pytest.raises(DataError, match="one type"):
                    private.batches(dataset, groups=ids)
            with pytest.raises(DataError, match="empty"):
                private.batches([])
            assert private.ledger.statement.spends == 0

    def test_a_loader_that_draws_by_itself(self, model: Net, dataset: TensorDataset) -> None:
        with (
            make_private(model, NOISE, num_units=ROWS, batch_size=5, steps=3) as private,
            pytest.raises(UnsupportedError, match="DataLoader"),
        ):
            private.batches(DataLoader(dataset, 5, shuffle=True))  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        "changes",
        [
            {"num_units": None},
            {"population": 100},
            {"steps": None},
            {"epochs": 1.0},
            {"steps": 0},
            {"batch_size": 0},
            {"batch_size": 11},
            {"secret": Rng.secure()},
        ],
    )
    def test_settings(self, model: Net, changes: dict[str, Any]) -> None:
        settings: dict[str, Any] = {"num_units": 10, "batch_size": 5, "steps": 3} | changes
        with pytest.raises(SettingError):
            make_private(model, NOISE, **settings)

    def test_losses_that_mix_rows(self, model: Net) -> None:
        def mixed(batch: Any) -> Tensor:
            losses = losses_of(model, batch)
            return losses - losses.mean()

        with make_private(model, NOISE, num_units=ROWS, batch_size=5, steps=3) as private:
            with pytest.raises(UnsupportedError, match="mixes"):
                private.check(mixed, made_up())
            with pytest.raises(DataError, match="made-up rows"):
                private.check(model.losses, made_up()[:3])

    def test_an_optimizer_of_other_parameters(self, model: Net, dataset: TensorDataset) -> None:
        other = nn.Parameter(torch.zeros(3))
        with make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=3) as private:
            for optimizer in (torch.optim.SGD([*model.parameters(), other]), torch.optim.SGD([nn.Parameter(other)])):
                with pytest.raises(UnsupportedError, match="optimizer"):
                    for part in private.batches(dataset):
                        private.step(losses_of(model, part), optimizer)

    def test_a_buffer_that_learns(self, dataset: TensorDataset) -> None:
        class Counting(Net):
            def __init__(self) -> None:
                super().__init__()
                self.register_buffer("mean", torch.zeros(8))

            def forward(self, ids: Tensor) -> Tensor:
                self.mean.lerp_(self.table(ids).detach().mean((0, 1)), 0.1)
                return super().forward(ids)

        model = Counting()
        with (
            make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=3) as private,
            pytest.raises(UnsupportedError, match="buffer 'mean'"),
        ):
            trained(model, dataset, private)

    def test_a_closed_training(self, model: Net, dataset: TensorDataset) -> None:
        with make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=3) as private:
            pass
        with pytest.raises(UnsupportedError, match="closed"):
            private.batches(dataset)


States = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]


class TestResume:
    def make(self, model: nn.Module, folder: Path, secret: Any = "secret", **changes: Any) -> PrivateTraining:
        settings: dict[str, Any] = {"num_units": ROWS, "batch_size": 10, "steps": 9, "ledger": folder / "ledger.jsonl"}
        secret = folder / secret if isinstance(secret, str) else secret
        return make_private(model, NOISE, secret=secret, **settings | changes)

    def run(
        self,
        model: nn.Module,
        dataset: Any,
        private: PrivateTraining,
        saved: States | None = None,
        stop: int | None = None,
    ) -> States | None:
        """Train from a state, or from the beginning; return the state at step `stop`, two before the last."""
        optimizer = adam(model)
        if saved is not None:
            private.load_state_dict(saved[0])
            model.load_state_dict(saved[1])
            optimizer.load_state_dict(saved[2])
        states = None
        for part in private.batches(dataset, max_rows=8):
            if private.step(losses_of(model, part), optimizer):
                if private.position == stop:
                    states = copy.deepcopy((private.state_dict(), model.state_dict(), optimizer.state_dict()))
                elif stop is not None and private.position == stop + 2:
                    break
        return states

    def stopped(self, model: Net, dataset: TensorDataset, folder: Path, secret: Any = "secret") -> States:
        with self.make(model, folder, secret) as private:
            states = self.run(model, dataset, private, stop=4)
            assert private.ledger.statement.spends == 9, "all planned steps are counted before the first"
        assert Ledger.read(folder / "ledger.jsonl").spends == 9
        assert states is not None
        return states

    def test_with_its_secret_it_ends_with_the_same_weights_and_the_same_cost(
        self, model: Net, dataset: TensorDataset, tmp_path: Path
    ) -> None:
        undisturbed, resumed = copy.deepcopy(model), copy.deepcopy(model)
        saved = self.stopped(model, dataset, tmp_path)
        key = tmp_path / "secret"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600 and key.read_text() not in repr(saved[0])
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "secret").write_text(key.read_text())
        (tmp_path / "other" / "secret").chmod(0o600)
        with self.make(resumed, tmp_path) as private:
            self.run(resumed, dataset, private, saved)
            assert private.position == 9 == private.ledger.statement.spends
            assert any("resumed" in text for text in private.guarantee.assumptions)
        assert not key.exists(), "the secret is deleted after the last step"
        with self.make(undisturbed, tmp_path / "other") as private:
            private._account.runs = [(saved[0]["runs"][0][0], 0)]
            self.run(undisturbed, dataset, private)
        assert torch.equal(flat(resumed), flat(undisturbed))

    def test_a_fixed_seed_repeats_too(self, model: Net, dataset: TensorDataset, tmp_path: Path) -> None:
        undisturbed, resumed = copy.deepcopy(model), copy.deepcopy(model)
        saved = self.stopped(model, dataset, tmp_path, Rng(3))
        with self.make(resumed, tmp_path, Rng(3)) as private:
            self.run(resumed, dataset, private, saved)
            assert private.ledger.statement.spends == 9
        with self.make(undisturbed, tmp_path, Rng(3), ledger=None) as private:
            self.run(undisturbed, dataset, private)
        assert torch.equal(flat(resumed), flat(undisturbed))

    def test_without_its_secret_what_is_taken_again_is_counted_again(
        self, model: Net, dataset: TensorDataset, tmp_path: Path
    ) -> None:
        saved = self.stopped(model, dataset, tmp_path, None)
        with self.make(model, tmp_path, None) as private:
            self.run(model, dataset, private, saved)
            assert private.position == 9 and private.ledger.statement.spends == 9 + 5
            assert len(private.state_dict()["runs"]) == 2

    def test_the_limit_of_a_budget_counts_what_was_lost(
        self, model: Net, dataset: TensorDataset, tmp_path: Path
    ) -> None:
        def make() -> PrivateTraining:
            ledger = Ledger.open(tmp_path / "shared.jsonl", unit="unit", adjacency="zero-out")
            settings: dict[str, Any] = {"num_units": ROWS, "batch_size": 10, "steps": 6}
            return make_private(model, DPSGD(epsilon=3), ledger=ledger, **settings)

        private = make()
        saved = self.run(model, dataset, private, stop=2)
        private.ledger.close()  # as if it was killed: nothing is closed
        with make() as private:
            with pytest.raises(BudgetError):
                self.run(model, dataset, private, saved)
            assert private.ledger.guarantee(private.delta).epsilon <= 3
            private.ledger.close()

    @pytest.mark.parametrize("other", ["weights", "buffer", "old"])
    def test_other_weights_are_drawn_anew(self, model: Net, dataset: TensorDataset, tmp_path: Path, other: str) -> None:
        model.register_buffer("scale", torch.ones(1))
        saved = self.stopped(model, dataset, tmp_path)
        states = saved[0]
        if other == "old":  # a state of an older version has no digests
            states = {name: value for name, value in saved[0].items() if name not in {"weights", "optimizer"}}
        else:
            saved[1]["scale" if other == "buffer" else "head.bias"].add_(1e-6)
        with self.make(model, tmp_path) as private:
            self.run(model, dataset, private, (states, saved[1], saved[2]))
            assert private.ledger.statement.spends == 9 + 5 and private.position == 9
            assert not any("resumed" in text for text in private.guarantee.assumptions)

    def test_without_its_secret_a_used_budget_is_an_error(
        self, model: Net, dataset: TensorDataset, tmp_path: Path
    ) -> None:
        settings: dict[str, Any] = {"num_units": ROWS, "batch_size": 10, "steps": 6, "ledger": tmp_path / "l.jsonl"}
        with make_private(model, DPSGD(epsilon=3), **settings) as private:
            saved = self.run(model, dataset, private, stop=2)
        assert saved is not None
        with (
            make_private(model, DPSGD(epsilon=3), **settings) as private,
            pytest.raises(BudgetError, match="without the secret") as error,
        ):
            self.run(model, dataset, private, saved)
        assert ("secret", None) in error.value.settings
        assert Ledger.read(tmp_path / "l.jsonl").spends == 6

    def test_without_its_ledger_it_is_rejected(self, model: Net, dataset: TensorDataset, tmp_path: Path) -> None:
        saved = self.stopped(model, dataset, tmp_path)
        (tmp_path / "another").mkdir()
        for ledger in (None, tmp_path / "another" / "ledger.jsonl"):
            with self.make(model, tmp_path, ledger=ledger) as private, pytest.raises(LedgerError, match="ledger that"):
                private.load_state_dict(saved[0])

    def test_with_an_older_copy_of_its_ledger_it_is_rejected(
        self, model: Net, dataset: TensorDataset, tmp_path: Path
    ) -> None:
        saved = self.stopped(model, dataset, tmp_path)
        ledger = tmp_path / "ledger.jsonl"
        lines = ledger.read_bytes().splitlines(keepends=True)
        kept = [number for number, line in enumerate(lines) if line.startswith(b"[")][2]
        ledger.write_bytes(b"".join(lines[:kept]))  # without step 2 and all after it
        with self.make(model, tmp_path) as private, pytest.raises(LedgerError, match="step 2"):
            private.load_state_dict(saved[0])

    def test_another_plan_or_number_of_processes_is_rejected(
        self, model: Net, dataset: TensorDataset, tmp_path: Path
    ) -> None:
        saved = self.stopped(model, dataset, tmp_path)
        with self.make(model, tmp_path, steps=10) as private, pytest.raises(ModelError, match="same arguments"):
            private.load_state_dict(saved[0])
        with self.make(model, tmp_path) as private:
            with pytest.raises(SettingError, match="2 processes"):
                private.load_state_dict(saved[0] | {"world_size": 2})
            with pytest.raises(SettingError, match="format"):
                private.load_state_dict({})
            parts = private.batches(dataset)
            next(parts)
            with pytest.raises(UnsupportedError, match="before the first batch"):
                private.load_state_dict(saved[0])

    def test_a_broken_secret_is_rejected(self, model: Net, tmp_path: Path) -> None:
        for number, text in enumerate(("not a key", "", "ab" * 31)):
            (tmp_path / f"secret{number}").write_text(text)
            (tmp_path / f"secret{number}").chmod(0o600)
            with pytest.raises(SettingError, match="secret"):
                self.make(model, tmp_path, f"secret{number}")
        (tmp_path / "shared").write_text("ab" * 32)
        (tmp_path / "shared").chmod(0o644)
        with pytest.raises(SettingError, match="only its owner"):
            self.make(model, tmp_path, "shared")

    def test_a_resumed_training_reads_its_batches_in_the_same_parts(
        self, model: Net, dataset: TensorDataset, tmp_path: Path
    ) -> None:
        saved = self.stopped(model, dataset, tmp_path)
        with self.make(model, tmp_path) as private:
            private.load_state_dict(saved[0])
            with pytest.raises(SettingError, match="max_rows"):
                private.batches(dataset, max_rows=9)
            assert private.rows(dataset).shapes.rows == ((1, 8),)


@pytest.mark.parametrize("other", ["losses", "collate", "part"])
def test_other_functions_than_those_that_were_checked_are_an_estimate(
    model: Net, dataset: TensorDataset, other: str
) -> None:
    def collate(chosen: list[Any]) -> Any:
        return torch.utils.data.default_collate(chosen)

    with make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=2) as private:
        private.check(model.losses, made_up())
        optimizer = adam(model)
        take = private.capture(model.losses if other != "losses" else lambda batch: model.losses(batch))
        for part in private.batches(dataset, collate if other == "collate" else None, max_rows=8):
            take(list(part) if other == "part" else part, optimizer)
        assert private.guarantee.caveats == {Caveat.UNCHECKED_LOSSES}


def test_another_optimizer_is_drawn_anew_from_the_step_after_it(
    model: Net, dataset: TensorDataset, tmp_path: Path
) -> None:
    resume = TestResume()
    saved = resume.stopped(model, dataset, tmp_path)
    moments = copy.deepcopy(saved[2])
    moments["state"][0]["exp_avg"].mul_(2)
    with resume.make(model, tmp_path) as private:
        resume.run(model, dataset, private, (saved[0], saved[1], moments))
        runs = private.state_dict()["runs"]
        assert [first for _, first in runs] == [0, 5]  # step 4 repeats: same weights, batch and noise
        assert private.ledger.statement.spends == 9 + 4


def test_a_fused_optimizer_is_noticed_between_steps_whose_weights_are_compared(
    model: Net, dataset: TensorDataset
) -> None:
    ordinary = torch.optim.AdamW(model.parameters(), fused=True)  # it changes no version
    with make_private(model, NOISE, num_units=ROWS, batch_size=10, steps=6) as private:
        private.check(model.losses, made_up()[:4])
        optimizer = adam(model)
        for _ in private.batches(dataset, max_rows=8):
            if private.step(model.losses, optimizer) and private.position == 3:
                assert not private.caveats
                model.losses(dataset[:4]).sum().backward()  # type: ignore[no-untyped-call]
                ordinary.step()
        assert private.guarantee.caveats == {Caveat.UNPROTECTED_STATE}


def test_dropout_draws_from_the_secret_and_leaves_torch_alone(dataset: TensorDataset) -> None:
    masks: list[Tensor] = []

    class Dropped(Net):
        def forward(self, ids: Tensor) -> Tensor:
            draws = torch.tensor([random.random(), np.random.rand()])  # noqa: NPY002
            masks.append(torch.cat((F.dropout(torch.ones(50), 0.5), draws)))
            return super().forward(ids)

    for secret in (Rng(1), Rng(1), Rng(2)):
        torch.manual_seed(7)
        model = Dropped()
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002
        with make_private(model, NOISE, num_units=ROWS, batch_size=5, steps=1, secret=secret) as private:
            trained(model, dataset, private, max_rows=60)
        assert random.random() == random.Random(7).random()
        assert np.random.rand() == np.random.RandomState(7).rand()  # noqa: NPY002
        assert torch.initial_seed() == 7 and torch.equal(torch.rand(3), torch.rand(3, generator=seeded(7)))
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0][:50], masks[2][:50]) and bool((masks[0][50:] != masks[2][50:]).all())


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
