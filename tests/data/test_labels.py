import decimal

import pytest

from discreet.core.errors import DataError
from discreet.data.labels import outcome


def test_whole_numbers_are_classes_in_the_order_of_numbers() -> None:
    for values in (["10", "9", "10"], [10, 9, 10]):
        found = outcome([("x", values)])
        assert found.label_names == ("9", "10")
        assert found.labels == (1, 0, 1)


def test_words_and_truth_values_are_classes_in_the_order_of_words() -> None:
    assert outcome([("x", ["no", " yes ", "no"])]).label_names == ("no", "yes")
    assert outcome([("x", [True, False])]).label_names == ("False", "True")
    assert outcome([("x", ["2", "other", "10"])]).label_names == ("10", "2", "other")


def test_numbers_with_a_decimal_point_are_scores() -> None:
    for values in (["0.5", "2", "1e1"], [0.5, 2, 10.0], [decimal.Decimal("0.5"), 2, 10]):
        assert outcome([("x", values)]).scores == (0.5, 2.0, 10.0)
    assert outcome([("x", [1.0, 2.0])]).scores == (1.0, 2.0)


def test_the_task_overrules() -> None:
    assert outcome([("x", ["1", "2"])], task="regression").scores == (1.0, 2.0)
    assert outcome([("x", ["1.5", "2.5"])], task="classification").label_names == ("1.5", "2.5")


def test_several_files_count_as_one_column() -> None:
    found = outcome([("train", ["b", "c"]), ("validation", ["a"])])
    assert found.label_names == ("a", "b", "c")
    assert found.labels == (1, 2, 0)
    assert outcome([("train", ["1", "2"]), ("validation", ["0.5"])]).scores == (1.0, 2.0, 0.5)


def test_given_classes_keep_their_order_and_refuse_others() -> None:
    assert outcome([("x", ["b"])], classes=("b", "a")).labels == (0,)
    with pytest.raises(DataError, match=r"label='bb' in row 2 of 'x'.*known classes: b, a"):
        outcome([("x", ["b", "bb"])], classes=("b", "a"))
    with pytest.raises(DataError) as refused:
        outcome([("x", ["b", "a whole sentence that is perhaps private"])], classes=("b", "a"))
    assert "sentence" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        (["a", None], "row 2 of 'x', but it is missing or NaN"),
        (["a", " "], "row 2 of 'x', but it is missing or NaN"),
        (["1", "NaN"], "row 2 of 'x', but it is missing or NaN"),
        ([1.0, float("nan")], "row 2 of 'x', but it is missing or NaN"),
        ([1.0, float("inf")], "finite number as score in row 2"),
        ([1, [1, 2]], "row 2 of 'x', got list"),
        ([1, {"a": 1}], "row 2 of 'x', got dict"),
        ([1, b"x"], "row 2 of 'x', got bytes"),
        (["0.5", "high"], "mix decimal numbers and words; the first word is in row 2"),
    ],
)
def test_what_is_no_label_is_refused_by_row(values: list[object], says: str) -> None:
    with pytest.raises(DataError) as refused:
        outcome([("x", values)])
    assert says in str(refused.value)


def test_a_word_is_no_score() -> None:
    with pytest.raises(DataError, match="number as score in row 2"):
        outcome([("x", ["1", "high"])], task="regression")
