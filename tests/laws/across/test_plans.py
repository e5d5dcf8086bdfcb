"""A plan is a value that anyone may keep, change or use with a ledger of their own: its budget holds all the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import WORDS

from discreet.accounting.ledger import Budget, Ledger
from discreet.core.errors import BudgetError, DataError, SettingError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.samplers import FixedSize, Poisson
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.protections.instance_encoding import InstanceEncoding
from discreet.protections.local.protection import LocalPrivacy
from discreet.training.loop import Job, Trained, train
from discreet.training.plan import TrainingPlan

QUICK = TrainSettings(epochs=3, batch_size=10, learning_rate=0.05)
EVEN = tuple(f"p{row // 4}" for row in range(40))
LOUD = DPSGD(noise_multiplier=1.5, epsilon=2, delta=0.01)
UNEVEN = tuple(f"p{max(0, row - 30)}" for row in range(40))


def corpus_of(units: tuple[str, ...] | None) -> Corpus:
    return Corpus(
        "toy",
        tuple(f"the {WORDS[row]} was {WORDS[(3 * row) % len(WORDS)]}" for row in range(40)),
        labels=tuple(row % 2 for row in range(40)),
        label_names=("a", "b"),
        units=units,
        unit_name="row" if units is None else "person",
    )


Planned = Callable[..., tuple[Classifier, TrainingPlan]]


@pytest.fixture
def planned(tiny_encoder: Callable[[str], Path]) -> Planned:
    def make(protect: Protection, corpus: Corpus, **asked: Any) -> tuple[Classifier, TrainingPlan]:
        model = Classifier.build(corpus, encoder=str(tiny_encoder("bert")), train="head", rng=Rng(0))
        return model, TrainingPlan.make(model, corpus, protect=protect, training=QUICK, **asked)

    return make


@pytest.mark.parametrize("budget", [None, Budget(100.0, 0.01)], ids=["no budget", "a larger one"])
@pytest.mark.parametrize(
    ("protect", "asked"),
    [(LOUD, {}), (LOUD, {"sampler": Poisson(0.9)})],
    ids=["noise and epsilon", "another sampler"],
)
def test_a_training_stops_at_its_budget_in_any_ledger(
    protect: DPSGD, asked: dict[str, Any], budget: Budget | None, planned: Planned
) -> None:
    corpus = corpus_of(EVEN)
    model, plan = planned(protect, corpus, **asked)
    with Ledger.open(None, unit="person", adjacency="zero-out", budget=budget) as ledger:
        done = train(model, corpus, plan, ledger=ledger)
    assert done.out_of_budget and 0 < done.steps < plan.steps
    assert done.guarantee is not None and done.guarantee.certified and 1 < done.guarantee.epsilon <= 2


def test_a_resumed_training_counts_its_first_steps_towards_its_budget(planned: Planned, tmp_path: Path) -> None:
    corpus = corpus_of(EVEN)

    def go(stop: bool) -> Trained:
        model, plan = planned(LOUD, corpus)
        job = Job(workspace=tmp_path / "run", should_stop=lambda: stop)
        with Ledger.open(tmp_path / "ledger.jsonl", unit="person", adjacency="zero-out") as ledger:
            return train(model, corpus, plan, ledger=ledger, job=job)

    (tmp_path / "run").mkdir()
    assert not go(stop=True).finished
    done = go(stop=False)
    assert done.out_of_budget and done.guarantee is not None and 1 < done.guarantee.epsilon <= 2


def test_a_release_of_more_sentences_than_were_planned_is_rejected_in_any_ledger(planned: Planned) -> None:
    model, plan = planned(LocalPrivacy(epsilon=8, dimension=8), corpus_of(EVEN))
    with Ledger.open(None, unit="person", adjacency="replace-one") as ledger, pytest.raises(BudgetError):
        train(model, corpus_of(UNEVEN), plan, ledger=ledger)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "live"])
def test_absence_is_not_certified_where_each_vector_is_seen(stored: bool, planned: Planned) -> None:
    corpus = corpus_of(None)
    model, plan = planned(InstanceEncoding(epsilon=4, stored=stored), corpus)
    with (
        Ledger.open(None, unit="row", adjacency="add/remove") as ledger,
        pytest.raises(SettingError, match="replace-one in the ledger"),
    ):
        train(model, corpus, plan, ledger=ledger)


def test_a_plan_that_was_changed_is_rejected_where_it_would_count_too_little(planned: Planned) -> None:
    corpus = corpus_of(EVEN)
    model, plan = planned(DPSGD(epsilon=2), corpus)
    with pytest.raises(DataError, match="persons that the plan was made for"):
        train(model, corpus, replace(plan, units=10**6))
    with pytest.raises(SettingError, match="'add/remove' in the plan"):  # its figure was 0.0, certified
        train(model, corpus, replace(plan, units=10**6, population=10**6, sampler=FixedSize(10)))
    rows = corpus_of(None)
    model, plan = planned(InstanceEncoding(epsilon=4, stored=False), rows)
    with pytest.raises(SettingError, match="as counted"):  # an epoch is counted once, and draws a row many times
        train(model, rows, replace(plan, sampler=FixedSize(10)))


def test_a_plan_for_another_model_is_rejected_where_the_cost_rests_on_its_parameters(
    planned: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("discreet.protections.dir_dp_sgd._AT_ONCE", 0)  # as for many parameters: noise is streamed
    corpus = corpus_of(EVEN)
    _, plan = planned(DirDPSGD(epsilon=20), corpus)
    wider = replace(corpus, label_names=("a", "b", "c", "d"))
    model, _ = planned(DirDPSGD(epsilon=20), wider)
    with pytest.raises(SettingError, match="that dir-dp-sgd was resolved for"):
        train(model, wider, plan)


@pytest.mark.parametrize(
    ("protect", "claimed"),
    [
        (LocalPrivacy(epsilon=8, mechanism="gaussian", dimension=8, calibration="paper"), 8),
        (LocalPrivacy(epsilon_per_message=8, mechanism="gaussian", dimension=8, calibration="paper"), 32),
    ],
    ids=["of a unit", "of each message"],
)
def test_the_published_claim_of_a_unit_is_that_of_all_its_sentences(
    protect: LocalPrivacy, claimed: float, planned: Planned
) -> None:
    corpus = corpus_of(EVEN)
    model, plan = planned(protect, corpus)
    stated = train(model, corpus, plan).guarantee
    assert stated is not None and not stated.certified and stated.epsilon == pytest.approx(claimed, rel=1e-3)
