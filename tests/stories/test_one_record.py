"""One record for all doors: whoever trains on the same people adds to the same total, in Python and in the terminal."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from discreet import DPSGD, Ledger, TextClassifier, TrainSettings, make_private, people_totals
from discreet.cli.main import main
from discreet.core.errors import OutputError
from discreet.core.guarantee import Guarantee
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import TextSource, load
from discreet.federated.client import Assignment, Client
from discreet.federated.settings import Federation
from discreet.models.classifier import Classifier
from discreet.models.settings import ModelSettings
from discreet.runs.people import FIXED_SEED, People, Total
from discreet.training import SearchPlan, TrainingPlan
from discreet.training.loop import train
from discreet.training.tuning import tune

PEOPLE = 20
NOISE = DPSGD(noise_multiplier=4.0, delta=1e-5)
SHORT = TrainSettings(epochs=1, batch_size=10)


@pytest.fixture
def rows(tmp_path: Path, toy_rows: list[tuple[str, str]]) -> Path:
    path = tmp_path / "notes.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        write = csv.writer(file)
        write.writerow(("text", "label", "patient_id"))
        write.writerows((text, label, f"p{i % PEOPLE}") for i, (text, label) in enumerate(toy_rows[:40]))
    return path


@pytest.fixture
def encoder(tiny_encoder: Callable[[str], Path]) -> str:
    return str(tiny_encoder("bert"))


def shown(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the totals that `discreet ledger` shows."""
    capsys.readouterr()
    assert main(["ledger", "--json"]) == 0
    totals: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["totals"]
    return totals


def by_command(rows: Path, encoder: str, out: Path, *command: object) -> None:
    words = [command[0], rows, "--out", out, "--model", encoder, *command[1:], "--unit", "patient_id"]
    assert main([str(word) for word in words]) == 0


def by_own_loop(people: list[str], **settings: Any) -> Guarantee:
    generator = torch.Generator().manual_seed(1)
    data = [(torch.randn(4, generator=generator), torch.randn((), generator=generator)) for _ in people]
    net, units = nn.Linear(4, 1), len(set(people))
    given: dict[str, Any] = {"unit": "patient"} | settings
    with make_private(net, NOISE, num_units=units, batch_size=10, steps=2, **given) as private:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for x, y in private.batches(data, groups=people, max_rows=1):
            private.step((net(x).squeeze(-1) - y).square(), optimizer)
        return private.guarantee


