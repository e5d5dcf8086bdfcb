"""The score that trials are compared by: one unit moves its sum by at most 1, and the noise is that of its event."""

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.sources import load
from discreet.models.build import ready
from discreet.models.classifier import Classifier
from discreet.training.evaluation import predict
from discreet.training.tuning import private_score, row_scores, unit_scores


def total(scores: npt.NDArray[np.float64], units: npt.NDArray[np.int64]) -> float:
    return private_score(scores, units, 1, 0.0, Rng(0))


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.integers(0, 5)), min_size=2, max_size=30), st.floats(0.0, 1.0))
def test_one_unit_moves_the_sum_by_at_most_one(rows: list[tuple[float, int]], other: float) -> None:
    scores = np.array([score for score, _ in rows])
    units = np.unique([unit for _, unit in rows], return_inverse=True)[1].astype(np.int64)
    changed = np.where(units == 0, other, scores)
    without = units != 0
    assert abs(total(changed, units) - total(scores, units)) <= 1 + 1e-12
    rest = total(scores[without], units[without] - 1) if without.any() else 0.0
    assert -1e-12 <= total(scores, units) - rest <= 1 + 1e-12


def test_a_model_that_diverged_scores_nothing_and_a_unit_counts_once() -> None:
    assert private_score(np.array([np.nan, 1.0]), np.array([0, 1]), 2, 0.0, Rng(0)) == 0.5
    assert unit_scores(np.array([1.0, 0.0, 0.0, 1.0]), np.array([0, 0, 0, 1])).sum() == pytest.approx(4 / 3)


def test_the_noise_has_the_declared_deviation() -> None:
    scores, units = np.ones(50), np.arange(50)
    noisy = np.array([private_score(scores, units, 50, 5.0, Rng(0).fork(i)) for i in range(400)])
    assert abs(noisy.mean() - 1.0) < 4 * 0.1 / 20
    assert abs(noisy.std() / 0.1 - 1) < 0.2


def test_rows_are_scored_by_what_the_model_predicts(tiny_encoder, toy_csv) -> None:  # type: ignore[no-untyped-def]
    corpus = load(toy_csv)
    model = Classifier.build(corpus, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    rows = ready(model, corpus.split("train"))
    right = predict(model, rows).best == rows.targets.numpy()
    assert np.array_equal(row_scores(model, rows), right.astype(float))


def test_a_diverged_model_has_a_place_in_the_order_of_scores(tiny_encoder, toy_csv) -> None:  # type: ignore[no-untyped-def]
    rows = toy_csv.read_text().splitlines()[1:]
    scored = Corpus("scored", tuple(rows), scores=tuple(float(i % 3) for i in range(len(rows))))
    model = Classifier.build(scored, rng=Rng(0), encoder=str(tiny_encoder("bert")), train="head")
    with torch.no_grad():
        next(iter(model.head.parameters())).fill_(torch.nan)
    assert np.array_equal(row_scores(model, ready(model, scored)), np.zeros(len(rows)))
