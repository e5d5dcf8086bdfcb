"""One table has every metric: each with its label and what it compares."""

import pytest

from discreet import catalog
from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.metrics.table import METRICS, Compares, Metric, Sample, label_of, short_label_of, text_leakage

GUESSES, TRUTHS = ("a b c", "d e f", "g h"), ("a b c", "d x f", "g y")
SAMPLE = Sample(GUESSES, TRUTHS, ("a b c", "d e f", "d x f", "g h", "g y", "z"))


def test_every_metric_is_complete() -> None:
    assert catalog.metrics() is METRICS
    assert len({metric.label for metric in METRICS.values()}) == len(METRICS)
    for name, metric in METRICS.items():
        assert metric.name == name and metric.label and metric.short
        measured = metric.pair is not None or metric.sample is not None
        by_run = (Compares.INDICES, Compares.MEMBERS, Compares.SECRETS, Compares.PEOPLE)
        assert measured != (metric.compares in by_run)  # the attack's run measures those


@pytest.mark.parametrize("name", ["rouge_l", "jaccard", "exact_match"])
def test_a_metric_of_pairs_is_the_mean_of_its_scores(name: str) -> None:
    metric = METRICS[name]
    leakage = metric.leakage(SAMPLE, Rng(0))
    assert leakage == text_leakage(name, GUESSES, TRUTHS, rng=Rng(0))
    scores = [metric.score(guess, truth) for guess, truth in zip(GUESSES, TRUTHS, strict=True)]
    assert leakage.value == pytest.approx(sum(scores) / 3)


@pytest.mark.parametrize("name", ["identity", "tfidf_cosine"])
def test_a_metric_of_candidates_is_compared_with_a_random_candidate(name: str) -> None:
    leakage = METRICS[name].leakage(SAMPLE, Rng(0))
    assert leakage.metric == name and leakage.chance is not None and leakage.chance < leakage.value
    with pytest.raises(SettingError, match="index"):
        METRICS[name].leakage(Sample(GUESSES, TRUTHS), Rng(0))


def test_meaning_is_compared_by_vectors() -> None:
    def embed(texts: object) -> object:
        return [[float(len(text)), 1.0] for text in texts]  # type: ignore[attr-defined]

    assert METRICS["semantic_cosine"].leakage(Sample(TRUTHS, TRUTHS, embed=embed), Rng(0)).value == pytest.approx(1)  # type: ignore[arg-type]
    with pytest.raises(SettingError, match="embed"):
        METRICS["semantic_cosine"].leakage(SAMPLE, Rng(0))
    with pytest.raises(SettingError, match="a whole sample"):
        METRICS["semantic_cosine"].score("a", "b")


def test_labels_of_metrics_that_are_not_in_the_table_are_their_own_words() -> None:
    assert label_of("own_metric") == "own metric" and short_label_of("own_metric") == "own_metric"
    assert label_of("rouge_l") == METRICS["rouge_l"].label
    assert isinstance(METRICS["rouge_l"], Metric)