def by_trainer(people: list[str], folder: Path) -> None:
    import transformers

    from discreet.integrations.transformers import PrivateTrainer

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(**sizes, vocab_size=20, max_position_embeddings=8, num_labels=2)
    data = [{"input_ids": [1 + i % 9, 2], "labels": i % 2, "patient_id": who} for i, who in enumerate(people)]

    def collate(chosen: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {name: torch.tensor([row[name] for row in chosen]) for name in ("input_ids", "labels")}

    arguments = transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=10, max_steps=2, save_strategy="no", report_to="none",
        disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    given: dict[str, Any] = {"train_dataset": data, "data_collator": collate, "groups": "patient_id"}
    PrivateTrainer(model, arguments, protect=NOISE, **given).train()


@contextmanager
def one_more_record(command: str) -> Iterator[None]:
    """Expect one more release in the record, of all these people."""
    before = {record.name for record in People().records()}
    yield
    (record,) = (record for record in People().records() if record.name not in before)
    assert record.command == command and record.finished and record.spends and record.unit == "patient"
    assert record.units == PEOPLE


@pytest.mark.filterwarnings("ignore")
def test_all_doors_add_to_one_total_which_python_and_the_terminal_show(
    rows: Path, encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = TextSource(str(rows), unit="patient_id", validation=0.0)
    corpus = source.load()
    people = list(corpus.units or ())
    assert corpus.unit_name == "patient" and len(set(people)) == PEOPLE
    model = Classifier.build(corpus, rng=Rng(1), encoder=encoder, train="head")

    def now() -> Total:
        (total,) = people_totals(sorted(set(people)), unit="patient")
        return total

    quick = ("--train", "head", "--epochs", 1, "--batch-size", 10, "--validation", 0)
    noise = ("--noise-multiplier", 4, "--delta", 1e-5)
    with one_more_record("train"):
        by_command(rows, encoder, tmp_path / "run", "train", "--protect", "dp-sgd", *noise, *quick)
    with one_more_record("train"):
        made = TextClassifier(encoder, protect=NOISE, train="head", training=SHORT, unit="patient")
        made.fit(list(corpus.texts), [corpus.label_names[at] for at in corpus.labels or ()], groups=people)
    with one_more_record("discreet.training.train"):
        train(model, corpus, TrainingPlan.make(model, corpus, protect=NOISE, training=SHORT))
    with one_more_record("make_private"):
        by_own_loop(people)
    with one_more_record("make_private"):
        by_trainer(people, tmp_path / "trainer")
    with one_more_record("discreet.training.tune"):
        grid = {"learning_rate": (0.01, 0.1)}
        tune(model, corpus, SearchPlan.make(model, corpus, grid, protect=DPSGD(epsilon=1), trials=2, training=SHORT))
    with one_more_record("train"):
        settings = Federation(
            source, ModelSettings(encoder=encoder, train="head"), SHORT, 1, NOISE, classes=corpus.label_names
        )
        client = Client(settings, 0, tmp_path / "client", corpus=corpus)
        weights = {name: p.detach().numpy() for name, p in client.model.named_parameters() if p.requires_grad}
        client.update(Assignment(1, 0, 1, 4, 10), weights)
        client.close(finished=True)
    # Every release until here is under zero-out: the terminal, for the patient with the largest total, says the same.
    each = [People().guarantee_of(record) for record in People().records()]
    assert now().guarantee.epsilon > max(one.epsilon for one in each if one is not None)
    (told,) = shown(capsys)
    (largest,) = people_totals()
    assert told["guarantee"] == largest.guarantee.as_dict() == now().guarantee.as_dict()
    assert told["trainings"] == 7 and told["unit"] == "patient" and told["remarks"] == largest.remarks
    with one_more_record("sanitize"):
        by_command(rows, encoder, tmp_path / "clean.csv", "sanitize", "--epsilon-per-word", 0.1)
    everything = now()
    assert everything.converted == 7 and everything.guarantee.adjacency.value == "replace-one"
    assert (everything.trainings, everything.files) == (7, 1)
    both = shown(capsys)
    assert [one["guarantee"] for one in both] == [one.guarantee.as_dict() for one in people_totals()]
    (by_sums, by_words) = sorted(both, key=lambda one: str(one["adjacency"]), reverse=True)
    assert by_sums["guarantee"] == told["guarantee"] and by_sums["other_adjacency"] == 1
    assert by_words["guarantee"] == everything.guarantee.as_dict() and by_words["other_adjacency"] == 0


def test_a_training_within_a_training_counts_once(rows: Path, encoder: str, tmp_path: Path) -> None:
    corpus = TextSource(str(rows), unit="patient_id").load()
    model = Classifier.build(corpus, rng=Rng(1), encoder=encoder, train="head")
    search = SearchPlan.make(
        model, corpus, {"learning_rate": (0.01, 0.1)}, protect=DPSGD(epsilon=2), trials=3, training=SHORT
    )
    tune(model, corpus, search)
    (record,) = People().records()
    assert record.spends == 1 and record.finished and record.command == "discreet.training.tune", "not its trials"
    by_trainer([f"q{i}" for i in range(40)], tmp_path / "trainer")
    (second,) = (one for one in People().records() if one.command == "make_private")
    assert second.spends == 2 and second.units == 40 and second.unit == "patient" and second.finished
    assert second.out == str(tmp_path / "trainer")


def test_the_ledger_that_is_passed_is_the_runs_own_and_the_record_is_kept_too(tmp_path: Path) -> None:
    people = [f"p{i // 2}" for i in range(40)]
    by_own_loop(people, ledger=tmp_path / "own.jsonl")
    with Ledger.open(None, unit="patient", adjacency="zero-out") as ledger:
        by_own_loop(people, ledger=ledger)
        assert ledger.also is None and ledger.statement.spends == 2
    first, second = People().records()
    assert {first.out, second.out} == {str(tmp_path / "own.jsonl"), "memory"} and first.finished and second.finished
    assert Ledger.read(tmp_path / "own.jsonl").spends == first.spends == second.spends == 2


def test_a_fixed_seed_is_recorded_apart_in_an_own_loop_too() -> None:
    by_own_loop([f"p{i // 2}" for i in range(40)], secret=Rng(3))
    (record,) = People().records()
    (total,) = people_totals(["p1"], unit="patient")
    assert record.kind == FIXED_SEED and people_totals() == ()
    assert (total.trainings, total.apart) == (0, 1) and "no release is recorded here" in total.sentence()


def test_a_stopped_loop_leaves_at_least_what_it_spent_and_resuming_counts_it_once(tmp_path: Path) -> None:
    people = [f"p{i // 2}" for i in range(40)]
    data, net = [(torch.ones(4), torch.zeros(()))] * 40, nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    given: dict[str, Any] = {"num_units": 20, "batch_size": 10, "steps": 6, "unit": "patient"}
    paths: dict[str, Any] = {"ledger": tmp_path / "ledger.jsonl", "secret": tmp_path / "secret"}
    private = make_private(net, NOISE, **given, **paths)
    for x, y in private.batches(data, groups=people, max_rows=1):
        if private.step((net(x).squeeze(-1) - y).square(), optimizer) and private.position == 3:
            break
    state = private.state_dict()
    (record,) = People().records()
    assert 3 <= record.spends <= 6 and not record.finished  # killed here
    private.ledger.close()
    with make_private(net, NOISE, **given, **paths) as again:
        again.load_state_dict(state)
        for x, y in again.batches(data, groups=people, max_rows=1):
            again.step((net(x).squeeze(-1) - y).square(), optimizer)
    (record,) = People().records()
    assert record.spends == Ledger.read(tmp_path / "ledger.jsonl").spends == 6 and record.finished


def test_rows_without_ids_are_recognized_by_what_they_hold() -> None:
    texts = tuple(f"a note about {number}" for number in range(8))
    net = nn.Linear(3, 1)

    def go(data: list[Any]) -> int:
        """Train on rows, and return how many releases their people have been in."""
        with make_private(net, NOISE, num_units=len(data), batch_size=2, steps=1) as private:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            for part in private.batches(data, collate=lambda rows: torch.ones(len(rows), 3), max_rows=1):
                private.step(net(part).squeeze(-1), optimizer)
        return max(People().total_of(record).trainings for record in People().records())

    assert go(list(texts)) == 1
    marks = People().marks_of(Corpus("notes", texts))
    assert People().total_of_marks(marks, "row").trainings == 1, "the rows of a corpus with the same texts"
    assert go([{"text": text, "label": 1} for text in texts]) == 2
    tensors = [(torch.full((3,), float(number)), torch.tensor(number)) for number in range(8)]
    assert go(tensors) == 2, "other rows"
    assert go([(x.clone(), y) for x, y in tensors[:7]]) == 2 and People().total_of_marks(marks, "row").trainings == 2


def test_batches_of_the_caller_are_recorded_and_named_as_not_matched() -> None:
    net = nn.Linear(3, 1)
    with make_private(net, NOISE, num_units=8, batch_size=2, steps=1, unit="patient") as private:
        with private.record():
            losses = net(torch.ones(2, 3)).squeeze(-1)
        private.accumulate(losses)
        private.release(torch.optim.SGD(net.parameters(), lr=0.1))
    (record,) = People().records()
    (total,) = people_totals(["p1"], unit="patient")
    assert record.spends == 1 and (total.trainings, total.unknown) == (0, 1)
    assert "people are not known" in total.sentence()


def test_a_home_that_cannot_be_written_stops_a_protected_training_before_it_spends(
    rows: Path, encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DISCREET_HOME", str(tmp_path / "file" / "home"))
    corpus = load(rows)
    model = Classifier.build(corpus, rng=Rng(1), encoder=encoder, train="head")
    with Ledger.open(None, unit="row", adjacency="zero-out") as ledger:
        with pytest.raises(OutputError, match="Set DISCREET_HOME to a folder of yours"):
            train(model, corpus, TrainingPlan.make(model, corpus, protect=NOISE, training=SHORT), ledger=ledger)
        assert ledger.statement.spends == 0
    with pytest.raises(OutputError, match="DISCREET_HOME"):
        by_own_loop([f"p{i // 2}" for i in range(40)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, corpus, TrainingPlan.make(model, corpus, training=SHORT))  # unprotected: nothing is recorded
