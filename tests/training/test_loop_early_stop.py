"""A run that stops early because of its results costs as much as its plan, whatever steps it did not take."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.planned import train

from discreet.accounting.events import GaussianDpEvent, LaplaceDpEvent, PoissonSampledDpEvent
from discreet.accounting.interpret import guarantee_of
from discreet.accounting.ledger import Budget, Ledger
from discreet.cli.main import main
from discreet.core.errors import LedgerError, OutputError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.samplers import Shuffled
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.local.protection import LocalPrivacy
from discreet.runs.people import People
from discreet.training import loop
from discreet.training.plan import TrainingPlan

SETTINGS = TrainSettings(epochs=4, batch_size=32, learning_rate=1e-3, head_share=0.0)


@pytest.fixture
def no_improvement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every epoch the same held-out score: with a patience of 1, training stops after the second."""
    monkeypatch.setattr(loop, "evaluate", lambda *_: {"accuracy": 0.5, "f1": 0.5, "matthews": 0.0})


def build(corpus: Corpus, folder: Path, part: str = "head") -> Classifier:
    return Classifier.build(corpus, rng=Rng(1), encoder=str(folder), train=part)


CASES: dict[str, tuple[Protection, dict[str, Any]]] = {
    "dp-sgd": (DPSGD(noise_multiplier=1.0), {}),
    "shuffled": (DPSGD(noise_multiplier=1.0), {"sampler": Shuffled(32)}),
    "correlated": (DPSGD(noise_multiplier=1.0, correlation="lambda-cgd"), {}),
    "dir-dp-sgd": (DirDPSGD(kappa=50.0), {}),
    "dp-ie": (InstanceEncoding(8.0, 1e-5, stored=False, epochs=4), {}),
    "ldp": (LocalPrivacy(epsilon=8.0, sampling="fixed", mechanism="gaussian", label_epsilon=1.0), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_steps_that_were_not_taken_are_counted(
    case: str, corpus: Corpus, tiny_encoder: Callable[[str], Path], no_improvement: None
) -> None:
    protect, planned = CASES[case]
    costs = []
    for patience in (None, 1):
        model = build(corpus, tiny_encoder("bert"))
        plan = TrainingPlan.make(
            model, corpus, training=replace(SETTINGS, patience=patience), protect=protect, **planned
        )
        with plan.open_ledger() as ledger:
            done = loop.train(model, corpus, plan, ledger=ledger)
            assert done.guarantee is not None
            costs.append((ledger.event, done.guarantee.epsilon, done.guarantee.certified))
    assert done.steps < plan.steps and costs[0] == costs[1]
    assert done.counted == plan.steps


def test_what_was_released_before_training_costs_the_same_however_early_it_stops(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], no_improvement: None
) -> None:
    settings = replace(SETTINGS, patience=1)
    model = build(corpus, tiny_encoder("bert"))
    model.settings = replace(model.settings, head="mlp")  # steps are taken: no closed form
    done = train(model, corpus, settings, protect=InstanceEncoding(8.0, 1e-5))
    assert done.guarantee is not None and done.untaken == 0


def test_a_run_stopped_by_patience_says_one_figure_everywhere_that_of_its_plan(
    toy_csv: Path,
    tiny_encoder: Callable[[str], Path],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    no_improvement: None,
) -> None:
    run, shared = tmp_path / "run", tmp_path / "shared"
    words = ["train", toy_csv, "--model", tiny_encoder("bert"), "--train", "head", "--device", "cpu"]
    words += ["--classes", "clinic,ward", "--protect", "dp-sgd", "--noise-multiplier", 1.0, "--batch-size", 20]
    words += ["--epochs", 6, "--patience", 1, "--json"]
    assert main([str(word) for word in [*words, "--out", run]]) == 0
    out, err = capfd.readouterr()
    result, metrics = json.loads(out), json.loads((run / "metrics.json").read_text())
    statement = Ledger.read(run / "ledger.jsonl")
    planned = statement.guarantee(1e-5)
    assert metrics["steps"] < metrics["counted_steps"] == statement.spends
    assert planned.certified and metrics["guarantee"]["certified"]
    figures = {
        "terminal": result["guarantee"]["epsilon"],
        "metrics": metrics["guarantee"]["epsilon"],
        "people": result["people"]["guarantee"]["epsilon"],
    }
    assert set(figures.values()) == {planned.epsilon}, figures
    (record,) = People().records()
    assert record.spends == statement.spends and record.finished
    assert f"all {metrics['counted_steps']} planned steps counted" in (run / "README.md").read_text()
    assert "The guarantee counts all planned steps" in " ".join(err.split())
    # the same in a named ledger, and the cost of fewer steps is smaller
    assert main([str(word) for word in [*words, "--out", tmp_path / "other", "--ledger", shared]]) == 0
    assert Ledger.read(shared).event == statement.event
    (event, count), *_ = statement.spent
    assert guarantee_of(event, delta=1e-5, adjacency="zero-out").epsilon < planned.epsilon and count == statement.spends
    capfd.readouterr()


def test_a_resumed_run_that_had_stopped_early_counts_once(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, no_improvement: None
) -> None:
    settings = replace(SETTINGS, patience=1)
    first = train(build(corpus, tiny_encoder("bert")), corpus, settings, protect=DPSGD(1.0), workspace=tmp_path)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    again = train(build(corpus, tiny_encoder("bert")), corpus, settings, protect=DPSGD(1.0), workspace=tmp_path)
    assert first.untaken == again.untaken > 0 and (tmp_path / "ledger.jsonl").read_bytes() == before


def test_a_run_that_somebody_stopped_has_no_figure_before_it_is_finished(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, stop_after: Callable[[int], Callable[[], bool]]
) -> None:
    """Whoever stops it may have looked at the model."""
    stopped, resumed = (
        train(
            build(corpus, tiny_encoder("bert")),
            corpus,
            SETTINGS,
            protect=DPSGD(1.0),
            workspace=tmp_path,
            should_stop=stop,
        )
        for stop in (stop_after(3), lambda: False)
    )
    assert not stopped.finished and stopped.guarantee is None
    assert resumed.finished and resumed.guarantee is not None and resumed.guarantee.certified


def test_a_budget_that_runs_out_is_a_public_number_and_stops_the_count_too(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], no_improvement: None
) -> None:
    model = build(corpus, tiny_encoder("bert"))
    plan = TrainingPlan.make(model, corpus, training=replace(SETTINGS, patience=1), protect=DPSGD(noise_multiplier=1.0))
    step, _ = plan.step_cost(0)
    most = guarantee_of(plan.training_cost(plan.steps - 2), delta=1e-5, adjacency="zero-out").epsilon
    with Ledger.open(None, unit="row", adjacency="zero-out", budget=Budget(most, 1e-5)) as ledger:
        done = loop.train(model, corpus, plan, ledger=ledger)
        assert done.steps < done.counted == plan.steps - 2 == ledger.statement.spends
        assert ledger.remaining(step) == 0


