"""`discreet.training.train(model, corpus, plan)`: the loop in Python, with a ledger of the caller's or in memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.doors.table import CERTIFIED, ESTIMATE, REJECTED, door
from torch import Tensor, nn

from discreet import DPSGD, Ledger, TrainSettings, people_totals
from discreet.accounting.interpret import epsilon
from discreet.core.errors import DataError, LedgerError, ModelError, SettingError, UnsupportedError
from discreet.core.guarantee import Caveat, Guarantee
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier
from discreet.runs.checkpoint import LEDGER
from discreet.runs.people import People
from discreet.training import Job, TrainingPlan, evaluate, train
from discreet.training.steps import Report

SHORT = TrainSettings(epochs=2, batch_size=10)
NOISE = DPSGD(noise_multiplier=2.0, delta=1e-5)


@pytest.fixture(scope="module")
def corpus(toy_rows: list[tuple[str, str]]) -> Corpus:
    rows = toy_rows[:40]
    return Corpus(
        "toy",
        tuple(text for text, _ in rows),
        labels=tuple(int(label == "ward") for _, label in rows),
        label_names=("clinic", "ward"),
        units=tuple(f"p{i // 2}" for i in range(40)),
        unit_name="patient",
    )


@pytest.fixture
def model(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> Classifier:
    return Classifier.build(corpus, rng=Rng(1), encoder=str(tiny_encoder("bert")), train="head")


@pytest.fixture
def plan(model: Classifier, corpus: Corpus) -> TrainingPlan:
    return TrainingPlan.make(model, corpus, protect=NOISE, training=SHORT)


def planned(plan: TrainingPlan) -> float:
    """Return the epsilon of all planned steps, by an accountant."""
    assert plan.delta is not None and plan.adjacency is not None
    return epsilon(plan.training_cost(), plan.delta, plan.adjacency)


def is_true(stated: Guarantee | None, plan: TrainingPlan) -> bool:
    assert stated is not None
    return stated.certified and not stated.caveats and stated.epsilon == pytest.approx(planned(plan), rel=1e-9)


def with_validation(corpus: Corpus, held_out: int) -> Corpus:
    """Return the corpus with its last rows held out."""
    first = len(corpus) - held_out
    return replace(corpus, splits=("train",) * first + ("validation",) * held_out)


@door("discreet.training.train", "unit", REJECTED)
def test_rows_without_ids_do_not_spend_from_a_ledger_of_patients(model: Classifier, corpus: Corpus) -> None:
    rows = replace(corpus, units=None, unit_name="row")
    plan = TrainingPlan.make(model, rows, protect=NOISE, training=SHORT)
    with (
        Ledger.open(None, unit="patient", adjacency="zero-out") as ledger,
        pytest.raises(SettingError, match="'row' in the ledger"),
    ):
        train(model, rows, plan, ledger=ledger)
    assert People().records() == []


@door("discreet.training.train", "unit", CERTIFIED)
def test_rows_without_ids_are_certified_as_rows(model: Classifier, corpus: Corpus) -> None:
    rows = replace(corpus, units=None, unit_name="row")
    plan = TrainingPlan.make(model, rows, protect=NOISE, training=SHORT)
    stated = train(model, rows, plan).guarantee
    assert is_true(stated, plan) and stated is not None and stated.unit == "row" and plan.units == 40


@door("discreet.training.train", "again", CERTIFIED)
def test_a_second_training_is_certified_by_itself_and_adds_up_in_the_record(
    model: Classifier, corpus: Corpus, plan: TrainingPlan
) -> None:
    for number in (1, 2):
        assert is_true(train(model, corpus, plan).guarantee, plan)
        (total,) = people_totals(sorted(set(corpus.units or ())), unit="patient")
        assert total.trainings == number
    assert plan.delta is not None and plan.adjacency is not None
    assert total.guarantee.epsilon == pytest.approx(
        epsilon(replace(plan, steps=2 * plan.steps).training_cost(), plan.delta, plan.adjacency)
    )
    assert "If an earlier result decided whether to release again" in total.sentence()


@door("discreet.training.train", "stop", CERTIFIED)
def test_a_run_that_stops_because_of_its_scores_costs_all_planned_steps(model: Classifier, corpus: Corpus) -> None:
    held_out = with_validation(corpus, 8)
    settings = replace(SHORT, patience=1, epochs=10, learning_rate=1e-9)
    plan = TrainingPlan.make(model, held_out, protect=NOISE, training=settings)
    done = train(model, held_out, plan)
    assert done.finished and done.steps < plan.steps, "the score does not improve"
    assert is_true(done.guarantee, plan)
    (total,) = people_totals()
    assert total.guarantee.epsilon == pytest.approx(planned(plan))


@door("discreet.training.train", "error", REJECTED)
def test_an_error_ends_the_training_without_a_guarantee_and_what_was_spent_stays_spent(
    model: Classifier, corpus: Corpus, plan: TrainingPlan
) -> None:
    def watch(report: Report) -> None:
        if report.stage == "training":
            raise RuntimeError("a broken progress bar")

    with Ledger.open(None, unit="patient", adjacency="zero-out") as ledger:
        result = None
        with pytest.raises(RuntimeError, match="progress bar"):
            result = train(model, corpus, plan, ledger=ledger, job=Job(watch=watch))
        assert result is None and ledger.statement.spends >= 1 and ledger.also is None
        (record,) = People().records()
        assert record.spends == ledger.statement.spends and not record.finished
        # Carrying on is another training, with other noise: its steps are counted with those before the error.
        again = train(model, corpus, plan, ledger=ledger)
        assert again.guarantee is not None and again.guarantee.epsilon > planned(plan)
        assert ledger.statement.spends > plan.steps


class Running(nn.Module):
    """A head that keeps a running mean of private vectors, without noise."""

    running: Tensor

    def __init__(self, head: nn.Module, width: int, place: str) -> None:
        super().__init__()
        self.inner, self.place = head, place
        if place == "frozen":
            self.running = nn.Parameter(torch.zeros(width), requires_grad=False)
        else:
            self.register_buffer("running", torch.zeros(width))

    def forward(self, vectors: Tensor) -> Tensor:
        mean = vectors.detach().reshape(-1, vectors.shape[-1]).mean(0)
        if self.training and self.place == "data":
            self.running.data = 0.9 * self.running + 0.1 * mean
        elif self.training:
            self.running.mul_(0.9).add_(0.1 * mean)
        return self.inner(vectors)  # type: ignore[no-any-return]


@door("discreet.training.train", "state", ESTIMATE)
@pytest.mark.parametrize("place", ["buffer", "data", "frozen"])
def test_a_layer_that_keeps_state_of_private_rows_is_a_caveat(
    place: str, model: Classifier, corpus: Corpus, plan: TrainingPlan
) -> None:
    model.head = Running(model.head, model.width, place)  # type: ignore[assignment]
    stated = train(model, corpus, plan).guarantee
    assert stated is not None and stated.caveats == {Caveat.UNPROTECTED_STATE} and not stated.certified
    (record,) = People().records()
    assert record.caveats == (Caveat.UNPROTECTED_STATE.value,)


@door("discreet.training.train", "state", REJECTED)
def test_a_layer_that_mixes_rows_is_rejected(model: Classifier, corpus: Corpus, plan: TrainingPlan) -> None:
    model.head = nn.Sequential(nn.BatchNorm1d(model.width), model.head)  # type: ignore[assignment]
    with pytest.raises(UnsupportedError):
        train(model, corpus, plan)
    assert People().records() == [], "before anything is counted"


@door("discreet.training.train", "log", CERTIFIED)
def test_the_result_and_the_workspace_hold_no_loss_and_no_batch(
    model: Classifier, corpus: Corpus, plan: TrainingPlan, tmp_path: Path
) -> None:
    workspace = tmp_path / "work"
    workspace.mkdir(mode=0o700)
    done = train(model, corpus, plan, job=Job(workspace))
    assert is_true(done.guarantee, plan)
    assert done.history and all(set(entry) == {"epoch", "step"} for entry in done.history)
    statement = Ledger.read(workspace / LEDGER)
    assert statement.spends == plan.steps
    text = (workspace / LEDGER).read_text(encoding="utf-8")
    assert not any(name in text for name in set(corpus.units or ())) and "the heart" not in text
    assert all(path.stat().st_mode & 0o077 == 0 for path in workspace.iterdir()), "for the owner alone"


def stopped(model: Classifier, corpus: Corpus, plan: TrainingPlan, workspace: Path) -> None:
    workspace.mkdir(mode=0o700)
    done = train(model, corpus, plan, job=Job(workspace, should_stop=lambda: True))
    assert not done.finished and done.steps == 1


@door("discreet.training.train", "resume", REJECTED)
def test_a_stopped_training_is_not_resumed_with_other_weights_data_or_settings(
    model: Classifier, corpus: Corpus, plan: TrainingPlan, tmp_path: Path
) -> None:
    start = {name: value.clone() for name, value in model.state_dict().items()}
    stopped(model, corpus, plan, tmp_path / "work")
    before = Ledger.read(tmp_path / "work" / LEDGER).spends
    model.load_state_dict(start)
    other_rows = replace(corpus, texts=("quite another text", *corpus.texts[1:]))
    faster = replace(plan, settings=replace(plan.settings, learning_rate=0.5))
    for data, settings in ((other_rows, plan), (corpus, faster)):
        with pytest.raises(ModelError, match="changed"):
            train(model, data, settings, job=Job(tmp_path / "work"))
    with torch.no_grad():
        next(model.head.parameters()).add_(1.0)
    with pytest.raises(ModelError, match="changed"):
        train(model, corpus, plan, job=Job(tmp_path / "work"))
    assert Ledger.read(tmp_path / "work" / LEDGER).spends == before
    model.load_state_dict(start)
    assert is_true(train(model, corpus, plan, job=Job(tmp_path / "work")).guarantee, plan)
    (record,) = People().records()
    assert record.spends == plan.steps and record.finished


@door("discreet.training.train", "edit", REJECTED)
def test_a_ledger_with_a_changed_or_missing_step_is_not_continued(
    model: Classifier, corpus: Corpus, plan: TrainingPlan, tmp_path: Path
) -> None:
    start = {name: value.clone() for name, value in model.state_dict().items()}
    stopped(model, corpus, plan, tmp_path / "work")
    path = tmp_path / "work" / LEDGER
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    edits: dict[str, bytes] = {
        "noise": whole.replace(b'"noise_multiplier":2.0', b'"noise_multiplier":9.0'),
        "a spend": b"".join(lines[:-1]),
        "an early line": b"".join([lines[0], *lines[2:]]),
    }
    for what, content in edits.items():
        assert content != whole, what
        path.write_bytes(content)
        model.load_state_dict(start)
        with pytest.raises(LedgerError):
            train(model, corpus, plan, job=Job(tmp_path / "work"))
    path.write_bytes(whole)
    (record,) = People().records()
    assert record.spends >= 1, "the record of the people is not in the folder"


@door("discreet.training.train", "evaluate", CERTIFIED)
def test_scores_on_training_rows_are_the_callers_alone(model: Classifier, corpus: Corpus, plan: TrainingPlan) -> None:
    done = train(model, corpus, plan)
    scores: Any = evaluate(model, corpus.split("train"))
    assert scores and is_true(done.guarantee, plan)
    assert done.guarantee is not None and "accuracy" not in json.dumps([done.guarantee.as_dict(), *done.history])


@door("discreet.training.train", "evaluate", REJECTED)
def test_rows_of_a_training_unit_never_choose_the_model(model: Classifier, corpus: Corpus) -> None:
    # One patient with rows on both sides would choose the epoch with a row that has no noise.
    both = replace(corpus, splits=("train",) * 39 + ("validation",))
    patient = TrainingPlan.make(model, both, protect=NOISE, training=replace(SHORT, patience=1))
    with pytest.raises(DataError, match="other patients than the training rows"):
        train(model, both, patient)
    assert corpus.labels is not None
    for held_out, shared in (
        (corpus.texts, 40),
        ((*corpus.texts[:39], "another text"), 39),
        (tuple(f"{text} ." for text in corpus.texts), 40),
    ):
        twice = Corpus(
            "toy",
            corpus.texts + held_out,
            labels=corpus.labels * 2,
            label_names=corpus.label_names,
            splits=("train",) * 40 + ("validation",) * 40,
        )
        plan = TrainingPlan.make(model, twice, protect=NOISE, training=replace(SHORT, patience=1))
        with pytest.raises(DataError, match=f"that are not training rows, got {shared} of 40"):
            train(model, twice, plan)
    assert all(record.spends == 0 for record in People().records())
