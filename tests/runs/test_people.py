"""The record of all trainings on the same people: what they add up to, and who is found again."""

from __future__ import annotations

import json
import math
import re
import stat
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from discreet.accounting.events import (
    ClippedSumDpEvent,
    EpsilonDeltaDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    event_to_json,
)
from discreet.accounting.interpret import epsilon
from discreet.accounting.ledger import Ledger, Terms
from discreet.cli.main import main
from discreet.core.errors import BudgetError, LedgerError, OutputError
from discreet.core.guarantee import Adjacency, Caveat, Guarantee, in_digits
from discreet.data.batches import Part
from discreet.data.corpus import Corpus
from discreet.data.samplers import Poisson
from discreet.data.sources import TextSource
from discreet.experiment.run import RunRequest
from discreet.models.settings import ModelSettings, TrainSettings
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.people import (
    DECIDED_BEFORE,
    FIXED_SEED,
    ODOMETER,
    TRAINING,
    About,
    Entry,
    People,
    Total,
    record_study,
)
from discreet.training.engine import PrivateParts, PrivateStep
from discreet.training.plan import TrainingPlan, warn_of_size

EVENT = PoissonSampledDpEvent(0.1, ClippedSumDpEvent(1.0))
ONE = event_to_json(EVENT)
DELTA = 1e-5


def corpus(*names: str) -> Corpus:
    texts = tuple(f"a note of {name}" for name in names)
    return Corpus("toy", texts, units=names, unit_name="patient")


def price(count: int) -> float:
    return epsilon(SelfComposedDpEvent(EVENT, count), DELTA, Adjacency.ZERO_OUT)


class Training:
    """A training that spends through the record, as `train_once` does."""

    def __init__(
        self, home: Path, rows: Corpus, kind: str = TRAINING, planned: int = 100, budget: float | None = None,
        path: Path | None = None, adjacency: str = "zero-out", delta: float = DELTA,
    ) -> None:  # fmt: skip
        self.ledger = Ledger.open(path, unit=rows.unit_name, adjacency=adjacency)
        about = About(kind, delta, home / "run", "dp-sgd")
        self.entry = Entry.of(People(home), rows, self.ledger, about, {ONE: planned}, budget)
        self.ledger.also = self.entry

    def steps(self, first: int, last: int, terms: Terms | None = None) -> None:
        for step in range(first, last):
            self.ledger.spend(EVENT, f"step {step}", terms=terms)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_two_trainings_on_the_same_people_add_up_and_one_more_or_less_finds_them(home: Path) -> None:
    first = Training(home, corpus("a", "b", "c"))
    first.steps(0, 10)
    first.entry.close(finished=True)
    for names in (("a", "b", "c"), ("a", "b", "c", "d"), ("a", "b"), ("c", "x", "y")):
        second = Training(home, corpus(*names))
        assert second.entry.before().guarantee.epsilon == pytest.approx(price(10))
        second.steps(0, 5)
        total = second.entry.now()
        assert total.trainings == 2 and total.guarantee.epsilon == pytest.approx(price(15))
        second.entry.people.delete(second.entry.record.name)
    assert Training(home, corpus("x", "y")).entry.before().trainings == 0


def test_the_total_is_that_of_the_unit_with_the_largest(home: Path) -> None:
    for names, steps in ((("a", "b"), 10), (("c",), 40), (("d",), 5), (("a", "d"), 8)):
        one = Training(home, corpus(*names))
        one.steps(0, steps)
        one.entry.close(finished=True)
    total = Training(home, corpus("a", "b", "c", "d")).entry.before()
    assert total.trainings == 4 and total.guarantee.epsilon == pytest.approx(price(40))
    assert Training(home, corpus("a", "b", "d")).entry.before().guarantee.epsilon == pytest.approx(price(18))


def test_rows_without_ids_are_found_by_their_texts(home: Path) -> None:
    rows = Corpus("toy", ("first text", "second text", "third text"))
    one = Training(home, rows)
    one.steps(0, 4)
    one.entry.close(finished=True)
    assert Training(home, replace(rows, texts=("new", *rows.texts[1:]))).entry.before().trainings == 1
    assert Training(home, Corpus("toy", ("quite", "other", "texts"))).entry.before().trainings == 0


