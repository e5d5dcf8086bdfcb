"""Many heads at once are the heads that are trained one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from discreet.core.randomness import Rng
from discreet.data.batches import Vectors
from discreet.data.corpus import Corpus
from discreet.models.classifier import Classifier, ModelSettings
from discreet.models.settings import TrainSettings
from discreet.protections.base import Protection
from discreet.protections.dir_dp_sgd import DirDPSGD
from discreet.protections.dp_sgd import DPSGD
from discreet.training.loop import Job, train
from discreet.training.many_heads import HeadJob, can_train_together, train_heads
from discreet.training.plan import TrainingPlan

ROWS, WIDTH = 48, 32


@pytest.fixture(scope="module")
def model(tiny_encoder: Any) -> Classifier:
    corpus = Corpus("toy", ("a", "b"), labels=(0, 1), label_names=("x", "y", "z"))
    settings = ModelSettings(encoder=str(tiny_encoder("bert")), train="head")
    return Classifier.build(corpus, settings, rng=Rng(0))


def text(units: bool) -> Corpus:
    names = tuple(f"author {row % 17}" for row in range(ROWS)) if units else None
    return Corpus(
        "toy",
        tuple(f"text {row}" for row in range(ROWS)),
        labels=tuple(row % 3 for row in range(ROWS)),
        label_names=("x", "y", "z"),
        units=names,
        unit_name="author" if units else "row",
    )


@pytest.mark.parametrize("units", [False, True])
@pytest.mark.parametrize(
    "protect", [None, DPSGD(noise_multiplier=0.7, clip_norm=0.05), DirDPSGD(kappa=60.0), DirDPSGD(kappa=1e13)]
)
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_heads_trained_together_are_those_trained_alone(
    model: Classifier, units: bool, protect: Protection | None, optimizer: str
) -> None:
    if units and isinstance(protect, DirDPSGD) and protect.kappa == 60.0:
        pytest.skip("units of several rows are read in another order alone, and their directions differ with it")
    corpus = text(units)
    draw = torch.Generator().manual_seed(0)
    every = Vectors(torch.randn(ROWS, model.width, generator=draw), torch.tensor(corpus.labels))
    settings = TrainSettings(epochs=3, batch_size=5, learning_rate=0.05, weight_decay=0.1, optimizer=optimizer)
    jobs, alone = [], []
    for number, rows in enumerate((np.arange(0, 30), np.arange(11, ROWS), np.arange(0, ROWS, 2))):
        subset = corpus.take(rows)
        model.replace_head(model.width, Rng(number))
        weight, bias = (parameter.detach().clone() for parameter in model.head.parameters())
        plan = TrainingPlan.make(model, subset, protect=protect, training=settings, seed=number, noise_seed=number)
        jobs.append(HeadJob(rows, subset, plan, None if protect is None else plan.secret(), weight, bias))
        batch = every.batch(rows)
        train(model, subset, plan, job=Job(encoded=Vectors(batch.inputs["vectors"], batch.targets)))
        alone.append([parameter.detach().clone() for parameter in model.head.parameters()])
        assert (alone[-1][0] - weight).abs().max() > 0.01, "it has learned"
    weights, biases = train_heads(every, jobs)
    for number, (weight, bias) in enumerate(alone):
        torch.testing.assert_close(weights[number], weight, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(biases[number], bias, rtol=1e-3, atol=1e-4)


def test_only_what_is_equal_is_trained_together() -> None:
    settings, train_settings = ModelSettings(train="head"), TrainSettings()
    assert can_train_together(settings, train_settings, None, "classification")
    assert not can_train_together(replace(settings, train="all"), train_settings, None, "classification")
    assert not can_train_together(replace(settings, head="mlp"), train_settings, None, "classification")
    assert not can_train_together(settings, replace(train_settings, patience=2), None, "classification")
    assert can_train_together(settings, train_settings, DirDPSGD(kappa=10.0), "classification")
    assert not can_train_together(settings, train_settings, DPSGD(1.0, clipping="automatic"), "classification")
    assert not can_train_together(settings, train_settings, None, "regression")
