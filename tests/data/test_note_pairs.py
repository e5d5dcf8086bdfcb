from collections import Counter

from discreet.data.note_pairs import note_pairs
from discreet.data.notes import Secrets, secrets_in

PAIRS = note_pairs()


def wrong_digits(one: str, two: str) -> int:
    return sum(a != b for a, b in zip(one, two, strict=True))


def pairs_labelled(wanted: int) -> list[tuple[Secrets, Secrets]]:
    rows = zip(PAIRS.texts, PAIRS.second or (), PAIRS.labels or (), strict=True)
    return [(secrets_in(one), secrets_in(two)) for one, two, label in rows if label == wanted]


def test_the_label_says_whether_both_notes_are_about_one_patient() -> None:
    for one, two in pairs_labelled(1):
        assert one.name == two.name
        assert wrong_digits(one.record, two.record) <= 1
    for one, two in pairs_labelled(0):
        assert wrong_digits(one.record, two.record) >= 3


def test_both_answers_are_about_as_common_and_no_single_word_gives_them_away() -> None:
    same, apart = pairs_labelled(1), pairs_labelled(0)
    assert 0.45 < len(same) / len(PAIRS) < 0.55
    assert 0.6 < sum(a.record == b.record for a, b in same) / len(same) < 0.8
    assert 0.6 < sum(a.phone == b.phone for a, b in same) / len(same) < 0.8
    assert 0.4 < sum(a.phone == b.phone for a, b in apart) / len(apart) < 0.8
    assert 0.5 < sum(a.name.split()[-1] == b.name.split()[-1] for a, b in apart) / len(apart) < 0.9
    assert 0.05 < sum(a.name == b.name for a, b in apart) / len(apart) < 0.25


def test_households_are_units_and_stand_on_one_side_only() -> None:
    assert PAIRS.unit_name == "household"
    assert sorted(Counter(PAIRS.units or ()).values())[1] >= 3
    assert not set(PAIRS.split("train").unit_names) & set(PAIRS.split("validation").unit_names)


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