def test_what_is_on_disk_is_never_less_than_the_ledger_and_at_most_twice(home: Path) -> None:
    one = Training(home, corpus("a"), planned=60)
    for step in range(60):
        one.steps(step, step + 1)
        kept = People(home).find(one.ledger.name)
        assert kept is not None
        assert step + 1 <= kept.spent[ONE] <= min(2 * (step + 1), 60)
    one.entry.close(finished=True)
    kept = People(home).find(one.ledger.name)
    assert kept is not None and kept.spent == {ONE: 60} and kept.finished


def test_a_resumed_training_is_not_counted_twice_and_a_lost_record_is_made_again(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    one = Training(home, corpus("a", "b"), path=path)
    one.steps(0, 7)
    one.ledger.close()  # killed: the record is not closed
    again = Training(home, corpus("a", "b"), path=path)
    again.steps(0, 12)  # the first seven are repeated
    again.entry.close(finished=True)
    again.ledger.close()
    (kept,) = People(home).records()
    assert kept.spent == {ONE: 12}
    other = tmp_path / "other"
    once_more = Training(other, corpus("a", "b"), path=path)
    once_more.entry.close(finished=True)
    (kept,) = People(other).records()
    assert kept.spent == {ONE: 12}


def test_an_older_copy_of_a_ledger_is_rejected_and_its_record_stays(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    one = Training(home, corpus("a"), path=path)
    one.steps(0, 2)
    one.ledger.close()
    early, empty = path.read_bytes(), path.read_bytes().splitlines(keepends=True)[0]
    again = Training(home, corpus("a"), path=path)
    again.steps(2, 4)
    again.entry.close()
    again.ledger.close()
    (kept,) = People(home).records()
    for copy in (early, empty):
        path.write_bytes(copy)
        with Ledger.open(path, unit="patient", adjacency="zero-out") as ledger:
            about = About(TRAINING, DELTA, home / "run", "dp-sgd")
            with pytest.raises(LedgerError, match="It is an older copy"):
                Entry.of(People(home), corpus("a"), ledger, about, {})
        assert People(home).records() == [kept] and kept.spends == 4


def test_a_record_that_was_not_closed_outlives_a_ledger_that_lost_its_spends(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    one = Training(home, corpus("a"), path=path)
    one.steps(0, 2)
    one.ledger.close()  # killed
    (kept,) = People(home).records()
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    again = Training(home, corpus("a"), path=path)
    again.entry.close()
    again.ledger.close()
    assert People(home).records() == [kept]


def test_a_training_that_spent_nothing_leaves_no_record(home: Path) -> None:
    one = Training(home, corpus("a"))
    one.entry.close()
    assert People(home).records() == [] and list((home / "people").iterdir()) == []


def test_fixed_seeds_and_studies_are_listed_apart(home: Path) -> None:
    one = Training(home, corpus("a"), FIXED_SEED)
    one.steps(0, 5, Terms((), frozenset({Caveat.FIXED_SEED})))
    one.entry.close(finished=True)
    record_study(People(home), home / "study", "notes.csv")
    record_study(People(home), home / "study", "notes.csv")
    total = Training(home, corpus("a")).entry.before()
    assert total.trainings == 0 and total.apart == 1 and total.guarantee.epsilon == 0
    assert sorted(record.kind for record in People(home).records()) == ["fixed-seed", "study"]


def test_a_total_states_the_assumptions_and_caveats_of_its_trainings(home: Path) -> None:
    for number, caveats in enumerate(({}, {Caveat.TRAINED_ENCODER})):
        one = Training(home, corpus("a"))
        one.steps(0, 3, Terms((f"assumption {number}",), frozenset(caveats)))
        one.entry.close(finished=True)
        now = one.entry.now().guarantee
        total = Training(home, corpus("a")).entry.before().guarantee
        assert (set(now.assumptions), now.caveats) == (set(total.assumptions), total.caveats)
        assert {f"assumption {k}" for k in range(number + 1)} <= set(total.assumptions)
        assert total.certified is (not caveats) and total.caveats == set(caveats)
    assert not total.certified
    (largest,) = People(home).largest_totals()
    most = largest.guarantee
    assert largest.trainings == 2 and most.assumptions == total.assumptions and most.caveats == total.caveats


def test_releases_under_other_adjacencies_are_converted_to_the_weakest(home: Path) -> None:
    for adjacency in ("add/remove", "zero-out"):
        one = Training(home, corpus("a"), adjacency=adjacency)
        one.steps(0, 5)
        one.entry.close(finished=True)
    exact = epsilon(SelfComposedDpEvent(EVENT, 10), DELTA, Adjacency.REPLACE_ONE)
    for adjacency, figure in (("add/remove", price(10)), ("zero-out", price(10)), ("replace-one", exact)):
        total = Training(home, corpus("a"), adjacency=adjacency).entry.before()
        assert total.guarantee.adjacency.value == ("zero-out" if adjacency == "add/remove" else adjacency)
        assert total.guarantee.epsilon == pytest.approx(figure) and (total.trainings, total.elsewhere) == (2, 0)
        assert total.converted == (2 if adjacency == "replace-one" else 1)
        assert "nothing" not in total.sentence() and f"epsilon {in_digits(figure)}" in total.sentence()
    strongest, weaker = sorted(People(home).largest_totals(), key=lambda total: -total.elsewhere)
    assert strongest.guarantee.epsilon == pytest.approx(price(5)) and strongest.elsewhere == 1
    assert "Not in this figure: 1 release" in strongest.sentence()
    assert weaker.guarantee.epsilon == pytest.approx(price(10)) and not weaker.elsewhere


def test_a_cost_that_has_no_analysis_under_the_weaker_adjacency_counts_twice(home: Path) -> None:
    one = Training(home, corpus("a"))
    one.ledger.spend(EpsilonDeltaDpEvent(1.0, 0.0), "release")  # of its own adjacency alone
    one.entry.close(finished=True)
    total = Training(home, corpus("a"), adjacency="replace-one").entry.before()
    assert total.guarantee.epsilon == pytest.approx(2.0, rel=1e-4) and total.converted == 1


def test_a_plan_beyond_the_budget_is_rejected_before_anything_is_spent(home: Path) -> None:
    one = Training(home, corpus("a", "b"))
    one.steps(0, 50)
    one.entry.close(finished=True)
    limit = price(100)
    Training(home, corpus("b"), planned=50, budget=limit * 1.0001).entry.check()
    with pytest.raises(BudgetError, match="Nothing was spent"):
        Training(home, corpus("b"), planned=51, budget=limit).entry.check()
    Training(home, corpus("x"), planned=51, budget=limit).entry.check()
    dear = Training(home, corpus("b"), planned=1, budget=limit)
    with pytest.raises(BudgetError):  # a cost that no plan named is checked when it is spent
        dear.ledger.spend(GaussianDpEvent(0.01), "release")
    assert dear.ledger.statement.spends == 0


def test_the_home_is_for_its_owner_only_and_holds_no_word_and_no_plain_hash(home: Path) -> None:
    one = Training(home, corpus("anna", "bert"))
    one.steps(0, 3)
    one.entry.close(finished=True)
    files = [path for path in home.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    folders = [home, *(path for path in home.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert not any(b"anna" in path.read_bytes() for path in files)
    marks = People(home).marks_of(corpus("anna", "bert"))
    assert np.array_equal(marks, People(home).marks_of(corpus("bert", "anna", "anna")))
    assert not np.isin(marks, People(home.with_name("elsewhere")).marks_of(corpus("anna", "bert"))).any()


def test_a_damaged_record_or_key_is_said_and_not_skipped(home: Path) -> None:
    one = Training(home, corpus("a"))
    one.steps(0, 3)
    path = home / "people" / f"{one.ledger.name}.json"
    whole = path.read_bytes()
    for data in (b"", whole[:20], b"[]", whole.replace(b'"format": 1', b'"format": 9')):
        path.write_bytes(data)
        with pytest.raises(LedgerError, match="record of a training"):
            Training(home, corpus("a")).entry.before()
    path.write_bytes(whole)
    path.with_suffix(".units").unlink()
    with pytest.raises(LedgerError, match="units of a training"):
        Training(home, corpus("a")).entry.before()
    (home / "key").write_text("broken")
    with pytest.raises(LedgerError, match="key"):
        Training(home, corpus("a"))


def test_a_home_that_cannot_be_made_is_said_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="DISCREET_HOME"):
        Training(tmp_path / "file" / "home", corpus("a"))


# On the command line.


def go(rows: Path, encoder: Path, out: Path, *more: str) -> int:
    model = ["--model", str(encoder), "--train", "head", "--epochs", "2", "--batch-size", "20"]
    protect = ["--classes", "clinic,ward", "--protect", "dp-sgd", "--noise-multiplier", "2", "--delta", "1e-4"]
    return main(["train", str(rows), "--out", str(out), *model, *protect, *more])


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DISCREET_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_train_prints_the_total_and_writes_none_of_it_into_the_run(
    own_home: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    encoder, figures = tiny_encoder("bert"), []
    more = tmp_path / "more.csv"
    more.write_text(toy_csv.read_text() + "one row more,ward\n")
    for name, rows in (("a", toy_csv), ("b", more)):
        assert go(rows, encoder, tmp_path / name, "--json") == 0
        shown = capsys.readouterr()
        figures.append(json.loads(shown.out))
    assert [found["people"]["trainings"] for found in figures] == [1, 2]
    total = figures[1]["people"]["guarantee"]["epsilon"]
    assert total > max(found["guarantee"]["epsilon"] for found in figures)
    assert "1 protected training run recorded here" in shown.err
    record = json.loads(next(iter((own_home / "people").glob("*.json"))).read_text())
    assert record["finished"]
    for name in ("a", "b"):
        kept = json.loads((tmp_path / name / "metrics.json").read_text())
        assert "people" not in kept
        files = [path for path in (tmp_path / name).rglob("*") if path.is_file()]
        marks = next(iter((own_home / "people").glob("*.units"))).read_bytes()
        for path in files:
            data = path.read_bytes()
            assert not any(marks[at : at + 8] in data or marks[at : at + 8].hex().encode() in data for at in (0, 8))
    assert main(["ledger"]) == 0
    assert "largest total over 2 training runs" in " ".join(capsys.readouterr().out.split())


def test_a_budget_stops_a_training_before_its_first_step(
    own_home: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    encoder = tiny_encoder("bert")
    assert go(toy_csv, encoder, tmp_path / "a", "--json") == 0
    one = json.loads(capsys.readouterr().out)["guarantee"]["epsilon"]
    assert go(toy_csv, encoder, tmp_path / "b", "--budget", str(one * 1.05)) == 2
    assert "BudgetError" in capsys.readouterr().err and not (tmp_path / "b.unfinished").exists()
    assert len(People().records()) == 1
    assert go(toy_csv, encoder, tmp_path / "c", "--budget", str(one * 3)) == 0
    for option in (["--budget", "3"], ["--ledger", str(tmp_path / "x")]):
        assert main(["train", str(toy_csv), "--out", str(tmp_path / "d"), *option]) == 2


def test_several_trainings_spend_from_one_named_ledger(
    own_home: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    encoder, shared = tiny_encoder("bert"), tmp_path / "all.jsonl"
    spends = []
    for name in ("a", "b"):
        assert go(toy_csv, encoder, tmp_path / name, "--ledger", str(shared)) == 0
        spends.append(Ledger.read(shared).spends)
        own = Ledger.read(tmp_path / name / "ledger.jsonl")
    assert spends[1] == 2 * spends[0] == 2 * own.spends
    assert Ledger.read(shared).guarantee(1e-4).epsilon > own.guarantee(1e-4).epsilon
    assert People().records() == []
    one = own.guarantee(1e-4).epsilon
    assert go(toy_csv, encoder, tmp_path / "c", "--ledger", str(shared), "--budget", str(1.5 * one)) == 2
    assert Ledger.read(shared).spends == spends[1]
    assert Counter(line[:2] for line in shared.read_text().splitlines())['["'] == spends[1]


def test_a_named_ledger_and_the_record_are_kept_under_the_adjacency_of_the_run(
    own_home: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    encoder, shared = tiny_encoder("bert"), tmp_path / "all.jsonl"
    given = ("--population", "200")
    assert go(toy_csv, encoder, tmp_path / "a", *given, "--ledger", str(shared)) == 0
    assert Ledger.read(shared).adjacency is Adjacency.ADD_REMOVE
    assert go(toy_csv, encoder, tmp_path / "b", "--ledger", str(shared)) == 2
    assert go(toy_csv, encoder, tmp_path / "c", *given) == 0
    (record,) = People().records()
    assert record.adjacency == "add/remove"


def test_a_fixed_seed_is_recorded_apart(
    own_home: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert go(toy_csv, tiny_encoder("bert"), tmp_path / "a", "--noise-seed", "3") == 0
    assert "recorded apart" in " ".join(capsys.readouterr().out.split())
    (record,) = People().records()
    assert record.kind == FIXED_SEED and record.caveats == ("fixed-seed",)
    assert go(toy_csv, tiny_encoder("bert"), tmp_path / "b", "--json") == 0
    assert json.loads(capsys.readouterr().out)["people"]["trainings"] == 1


@pytest.mark.parametrize("named", [False, True], ids=["record", "named ledger"])
def test_a_caveat_that_the_last_step_finds_on_its_second_try_reaches_whoever_counts(
    named: bool, own_home: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Memory runs out in the last step, and in the smaller parts units change each other: the spend is repeated."""
    call, add, steps, failed = PrivateStep.__call__, PrivateParts.add, [], []

    def remembered(self: PrivateStep, step: int) -> object:
        steps.append(step)
        return call(self, step)

    def short_of_memory(self: PrivateParts, part: Part, number: int, **options: bool) -> object:
        if steps[-1] == 11 and not failed:
            failed.append(part.shape)
            raise torch.OutOfMemoryError
        return add(self, part, number, **options)

    monkeypatch.setattr(PrivateStep, "__call__", remembered)
    monkeypatch.setattr(PrivateParts, "add", short_of_memory)
    monkeypatch.setattr(PrivateParts, "_is_independent", lambda self, shape: not failed or None)
    shared = tmp_path / "all.jsonl"
    assert (
        go(toy_csv, tiny_encoder("bert"), tmp_path / "a", "--json", *(["--ledger", str(shared)] if named else [])) == 0
    )
    done = json.loads(capsys.readouterr().out)
    assert failed and max(steps) == 11 and done["steps"] == 12
    own = Ledger.read(tmp_path / "a" / "ledger.jsonl")
    assert not done["guarantee"]["certified"] and own.terms.caveats == {Caveat.UNSTEADY_KERNELS} and own.spends == 12
    assert not done["people"]["guarantee"]["certified"], "the total holds that spend"
    if named:
        kept = Ledger.read(shared)
        assert kept.terms.caveats == {Caveat.UNSTEADY_KERNELS} and kept.spends == 12
    else:
        (found,) = People().records()
        assert found.caveats == ("unsteady-kernels",) and found.spends == 12


def test_a_record_that_is_made_again_has_the_caveats_of_its_ledger(home: Path, tmp_path: Path) -> None:
    path, terms = tmp_path / "ledger.jsonl", Terms(("assumed",), frozenset({Caveat.UNSTEADY_KERNELS}))
    one = Training(home, corpus("a"), path=path)
    one.steps(0, 3, terms)
    one.ledger.close()
    again = Training(tmp_path / "other", corpus("a"), path=path)
    again.entry.close(finished=True)
    (found,) = People(tmp_path / "other").records()
    assert (found.caveats, found.assumptions) == (("unsteady-kernels",), ("assumed",))


def test_two_trainings_that_run_side_by_side_stay_within_the_budget(home: Path) -> None:
    budget = price(120)
    one, two = (Training(home, corpus("a"), planned=100, budget=budget) for _ in range(2))
    one.entry.check()
    two.entry.check()  # neither has spent anything yet
    with pytest.raises(BudgetError):
        for step in range(100):
            one.steps(step, step + 1)
            two.steps(step, step + 1)
    assert one.entry._with(one.entry.used).guarantee.epsilon <= budget


def test_a_budget_composes_over_adjacencies(home: Path) -> None:
    first = Training(home, corpus("a"))
    first.steps(0, 100)
    first.entry.close(finished=True)
    for adjacency, cost in (("add/remove", price(110)), ("replace-one", 2.5 * price(110))):
        Training(home, corpus("a"), budget=cost * 1.01, planned=10, adjacency=adjacency).entry.check()
        with pytest.raises(BudgetError, match="under zero-out" if adjacency == "add/remove" else "under replace-one"):
            Training(home, corpus("a"), budget=price(101), planned=10, adjacency=adjacency).entry.check()


def test_trainings_of_another_unit_are_named(home: Path) -> None:
    first = Training(home, corpus("a"))
    first.steps(0, 3)
    first.entry.close(finished=True)
    rows = replace(corpus("a"), units=None, unit_name="row")
    total = Training(home, rows).entry.before()
    assert total.trainings == 0 and total.other_units == 1 and total.other_names == ("patient",)
    said = " ".join(total.remarks)
    assert "Not matched: 1 release recorded for each patient, not for each row." in said and "cannot be known" in said
    assert "Not matched" not in total.sentence()  # `discreet ledger` shows it, not every training


def test_rows_without_ids_are_the_same_rows_whatever_a_unit_is_called(home: Path) -> None:
    one = Training(home, Corpus("toy", ("first text",), unit_name="note"))
    one.steps(0, 2)
    one.entry.close(finished=True)
    total = Training(home, Corpus("toy", ("first text",), unit_name="row")).entry.before()
    assert total.trainings == 1 and not total.other_units


def test_a_total_over_several_releases_says_what_it_is_proven_for(home: Path) -> None:
    one = Training(home, corpus("a"))
    one.steps(0, 5)
    alone = one.entry.now()
    assert alone.remarks == [] and DECIDED_BEFORE not in alone.guarantee.assumptions
    one.entry.close(finished=True)
    two = Training(home, corpus("a"))
    two.steps(0, 5)
    total = two.entry.now()
    assert ODOMETER in total.sentence() and "it is an estimate" in ODOMETER and ODOMETER in total.as_dict()["remarks"]
    assert DECIDED_BEFORE in total.guarantee.assumptions and total.guarantee.certified
    assert total.guarantee.epsilon == pytest.approx(price(10)), "a sequence that was fixed beforehand is certified"


def test_a_total_with_an_estimate_is_not_called_proven(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = Training(home, corpus("a")), Training(home, corpus("a"))
    one.steps(0, 5, Terms(caveats=frozenset({Caveat.PRIVATE_CLASSES})))
    one.entry.close(finished=True)
    two.steps(0, 5)
    total = two.entry.now()
    (remark,) = total.remarks
    assert "proven" not in total.sentence() and "proven" not in " ".join(total.as_dict()["remarks"])
    assert remark.startswith("This total is an estimate because") and Caveat.PRIVATE_CLASSES.sentence in remark
    monkeypatch.setenv("DISCREET_HOME", str(home))
    assert main(["ledger"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert remark in words and "This total is proven" not in words


def test_one_ledger_of_several_trainings_has_the_people_of_all_of_them(home: Path) -> None:
    ledger = Ledger.open(None, unit="patient", adjacency="zero-out")
    for number, name in enumerate(("a", "b")):
        about = About(FIXED_SEED if number == 0 else TRAINING, DELTA, None, "dp-sgd", "discreet.training.train")
        entry = Entry.of(People(home), corpus(name), ledger, about, {})
        ledger.also = entry
        ledger.spend(EVENT, f"training {number}")
        ledger.also = None
        entry.close(finished=True)
    (record,) = People(home).records()
    assert (record.spends, record.units, record.kind) == (2, 2, TRAINING)
    for name in ("a", "b"):
        assert Training(home, corpus(name)).entry.before().guarantee.epsilon == pytest.approx(price(2))


def test_the_list_gives_each_training_at_its_own_delta_and_says_that_the_total_is_restated(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for names, delta in ((("a", "b"), DELTA), (("c",), 1e-3)):
        one = Training(own_home, corpus(*names), delta=delta)
        one.steps(0, 10)
        one.entry.close(finished=True)
    assert main(["ledger"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for delta in (DELTA, 1e-3):
        alone = in_digits(epsilon(SelfComposedDpEvent(EVENT, 10), delta, Adjacency.ZERO_OUT))
        assert f"10 spends, epsilon {alone} at delta {in_digits(delta)} (zero-out)" in words
    assert "(zero-out), all restated at their smallest delta, 1e-05, which makes an epsilon stated" in words
    assert main(["ledger", "--json"]) == 0
    kept = json.loads(capsys.readouterr().out)["trainings"]
    assert sorted(one["guarantee"]["delta"] for one in kept) == [DELTA, 1e-3]


def test_trainings_at_one_delta_are_not_called_restated(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind in (TRAINING, FIXED_SEED):
        one = Training(own_home, corpus("a"), kind=kind)
        one.steps(0, 1)
        one.entry.close(finished=True)
    record_study(People(own_home), own_home / "study", "notes")
    assert main(["ledger"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "smallest of their deltas" not in words
    assert words.count("1 spend, ") == 2 and words.count("1 spend, an estimated epsilon ") == 1
    assert Training(own_home, corpus("a")).entry.before().restated is False


def test_a_total_at_the_delta_of_another_training_says_so_and_names_the_budget(home: Path) -> None:
    first = Training(home, corpus("a"))
    first.steps(0, 10)
    first.entry.close(finished=True)
    second = Training(home, corpus("a"), delta=1e-3, budget=50.0)
    assert " at delta 0.001 (the delta of this training run) over " in second.entry.before().sentence()
    assert second.entry.summary()[0].endswith(" Their budget is 50.")
    assert "the delta of this training run" not in Training(home, corpus("a")).entry.before().sentence()


def test_delta_is_rounded_in_one_way(
    own_home: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert go(toy_csv, tiny_encoder("bert"), tmp_path / "a", "--delta", "0.000123456") == 0
    words = " ".join(capsys.readouterr().out.split())
    found = re.findall(r"\bdelta(?: =)? (\d[\d.e-]*\d)", words)
    assert len(found) >= 3 and set(found) == {"0.0001235"}


def test_a_population_below_the_number_of_units_is_told_with_its_delta(
    own_home: Path, toy_csv: Path, tiny_encoder: Callable[[str], Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    encoder, large = tiny_encoder("bert"), "delta follows from the population and is too large"
    for name, more in (("a", ("--delta", "auto")), ("b", ())):
        assert go(toy_csv, encoder, tmp_path / name, "--population", "5", *more) == 0
        err = capsys.readouterr().err
        assert re.search(r"the population is 5\. The guarantee holds; batches are \d+ times as large as requested", err)
        assert large not in err  # 1e-5 is the default for 5 and for all of them
    assert go(toy_csv, encoder, tmp_path / "c", "--population", "500", "--delta", "auto") == 0
    err = capsys.readouterr().err
    assert "batches are 0." in err and large not in err


@pytest.mark.parametrize(("delta", "warned"), [(None, True), (1e-6, False)])
def test_a_default_delta_for_a_smaller_population_is_reported(delta: float | None, warned: bool) -> None:
    rows = Corpus("many", ("a",) * 30_000, labels=(0, 1) * 15_000)
    protect, said = DPSGD(epsilon=3.0, delta=delta), list[str]()
    request = RunRequest(TextSource("many.csv"), ModelSettings(), TrainSettings(), protect, population=12_000)
    plan = TrainingPlan(TrainSettings(), protect, Poisson(0.1), 10, 12_000, len(rows), "row")
    warn_of_size(request, plan, rows, said.append)
    assert ("delta follows from the population and is too large" in "".join(said)) is warned


def test_no_limit_is_offered_where_there_is_no_bound() -> None:
    none = Guarantee(math.inf, 1e-5, "patient", Adjacency.ZERO_OUT, "pld", reason="nothing hides it")
    assert Total(none, 1).sentence(fresh=True) == (
        "These patients: no bound over 1 protected training run recorded here, as nothing hides it."
    )
    some = Guarantee(3.0, 1e-5, "patient", Adjacency.ZERO_OUT, "pld")
    assert Total(some, 1).sentence(fresh=True).endswith("No limit is set; budget sets one.")
