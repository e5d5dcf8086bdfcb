import math

import numpy as np
import pytest
import torch
from scipy import stats

from discreet import Rng
from discreet.core.errors import DataError, SettingError
from discreet.mechanisms import word_metric
from discreet.mechanisms.word_metric import WordChoice, WordNoise, farthest

TABLE = np.random.default_rng(1).normal(size=(60, 5))


def test_little_noise_keeps_the_words() -> None:
    words = np.arange(60)
    for kind in (WordNoise, WordChoice):
        np.testing.assert_array_equal(kind(1e4, TABLE)(words, Rng(1)), words)


def test_word_noise_takes_the_nearest_of_the_noisy_place(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = torch.from_numpy(np.random.default_rng(5).normal(size=(60, 5)))
    monkeypatch.setattr(word_metric, "noisy_points", lambda places, price, rng: places + noise)
    released = WordNoise(2.0, TABLE)(np.arange(60), Rng(5))
    expected = np.linalg.norm((TABLE + noise.numpy())[:, None] - TABLE[None], axis=-1).argmin(1)
    np.testing.assert_array_equal(released, expected)


def test_word_choice_has_the_stated_probabilities() -> None:
    table = TABLE[:8]
    released = WordChoice(1.5, table)(np.full(100_000, 3), Rng(2))
    weight = np.exp(-1.5 / 2 * np.linalg.norm(table - table[3], axis=1))
    expected = weight / weight.sum() * len(released)
    assert stats.chisquare(np.bincount(released, minlength=8), expected).pvalue > 1e-3


def test_word_choice_ratio_never_exceeds_the_distance() -> None:
    epsilon = 1.5
    distance = np.linalg.norm(TABLE[:, None] - TABLE[None], axis=-1)
    share = np.exp(-epsilon / 2 * distance)
    share /= share.sum(1, keepdims=True)
    worst = np.abs(np.log(share[:, None]) - np.log(share[None])).max(-1)
    assert (worst <= epsilon * distance + 1e-12).all()
    assert worst.max() <= epsilon * WordChoice(epsilon, TABLE).event.diameter


def test_without_a_budget_the_choice_is_uniform() -> None:
    released = WordChoice(0.0, TABLE[:5])(np.zeros(20_000, dtype=int), Rng(3))
    assert stats.chisquare(np.bincount(released, minlength=5)).pvalue > 1e-3


def test_blocks_of_words_change_nothing_but_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_BLOCK", "_CHOICE_BLOCK", "_NOISE_BLOCK"):
        monkeypatch.setattr(word_metric, name, 7)
    words = np.arange(60).reshape(6, 10)
    for kind in (WordNoise, WordChoice):
        released = kind(1e4, TABLE)(words, Rng(1))
        np.testing.assert_array_equal(released, words)
    assert farthest(torch.from_numpy(TABLE)) == pytest.approx(
        np.linalg.norm(TABLE[:, None] - TABLE[None], axis=-1).max()
    )


def test_the_event_has_the_price_and_the_diameter() -> None:
    event = WordNoise(3.0, TABLE).event
    assert (event.epsilon_per_distance, event.metric) == (3.0, "euclidean")
    assert event.diameter >= farthest(torch.from_numpy(TABLE))
    assert event.diameter == pytest.approx(farthest(torch.from_numpy(TABLE)), rel=1e-9)
    assert WordChoice(3.0, TABLE, diameter=10.0).event.diameter == 10.0


def test_kinds_come_back_and_the_table_is_not_printed() -> None:
    table = torch.from_numpy(TABLE).float()
    released = WordChoice(2.0, table)(torch.arange(6, dtype=torch.int32).view(2, 3), Rng(1))
    assert released.dtype == torch.int32
    assert released.shape == (2, 3)
    assert "tensor" not in repr(WordNoise(1.0, table))


def test_bad_tables_words_and_prices_are_refused() -> None:
    for table in (np.zeros(3), np.zeros((0, 3)), np.array([[1, 2]]), np.array([[np.nan]])):
        with pytest.raises(DataError, match="Expected"):
            WordNoise(1.0, table)
    for words in (np.array([60]), np.array([-1]), np.array([0.5])):
        with pytest.raises(DataError, match="Expected words"):
            WordChoice(1.0, TABLE)(words, Rng(1))
    for bad in (-1.0, math.inf, math.nan):
        with pytest.raises(SettingError, match="epsilon"):
            WordChoice(bad, TABLE)
    with pytest.raises(SettingError, match="epsilon"):
        WordNoise(0.0, TABLE)
