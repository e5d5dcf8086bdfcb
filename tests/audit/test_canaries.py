"""Canaries of a training run: what they add, what they change, and that a resumed run reads the same."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.conftest import WORDS

from discreet.audit.canaries import (
    FILE,
    GradientCanaries,
    TextCanaries,
    plant_texts,
    record_path,
    scores_of,
    token_canaries,
)
from discreet.audit.evidence import evidence_for
from discreet.audit.run import audit_run
from discreet.core.errors import DataError, ModelError, SettingError
from discreet.core.guarantee import Adjacency
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.samplers import Poisson
from discreet.data.sources import TextSource
from discreet.experiment.run import RunOptions, RunRequest, train_once
from discreet.mechanisms.normals import add_normals
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.language_model import LanguageModel
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection
from discreet.protections.dp_sgd import DPSGD
from discreet.runs.folder import load_run
from discreet.training.loop import Job, train
from discreet.training.plan import TrainingPlan

SETTINGS = TrainSettings(epochs=2, batch_size=8, learning_rate=1e-2)


def toy(count: int = 48) -> Corpus:
    texts = tuple(
        f"the {WORDS[7 * i % 40]} {('heart', 'knee')[i % 2]} was {WORDS[(11 * i + 3) % 40]}" for i in range(count)
    )
    splits = ("train",) * (count - 8) + ("validation",) * 8
    labels = tuple(i % 2 for i in range(count))
    return Corpus("toy", texts, labels=labels, label_names=("0", "1"), splits=splits)


def request(encoder: Path, protect: Protection | None, **values: Any) -> RunRequest:
    model = ModelSettings(encoder=str(encoder), train="head", dropout=0.0)
    return RunRequest(TextSource("toy.csv"), model, SETTINGS, protect, noise_seed=5 if protect else None, **values)


def test_scores_have_the_moments_of_sampled_gaussian_noise() -> None:
    """Excluded: N(0, T sigma^2). Included: mean q T, variance T (sigma^2 + q (1 - q))."""
    count, rate, sigma, steps = 4000, 0.25, 0.8, 30
    sampler = Poisson(rate)
    canaries = GradientCanaries(np.arange(count) % 2 == 0, sampler, 0.1, evidence_for(count, sigma, sampler, None))
    for step in range(steps):
        sums = {"weight": torch.zeros(3)}
        canaries.plant(sums, step, Rng(1).fork("canaries"))
        released = add_normals(sums, sigma * 0.1, Rng(1).fork("noise", step))
        canaries.read(released, sums)
        assert set(released) == {"weight"}
    inside, outside = canaries.sums[::2], canaries.sums[1::2]
    error = 4 / (count / 2) ** 0.5
    assert float(outside.mean()) == pytest.approx(0.0, abs=error * sigma * steps**0.5)
    assert float(outside.var()) == pytest.approx(steps * sigma**2, rel=1.5 * error)
    assert float(inside.mean()) == pytest.approx(rate * steps, abs=error * (sigma**2 * steps + steps) ** 0.5)
    assert float(inside.var()) == pytest.approx(steps * (sigma**2 + rate * (1 - rate)), rel=1.5 * error)
    # the evidence is a log-likelihood ratio: its exponential has mean 1 for excluded canaries, up to its heavy tail
    evidence = canaries.evidence.total
    assert float(evidence[::2].mean()) > 0 > float(evidence[1::2].mean())
    assert np.corrcoef(evidence, canaries.sums)[0, 1] > 0.9


@pytest.mark.parametrize(
    "method",
    [
        {},
        {"sampler": "random-allocation"},
        {"correlation": "lambda-cgd", "decay": 0.6},
        {"correlation": "banded", "bands": 3},
    ],
    ids=str,
)
def test_the_evidence_is_a_likelihood_ratio(method: dict[str, Any]) -> None:
    """The mean of a ratio is 1 under its denominator, whichever of the two hypotheses that is."""
    count, protect = 20_000, DPSGD(4.0, clip_norm=0.1, **method)
    sampler, release = protect.sampler_for(count // 6, count), protect.releaser(Rng(1))
    included = np.arange(count) % 2 == 0
    evidence = evidence_for(count, protect.noise, sampler, protect.correlated)
    canaries = GradientCanaries(included, sampler, 0.1, evidence)
    for step in range(12):
        sums = {"weight": torch.zeros(3)}
        canaries.plant(sums, step, Rng(1).fork("canaries"))
        canaries.read(release(sums, step), sums)
    ratio = evidence.total
    assert float(ratio[1::2].exp().mean()) == pytest.approx(1.0, abs=0.04)
    assert float((-ratio[::2]).exp().mean()) == pytest.approx(1.0, abs=0.04)
    assert float(ratio[::2].mean()) > 0 > float(ratio[1::2].mean())


def test_gradient_canaries_leave_the_model_and_its_noise_as_they_are(
    tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    protect = DPSGD(epsilon=3.0, delta=1e-3)
    plain = train_once(request(tiny_encoder("bert"), protect), tmp_path / "plain", corpus=toy()).values()
    audited = train_once(request(tiny_encoder("bert"), protect, audit=300), tmp_path / "audited", corpus=toy()).values()
    weights = [load_run(tmp_path / name).model.state_dict() for name in ("plain", "audited")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert plain["guarantee"] == audited["guarantee"] and audited["audit"] == {"canaries": 300, "kind": "gradient"}
    result = audit_run(tmp_path / "audited")
    assert 0 <= result.lower_bound <= result.upper_bound == audited["guarantee"]["epsilon"]
    assert result.one_run.outcome.canaries == 300 and not result.refuted
    assert result.as_dict()["sums_estimate"] is not None and result.one_run.order is None
    with pytest.raises(ModelError, match="Expected canaries in the run .*, got none"):
        audit_run(tmp_path / "plain")


@pytest.mark.parametrize("method", [{}, {"sampler": "random-allocation"}, {"correlation": "lambda-cgd"}], ids=str)
def test_a_resumed_run_reads_the_same_of_its_canaries(
    method: dict[str, Any], tiny_encoder: Callable[[str], Path], tmp_path: Path
) -> None:
    asked = request(tiny_encoder("bert"), DPSGD(epsilon=3.0, delta=1e-3, **method), audit=100)
    train_once(asked, tmp_path / "whole", corpus=toy())
    stops = iter([False, False, True])
    stopped = train_once(
        asked, tmp_path / "again", corpus=toy(), options=RunOptions(should_stop=lambda: next(stops, False))
    )
    assert not stopped.finished
    train_once(asked, tmp_path / "again", corpus=toy(), options=RunOptions(resume=True))
    for read in (lambda name: tmp_path / name / FILE, lambda name: record_path(tmp_path / name)):
        whole, again = (json.loads(read(name).read_text()) for name in ("whole", "again"))
        assert (whole.pop("random", None) is None) is (again.pop("random", None) is None)
        assert whole == again


def test_an_excluded_canary_is_an_empty_record_under_zero_out(tiny_encoder: Callable[[str], Path]) -> None:
    """It is sampled and counted, and its text has no influence on the model; that of an included one has."""
    corpus, canaries = plant_texts(toy(), 12, Adjacency.ZERO_OUT, Rng(3))
    assert 0 < len(canaries.zeroed) < 12 and len(corpus.split("train")) == len(toy().split("train")) + 12
    excluded = [len(toy()) + i for i in np.flatnonzero(~canaries.included)]
    included = [len(toy()) + i for i in np.flatnonzero(canaries.included)]

    def trained(changed: list[int]) -> dict[str, torch.Tensor]:
        texts = tuple("cough cough cough" if i in changed else text for i, text in enumerate(corpus.texts))
        rows = dataclasses.replace(corpus, texts=texts)
        model = Classifier.build(
            rows, ModelSettings(encoder=str(tiny_encoder("bert")), train="head", dropout=0.0), rng=Rng(0)
        )
        plan = TrainingPlan.make(model, rows, protect=DPSGD(noise_multiplier=0.5), training=SETTINGS, noise_seed=2)
        assert plan.units == 52
        train(model, rows, plan, job=Job(canaries=canaries))
        return model.state_dict()

    usual, other, another = trained([]), trained(excluded), trained(included)
    assert all(torch.equal(usual[name], other[name]) for name in usual)
    assert not all(torch.equal(usual[name], another[name]) for name in usual)


def test_what_stands_in_the_place_of_an_excluded_canary_follows_the_adjacency() -> None:
    corpus = toy()
    replaced, pairs = plant_texts(corpus, 10, Adjacency.REPLACE_ONE, Rng(3))
    assert len(replaced) == len(corpus) + 10 and len(pairs.others) == 10 and not pairs.zeroed
    planted = set(replaced.texts[len(corpus) :])
    for row, other, is_in in zip(pairs.rows, pairs.others, pairs.included.tolist(), strict=True):
        assert row.label == other.label and (row.text in planted, other.text in planted) == (is_in, not is_in)
    removed, left_out = plant_texts(corpus, 10, Adjacency.ADD_REMOVE, Rng(3))
    assert len(removed) == len(corpus) + int(left_out.included.sum())


def test_token_canaries_end_with_a_token_of_their_own(tiny_causal: Callable[[str], Path]) -> None:
    settings = ModelSettings(encoder=str(tiny_causal("llama")), train="all", embeddings=False)
    model = LanguageModel.load(settings, rng=Rng(0))
    size = len(model.tokenizer)
    rows, tokens = token_canaries(model, 8, Rng(1))
    assert len(set(tokens)) == 8 and len(model.tokenizer) == size
    for row, token in zip(rows, tokens, strict=True):
        assert model.tokenizer(row.text)["input_ids"].count(token) == 1
    record = TextCanaries("tokens", rows, np.arange(8) % 2 == 0, tokens=tokens).record()
    scores, included = scores_of(record, model)
    assert scores.shape == included.shape == (8,) and (scores < 0).all()
    with pytest.raises(SettingError, match="for this vocabulary"):
        token_canaries(model, 200, Rng(1))


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_token_canaries_are_new_tokens_where_token_vectors_are_trained(
    tiny_causal: Callable[[str], Path], kind: str
) -> None:
    settings = ModelSettings(encoder=str(tiny_causal(kind)), train="all", embeddings=True)
    model = LanguageModel.load(settings, rng=Rng(0))
    before, old = set(model.tokenizer.get_vocab().values()), model.head.weight.detach().clone()
    text = "the heart was fine"
    ids = model.tokenizer(text)["input_ids"]
    rows, tokens = token_canaries(model, 300, Rng(1))
    assert len(set(tokens)) == 300 and not set(tokens) & before  # more than the vocabulary has
    assert model.trains_tokens and model.head.weight.shape[0] >= len(model.tokenizer)
    assert model.tied is (model.head.weight is model.encoder.get_input_embeddings().weight)
    assert (
        torch.equal(model.head.weight[: len(before)], old[: len(before)]) and model.tokenizer(text)["input_ids"] == ids
    )
    for row, token in zip(rows, tokens, strict=True):
        assert model.tokenizer(row.text)["input_ids"].count(token) == 1
    vectors = model.head.weight.detach()[list(tokens)]
    assert float(vectors.std()) == pytest.approx(float(old[: len(before)].std()), rel=0.2)
    again = LanguageModel.load(settings, rng=Rng(0))
    assert token_canaries(again, 300, Rng(1))[1] == tokens and torch.equal(again.head.weight, model.head.weight)


def test_unused_entries_of_a_vocabulary_are_the_first_new_tokens(tiny_causal: Callable[[str], Path]) -> None:
    model = LanguageModel.load(
        ModelSettings(encoder=str(tiny_causal("llama")), train="all", embeddings=True), rng=Rng(0)
    )
    own = model.add_tokens(["[unused3]", "<|reserved_special_token_12|>"], Rng(0))
    size = len(model.tokenizer)
    rows, tokens = token_canaries(model, 3, Rng(1))
    assert list(tokens[:2]) == own and tokens[2] == size and len(model.tokenizer) == size + 1
    assert [row.secret for row in rows] == ["[unused3]", "<|reserved_special_token_12|>", "<|canary-1|>"]


def test_what_cannot_be_audited_is_rejected(tiny_encoder: Callable[[str], Path], tmp_path: Path) -> None:
    encoder = tiny_encoder("bert")
    strict = DPSGD(epsilon=6.0, delta=1e-3)
    with pytest.raises(SettingError, match=r"audit to be >= 1,2\d\d, to audit epsilon 6, got 50"):
        train_once(request(encoder, strict, audit=50), tmp_path / "few", corpus=toy())
    assert not (tmp_path / "few.unfinished").exists()
    with pytest.raises(SettingError, match="audit_canaries to be examples with no protection"):
        train_once(request(encoder, None, audit=50, audit_canaries="gradient"), tmp_path / "a", corpus=toy())
    with pytest.raises(SettingError, match="audit_canaries to be gradient or examples, got 'tokens'"):
        train_once(request(encoder, None, audit=50, audit_canaries="tokens"), tmp_path / "b", corpus=toy())
    with pytest.raises(ModelError, match="Expected the model of the run"):
        scores_of({"kind": "examples", "included": [0, 1]}, None)
    train_once(request(encoder, None, audit=20), tmp_path / "c", corpus=toy())
    assert audit_run(tmp_path / "c").as_dict()["upper_bound"] is None
    (tmp_path / "c" / FILE).write_text("{")
    with pytest.raises(DataError, match="damaged"):
        audit_run(tmp_path / "c")
