from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.errors import DataError, SettingError
from discreet.core.randomness import Rng
from discreet.data.canaries import (
    LABELS,
    Planting,
    Space,
    plant_labels,
    plant_secrets,
    planted,
    read_canaries,
    write_canaries,
)
from discreet.data.corpus import Corpus
from discreet.data.notes import notes

PLAIN = Corpus("toy", tuple(f"text {i}" for i in range(30)), labels=tuple(i % 3 for i in range(30)))


@given(st.integers(2, 6), st.integers(1, 4), st.data())
def test_a_space_counts_its_secrets_and_each_number_is_one(letters: int, length: int, data: st.DataObject) -> None:
    space = Space(tuple("abcdef"[:letters]), length)
    assert space.size == letters**length
    every = [space.secret(i) for i in range(space.size)]
    assert len(set(every)) == space.size
    assert space.draw(Rng(data.draw(st.integers(0, 9)))) in every


def test_draws_cover_a_small_space_evenly() -> None:
    space, rng = Space.digits(1), Rng(0)
    counts = [0] * 10
    for _ in range(5000):
        counts[int(space.draw(rng))] += 1
    assert min(counts) > 400


def test_planted_secrets_are_in_train_under_their_label_in_as_many_copies() -> None:
    corpus, canaries = plant_secrets(PLAIN, 4, Rng(0), template="Code {secret}!", space=Space.digits(3), copies=5)
    assert len(corpus) == 30 + 4 * 5
    assert len({canary.secret for canary in canaries}) == 4
    for canary in canaries:
        rows = [row for row, text in enumerate(corpus.texts) if text == canary.text]
        assert len(rows) == 5
        assert canary.text == f"Code {canary.secret}!"
        assert {(corpus.labels or ())[row] for row in rows} == {canary.label}
        assert {corpus.splits[row] for row in rows} == {"train"}
        assert canary.with_secret("000") == "Code 000!"
    assert corpus.texts[:30] == PLAIN.texts
    assert "20 rows are canaries" in corpus.remarks[-1]


def test_a_canary_does_not_show_its_secret() -> None:
    _, (canary,) = plant_secrets(PLAIN, 1, Rng(0))
    assert canary.secret not in repr(canary)
    assert canary.space.size == 10**6


def test_all_copies_of_a_canary_are_one_unit() -> None:
    corpus, canaries = plant_secrets(notes(100), 3, Rng(0), copies=4)
    assert corpus.unit_count == notes(100).unit_count + 3
    assert [canary.name for canary in canaries] == list(corpus.unit_names[-3:])


def test_label_canaries_are_in_or_out_by_fair_independent_coins() -> None:
    corpus, canaries = plant_labels(PLAIN, 400, Rng(0))
    inside = [canary for canary in canaries if canary.included]
    assert 150 < len(inside) < 250
    assert len(corpus) == 30 + len(inside)
    assert not {canary.text for canary in canaries if not canary.included} & set(corpus.texts)
    assert {canary.label for canary in canaries} == {0, 1, 2}
    assert all(len(canary.text.split()) == 8 for canary in canaries)


def test_label_canaries_take_words_from_a_vocabulary() -> None:
    _, canaries = plant_labels(PLAIN, 5, Rng(0), vocabulary=["one", "two", "three"], words=4)
    assert set(" ".join(canary.text for canary in canaries).split()) <= {"one", "two", "three"}


def test_the_same_seed_plants_the_same_and_secure_randomness_works() -> None:
    assert plant_labels(PLAIN, 9, Rng(3)) == plant_labels(PLAIN, 9, Rng(3))
    assert plant_labels(PLAIN, 9, Rng(3)) != plant_labels(PLAIN, 9, Rng(4))
    assert len(plant_secrets(PLAIN, 9, Rng.secure())[1]) == 9


def test_scores_and_pairs_get_canaries_too() -> None:
    scored = Corpus("s", ("a", "b"), scores=(0.25, 0.75), second=("c", "d"))
    corpus, (canary,) = plant_secrets(scored, 1, Rng(0), scores=(2.0, 3.0))
    assert corpus.scores is not None
    assert corpus.scores[-1] == canary.score
    assert canary.score is not None and 2.0 <= canary.score < 3.0
    assert corpus.second is not None
    assert corpus.second[-1] == canary.text


def test_bad_canaries_are_refused() -> None:
    with pytest.raises(SettingError, match="secret"):
        plant_secrets(PLAIN, 1, Rng(0), template="no mark")
    with pytest.raises(SettingError, match="half the space"):
        plant_secrets(PLAIN, 6, Rng(0), space=Space.digits(1))
    with pytest.raises(SettingError, match="copies to be .*, got 0"):
        plant_secrets(PLAIN, 1, Rng(0), copies=0)
    with pytest.raises(SettingError, match="inclusion"):
        plant_labels(PLAIN, 1, Rng(0), inclusion=1.0)
    with pytest.raises(SettingError, match="2 or more different"):
        Space(("a", "a"), 3)
    corpus, canaries = plant_secrets(PLAIN, 2, Rng(0))
    with pytest.raises(DataError, match="canary-1 not to be in corpus"):
        planted(corpus, canaries)


@pytest.mark.parametrize("corpus", [PLAIN, notes(100)], ids=["rows", "units"])
def test_copies_are_one_unit_or_spread_over_as_many(corpus: Corpus) -> None:
    before = corpus.unit_count
    together, canaries = Planting(3, (1, 4), seed=2).plant(corpus)
    assert together.unit_count == before + 6 and len(together) == len(corpus) + 3 * 5
    spread, same = Planting(3, (1, 4), spread=True, seed=2).plant(corpus)
    assert same == canaries and spread.unit_count == before + 15
    assert [canary.copies for canary in canaries] == [1, 4] * 3
    for canary in canaries:
        rows = [row for row, text in enumerate(together.texts) if text == canary.text]
        assert len({int(together.unit_index[row]) for row in rows}) == 1 and len(rows) == canary.copies


def test_secrets_differ_without_a_seed_and_repeat_with_one() -> None:
    first, second = (Planting(5, digits=6).plant(PLAIN)[1] for _ in range(2))
    assert {one.secret for one in first} != {one.secret for one in second}
    assert Planting(5, seed=1).plant(PLAIN)[1] == Planting(5, seed=1).plant(PLAIN)[1]


@pytest.mark.parametrize("kind", ["secrets", LABELS])
def test_canaries_survive_their_file_which_only_the_owner_can_read(kind: str, tmp_path: Path) -> None:
    _, canaries = Planting(3, (1, 2), kind=kind, seed=1).plant(PLAIN)
    path = tmp_path / "a.canaries.json"
    write_canaries(path, canaries)
    assert read_canaries(path) == canaries and path.stat().st_mode & 0o077 == 0
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="Train the run again"):
        read_canaries(path)
    with pytest.raises(DataError, match="Expected canaries in"):
        read_canaries(tmp_path / "none.json")


@pytest.mark.parametrize("values", [{"count": 0}, {"count": 1, "copies": ()}, {"count": 1, "copies": (2, 2)}])
def test_settings_of_a_planting_are_checked(values: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        Planting(**values)
