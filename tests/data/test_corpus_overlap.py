import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.errors import DataError
from discreet.data.corpus import Corpus, check_held_out, normalised, overlapping, without_overlap

SAME = [
    ("it ca n't be -lrb- so -rrb- .", "It can't be (so)"),
    ("a film 's charm", "A film's charm!"),
    ("cliche\u0301d  and\u00a0naïve", "clichéd and naive"),
    ("ﬁne “work”", 'fine "work"'),
    ("two\nlines", "two lines"),
    ("STRASSE", "straße"),
    ("e-mail , please", "email, please"),
]
DIFFERENT = [("a good film", "a bad film"), ("!!!", "???"), ("version 2", "version 3"), ("", "x")]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_the_same_words_are_the_same_text(one: str, two: str) -> None:
    assert normalised(one) == normalised(two)


@pytest.mark.parametrize(("one", "two"), DIFFERENT)
def test_other_words_are_another_text(one: str, two: str) -> None:
    assert normalised(one) != normalised(two)


@given(st.text())
def test_normalising_twice_changes_nothing_and_case_never_matters(text: str) -> None:
    once = normalised(text)
    assert normalised(once) == once


def test_rows_that_stand_in_the_private_corpus_go_and_are_counted() -> None:
    public = Corpus("web", ("Kept one", *(two for _, two in SAME), "Kept two"), labels=(0, *([1] * len(SAME)), 1))
    private = Corpus("ward", (*(one for one, _ in SAME), "something else"))
    kept = without_overlap(public, private)
    assert kept.texts == ("Kept one", "Kept two")
    assert kept.labels == (0, 1)
    assert kept.remarks == (f"{len(SAME)} of {len(public)} rows were removed, because their text is in 'ward'",)
    assert overlapping(public, private) == tuple(range(1, len(SAME) + 1))


def test_either_text_of_a_pair_counts_on_either_side() -> None:
    pairs = Corpus("pairs", ("one", "two", "three"), second=("four", "five", "six"))
    private = Corpus("ward", ("Five!", "x"), second=("y", "THREE"))
    assert without_overlap(pairs, private).texts == ("one",)


def test_nothing_in_common_keeps_everything() -> None:
    public = Corpus("web", ("a b", "c d"))
    assert without_overlap(public, Corpus("ward", ("x",))).texts == public.texts


ROWS = tuple(f"patient {number} has a cough" for number in range(40))
OTHERS = tuple(f"visitor {number} has a cough" for number in range(40))


@pytest.mark.parametrize("shared", [5, 39, 40])
def test_training_rows_among_the_held_out_ones_are_counted_and_rejected(shared: int) -> None:
    changed = tuple(f"{text.upper()} " for text in ROWS[:shared])
    with pytest.raises(DataError, match=f"that are not training rows, got {shared} of 40"):
        check_held_out(Corpus("a", ROWS), Corpus("b", (*changed, *OTHERS[shared:])))


def test_texts_that_are_equal_by_chance_are_accepted() -> None:
    check_held_out(Corpus("a", ROWS), Corpus("b", (*ROWS[:4], *OTHERS[4:])))
    check_held_out(Corpus("a", ROWS), Corpus("b", ROWS[:19]))  # few rows, and most training rows are not among them
    often = ("thank you", "see you") * 10  # half of the training rows repeat, so half of the held-out ones may too
    check_held_out(Corpus("a", often + ROWS[:20]), Corpus("b", often + OTHERS[:20]))
    with pytest.raises(DataError, match="got 30 of 40"):
        check_held_out(Corpus("a", often + ROWS[:20]), Corpus("b", often + ROWS[:10] + OTHERS[:10]))


def test_pairs_are_equal_if_both_of_their_texts_are() -> None:
    check_held_out(Corpus("a", ROWS, second=ROWS), Corpus("b", ROWS, second=OTHERS))
    with pytest.raises(DataError, match="got 40 of 40"):
        check_held_out(Corpus("a", ROWS, second=OTHERS), Corpus("b", ROWS, second=OTHERS))
