"""The ledger as its users meet it."""

import copy
import json
import math
import os
import pickle
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from discreet.accounting import ledger as ledger_module
from discreet.accounting import ledger_file
from discreet.accounting.curve import interval_for
from discreet.accounting.events import (
    ComposedDpEvent,
    DpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    LocalDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    VisibleVectorsDpEvent,
    VonMisesFisherDpEvent,
    decompose,
    event_to_json,
)
from discreet.accounting.interpret import guarantee_of, pure_epsilon
from discreet.accounting.ledger import Budget, Ledger, Receipt
from discreet.accounting.ledger_file import most
from discreet.accounting.losses import use_curve
from discreet.accounting.powers import Losses, Powers
from discreet.core.errors import BudgetError, LedgerError, OutputError, SettingError, UnsupportedError
from discreet.core.guarantee import Adjacency

STEP = PoissonSampledDpEvent(0.01, GaussianDpEvent(1.0))
OTHER = GaussianDpEvent(20.0)


def open_ledger(path: Path | None, **settings: object) -> Ledger:
    return Ledger.open(path, **{"unit": "note", "adjacency": "add/remove", **settings})  # type: ignore[arg-type]


@pytest.fixture(params=["file", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "ledger" if request.param == "file" else None


def test_a_spend_is_counted_and_receipted(place: Path | None) -> None:
    with open_ledger(place) as ledger:
        first = ledger.spend(STEP, "step 1")
        second = ledger.spend(STEP, "step 2")
        assert first == Receipt("step 1", STEP, 1, durable=place is not None)
        assert second.spends == 2
        ledger.spend(OTHER, "noise")
        assert ledger.event == ComposedDpEvent([SelfComposedDpEvent(STEP, 2), SelfComposedDpEvent(OTHER, 1)])
        assert ledger.statement.spends == 3


def test_an_empty_ledger_has_cost_nothing(place: Path | None) -> None:
    with open_ledger(place) as ledger:
        assert ledger.event == NoOpDpEvent()
        assert ledger.guarantee(1e-5).epsilon == 0


def test_the_line_is_on_disk_before_the_spend_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger"
    written: list[bytes] = []
    synced: list[bytes] = []
    sync = os.fdatasync

    def watched(descriptor: int) -> None:
        sync(descriptor)
        synced.append(path.read_bytes())

    with open_ledger(path) as ledger:
        monkeypatch.setattr(os, "fdatasync", watched)
        for number in range(3):
            ledger.spend(STEP, f"step {number}")
            written.append(path.read_bytes())
            assert synced[-1] == written[-1]
            assert f'["step {number}",0,'.encode() in synced[-1].splitlines()[-1]
    # The event is declared, and synced, before its first spend is written.
    assert synced[0].splitlines()[-1].startswith(b'{"event":0,"is":{"PoissonSampledDpEvent"')
    assert len(synced) == 4


def test_what_was_spent_is_there_when_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        for number in range(5):
            ledger.spend(STEP, f"step {number}")
        before = ledger.statement
    with open_ledger(path) as ledger:
        assert ledger.statement == before == Ledger.read(path)
        ledger.spend(STEP, "step 5")
        ledger.spend(OTHER, "noise")
        ledger.spend(STEP, "step 6")
        after = ledger.statement
    assert after.spent == ((STEP, 7), (OTHER, 1))
    assert Ledger.read(path) == after


def test_it_says_which_ids_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        assert not ledger.holds("run step 0")
        for number in (0, 1, 3):
            ledger.spend(STEP, f"run step {number}")
        assert [ledger.holds(f"run step {number}") for number in range(5)] == [True, True, False, True, False]
    with open_ledger(path) as ledger:
        assert all(ledger.holds(f"run step {number}") for number in (0, 1, 3))
        assert not ledger.holds("run step 2") and not ledger.holds("other step 0")


def test_a_spend_that_was_refused_or_not_written_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_ledger(tmp_path / "ledger", budget=Budget(0.5, 1e-5)) as ledger:
        with pytest.raises(BudgetError):
            ledger.spend(GaussianDpEvent(0.1), "too much")
        assert not ledger.holds("too much")

        def full(descriptor: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OutputError):
            ledger.spend(STEP, "step 0")
        monkeypatch.undo()
        assert not ledger.holds("step 0")
        ledger.spend(STEP, "step 0")
        assert ledger.holds("step 0")


def test_a_torn_line_holds_its_id_only_where_it_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        ledger.spend(STEP, "step 0")
        ledger.spend(STEP, "step 1")
    whole = path.read_bytes()
    for lost, known in ((1, True), (4, True), (len(whole.splitlines()[-1]) - 3, False)):
        path.write_bytes(whole[:-lost])
        with open_ledger(path) as ledger:
            assert ledger.holds("step 0")
            assert ledger.holds("step 1") is known
            assert ledger.statement.spends == 2


def test_a_hundred_thousand_ids_are_asked_for() -> None:
    with open_ledger(None) as ledger:
        for number in range(2000):
            ledger.spend(STEP, f"step {number}")
        found = sum(ledger.holds(f"step {number}") for number in range(100_000))
        assert found == 2000


def test_a_seeded_step_redone_is_counted_once(place: Path | None) -> None:
    with open_ledger(place) as ledger:
        ledger.spend(STEP, "step 1")
        again = ledger.spend(STEP, "step 1")
        assert again.repeated and not again.spent_again
        assert again.spends == 1
        assert ledger.statement.respent == 0


@pytest.mark.parametrize(("first", "second"), [(True, True), (False, True), (True, False)])
def test_with_secure_randomness_a_redone_step_is_spent_again(place: Path | None, first: bool, second: bool) -> None:
    with open_ledger(place) as ledger:
        ledger.spend(STEP, "step 1", secure=first)
        again = ledger.spend(STEP, "step 1", secure=second)
        assert again.spent_again and not again.repeated
        assert again.spends == 2
        # Secure once, the id stays so: no later seeded step can be the same draw.
        assert ledger.spend(STEP, "step 1").spent_again
        assert ledger.statement.respent == 2
    if place is not None:
        assert Ledger.read(place).respent == 2


def test_an_id_with_another_event_is_refused(place: Path | None) -> None:
    with open_ledger(place) as ledger:
        ledger.spend(STEP, "step 1")
        ledger.spend(OTHER, "step 2")
        for event in (OTHER, LaplaceDpEvent(1.0)):
            for secure in (False, True):
                with pytest.raises(LedgerError, match="step 1.*another"):
                    ledger.spend(event, "step 1", secure=secure)
        assert ledger.statement.spends == 2


@pytest.mark.parametrize("name", ["", "x" * 201, 3, None, b"step"])
def test_a_bad_id_is_refused(name: object) -> None:
    with open_ledger(None) as ledger, pytest.raises(SettingError, match="Expected id to be"):
        ledger.spend(STEP, name)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["Schritt „7”", '"]\n[', "\t", "\\", "\ud800", "\x00", '{"event":'])
def test_any_text_can_be_an_id(tmp_path: Path, name: str) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        ledger.spend(STEP, name)
    with open_ledger(path) as ledger:
        assert ledger.spend(STEP, name).repeated
        assert ledger.statement.torn == 0


def test_an_unknown_event_is_refused_and_not_written(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path) as ledger:
        before = path.read_bytes()
        with pytest.raises(UnsupportedError, match="int"):
            ledger.spend(3, "step 1")
        assert path.read_bytes() == before


def test_changing_an_event_afterwards_changes_nothing(place: Path | None) -> None:
    event = ComposedDpEvent([OTHER])
    with open_ledger(place) as ledger:
        receipt = ledger.spend(event, "step 1")
        event.events.append(STEP)
        assert receipt.event == ComposedDpEvent([OTHER])
        assert ledger.event.event == ComposedDpEvent([OTHER])


@pytest.mark.parametrize(
    ("setting", "other", "remedy"),
    [
        ("unit", "author", "unit"),
        ("adjacency", "replace-one", "adjacency"),
        ("budget", Budget(3.0, 1e-6), "delta"),
        ("budget", Budget(4.0, 1e-5), "budget"),
        ("budget", None, "budget"),
    ],
)
def test_units_adjacencies_and_budgets_are_not_mixed(tmp_path: Path, setting: str, other: object, remedy: str) -> None:
    path = tmp_path / "ledger"
    settings = {"budget": Budget(3.0, 1e-5)}
    open_ledger(path, **settings).close()
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=f"Expected {remedy} to be .*(Open it with|Set) {remedy}="):
        open_ledger(path, **{**settings, setting: other})
    assert path.read_bytes() == before
    open_ledger(path, **settings).close()  # the refusal let go of the lock


