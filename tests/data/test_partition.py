from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.errors import DataError, SettingError
from discreet.core.randomness import Rng
from discreet.data.corpus import Corpus
from discreet.data.partition import clients_by_unit, dirichlet_clients, equal_clients, halves, hold_out


def toy(count: int, classes: int = 3, per_unit: int | None = None) -> Corpus:
    return Corpus(
        "toy",
        tuple(f"text {i}" for i in range(count)),
        labels=tuple(i % classes for i in range(count)),
        label_names=tuple("abcdefgh"[:classes]),
        units=None if per_unit is None else tuple(f"u{i // per_unit}" for i in range(count)),
    )


@given(st.integers(3, 120), st.floats(0.01, 0.9), st.integers(1, 4), st.booleans(), st.integers(0, 3))
def test_a_hold_out_leaves_rows_on_both_sides_and_moves_whole_units(
    count: int, fraction: float, per_unit: int, by_unit: bool, seed: int
) -> None:
    corpus = toy(count, 2, per_unit if by_unit else None)
    if corpus.unit_count < 2:
        return
    split = hold_out(corpus, fraction, Rng(seed))
    train, held = split.split("train"), split.split("validation")
    assert len(train) + len(held) == count
    assert split.texts == corpus.texts
    if by_unit:
        assert not set(train.unit_names) & set(held.unit_names)
    else:
        assert len(set(train.labels or ())) == 2


def test_a_hold_out_keeps_the_share_of_each_class_and_takes_from_train_alone() -> None:
    corpus = toy(300)
    split = hold_out(corpus, 0.1, Rng(0))
    assert Counter(split.split("validation").labels or ()) == {0: 10, 1: 10, 2: 10}
    again = hold_out(split, 0.5, Rng(0))
    assert len(again.split("validation")) == 30 + 135


def test_scores_are_held_out_at_random() -> None:
    corpus = Corpus("toy", tuple(f"t{i}" for i in range(50)), scores=tuple(float(i) for i in range(50)))
    assert len(hold_out(corpus, 0.1, Rng(0)).split("validation")) == 5


def test_too_few_rows_to_hold_out_are_refused() -> None:
    with pytest.raises(DataError, match="give a validation file"):
        hold_out(toy(2, 2), 0.1, Rng(0))
    with pytest.raises(DataError, match="found 4"):
        hold_out(toy(4, 2, per_unit=4), 0.1, Rng(0))
    with pytest.raises(SettingError, match="fraction"):
        hold_out(toy(20), 1.0, Rng(0))


@given(st.integers(4, 80), st.integers(1, 3), st.integers(0, 5))
def test_halves_are_equal_in_units_and_disjoint(count: int, per_unit: int, seed: int) -> None:
    corpus = toy(count, 2, per_unit)
    if corpus.unit_count < 2:
        return
    members, others = halves(corpus, Rng(seed))
    assert members.unit_count == others.unit_count == corpus.unit_count // 2
    assert not set(members.unit_names) & set(others.unit_names)


def test_halves_of_rows_are_random_and_repeat() -> None:
    corpus = toy(40)
    assert halves(corpus, Rng(1))[0].texts == halves(corpus, Rng(1))[0].texts != halves(corpus, Rng(2))[0].texts
    with pytest.raises(DataError, match="at least 2 units"):
        halves(toy(3, 2, per_unit=3), Rng(0))


def every_row_once(parts: tuple[np.ndarray, ...], count: int) -> bool:
    return sorted(np.concatenate(parts).tolist()) == list(range(count))


@given(st.integers(5, 100), st.integers(1, 5), st.integers(0, 5))
def test_equal_clients_hold_every_row_once_and_as_many_each(count: int, clients: int, seed: int) -> None:
    parts = equal_clients(toy(count), clients, Rng(seed))
    assert every_row_once(parts, count)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(15, 100), st.integers(1, 5), st.integers(1, 3), st.integers(0, 5))
def test_clients_by_unit_never_share_a_unit(count: int, clients: int, per_unit: int, seed: int) -> None:
    corpus = toy(count, 3, per_unit)
    parts = clients_by_unit(corpus, clients, Rng(seed))
    assert every_row_once(parts, count)
    seen = [set(corpus.unit_index[part].tolist()) for part in parts]
    assert sum(map(len, seen)) == corpus.unit_count


@given(st.integers(10, 100), st.integers(1, 5), st.sampled_from([1e-6, 0.1, 1.0, 100.0]), st.integers(0, 5))
def test_dirichlet_clients_hold_every_row_once_and_none_is_empty(
    count: int, clients: int, concentration: float, seed: int
) -> None:
    parts = dirichlet_clients(toy(count), clients, concentration, Rng(seed), least=2)
    assert every_row_once(parts, count)
    assert min(map(len, parts)) >= 2


def test_a_small_concentration_gives_uneven_clients_and_a_large_one_even_ones() -> None:
    corpus = toy(3000)
    labels = np.array(corpus.labels)

    def unevenness(concentration: float) -> float:
        spread = []
        for seed in range(10):
            for part in dirichlet_clients(corpus, 6, concentration, Rng(seed)):
                shares = np.bincount(labels[part], minlength=3) / len(part)
                spread.append(float(np.abs(shares - 1 / 3).sum()))
        return float(np.mean(spread))

    values = [unevenness(c) for c in (0.05, 0.5, 5.0, 500.0)]
    assert all(a > b for a, b in pairwise(values))
    assert values[-1] < 0.1 < 0.8 < values[0]


def test_bad_partitions_are_refused() -> None:
    with pytest.raises(SettingError, match="clients=9 <= 8"):
        equal_clients(toy(8), 9, Rng(0))
    with pytest.raises(SettingError, match="clients=0"):
        equal_clients(toy(8), 0, Rng(0))
    with pytest.raises(SettingError, match="clients=3 <= 2"):
        clients_by_unit(toy(8, 2, per_unit=4), 3, Rng(0))
    with pytest.raises(SettingError, match="concentration=0"):
        dirichlet_clients(toy(8), 2, 0, Rng(0))
    with pytest.raises(DataError, match="Use equal_clients"):
        dirichlet_clients(Corpus("x", ("a", "b")), 2, 1.0, Rng(0))
