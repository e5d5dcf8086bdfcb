from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.errors import DataError, SettingError
from discreet.data.corpus import (
    Corpus,
    clients_by_unit,
    dirichlet_clients,
    equal_clients,
    halves,
    hold_out,
    keep_per_unit,
    keep_share,
)


def toy(count: int, classes: int = 3, per_unit: int | None = None) -> Corpus:
    return Corpus(
        "toy",
        tuple(f"text {i}" for i in range(count)),
        labels=tuple(i % classes for i in range(count)),
        label_names=tuple("abcdefgh"[:classes]),
        units=None if per_unit is None else tuple(f"u{i // per_unit}" for i in range(count)),
    )


@given(st.integers(3, 120), st.floats(0.01, 0.9), st.integers(1, 4), st.booleans(), st.integers(0, 3))
def test_a_hold_out_leaves_rows_on_both_sides_and_moves_whole_units_or_stops(
    count: int, fraction: float, per_unit: int, by_unit: bool, seed: int
) -> None:
    corpus = toy(count, 2, per_unit if by_unit else None)
    try:
        split = hold_out(corpus, fraction, seed=seed)
    except DataError as error:
        assert "use a validation file" in str(error)
        return
    train, held = split.split("train"), split.split("validation")
    assert len(train) + len(held) == count
    assert split.texts == corpus.texts
    assert set(train.labels or ()) == set(held.labels or ()) == {0, 1}
    if by_unit:
        assert not set(train.unit_names) & set(held.unit_names)


def test_a_hold_out_takes_about_its_share_and_from_train_alone() -> None:
    split = hold_out(toy(3000), 0.1)
    assert 220 < len(split.split("validation")) < 380  # 300 on average, standard deviation 16
    again = hold_out(split, 0.5, seed=1)
    kept = set(split.split("validation").texts)
    assert kept < set(again.split("validation").texts)


def test_a_larger_share_holds_out_all_that_a_smaller_one_does() -> None:
    small, large = (set(hold_out(toy(300), share).split("validation").texts) for share in (0.1, 0.3))
    assert small < large


def test_a_share_that_leaves_a_side_empty_is_refused_with_one_that_works() -> None:
    tiny = toy(20, 2)
    with pytest.raises(DataError, match=r"another share \(validation=0\.\d+\)") as caught:
        hold_out(tiny, 0.001)
    share = float(str(caught.value).split("validation=")[1].split(")")[0])
    assert set(hold_out(tiny, share).split_names) == {"train", "validation"}


def test_a_side_without_rows_or_without_a_class_is_refused_with_the_remedy() -> None:
    with pytest.raises(DataError, match="Expected validation rows .*use a validation file"):
        hold_out(toy(4, 2, per_unit=4), 0.001)
    with pytest.raises(DataError, match="Expected training rows .*use a validation file, or add rows"):
        hold_out(toy(4, 2, per_unit=4), 0.999)
    rare = replace(toy(300, 2), labels=(2, *(0, 1) * 149, 0), label_names=("a", "b", "once"))
    with pytest.raises(DataError, match=r"every class among the .* rows .* 1 of 3 classes \('once'\) are only"):
        hold_out(rare, 0.2)
    assert hold_out(rare, 0.2, every_class=False).split_names
    with pytest.raises(SettingError, match="fraction"):
        hold_out(toy(20), 1.0)


def test_a_share_of_the_training_units_is_kept_by_the_seed_and_validation_is_left_alone() -> None:
    corpus = hold_out(toy(600, 2, per_unit=2), 0.1)
    one, two = (keep_share(corpus, 0.5, seed=seed) for seed in (1, 2))
    assert one.split("validation").texts == two.split("validation").texts == corpus.split("validation").texts
    assert one.split("train").texts != two.split("train").texts
    assert 200 < len(one.split("train")) < 340
    assert "training rows were sampled with share 0.5 and seed 1" in one.remarks[-1]
    assert keep_share(corpus, 1) is corpus
    for bad in (0, 1.5):
        with pytest.raises(SettingError, match="share"):
            keep_share(corpus, bad)
    with pytest.raises(DataError, match="use a larger share"):
        keep_share(corpus, 1e-9)


@given(st.integers(20, 80), st.integers(1, 3), st.integers(0, 5))
def test_halves_are_disjoint_hold_every_row_and_whole_units(count: int, per_unit: int, seed: int) -> None:
    corpus = toy(count, 2, per_unit)
    members, others = halves(corpus, seed=seed)
    assert len(members) + len(others) == count
    assert not set(members.unit_names) & set(others.unit_names)


def test_halves_of_rows_are_random_and_repeat() -> None:
    corpus = toy(40)
    assert halves(corpus, seed=1)[0].texts == halves(corpus, seed=1)[0].texts != halves(corpus, seed=2)[0].texts
    with pytest.raises(DataError, match="an empty side"):
        halves(toy(3, 2, per_unit=3))


def every_row_once(parts: tuple[np.ndarray, ...], count: int) -> bool:
    return sorted(np.concatenate(parts).tolist()) == list(range(count))