A, B = PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), LaplaceDpEvent(10.0)


def test_spends_that_are_written_together_read_as_single_ones(tmp_path: Path) -> None:
    spends = [(A, "0"), (A, "1"), (B, "2"), (A, "1"), (A, "3")]
    for name in ("one", "all"):
        with Ledger.open(tmp_path / name, unit="note", adjacency="zero-out") as ledger:
            ledger.spend(A, "0")
            if name == "one":
                for event, spend in spends:
                    ledger.spend(event, spend)
            else:
                assert ledger.spend_all(spends) == 5
            ledger.spend(B, "4")
    one, together = (Ledger.read(tmp_path / name) for name in ("one", "all"))
    assert replace(one, check="") == replace(together, check="") and one.spends == 5  # each ledger has its own name
    # without their checks, which depend on the random name of each file, the lines are the same
    lines = [[line[:-20] for line in (tmp_path / name).read_text().splitlines()[1:]] for name in ("one", "all")]
    assert lines[0] == lines[1]


def test_a_ledger_that_could_not_write_them_is_not_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Ledger.open(tmp_path / "l", unit="note", adjacency="zero-out") as ledger:
        ledger.spend(A, "0")
        with pytest.raises(LedgerError, match="with the event it was spent with"):
            ledger.spend_all([(B, "0")])

        def full(line: bytes) -> None:
            raise OutputError("Expected space.")

        monkeypatch.setattr(ledger._store, "append", full)
        with pytest.raises(OutputError):
            ledger.spend_all([(A, "1"), (A, "2")])
        with pytest.raises(LedgerError, match="interrupted"):
            ledger.spend(A, "3")
    assert Ledger.read(tmp_path / "l").spends == 1
