"""In a loop of the user's own, no unit changes the gradient of another one, bit for bit, wherever it stands."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import DPSGD, Rng, make_private
from discreet.clipping.record import Record
from discreet.core.errors import UnsupportedError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.training import independence

PEOPLE, CHANGED = 24, 5


def gradients_of_a_step(changed: list[Tensor] | None, max_rows: int, monkeypatch: pytest.MonkeyPatch) -> Counter[bytes]:
    """Return the gradients of all units of one step, as bytes; `changed` are other rows for one unit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))
    generator = torch.Generator().manual_seed(1)
    rows, owners = [], []
    for person in range(PEOPLE):
        own = [torch.randn(6, generator=generator) for _ in range(1 + person % 3)]
        own = changed if changed is not None and person == CHANGED else own
        rows += own
        owners += [person] * len(own)
    found: Counter[bytes] = Counter()
    gather = DPSGD.gather

    def noted(self: DPSGD, record: Record, sums: dict[str, Tensor], rng: Rng) -> None:
        real = len(record) - record.padding
        flat = torch.cat([value.flatten(1) for value in record.gradients().values()], 1)[:real]
        found.update(row.numpy().tobytes() for row in flat)
        gather(self, record, sums, rng)

    monkeypatch.setattr(DPSGD, "gather", noted)

    def losses_of(batch: Tensor) -> Tensor:
        return F.cross_entropy(model(batch), (batch[:, 0] > 0).long(), reduction="none")

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protect = DPSGD(noise_multiplier=1.0)
    with make_private(model, protect, num_units=PEOPLE, batch_size=PEOPLE, steps=1, secret=Rng(2)) as private:
        private.check(losses_of, [torch.randn(6, generator=generator) for _ in range(8)])
        for _ in private.batches(rows, groups=owners, max_rows=max_rows):
            private.step(losses_of, optimizer)
        assert all("unsteady" not in caveat for caveat in private.caveats)
    monkeypatch.undo()
    return found