@given(st.integers(5, 100), st.integers(1, 5), st.integers(0, 5))
def test_equal_clients_hold_every_row_once_and_as_many_each(count: int, clients: int, seed: int) -> None:
    parts = equal_clients(toy(count), clients, seed=seed)
    assert every_row_once(parts, count)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(st.integers(15, 100), st.integers(1, 5), st.integers(1, 3), st.integers(0, 5))
def test_clients_by_unit_never_share_a_unit(count: int, clients: int, per_unit: int, seed: int) -> None:
    corpus = toy(count, 3, per_unit)
    try:
        parts = clients_by_unit(corpus, clients, seed=seed)
    except DataError as error:
        assert "got 0 at one" in str(error)
        return
    assert every_row_once(parts, count)
    seen = [set(corpus.unit_index[part].tolist()) for part in parts]
    assert sum(map(len, seen)) == corpus.unit_count


@given(st.integers(10, 100), st.integers(1, 5), st.sampled_from([1e-6, 0.1, 1.0, 100.0]), st.integers(0, 5))
def test_dirichlet_clients_hold_every_row_once_and_too_few_are_refused(
    count: int, clients: int, concentration: float, seed: int
) -> None:
    try:
        parts = dirichlet_clients(toy(count), clients, concentration, seed=seed, least=2)
    except DataError as error:
        assert "at least 2 rows" in str(error)
        return
    assert every_row_once(parts, count)
    assert min(map(len, parts)) >= 2


def test_a_small_concentration_gives_uneven_clients_and_a_large_one_even_ones() -> None:
    corpus = toy(3000)
    labels = np.array(corpus.labels)

    def unevenness(concentration: float) -> float:
        spread = []
        for seed in range(10):
            for part in dirichlet_clients(corpus, 6, concentration, seed=seed, least=0):
                shares = np.bincount(labels[part], minlength=3) / max(1, len(part))
                spread.append(float(np.abs(shares - 1 / 3).sum()))
        return float(np.mean(spread))

    values = [unevenness(c) for c in (0.05, 0.5, 5.0, 500.0)]
    assert all(a > b for a, b in pairwise(values))
    assert values[-1] < 0.1 < 0.8 < values[0]


def test_bad_partitions_are_refused() -> None:
    with pytest.raises(SettingError, match="clients to be <= 8.*, got 9"):
        equal_clients(toy(8), 9)
    with pytest.raises(SettingError, match="clients to be .*, got 0"):
        equal_clients(toy(8), 0)
    with pytest.raises(SettingError, match="clients to be <= 2.*, got 3"):
        clients_by_unit(toy(8, 2, per_unit=4), 3)
    with pytest.raises(SettingError, match="concentration to be .*, got 0"):
        dirichlet_clients(toy(8), 2, 0)
    with pytest.raises(DataError, match="Use equal_clients"):
        dirichlet_clients(Corpus("x", ("a", "b")), 2, 1.0)


@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 5))
def test_a_cap_keeps_as_many_rows_of_each_unit_as_it_may(units: int, most: int, seed: int) -> None:
    owners = [f"u{unit}" for unit in range(units) for _ in range(unit % 7 + 1)]
    corpus = Corpus("toy", tuple(f"text {i}" for i in range(len(owners))), units=tuple(owners), unit_name="patient")
    capped = keep_per_unit(corpus, most, seed=seed)
    before, after = Counter(corpus.units), Counter(capped.units)
    assert after == {unit: min(count, most) for unit, count in before.items()}
    assert keep_per_unit(capped, most, seed=seed + 1).texts == capped.texts


def test_a_cap_is_random_by_the_seed_and_blind_to_content_and_other_units() -> None:
    corpus = toy(400, 2, per_unit=8)
    one, two = (keep_per_unit(corpus, 3, seed=seed) for seed in (0, 1))
    assert one.texts == keep_per_unit(corpus, 3, seed=0).texts != two.texts
    orders = Counter(
        int(text.split()[1]) % 8 for seed in range(20) for text in keep_per_unit(corpus, 3, seed=seed).texts
    )
    assert (
        min(orders.values()) > 250 and max(orders.values()) < 500
    )  # 375 on average: no place among the rows is preferred
    renamed = replace(corpus, texts=tuple(f"other {i}" for i in range(len(corpus))))
    assert [t.split()[1] for t in keep_per_unit(renamed, 3).texts] == [
        t.split()[1] for t in keep_per_unit(corpus, 3).texts
    ]
    alone = keep_per_unit(corpus.take(range(8, 16)), 3)
    assert set(alone.texts) == {text for text in keep_per_unit(corpus, 3).texts if 8 <= int(text.split()[1]) < 16}


def test_a_cap_leaves_held_out_rows_and_needs_a_unit() -> None:
    corpus = hold_out(toy(400, 2, per_unit=4), 0.3)
    capped = keep_per_unit(corpus, 1)
    assert capped.split("validation").texts == corpus.split("validation").texts
    assert len(capped.split("train")) == capped.split("train").unit_count
    assert "at most 1 of each" in capped.remarks[-1]
    with pytest.raises(SettingError, match="max_per_unit to be used with a column that names units.*unit"):
        keep_per_unit(toy(8), 2)
    with pytest.raises(SettingError, match="max_per_unit to be an integer >= 1, got 0"):
        keep_per_unit(corpus, 0)
