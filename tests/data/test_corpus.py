import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.core.errors import DataError
from discreet.data.corpus import Corpus, joined

TEXTS = ("secret one", "secret two", "secret three", "secret four")


def corpus(**changes: object) -> Corpus:
    values: dict[str, object] = {
        "name": "toy",
        "texts": TEXTS,
        "labels": (0, 1, 0, 1),
        "units": ("b", "a", "b", "c"),
        "unit_name": "author",
        "splits": ("train", "train", "validation", "train"),
    }
    return Corpus(**(values | changes))  # type: ignore[arg-type]


def test_it_knows_its_task_its_classes_and_its_splits() -> None:
    toy = corpus()
    assert (len(toy), toy.task, toy.classes, toy.label_names) == (4, "classification", 2, ("0", "1"))
    assert toy.split_names == ("train", "validation")
    assert toy.split("validation").texts == ("secret three",)
    assert corpus(labels=None, scores=(0.5, 1, 2, 3)).task == "regression"
    assert corpus(labels=None).task == "unlabelled"
    assert corpus(labels=None).classes == 0


def test_it_numbers_units_in_order_of_appearance() -> None:
    toy = corpus()
    assert toy.unit_index.tolist() == [0, 1, 0, 2]
    assert toy.unit_count == 3
    assert toy.rows_of([2, 0]).tolist() == [3, 0, 2]
    assert toy.rows_of([]).tolist() == []
    plain = corpus(units=None)
    assert plain.unit_count == 4
    assert plain.rows_of(np.array([3, 1])).tolist() == [3, 1]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.data())
def test_the_rows_of_units_are_exactly_theirs(units: list[int], data: st.DataObject) -> None:
    toy = Corpus("toy", tuple(f"text {i}" for i in range(len(units))), units=tuple(map(str, units)))
    wanted = data.draw(st.lists(st.integers(0, toy.unit_count - 1), unique=True))
    rows = toy.rows_of(wanted).tolist()
    assert sorted(rows) == [row for row, unit in enumerate(toy.unit_index) if unit in wanted]
    assert [int(toy.unit_index[row]) for row in rows] == sorted(
        (int(toy.unit_index[row]) for row in rows), key=wanted.index
    )


def test_a_part_keeps_the_names_of_classes_it_has_no_rows_of() -> None:
    part = corpus().take([0, 2])
    assert part.labels == (0, 0)
    assert part.classes == 2


def test_its_repr_shows_sizes_and_no_text() -> None:
    shown = repr(corpus(second=TEXTS, scores=None))
    assert "4 rows" in shown
    assert "3 author units" in shown
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"texts": (*TEXTS[:2], "  ", "x")}, "row 3 of 'toy', but it is empty"),
        ({"texts": (*TEXTS[:2], "a\0b", "x")}, "row 3 of 'toy', but it holds a NUL"),
        ({"texts": (*TEXTS[:3], "half \ud800")}, "row 4 of 'toy', but it holds half a surrogate"),
        ({"texts": (*TEXTS[:3], 7)}, "row 4 of 'toy', but it is of type int"),
        ({"second": (*TEXTS[:3], "")}, "second text in row 4"),
        ({"labels": (0, 1)}, "Expected 4 labels"),
        ({"labels": (0, 0, 0, 0)}, "at least 2 classes"),
        ({"labels": (0, 1, 2, -1)}, "label=-1 in row 4"),
        ({"labels": (0, 1, 2, 1), "label_names": ("x", "y")}, "label=2 in row 3"),
        ({"labels": None, "scores": (0.5, float("nan"), 1, 2)}, "score=nan in row 2"),
        ({"labels": None, "scores": (0.5, 1, float("inf"), 2)}, "score=inf in row 3"),
        ({"scores": (0.5, 1, 2, 3)}, "got both"),
        ({"units": ("a",)}, "Expected 4 units"),
        ({"splits": ("train",)}, "Expected 4 splits"),
    ],
)
def test_it_refuses_what_cannot_be_used_and_never_shows_the_text(changes: dict[str, object], says: str) -> None:
    with pytest.raises(DataError) as refused:
        corpus(**changes)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


def test_an_unknown_split_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(DataError, match="has train, validation. Did you mean 'validation'"):
        corpus().split("valdation")


def test_corpora_of_the_same_kind_can_be_joined() -> None:
    both = joined(corpus(), corpus())
    assert both.texts == TEXTS * 2
    assert both.unit_count == 3
    with pytest.raises(DataError, match="only one has units"):
        joined(corpus(), corpus(units=None))
    with pytest.raises(DataError, match="same label_names"):
        joined(corpus(), corpus(label_names=("x", "y")))


def test_the_range_of_scores_depends_on_held_out_rows_only() -> None:
    splits = ("train", "validation", "validation", "train")
    corpus = Corpus("scores", ("a", "b", "c", "d"), scores=(-7.0, 0.4, 4.2, 99.0), splits=splits)
    assert corpus.score_range == (0.0, 5.0)
    assert corpus.split("train").score_range == (0.0, 1.0)
