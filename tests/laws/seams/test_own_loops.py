"""In a loop of the user's own, no unit changes the gradient of another one, bit for bit, wherever it stands."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import DPSGD, Rng, make_private
from discreet.clipping.record import Record

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
    with make_private(model, protect, units=PEOPLE, batch_size=PEOPLE, steps=1, secret=Rng(2)) as private:
        private.check(losses_of, [torch.randn(6, generator=generator) for _ in range(8)])
        for _ in private.batches(rows, unit_of=owners, max_rows=max_rows):
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
