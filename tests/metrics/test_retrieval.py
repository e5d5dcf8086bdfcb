import numpy as np
import pytest
from reproductions.texthide.vector_metrics import constituents, matched_cosines, recovered

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.metrics.retrieval import retrieval

INDEX = [f"word{i} word{i + 1} the" for i in range(50)]
LABELS = [i % 2 for i in range(50)]


def embed(texts):
    return np.array([[len(text), text.count("1"), 1.0] for text in texts])


def measured(guesses, truths):
    labels = dict(zip(INDEX, LABELS, strict=True))
    leaks = retrieval(
        guesses, truths, INDEX, rng=Rng(0), embed=embed,
        guessed_labels=[labels[g] for g in guesses], true_labels=[labels[t] for t in truths], index_labels=LABELS,
    )  # fmt: skip
    return {leak.metric: leak for leak in leaks}


def test_right_answers_score_one_in_all_five_measures() -> None:
    leaks = measured(INDEX[:20], INDEX[:20])
    assert list(leaks) == ["identity", "jaccard", "tfidf_cosine", "same_label", "embedding_cosine"]
    for leak in leaks.values():
        assert leak.value == pytest.approx(1)
        assert leak.n == 20
        assert leak.chance is not None and leak.chance < 1


def test_random_answers_score_chance_level() -> None:
    source = np.random.default_rng(0)
    truths = [INDEX[i] for i in source.integers(50, size=2000)]
    guesses = [INDEX[i] for i in source.integers(50, size=2000)]
    for leak in measured(guesses, truths).values():
        assert leak.value == pytest.approx(leak.chance, abs=0.03)
    assert measured(guesses, truths)["identity"].chance == pytest.approx(1 / 50)


def test_words_that_are_rare_in_the_index_count_for_more() -> None:
    index = ["the a", "the b", "the c", "the d"]
    (_, jaccard, tfidf) = retrieval(["the a"], ["the b"], index, rng=Rng(0))
    assert jaccard.value == pytest.approx(1 / 3)
    assert tfidf.value < 0.33


def test_constituents_are_counted_without_order_and_only_as_many_as_there_are() -> None:
    leak = constituents([(4, 2, 9), (1, 1, 1)], [{2, 4}, {3}], 100, rng=Rng(0))
    assert leak.value == 0.5
    assert leak.chance == pytest.approx(0.015)


def test_vectors_are_matched_one_to_one() -> None:
    truth = np.eye(3)
    guess = np.array([[0, 0, 5.0], [0.1, 1, 0], [0, 1, 0]])
    np.testing.assert_allclose(matched_cosines(guess, truth), [0.0995, 1, 1], atol=1e-3)
    assert recovered(guess, truth, chance=0.1).value == pytest.approx(2 / 3)
    assert matched_cosines(guess[:1], truth).tolist() == [-1, -1, 1]


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(SettingError, match="guesses to be one for each of 2 truths.*, got 1"):
        retrieval(["a"], ["a", "b"], ["a"], rng=Rng(0))
    with pytest.raises(SettingError, match="index to be .*, got 0"):
        retrieval(["a"], ["a"], [], rng=Rng(0))
    with pytest.raises(SettingError, match="width to be .*, got 2"):
        matched_cosines(np.ones((1, 2)), np.ones((1, 3)))
