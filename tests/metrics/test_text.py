import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.metrics.table import METRICS, text_leakage
from discreet.metrics.text import lcs_over_longer, match, rouge, semantic_cosine, token_accuracy

TRUTHS = ["the heart was calm", "a sharp pain in the knee", "no fever since monday", "rest and water", "bad cough"]


@pytest.mark.parametrize(
    "name", [name for name, metric in METRICS.items() if metric.pair and name != "meteor" and not metric.cased]
)
def test_a_perfect_guess_scores_one_and_an_unrelated_one_zero(name: str) -> None:
    assert METRICS[name].score(TRUTHS[0], TRUTHS[0]) == 1.0
    assert METRICS[name].score("xyz", TRUTHS[0]) == 0.0
    assert METRICS[name].score("", TRUTHS[0]) == 0.0


def test_the_two_kinds_of_rouge_l_differ_where_lengths_do() -> None:
    guess, truth = "the heart", "the heart was calm"
    assert rouge(guess, truth) == pytest.approx(2 * 1.0 * 0.5 / 1.5)
    assert lcs_over_longer(guess, truth) == 0.5
    assert rouge("heart the", "the heart", "rouge1") == 1.0 and rouge("heart the", "the heart", "rouge2") == 0.0


def test_token_accuracy_counts_places() -> None:
    assert token_accuracy("heart the was calm", TRUTHS[0]) == 0.5


def test_a_leakage_carries_its_interval_size_and_chance_level() -> None:
    guesses = [*TRUTHS[:4], "something else"]
    found = text_leakage("rouge_l", guesses, TRUTHS, rng=Rng(0))
    assert found.value == pytest.approx(0.8) and found.n == 5
    assert found.low < 0.8 <= found.high == 1.0
    assert found.chance is not None and 0 < found.chance < 0.2
    assert found == text_leakage("rouge_l", guesses, TRUTHS, rng=Rng(0))
    exact = text_leakage("exact_match", guesses, TRUTHS, rng=Rng(0))
    assert (exact.value, exact.chance) == (0.8, 0.0) and exact.high < 1.0


def test_guesses_that_know_nothing_score_at_the_chance_level() -> None:
    pool = ["the", "a", "heart", "knee", "pain", "calm", "sharp", "rest", "water", "cough"]
    source = np.random.default_rng(0)
    guesses, truths = ([" ".join(source.choice(pool, 6)) for _ in range(200)] for _ in range(2))
    found = text_leakage("bag_recall", guesses, truths, rng=Rng(0))
    assert found.chance is not None and found.low <= found.chance <= found.high


def test_the_best_matching_finds_a_shuffled_batch() -> None:
    assert match(TRUTHS[::-1], TRUTHS) == tuple(TRUTHS)
    assert match(TRUTHS[1:2], TRUTHS) == ("", TRUTHS[1], "", "", "")
    assert match([], TRUTHS) == ("",) * 5
    assert set(match([*TRUTHS, "more"], TRUTHS)) == set(TRUTHS)


def test_meaning_is_compared_by_the_embedder_that_is_given() -> None:
    def letters(texts: Sequence[str]) -> np.ndarray:
        return np.array([[text.count(c) for c in "abcdefghijklmnopqrstuvwxyz"] for text in texts], dtype=float)

    same = semantic_cosine(TRUTHS, TRUTHS, embed=letters, rng=Rng(0))
    assert same.value == pytest.approx(1.0) and same.chance is not None and same.chance < 0.95
    assert semantic_cosine(["", ""], TRUTHS[:2], embed=letters, rng=Rng(0)).value == 0.0


def test_wrong_numbers_and_names_are_refused() -> None:
    with pytest.raises(SettingError, match="one for each of 5 truths"):
        text_leakage("rouge_l", ["a"], TRUTHS, rng=Rng(0))
    with pytest.raises(SettingError, match="Did you mean 'rouge_l'"):
        text_leakage("rouge_k", TRUTHS, TRUTHS, rng=Rng(0))
    assert text_leakage("jaccard", ["a"], ["a"], rng=Rng(0)).chance is None


def test_the_common_subsequence_is_the_longest_one() -> None:
    """Against all subsequences, one by one."""
    source = np.random.default_rng(0)
    for _ in range(40):
        guess, truth = (source.choice(list("abcd"), size=source.integers(1, 8)).tolist() for _ in range(2))
        parts = [
            set(itertools.chain(*(itertools.combinations(t, n) for n in range(len(t) + 1)))) for t in (guess, truth)
        ]
        longest = max(map(len, parts[0] & parts[1]))
        assert lcs_over_longer(" ".join(guess), " ".join(truth)) == longest / max(len(guess), len(truth))
