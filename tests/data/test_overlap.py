import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.data.corpus import Corpus
from discreet.data.overlap import normalised, overlapping, without_overlap

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
