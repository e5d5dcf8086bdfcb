import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.planned import parts_of, train

from discreet.accounting.ledger import Budget, Ledger
from discreet.core.errors import LedgerError, ModelError, SettingError, UnsupportedError
from discreet.core.files import load_tensors
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.batches import Part
from discreet.data.corpus import Corpus, unit_numbers
from discreet.data.samplers import FixedSize, Poisson, Shuffled
from discreet.data.sources import load
from discreet.models.build import ready
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.engine import PrivateParts, PrivateStep
from discreet.training.evaluation import evaluate


@pytest.fixture
def corpus(toy_csv: Path) -> Corpus:
    found = load(toy_csv, classes=("clinic", "ward"))
    return replace(found, units=tuple(f"p{i % 40}" for i in range(len(found))), unit_name="person")


def build(corpus: Corpus, folder: Path, **changes: object) -> Classifier:
    return Classifier.build(corpus, rng=Rng(1), encoder=str(folder), dropout=0.0, **changes)


def weights(model: Classifier) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_it_learns_and_says_what_it_cost(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"))
    settings = TrainSettings(epochs=40, batch_size=20, learning_rate=1e-2)
    done = train(model, corpus, settings, seed=0, protect=DPSGD(0.1, clip_norm=1.0))
    assert evaluate(model, corpus.split("train"))["accuracy"] > 0.9
    promise = done.guarantee
    assert promise is not None and promise.certified and promise.unit == "person"
    assert promise.delta == 1e-5
    assert all("loss" not in entry for entry in done.history)


def test_a_step_is_the_clipped_sum_over_units_plus_noise_over_the_expected_size(
    corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    """The whole step against the slow way: one unit at a time, cut once, added up, divided by the expected size."""
    model = build(corpus, tiny_encoder("bert"), train="all")
    split = corpus.split("train")
    rows = ready(model, split)
    protect, sampler = DPSGD(0.0, clip_norm=0.05), Poisson(0.3)
    settings = TrainSettings(optimizer="sgd", momentum=0.0, weight_decay=0.0)
    parts = parts_of(model, split, rows, settings, protect=protect, sampler=sampler)
    with parts.plan.open_ledger() as ledger:
        step = PrivateStep.of(parts, ledger, Rng(3))
        drawn = sampler.draw(0, split.unit_count, Rng(3).fork("sampler"))
        assert len(step.parts_of(drawn)) > 1
        expected = {n: torch.zeros_like(p) for n, p in step.parameters.items()}
        for unit in drawn:
            mine = np.flatnonzero(unit_numbers(split) == unit)
            batch = rows.batch(mine)
            gradient = torch.autograd.grad(
                model.losses(batch.inputs, batch.targets).sum(), list(step.parameters.values())
            )
            norm = torch.sqrt(sum(g.square().sum() for g in gradient))
            for name, g in zip(expected, gradient, strict=True):
                expected[name] += g * (0.05 / norm).clamp_max(1.0) / (0.3 * split.unit_count)
        step(0)
    for name, parameter in step.parameters.items():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, expected[name], rtol=2e-4, atol=1e-7)


def test_an_empty_batch_still_adds_noise_and_is_counted(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    before = weights(model)
    settings = TrainSettings(epochs=3e-6)
    with Ledger.open(None, unit="person", adjacency="zero-out") as ledger:
        done = train(model, corpus, settings, seed=0, sampler=Poisson(1e-6), protect=DPSGD(1.0), ledger=ledger)
        assert done.steps == ledger.statement.spends == 3
    assert not torch.equal(before, weights(model))


def test_the_ledger_is_spent_before_the_noise_is_drawn(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    with Ledger.open(None, unit="person", adjacency="zero-out") as ledger:
        counts: list[int] = []
        release = DPSGD.release
        monkeypatch.setattr(
            DPSGD, "release", lambda self, *a: counts.append(ledger.statement.spends) or release(self, *a)
        )
        train(model, corpus, TrainSettings(epochs=2, batch_size=20), seed=0, protect=DPSGD(1.0), ledger=ledger)
    assert counts == [len(counts)] * len(counts)  # all planned steps, before the first


def test_a_budget_stops_training_before_it_is_exceeded(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    budget = Budget(2.0, 1e-3)
    with Ledger.open(None, unit="person", adjacency="zero-out", budget=budget) as ledger:
        done = train(
            model, corpus, TrainSettings(epochs=500, batch_size=10), seed=0, protect=DPSGD(1.0), ledger=ledger,
            delta=1e-3,
        )  # fmt: skip
    assert done.finished and done.out_of_budget
    assert 0 < done.steps < 2000
    assert done.guarantee is not None and 1.8 < done.guarantee.epsilon <= 2.0


METHODS: dict[str, dict[str, object]] = {
    "gaussian": {},
    "truncated": {"sampler": "truncated-poisson"},
    "allocated": {"sampler": "random-allocation"},
    "lambda": {"correlation": "lambda-cgd", "decay": 0.7},
    "banded": {"correlation": "banded", "bands": 2},
}


@pytest.mark.parametrize("kind", [*METHODS, "directional"])
def test_resumed_is_undisturbed_and_nothing_is_spent_twice(
    kind: str, corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = TrainSettings(epochs=3, batch_size=10, averaging=0.5)

    def go(name: str, stop: int | None) -> tuple[torch.Tensor, int]:
        model = build(corpus, tiny_encoder("bert"), train="pooler+head")
        protect = DPSGD(1.0, **METHODS[kind]) if kind in METHODS else DirDPSGD.for_model(model, 50.0)
        seen = iter(range(10**6))
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        with Ledger.open(folder / "ledger", unit="person", adjacency=protect.adjacency) as ledger:
            train(
                model, corpus, settings, seed=0, protect=protect, ledger=ledger, workspace=folder, secret=Rng(9),
                should_stop=lambda: stop is not None and next(seen) + 1 >= stop,
            )  # fmt: skip
            return weights(model), ledger.statement.spends

    whole, spent = go("whole", None)
    go("part", 4)
    part_ledger = (tmp_path / "part" / "ledger").read_bytes()
    checkpoint = (tmp_path / "part" / "checkpoint.safetensors").read_bytes()
    go("part", 3)
    # a crash after three more steps and before the next checkpoint: the ledger holds what was redone
    (tmp_path / "part" / "checkpoint.safetensors").write_bytes(checkpoint)
    resumed, counted = go("part", None)
    assert torch.equal(whole, resumed)
    assert counted == spent
    assert part_ledger == (tmp_path / "part" / "ledger").read_bytes()  # all steps were counted before the first


@pytest.mark.parametrize("kind", [name for name in METHODS if name != "gaussian"])
def test_a_budget_is_kept_by_every_sampler_and_correlation(
    kind: str, corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    """The noise is calibrated to the whole training, and the ledger composes its steps to the same figure."""
    model = build(corpus, tiny_encoder("bert"), train="head")
    done = train(
        model, corpus, TrainSettings(epochs=3, batch_size=9), seed=0, protect=DPSGD(epsilon=2, **METHODS[kind])
    )
    assert done.guarantee is not None and not done.out_of_budget and done.guarantee.certified
    assert 1.98 < done.guarantee.epsilon <= 2.0
    assert done.guarantee.adjacency is Adjacency.ZERO_OUT


def test_a_budget_stops_correlated_noise_between_two_cycles(
    corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    protect = DPSGD(8.0, epsilon=2.0, correlation="lambda-cgd")
    done = train(model, corpus, TrainSettings(epochs=30, batch_size=10), seed=0, protect=protect)
    assert done.out_of_budget and done.steps % 4 == 0 and 0 < done.steps < 120
    assert done.guarantee is not None and done.guarantee.epsilon <= 2.0


@pytest.mark.parametrize(
    "kind", [pytest.param(name, id=name) for name in METHODS if name not in ("gaussian", "allocated")]
)
def test_a_population_needs_batches_that_hide_an_absence(
    kind: str, corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    with pytest.raises(SettingError, match="sampler to be Poisson under add/remove"):
        train(model, corpus, TrainSettings(batch_size=10), protect=DPSGD(1.0, **METHODS[kind]), population=50)


def test_a_population_can_be_allocated_at_random(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    protect = DPSGD(epsilon=2.0, sampler="random-allocation")
    done = train(model, corpus, TrainSettings(epochs=2, batch_size=10), protect=protect, population=50)
    assert done.guarantee is not None and done.guarantee.adjacency is Adjacency.ADD_REMOVE
    assert done.guarantee.certified and done.guarantee.epsilon <= 2.0 and done.steps == 10


def test_another_secret_or_corpus_is_another_spend(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    """The same step number with other noise, or on other rows, is never taken for a repetition."""
    settings = TrainSettings(epochs=1, batch_size=20)
    with Ledger.open(None, unit="person", adjacency="zero-out") as ledger:
        counts = []
        for rows, secret in ((corpus, 1), (corpus, 1), (corpus, 2), (corpus.take(range(1, len(corpus))), 2)):
            model = build(rows, tiny_encoder("bert"), train="head")
            train(model, rows, settings, seed=0, protect=DPSGD(1.0), ledger=ledger, secret=Rng(secret))
            counts.append(ledger.statement.spends)
    assert counts[0] == counts[1] < counts[2] < counts[3]


def test_a_private_run_is_not_resumed_on_other_rows_even_before_its_first_checkpoint(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = TrainSettings(epochs=1, batch_size=20)
    monkeypatch.setattr(PrivateStep, "gather", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        model = build(corpus, tiny_encoder("bert"), train="head")
        train(model, corpus, settings, seed=0, protect=DPSGD(1.0), workspace=tmp_path)
    fewer = corpus.take(range(1, len(corpus)))
    with pytest.raises(ModelError, match="Resume with the same command"):
        model = build(fewer, tiny_encoder("bert"), train="head")
        train(model, fewer, settings, seed=0, protect=DPSGD(1.0), workspace=tmp_path)


def test_a_given_seed_makes_the_figure_an_estimate(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    settings = TrainSettings(epochs=1, batch_size=20)
    found = {}
    for name, secret in (("given", Rng(0)), ("drawn", None)):
        model = build(corpus, tiny_encoder("bert"), train="head")
        found[name] = train(model, corpus, settings, seed=0, protect=DPSGD(1.0), secret=secret).guarantee
    assert found["drawn"] is not None and found["drawn"].certified
    assert found["given"] is not None and not found["given"].certified
    assert "whoever knows it" in str(found["given"].reason)


def test_a_resume_from_python_keeps_its_bill_and_needs_its_ledger(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = TrainSettings(epochs=3, batch_size=20)

    def go(folder: Path, stop: int | None) -> float:
        folder.mkdir(exist_ok=True)
        model, seen = build(corpus, tiny_encoder("bert"), train="head"), iter(range(10**6))
        done = train(
            model, corpus, settings, seed=0, protect=DPSGD(1.0), workspace=folder,
            should_stop=lambda: stop is not None and next(seen) + 1 >= stop,
        )  # fmt: skip
        if stop is not None:
            assert not done.finished and done.guarantee is None
            return 0.0
        assert done.guarantee is not None and done.guarantee.certified
        return done.guarantee.epsilon

    whole = go(tmp_path / "whole", None)
    go(tmp_path / "part", 5)
    assert go(tmp_path / "part", None) == pytest.approx(whole)
    go(tmp_path / "lost", 5)
    (tmp_path / "lost" / "ledger.jsonl").unlink()
    with pytest.raises(LedgerError, match="Expected step 0 of this training run in its ledger"):
        go(tmp_path / "lost", None)
    go(tmp_path / "blind", 5)
    (tmp_path / "blind" / "secret").unlink()
    with pytest.raises(ModelError, match="Delete the folder and start again"):
        go(tmp_path / "blind", None)


def test_other_owners_or_another_unit_are_refused(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    settings = TrainSettings(epochs=1, batch_size=20)
    model = build(corpus, tiny_encoder("bert"), train="head")
    train(model, corpus, settings, seed=0, protect=DPSGD(1.0), workspace=tmp_path, should_stop=lambda: True)
    other = replace(corpus, units=tuple(f"p{i // 3}" for i in range(len(corpus))))
    with pytest.raises(ModelError, match="Resume with the same command"):
        model = build(other, tiny_encoder("bert"), train="head")
        train(model, other, settings, seed=0, protect=DPSGD(1.0), workspace=tmp_path)
    with (
        Ledger.open(None, unit="patient", adjacency="zero-out") as ledger,
        pytest.raises(SettingError, match="unit to be 'person' in the ledger, got 'patient'"),
    ):
        train(model, corpus, settings, seed=0, protect=DPSGD(1.0), ledger=ledger)


def test_samplers_are_paired_with_what_they_are_proven_for(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    settings = TrainSettings(epochs=2, batch_size=10)
    direction = DirDPSGD.for_model(model, 50.0)
    for sampler in (Shuffled(10), FixedSize(10)):
        with pytest.raises(SettingError, match="Poisson under add/remove"):
            train(model, corpus, settings, seed=0, protect=DPSGD(1.0), sampler=sampler, population=100)
    summed = train(model, corpus, settings, seed=0, protect=DPSGD(4.0), sampler=Shuffled(10)).guarantee
    assert summed is not None and summed.adjacency is Adjacency.ZERO_OUT
    with pytest.raises(UnsupportedError, match="FixedSize"):
        train(model, corpus, settings, seed=0, protect=direction, sampler=Poisson(0.1))
    by_epoch = train(model, corpus, settings, seed=0, protect=direction, sampler=Shuffled(10)).guarantee
    drawn = train(model, corpus, settings, seed=0, protect=direction, sampler=FixedSize(10)).guarantee
    assert by_epoch is not None and drawn is not None
    assert by_epoch.adjacency is drawn.adjacency is Adjacency.REPLACE_ONE
    # two epochs of disjoint batches are two uses, whatever the number of steps
    from discreet.accounting.events import SelfComposedDpEvent
    from discreet.accounting.interpret import epsilon

    two = epsilon(SelfComposedDpEvent(direction.event, 2), by_epoch.delta, Adjacency.REPLACE_ONE)
    assert by_epoch.epsilon == pytest.approx(two, rel=1e-6)


def test_what_cannot_be_clipped_is_refused_by_name(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    model.head = torch.nn.Sequential(torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 2))
    with pytest.raises(UnsupportedError, match="BatchNorm1d"):
        train(model, corpus, TrainSettings(epochs=1), seed=0, protect=DPSGD(1.0))


def test_a_refused_training_lets_its_ledger_go(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    with pytest.raises(SettingError, match="Poisson under add/remove") as kept:  # the error holds its frames alive
        train(model, corpus, seed=0, protect=DPSGD(1.0), sampler=Shuffled(10), population=9, workspace=tmp_path)
    Ledger.open(tmp_path / "ledger.jsonl", unit="person", adjacency="add/remove").close()
    assert kept.value


def test_memory_that_runs_out_halves_the_parts_and_spends_nothing_twice(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The step is redone with the same batch and noise; what was chosen is kept for a resume."""
    settings = TrainSettings(epochs=2, batch_size=20)
    add, calls = PrivateParts.add, iter(range(10**6))

    def short_of_memory(self: PrivateParts, part: Part, number: int, **options: bool) -> object:
        if next(calls) == 3:
            raise torch.OutOfMemoryError
        return add(self, part, number, **options)

    def go(name: str, fails: bool, stop: int | None = None) -> tuple[torch.Tensor, int, object]:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        model, seen = build(corpus, tiny_encoder("bert"), train="all"), iter(range(10**6))
        monkeypatch.setattr(PrivateParts, "add", short_of_memory if fails else add)
        with Ledger.open(folder / "ledger", unit="person", adjacency="zero-out") as ledger:
            train(
                model, corpus, settings, seed=0, protect=DPSGD(1.0), ledger=ledger, secret=Rng(9), workspace=folder,
                should_stop=lambda: stop is not None and next(seen) + 1 >= stop,
            )  # fmt: skip
            about = json.loads(load_tensors(folder / "checkpoint.safetensors")[1]["progress"])
            return weights(model), ledger.statement.spends, about["layout"]

    calm, spends, layout = go("calm", False)
    short, spends_short, smaller = go("short", True)
    assert spends == spends_short and layout != smaller
    torch.testing.assert_close(short, calm, rtol=1e-3, atol=1e-4)  # smaller parts round otherwise, and nothing else
    calls = iter(range(10**6))
    go("resumed", True, stop=3)  # memory ran out before the stop; the rest goes on in the smaller parts
    resumed, spends_resumed, layout_resumed = go("resumed", False)
    assert spends_resumed == spends and layout_resumed == smaller
    assert torch.equal(resumed, short)


def test_no_memory_for_one_row_is_said(corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch) -> None:
    def never(self: PrivateParts, part: Part, number: int, **options: bool) -> object:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(PrivateParts, "add", never)
    model = build(corpus, tiny_encoder("bert"), train="head")
    with pytest.raises(ModelError, match="memory for the rows of one unit"):
        train(model, corpus, TrainSettings(epochs=1), seed=0, protect=DPSGD(1.0))


def noises_of_empty_batches(corpus: Corpus, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Return what three steps release of batches that hold nobody: noise alone, from a fresh secret."""
    released: list[torch.Tensor] = []
    release = DPSGD.release

    def watched(self: DPSGD, *given: object) -> dict[str, torch.Tensor]:
        found = release(self, *given)  # type: ignore[arg-type]
        released.append(torch.cat([value.flatten() for value in found.values()]))
        return found

    monkeypatch.setattr(DPSGD, "release", watched)
    model = build(corpus, folder, train="head")
    train(model, corpus, TrainSettings(epochs=3e-6), seed=0, sampler=Poisson(1e-6), protect=DPSGD(1.0))
    monkeypatch.setattr(DPSGD, "release", release)
    return released


def count_equal(one: torch.Tensor, other: torch.Tensor) -> int:
    """Return how many numbers are equal: all for the same noise, and of independent noise about 1 in 100,000."""
    return int(torch.isclose(one, other).sum())


def test_no_two_steps_of_a_training_share_their_noise(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = noises_of_empty_batches(corpus, tiny_encoder("bert"), monkeypatch)
    assert len(first) > 20 and count_equal(first, second) <= 3 and count_equal(second, third) <= 3


def test_no_two_secret_trainings_share_their_noise(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (torch.cat(noises_of_empty_batches(corpus, tiny_encoder("bert"), monkeypatch)) for _ in range(2))
    assert len(one) == len(other) and count_equal(one, other) <= 3