@pytest.mark.parametrize("max_rows", [4, 6, 40])
@pytest.mark.parametrize(
    "changed",
    [
        [torch.full((6,), 3.0)] * 3,  # as many rows, other values
        [torch.ones(6)],  # fewer rows: it moves to other parts
        [torch.full((6,), float("nan"))] * 3,  # rows whose gradient is not a number
    ],
    ids=["values", "count", "nan"],
)
def test_one_unit_changes_only_its_own_gradient(
    changed: list[Any], max_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = gradients_of_a_step(None, max_rows, monkeypatch)
    after = gradients_of_a_step(changed, max_rows, monkeypatch)
    assert before.total() == after.total() == PEOPLE
    assert (before - after).total() == 1 == (after - before).total()


# What a model does in train mode only is part of the training, and is checked there.


RARE: dict[str, Callable[[], bool]] = {  # one time in fifty
    "torch": lambda: float(torch.rand(())) < 0.02,
    "torch above": lambda: float(torch.rand(())) > 0.98,
    "torch whole": lambda: int(torch.randint(0, 50, ())) == 49,
    "python": lambda: random.random() < 0.02,
    "python whole": lambda: random.randint(1, 50) == 50,
    "numpy": lambda: bool(np.random.rand() < 0.02),  # noqa: NPY002
    "numpy between": lambda: bool(np.random.uniform(-1.0, 1.0, (1,))[0] > 0.96),  # noqa: NPY002
}


class Mixing(nn.Module):
    """A network that mixes rows, or carries them over to later ones, in train mode only."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.first, self.last = how, nn.Linear(6, 8), nn.Linear(8, 3)
        self.centre = torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.training and self.how == "scale":
            hidden = hidden / (1 + hidden.abs().amax(0).detach())
        if self.training and self.how == "centre":
            hidden = hidden - hidden.mean(0)
        if self.training and self.how == "hook" and hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient / (gradient.norm() + 1e-9) * 4)
        if self.training and self.how == "seldom" and float(torch.rand(())) < 0.3:
            hidden = hidden - hidden.mean(0).detach()
        if self.training and self.how == "often" and float(torch.rand(())) > 0.3:
            hidden = hidden - hidden.mean(0).detach()
        if self.training and self.how in RARE and RARE[self.how]():
            hidden = hidden - hidden.mean(0).detach()
        if self.how == "carried":
            hidden = hidden - self.centre
            if self.training:
                self.centre = 0.9 * self.centre + 0.1 * hidden.detach().mean(0)
        return self.last(torch.tanh(hidden))

    def losses(self, batch: Tensor) -> Tensor:
        return F.cross_entropy(self(batch), (batch[:, 0] > 0).long(), reduction="none")


def some_rows(count: int, seed: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(6, generator=generator) for _ in range(count)]


def guarantee_of(model: Any, rows: list[Any], made_up: list[Any], checked_in_eval: bool = False) -> Guarantee:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_private(model, DPSGD(noise_multiplier=1.0), num_units=len(rows), batch_size=8, steps=2) as private:
        model.train(not checked_in_eval)
        private.check(model.losses, made_up)
        for _ in private.batches(rows):
            model.train()
            private.step(model.losses, optimizer)
    return private.guarantee


@pytest.mark.parametrize("checked_in_eval", [False, True])
@pytest.mark.parametrize("how", ["scale", "centre", "hook", "seldom", "often", "carried", *RARE])
def test_rows_that_are_mixed_in_train_mode_only_are_not_certified(how: str, checked_in_eval: bool) -> None:
    try:
        found = guarantee_of(Mixing(how), some_rows(16), some_rows(6, seed=4), checked_in_eval)
    except UnsupportedError as error:
        assert "mix" in str(error)
    else:
        assert how == "carried" and Caveat.UNPROTECTED_STATE in found.caveats


class Harmless(nn.Module):
    """Random numbers in train mode that differ from row to row, and mix nothing."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.last = nn.Linear(6, 3)
        if how == "lstm":
            self.lstm = nn.LSTM(6, 6, num_layers=2, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "functional":
            x = F.dropout(x, 0.3, training=self.training)
        if self.how == "noise" and self.training:
            x = x + 0.1 * torch.randn_like(x) * (torch.rand(len(x), 1) < 0.5)
        if self.how == "python" and self.training:
            x = x + torch.tensor([[random.gauss(0.0, 0.1) * (random.random() < 0.5)] for _ in x])
        if self.how == "attention":
            heads = x.view(-1, 1, 3, 2)
            dropped = 0.2 if self.training else 0.0
            x = F.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropped).reshape(-1, 6)
        if self.how == "lstm":
            x = self.lstm(torch.stack((x, x * 2), 1))[0][:, -1]
        return self.last(x)

    losses = Mixing.losses


@pytest.mark.parametrize("how", ["functional", "noise", "python", "attention", "lstm"])
def test_dropout_and_noise_are_certified(how: str) -> None:
    found = guarantee_of(Harmless(how), some_rows(16), some_rows(6, seed=4))
    assert found.caveats <= {Caveat.UNSTEADY_KERNELS}  # how a processor rounds is another matter


def test_a_loop_that_draws_until_a_number_fits_ends_in_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("discreet.training.independence._MOST_DRAWS", 50)

    class Until(Harmless):
        def forward(self, x: Tensor) -> Tensor:
            while self.training and (random.random() < 0.01 or float(torch.rand(())) > 0.99):
                pass
            return self.last(x)  # type: ignore[no-any-return]

    assert guarantee_of(Until("until"), some_rows(16), some_rows(6, seed=4)).caveats <= {Caveat.UNSTEADY_KERNELS}


class Guarded(Mixing):
    """A loss that leaves something out where a row is extreme."""

    def losses(self, batch: Tensor) -> Tensor:
        losses = super().losses(batch)
        if self.how == "a part with large numbers" and float(batch.abs().max()) > 1e5:
            return losses * 0
        if self.how == "a part with a large loss" and float(losses.detach().max()) > 1e3:
            return losses * 0
        if self.how == "a part that is not finite" and not bool(torch.isfinite(losses).all()):
            return torch.nan_to_num(losses) * 0
        if self.how == "a row":
            return torch.where(torch.isfinite(losses) & (batch.abs().amax(1) < 1e5), losses, torch.zeros_like(losses))
        if self.how == "an error":
            assert bool(torch.isfinite(losses).all()) and float(batch.abs().max()) < 1e5
        return losses

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("how", ["a part with large numbers", "a part with a large loss", "a part that is not finite"])
def test_a_part_that_is_left_out_for_one_extreme_row_is_rejected(how: str) -> None:
    with pytest.raises(UnsupportedError, match=r"next to a row .* mixes the examples"):
        guarantee_of(Guarded(how), some_rows(16), some_rows(6, seed=4))


@pytest.mark.parametrize("how", ["a row", "an error"])
def test_an_extreme_row_that_is_left_out_or_stops_the_training_is_certified(how: str) -> None:
    assert guarantee_of(Guarded(how), some_rows(16), some_rows(6, seed=4)).caveats <= {Caveat.UNSTEADY_KERNELS}


class Keeping(nn.Module):
    """A network that keeps what it saw as something else than a buffer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.last = how, nn.Linear(6, 3)
        self.mean: Any = {"array": np.zeros(6), "dict": {"mean": 0.0}, "set": {0.0}, "object": Held()}.get(how, 0.0)
        self.calls, self.temperature = 0, 1.0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.temperature *= 0.999
        seen = float(x.detach().mean())
        if self.how in ("number", "saved"):
            self.mean = 0.9 * self.mean + 0.1 * seen
        if self.how == "array":
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0).numpy()
        if self.how == "dict":
            self.mean["mean"] = seen
        if self.how == "set":
            self.mean.add(seen)
        if self.how == "object":
            self.mean.tensor = x.detach().mean(0)
        centre = {"number": self.mean, "array": torch.tensor(self.mean)}[self.how] if self.how in USED else 0.0
        return self.last((x - centre).float())  # type: ignore[no-any-return]

    def get_extra_state(self) -> Any:
        return {"mean": self.mean, "calls": self.calls} if self.how == "saved" else {"calls": self.calls}

    def set_extra_state(self, state: Any) -> None:
        self.calls = state["calls"]

    losses = Mixing.losses


class Held:
    """An object with a tensor."""

    tensor: Tensor | None = None


USED = ("number", "array")  # by later passes


@pytest.mark.parametrize("how", ["number", "saved", "array", "dict", "set", "object"])
def test_what_a_model_keeps_of_its_rows_is_unprotected_state(how: str) -> None:
    found = guarantee_of(Keeping(how), some_rows(16), some_rows(6, seed=4))
    assert found.caveats == {Caveat.UNPROTECTED_STATE}
    assert found.reason is not None and "may have learned from private rows without noise" in found.reason


def test_a_counter_and_a_schedule_of_passes_keep_nothing_of_rows() -> None:
    found = guarantee_of(Keeping("nothing"), some_rows(16), some_rows(6, seed=4))
    assert found.caveats <= {Caveat.UNSTEADY_KERNELS}


def language_model(kind: str) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    if kind == "bert":
        sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=20, num_labels=3, **sizes))
    config = transformers.GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2, n_positions=8, pad_token_id=0)
    config.num_labels = 3
    return transformers.GPT2ForSequenceClassification(config)


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_transformers_with_dropout_are_certified(kind: str) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = language_model(kind)

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.model(input_ids=ids).logits
            return logits

        def losses(self, ids: Tensor) -> Tensor:
            return F.cross_entropy(self(ids), ids[:, 0] % 3, reduction="none")

    rows = [torch.randint(1, 20, (5,), generator=torch.Generator().manual_seed(row)) for row in range(20)]
    found = guarantee_of(Wrapped(), rows[4:], rows[:4], checked_in_eval=kind == "bert")
    assert found.caveats <= {Caveat.UNSTEADY_KERNELS}


# Which kernels compute all units is decided before a unit is drawn.


@pytest.mark.parametrize("several", [False, True])
def test_the_kernels_of_all_units_do_not_depend_on_who_came(several: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def invariant(values_of: Any, units: int, full: int) -> bool:
        values_of(torch.arange(units))
        return units != 2  # parts of two units are made unsteady: those of people with three or four rows

    monkeypatch.setattr(independence, "bitwise_invariant", invariant)
    monkeypatch.setattr(independence.Kernels, "can_change", property(lambda self: True))
    model = Mixing("nothing")
    rows = some_rows(12)
    owners = [min(row, 8) if several else row % 9 for row in range(12)]  # one person has four rows, or nobody does
    chosen: list[bool] = []

    class Rows(list[Tensor]):
        def __getitem__(self, index: Any) -> Any:
            assert private._check is not None
            chosen.append(private._check.plain_attention)
            return super().__getitem__(index)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with make_private(model, DPSGD(noise_multiplier=1.0), num_units=9, batch_size=9, steps=1) as private:
        private.check(model.losses, some_rows(4, seed=4))
        for _ in private.batches(Rows(rows), groups=owners, max_rows=8):
            private.step(model.losses, optimizer)
    assert chosen and all(chosen)