def test_a_budget_is_not_put_on_a_ledger_that_has_none(tmp_path: Path) -> None:
    open_ledger(tmp_path / "ledger").close()
    with pytest.raises(LedgerError, match="Open it without budget"):
        open_ledger(tmp_path / "ledger", budget=Budget(3.0, 1e-5))


@pytest.mark.parametrize("settings", [{"unit": ""}, {"unit": None}, {"adjacency": "add-remove"}])
def test_bad_settings_are_refused_before_a_file_is_made(tmp_path: Path, settings: dict[str, object]) -> None:
    with pytest.raises(SettingError):
        open_ledger(tmp_path / "ledger", **settings)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0, 1e-5), (-1, 1e-5), (float("inf"), 0), (float("nan"), 0), (1, 1), (1, -1)]
)
def test_a_bad_budget_is_refused(epsilon: float, delta: float) -> None:
    with pytest.raises(SettingError):
        Budget(epsilon, delta)


def test_the_guarantee_names_unit_and_adjacency(place: Path | None) -> None:
    with open_ledger(place, unit="author", adjacency="add/remove") as ledger:
        ledger.spend(STEP, "step 1")
        guarantee = ledger.guarantee(1e-5, assumptions=["authors do not share notes"])
        assert guarantee.unit == "author"
        assert guarantee.adjacency == "add/remove"
        assert guarantee.assumptions[0] == "authors do not share notes"
        assert guarantee.certified


