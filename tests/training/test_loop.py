from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.planned import train

from discreet.core.errors import DataError, ModelError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.samplers import Poisson
from discreet.models.classifier import Classifier
from discreet.models.settings import TrainSettings
from discreet.training.evaluation import evaluate
from discreet.training.loop import Trained
from discreet.training.steps import Report

StopAfter = Callable[[int], Callable[[], bool]]


def build(corpus: Corpus, folder: Path, **changes: object) -> Classifier:
    return Classifier.build(corpus, rng=Rng(1), encoder=str(folder), **changes)


def weights(model: Classifier) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


def test_it_learns(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"))
    reports: list[Report] = []
    done = train(model, corpus, TrainSettings(epochs=12, learning_rate=5e-3), seed=0, watch=reports.append)
    assert done.finished
    assert evaluate(model, corpus.split("validation"))["accuracy"] == 1.0
    assert done.history[-1]["loss"] < done.history[0]["loss"] / 2
    assert reports[-1].step == reports[-1].steps == done.steps


def test_a_bilstm_learns_a_pair_task_and_a_score() -> None:
    texts = tuple(f"the heart beats {i}" if i % 2 else f"a knee hurts {i}" for i in range(64))
    scored = Corpus(
        "toy", texts, scores=tuple(float(i % 2) for i in range(64)), second=tuple(f"note {i}" for i in range(64))
    )
    model = Classifier.build(scored, rng=Rng(1), encoder="bilstm", train="all", embeddings=False)
    train(model, scored, TrainSettings(epochs=12, learning_rate=1e-2, batch_size=16), seed=0)
    assert evaluate(model, scored)["pearson"] > 0.95


def test_the_same_seed_gives_the_same_weights_and_another_does_not(
    corpus: Corpus, tiny_encoder: Callable[[str], Path]
) -> None:
    found = []
    for seed in (3, 3, 4):
        model = build(corpus, tiny_encoder("bert"))
        train(model, corpus, TrainSettings(epochs=1), seed=seed)
        found.append(weights(model))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


def test_the_callers_random_state_is_left_alone(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"))
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    train(model, corpus, TrainSettings(epochs=1), seed=0)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("parts", ["all", "head"])
@pytest.mark.parametrize("stops", [(1,), (4,), (3, 5), (2, 2, 2)])
def test_stopped_and_resumed_ends_with_the_same_weights(
    corpus: Corpus,
    tiny_encoder: Callable[[str], Path],
    tmp_path: Path,
    parts: str,
    stops: tuple[int, ...],
    stop_after: StopAfter,
) -> None:
    settings = TrainSettings(epochs=2, batch_size=16, patience=5)
    undisturbed = build(corpus, tiny_encoder("bert"), train=parts)
    whole = train(undisturbed, corpus, settings, seed=0)
    for count in stops:
        model = build(corpus, tiny_encoder("bert"), train=parts)
        part = train(model, corpus, settings, seed=0, workspace=tmp_path, should_stop=stop_after(count))
        assert not part.finished
    assert part.steps == sum(stops)
    resumed = build(corpus, tiny_encoder("bert"), train=parts)
    done = train(resumed, corpus, settings, seed=0, workspace=tmp_path)
    assert done.finished
    assert same(weights(resumed), weights(undisturbed))
    assert [e["step"] for e in done.history] == [e["step"] for e in whole.history]


def test_a_checkpoint_is_not_resumed_with_other_settings(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, stop_after: StopAfter
) -> None:
    def go(rate: float, rows: Corpus = corpus) -> Trained:
        model = build(rows, tiny_encoder("bert"))
        settings = TrainSettings(epochs=1, learning_rate=rate)
        return train(model, rows, settings, seed=0, workspace=tmp_path, should_stop=stop_after(2))

    go(1e-3)
    with pytest.raises(ModelError, match="Resume with the same command"):
        go(2e-3)
    with pytest.raises(ModelError, match="Resume with the same command"):
        go(1e-3, corpus.take(range(len(corpus) - 1, -1, -1)))


def test_early_stop_keeps_the_best_weights(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"))
    settings = TrainSettings(epochs=60, learning_rate=5e-3, patience=2)
    done = train(model, corpus, settings, seed=0)
    scores = [entry["accuracy"] for entry in done.history]
    assert len(scores) < 60
    assert scores[-3] == max(scores) >= max(scores[-2:])
    assert evaluate(model, corpus.split("validation"))["accuracy"] == max(scores)


def test_parts_of_a_batch_add_up_to_the_batch(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    found = []
    for parts in (1, 3):
        model = build(corpus, tiny_encoder("bert"), dropout=0.0)
        train(model, corpus, TrainSettings(epochs=1, batch_size=32, accumulate=parts), seed=0)
        found.append(weights(model))
    for name in found[0]:
        torch.testing.assert_close(found[0][name], found[1][name], atol=1e-5, rtol=1e-3)


def test_empty_batches_are_handled(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"), train="head")
    done = train(model, corpus, TrainSettings(epochs=0.5), seed=0, sampler=Poisson(0.004))
    assert done.steps == 125


def test_outputs_of_a_frozen_encoder_are_computed_once(
    corpus: Corpus, tiny_encoder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go() -> dict[str, torch.Tensor]:
        model = build(corpus, tiny_encoder("bert"), train="head")
        train(model, corpus, TrainSettings(epochs=2), seed=0, cache=tmp_path)
        return weights(model)

    first = go()
    (kept,) = tmp_path.glob("*.safetensors")
    assert kept.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(Classifier, "states", lambda *_: pytest.fail("the encoder ran again"))
    assert same(first, go())


def test_a_corpus_without_the_split_is_refused(corpus: Corpus, tiny_encoder: Callable[[str], Path]) -> None:
    model = build(corpus, tiny_encoder("bert"))
    with pytest.raises(DataError, match="'validation' split"):
        train(model, corpus.split("train"), TrainSettings(patience=1), seed=0)
    with pytest.raises(DataError, match="'train' split"):
        train(model, corpus.split("validation"), seed=0)
