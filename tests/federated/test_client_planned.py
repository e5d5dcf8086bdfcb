"""A ledger that holds its whole plan before the first step, whatever the order and number of steps."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.accounting.events import GaussianDpEvent
from discreet.accounting.ledger import Budget, Ledger
from discreet.core.errors import BudgetError
from discreet.core.guarantee import Caveat
from discreet.federated.client import ANSWERS, PlannedLedger

EVENT = GaussianDpEvent(10.0)
Open = Callable[..., PlannedLedger]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    def ledger(planned: int = 3, budget: Budget | None = None, *, trusted: bool = False) -> PlannedLedger:
        one = PlannedLedger.open(tmp_path / "ledger.jsonl", unit="row", adjacency="zero-out", budget=budget)
        one.plan("plan", planned, tmp_path, trusted=trusted)
        return one

    return ledger


def spends(tmp_path: Path) -> int:
    return Ledger.read(tmp_path / "ledger.jsonl").spends


def test_all_steps_are_counted_with_the_first_and_a_repeated_one_costs_nothing(opened: Open, tmp_path: Path) -> None:
    for names in (["b"], ["b", "a"], ["c", "a"]):
        with opened() as ledger:
            for name in names:
                ledger.spend(EVENT, name)
            assert spends(tmp_path) == 3
    assert not Ledger.read(tmp_path / "ledger.jsonl").terms.caveats


def test_steps_beyond_the_plan_are_counted_and_an_estimate_without_a_budget(opened: Open, tmp_path: Path) -> None:
    with opened() as ledger:
        for name in "abcde":
            ledger.spend(EVENT, name)
        assert spends(tmp_path) == 5
        assert ledger.guarantee(1e-5).caveats == {Caveat.UNPLANNED_STEPS}


def test_with_a_budget_a_step_beyond_the_plan_counts_all_of_it(opened: Open, tmp_path: Path) -> None:
    budget = Budget(1.5, 1e-5)
    with opened(budget=budget) as ledger:
        for name in "abc":
            ledger.spend(EVENT, name)
        most = 3 + ledger.remaining(EVENT)
        assert spends(tmp_path) == 3 and most > 4
        ledger.spend(EVENT, "d")
        assert spends(tmp_path) == most and ledger.guarantee().certified
        for number in range(4, most):
            ledger.spend(EVENT, f"step {number}")
        with pytest.raises(BudgetError):
            ledger.spend(EVENT, "one too many")
        assert spends(tmp_path) == most


def test_trusted_steps_with_new_randomness_are_counted_one_by_one(opened: Open, tmp_path: Path) -> None:
    with opened(trusted=True) as ledger:
        for _ in range(4):
            ledger.spend(EVENT, "attempt of round 1", secure=True)
    with opened(trusted=True) as ledger:
        ledger.spend(EVENT, "attempt of round 1", secure=True)
        assert spends(tmp_path) == 5 and not ledger.statement.terms.caveats


def test_a_plan_beyond_the_budget_takes_what_there_is(opened: Open, tmp_path: Path) -> None:
    with opened(planned=50, budget=Budget(1.0, 1e-5)) as ledger:
        ledger.spend(EVENT, "a")
        most = spends(tmp_path)
        assert 1 < most < 50 and ledger.remaining(EVENT) == 0
        for number in range(1, most):
            ledger.spend(EVENT, f"step {number}")
        with pytest.raises(BudgetError):
            ledger.spend(EVENT, "one too many")


@pytest.mark.parametrize("loss", ["all", "torn"])
def test_a_lost_list_of_steps_makes_every_place_used_and_a_torn_line_its_own_free(
    opened: Open, tmp_path: Path, loss: str
) -> None:
    with opened() as ledger:
        ledger.spend(EVENT, "a")
        ledger.spend(EVENT, "b")
    path = tmp_path / ANSWERS
    if loss == "all":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-4])
    with opened() as ledger:
        ledger.spend(EVENT, "c")
        ledger.spend(EVENT, "a")
        assert spends(tmp_path) == (3 if loss == "torn" else 5)
    lines = [line for line in path.read_text().splitlines() if line.endswith("}")]
    assert [json.loads(line).get("id") for line in lines] == ([None, "a", "c"] if loss == "torn" else [None, "c", "a"])