def test_a_thousand_steps_cost_what_is_published() -> None:
    with open_ledger(None) as ledger:
        for number in range(1000):
            ledger.spend(STEP, f"step {number}")
        assert ledger.guarantee(1e-5).epsilon == pytest.approx(1.829, abs=0.01)


def test_without_a_budget_a_delta_is_required() -> None:
    with open_ledger(None) as ledger:
        for ask in (ledger.guarantee, ledger.epsilon, lambda: ledger.remaining(STEP)):
            with pytest.raises(SettingError, match="to be set, got None"):
                ask()


def count_prices(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    calls: list[object] = []
    cost_of = ledger_module.cost_of
    monkeypatch.setattr(ledger_module, "cost_of", lambda event, *rest: calls.append(event) or cost_of(event, *rest))
    return calls


def test_a_budget_stops_the_step_that_would_exceed_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, path = count_prices(monkeypatch), tmp_path / "ledger"
    with open_ledger(path, budget=Budget(1.0, 1e-5)) as ledger:
        allowed = ledger.remaining(STEP)
        for number in range(allowed):
            assert ledger.remaining(STEP) == allowed - number
            ledger.spend(STEP, f"step {number}")
        assert ledger.remaining(STEP) == 0
        assert len(calls) < 20  # and not one for each of a few hundred steps
        before = path.read_bytes()
        with pytest.raises(BudgetError, match=r"after 'one more' to be within the budget of 1 .* got 1\.\d+") as error:
            ledger.spend(STEP, "one more")
        told = str(error.value).partition("with epsilon ")[2].partition(" ")[0]
        assert ledger.guarantee().epsilon <= float(told) <= 1.0
        assert path.read_bytes() == before
        assert ledger.spend(STEP, "step 0").repeated  # what is already spent costs nothing
        with pytest.raises(BudgetError):
            ledger.spend(STEP, "step 0", secure=True)
        assert ledger.guarantee().epsilon <= 1.0
        assert ledger.statement.remaining(STEP) == 0
    with open_ledger(path, budget=Budget(1.0, 1e-5)) as ledger, pytest.raises(BudgetError):
        ledger.spend(STEP, "one more")
    assert allowed > 100


def test_steps_of_two_kinds_in_turn_ask_the_accountant_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_prices(monkeypatch)
    with open_ledger(None, budget=Budget(2.0, 1e-5)) as ledger:
        spends = 0
        for number in range(200):
            ledger.spend(STEP, f"step {number}")
            ledger.spend(GaussianDpEvent(60.0), f"norm {number}")
            spends += 2
        assert ledger.guarantee().epsilon <= 2.0
    assert len(calls) < 50


DECOYS = SelfComposedDpEvent(VisibleVectorsDpEvent(LocalDpEvent(3.8), 1, 100), 300)  # a query among ninety-nine


def open_for_a_person(epsilon: float) -> Ledger:
    return Ledger.open(None, unit="person", adjacency="replace-one", budget=Budget(epsilon, 1e-6))


def test_a_single_spend_prices_no_more_than_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_prices(monkeypatch)
    with open_for_a_person(8000.0) as ledger:
        ledger.spend(DECOYS, "first")
        ledger.guarantee(assumptions=("the encoder is public",))
        assert calls == [SelfComposedDpEvent(DECOYS, 1)]  # a thousand of them would take seconds


def test_spends_are_allowed_and_refused_as_by_pricing_every_one() -> None:
    events = [DECOYS, LocalDpEvent(8.0), GaussianDpEvent(0.9)]
    order = [0, 1, 0, 2, 1, 0, 2, 0, 0, 1, 0]
    spent: list[object] = []
    with open_for_a_person(30.0) as ledger:
        for number, which in enumerate(order):
            slow = guarantee_of(
                ComposedDpEvent([*spent, events[which]]), delta=1e-6, adjacency="replace-one"
            ).epsilon  # the slow twin: every spend priced with all before it
            if slow <= 30.0:
                ledger.spend(events[which], f"spend {number}")
                spent.append(events[which])
            else:
                with pytest.raises(BudgetError):
                    ledger.spend(events[which], f"spend {number}")
    assert 3 < len(spent) < len(order)


@pytest.mark.parametrize(
    "event", [DECOYS, LocalDpEvent(2.0), VonMisesFisherDpEvent(6.0, 8), GaussianDpEvent(1.0)], ids=str
)
@pytest.mark.parametrize("before", [(), (LocalDpEvent(2.0),), (DECOYS, GaussianDpEvent(1.0))], ids=len)
def test_the_quick_bound_on_what_is_left_is_kept(event: object, before: tuple[object, ...]) -> None:
    with open_for_a_person(30.0) as ledger:
        for number, spent in enumerate(before):
            ledger.spend(spent, f"before {number}")
        quick = ledger.at_least(event)
        assert 0 < quick <= ledger.remaining(event) == ledger.statement.remaining(event)
        for number in range(quick):
            ledger.spend(event, f"one {number}")
        assert ledger.guarantee().epsilon <= 30.0


@pytest.mark.parametrize("each", [0.1, 0.7, 1 / 3, 1.1])
@pytest.mark.parametrize("count", [3, 6, 7, 49])
@pytest.mark.parametrize("before", [0, 2])
def test_the_quick_answer_promises_no_spend_that_is_then_refused(each: float, count: int, before: int) -> None:
    event = EpsilonDeltaDpEvent(each, 0.0)
    for epsilon in (count * each, float(f"{count * each:.3g}"), math.nextafter(count * each, 0.0)):
        with Ledger.open(None, unit="note", adjacency="add/remove", budget=Budget(epsilon, 0.0)) as ledger:
            for number in range(before):
                ledger.spend(event, id=f"first {number}")
            quick = ledger.at_least(event)
            assert quick >= count - before - 1
            for number in range(quick):
                ledger.spend(event, id=f"then {number}")


def test_costs_that_simply_add_up_are_found_in_three_calls() -> None:
    for limit in (0.5, 7.9, 8.0, 8000.0, 1e9):
        calls: list[int] = []
        found = most(lambda n, c=calls: c.append(n) or 8.0 * n, limit, 100_000, single=8.0)  # type: ignore[misc]
        assert found == min(int(limit / 8), 100_000)
        assert len(calls) <= 3
    for power in (0.5, 0.8):
        assert most(lambda n, p=power: 2.0 + n**p, 102.0, 100_000, single=1.0) == int(100 ** (1 / power) + 1e-9)
    assert most(lambda n: 9.0 + n, 8.0, 100, single=1.0) == 0


def test_what_grows_ever_more_slowly_is_found_in_few_calls() -> None:
    for power in (0.5, 0.8, 0.95):
        calls: list[int] = []
        found = most(lambda n, p=power, c=calls: c.append(n) or n**p, 1000.0, 10_000_000, single=1.0)  # type: ignore[misc]
        assert found == int(1000 ** (1 / power) + 1e-6)
        assert len(calls) <= 13


@pytest.mark.parametrize("budget", [5.0, 20.0])
def test_what_remains_beside_drawn_queries_is_what_one_fine_grid_says(budget: float) -> None:
    """The slow twin: every loss on the finest grid of all, in extended precision, one spend more at a time."""
    drawn, query = SelfComposedDpEvent(VisibleVectorsDpEvent(LocalDpEvent(1.1), 1, 10), 30), LocalDpEvent(1.0)
    with Ledger.open(None, unit="person", adjacency="replace-one", budget=Budget(budget, 1e-6)) as ledger:
        ledger.spend(drawn, "a query among decoys")
        found = ledger.remaining(query)
        slow = 0
        while slow_epsilon(ComposedDpEvent([drawn, SelfComposedDpEvent(query, slow + 1)]), 1e-6) <= budget:
            slow += 1
        assert slow - 1 <= found <= slow
        for number in range(found):
            ledger.spend(query, f"query {number}")
        with pytest.raises(BudgetError):
            ledger.spend(query, "one more")


def slow_epsilon(event: DpEvent, delta: float) -> float:
    parts = decompose(event, Adjacency.REPLACE_ONE)
    found = [(use_curve(use, Adjacency.REPLACE_ONE), count) for use, count in parts.uses]
    step = min(interval_for(one) for one, _ in found) / 2
    each = [Powers.of(one.losses(step)).power(count) for one, count in found]
    return min(pure_epsilon(parts, Adjacency.REPLACE_ONE), reduce(Powers.compose, each).epsilon(1, delta))


def test_what_remains_of_a_thousand_queries_beside_one_among_99_decoys_is_found_on_small_grids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = SelfComposedDpEvent(VisibleVectorsDpEvent(LocalDpEvent(1.0747), 1, 100), 300)
    with Ledger.open(None, unit="person", adjacency="replace-one", budget=Budget(1000.0, 1e-6)) as ledger:
        ledger.spend(drawn, "a query among decoys")
        sizes: list[int] = []
        right = Losses.power

        def power(self: Losses, *given: Any) -> Losses:
            found = right(self, *given)
            sizes.append(len(found.masses))
            return found

        monkeypatch.setattr(Losses, "power", power)
        assert ledger.remaining(LocalDpEvent(1.0)) == 1788
        assert sizes and sum(sizes) < 3e7  # 7.3e6; on one grid for both there were many times more


def test_room_found_for_one_new_event_is_not_given_to_another() -> None:
    with open_ledger(None, budget=Budget(1.0, 1e-5)) as ledger:
        assert ledger.remaining(GaussianDpEvent(50.0)) > 10
        with pytest.raises(BudgetError):
            ledger.spend(GaussianDpEvent(0.5), "large")
        ledger.spend(GaussianDpEvent(50.0), "small")


def test_epsilon_so_far_is_cheap_and_never_too_low(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_ledger(None, budget=Budget(3.0, 1e-5)) as ledger:
        calls, bounds = count_prices(monkeypatch), {}
        for number in range(1, 1001):
            ledger.spend(STEP, f"step {number}")
            bounds[number] = ledger.epsilon(rounding=0.2)
        assert len(calls) < 60
        assert (
            ledger.epsilon(rounding=0) == ledger.guarantee().epsilon <= bounds[1000] <= 1.2 * ledger.epsilon(rounding=0)
        )
    assert list(bounds.values()) == sorted(bounds.values())
    with open_ledger(None) as ledger:
        ledger.spend(STEP, "step")
        assert ledger.epsilon(1e-5) == bounds[1]


def test_the_cost_of_a_last_step_shows_the_budget_and_no_more() -> None:
    with open_ledger(None, budget=Budget(0.5, 1e-5)) as ledger:
        for number in range(ledger.remaining(STEP)):
            ledger.spend(STEP, f"step {number}")
        assert ledger.guarantee().epsilon <= ledger.epsilon(rounding=0.5) == 0.5


def test_most_finds_the_largest_within_the_limit() -> None:
    for power in (0.5, 1.0, 2.0):
        for limit in (0.5, 1.0, 3.7, 50.0, 999.0):
            calls: list[int] = []
            found = most(lambda n, p=power, c=calls: c.append(n) or n**p, limit, 100_000)  # type: ignore[misc]
            assert found == min(int(limit ** (1 / power) + 1e-9), 100_000)
            assert len(calls) < 20
    assert most(lambda n: 0.0, 1.0, 100_000) == 100_000
    assert most(lambda n: float("inf"), 1.0, 100_000) == 0
    assert most(lambda n: 0.0 if n < 777 else float("inf"), 1.0, 100_000) == 776


def test_a_ledger_in_memory_says_so() -> None:
    with open_ledger(None) as ledger:
        assert "in memory" in repr(ledger)
        assert not ledger.spend(STEP, "step 1").durable


def test_a_closed_ledger_does_not_spend(place: Path | None) -> None:
    ledger = open_ledger(place)
    ledger.close()
    ledger.close()
    with pytest.raises(LedgerError, match="closed"):
        ledger.spend(STEP, "step 1")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_ledger_is_not_copied(place: Path | None, duplicate: object) -> None:
    with open_ledger(place) as ledger, pytest.raises(LedgerError, match="copied"):
        duplicate(ledger)  # type: ignore[operator]


def test_a_hundred_thousand_lines_are_read() -> None:
    lines = [ledger_file.header("note", open_ledger(None).statement.adjacency, None)]
    tally = ledger_file.read(lines[0], "here")
    for line in [tally.declaration(event_to_json(STEP))]:
        tally.take(line[:-1])
        lines.append(line)
    for number in range(100_000):
        lines.append(tally.spend(f"seed 7, step {number}", False))
        tally.take(lines[-1][:-1])
    data = b"".join(lines)
    assert len(data) < 50 * 100_000
    assert ledger_file.read(data, "here").counts == [100_000]


def test_each_line_is_json(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    with open_ledger(path, budget=Budget(3.0, 1e-5)) as ledger:
        ledger.spend(STEP, "step 1", secure=True)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["budget"] == {"epsilon": 3.0, "delta": 1e-5}
    assert lines[1]["event"] == 0
    assert lines[2][:2] == ["step 1", 1]
