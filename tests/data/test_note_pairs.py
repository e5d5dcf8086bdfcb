from collections import Counter

from discreet.data.note_pairs import note_pairs
from discreet.data.notes import secrets_in

PAIRS = note_pairs()


def test_the_label_says_whether_both_notes_are_about_one_patient() -> None:
    for one, two, label in zip(PAIRS.texts, PAIRS.second or (), PAIRS.labels or (), strict=True):
        assert (secrets_in(one).record == secrets_in(two).record) == bool(label)
        assert (secrets_in(one).name == secrets_in(two).name) == bool(label)


def test_both_answers_are_about_as_common_and_different_patients_often_look_alike() -> None:
    assert 0.45 < sum(PAIRS.labels or ()) / len(PAIRS) < 0.55
    apart = [
        (secrets_in(one), secrets_in(two))
        for one, two, label in zip(PAIRS.texts, PAIRS.second or (), PAIRS.labels or (), strict=True)
        if not label
    ]
    same_surname = sum(a.name.split()[-1] == b.name.split()[-1] for a, b in apart) / len(apart)
    same_phone = sum(a.phone == b.phone for a, b in apart) / len(apart)
    assert 0.25 < same_surname < 0.75
    assert 0.25 < same_phone < 0.75


def test_households_are_units_and_stand_on_one_side_only() -> None:
    assert PAIRS.unit_name == "household"
    assert sorted(Counter(PAIRS.units or ()).values())[1] >= 3
    assert not set(PAIRS.split("train").unit_names) & set(PAIRS.split("validation").unit_names)
    people: dict[str, set[str]] = {}
    for row in range(len(PAIRS)):
        for text in (PAIRS.texts[row], (PAIRS.second or ())[row]):
            people.setdefault(secrets_in(text).record, set()).add((PAIRS.units or ())[row])
    assert all(len(households) == 1 for households in people.values())


def test_scores_are_of_the_same_pairs_and_spread_from_nothing_to_everything_in_common() -> None:
    scored = note_pairs(scores=True)
    assert scored.task == "regression"
    assert scored.texts == PAIRS.texts
    assert scored.scores is not None
    counts = Counter(scored.scores)
    assert (min(counts), max(counts)) == (0.0, 5.0)
    assert len(counts) > 10
    assert max(counts.values()) < 0.35 * len(scored)


def test_the_seed_alone_decides_and_notes_stay_short() -> None:
    assert note_pairs(100, seed=2) == note_pairs(100, seed=2)
    assert note_pairs(100, seed=2).texts != note_pairs(100, seed=3).texts
    assert max(len(text.split()) for text in (*PAIRS.texts, *(PAIRS.second or ()))) <= 40
