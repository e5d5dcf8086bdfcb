import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.data.notes import notes, secrets_of
from discreet.metrics.categories import (
    FREE_TEXT,
    NUMBERS,
    Category,
    fragments,
    items,
    share_read,
    table_of_items,
)

NAME, DATE = frozenset({Category.NAME}), frozenset({Category.DATE})


def of(text: str, category: Category) -> list[str]:
    return [item.text for item in items(text) if item.category is category]


@pytest.mark.parametrize(
    ("text", "category", "expected"),
    [
        ("The patient met Dr. Silva and Ana on Monday.", Category.NAME, ["Silva", "Ana"]),
        ("Ana Ruiz was seen. Later she left.", Category.NAME, ["Ana", "Ruiz"]),
        ("MRI of the knee. Scan clear, says Crohn.", Category.NAME, ["Crohn"]),
        ("Fever. We saw fever again, and Fever.", Category.NAME, []),
        ("On 3/4/2021, 2021-06-24 and 24 June 2021.", Category.DATE, ["3/4/2021", "2021-06-24", "24 June 2021"]),
        ("June 24, 2021 or 4 Sep. 2020", Category.DATE, ["June 24, 2021", "4 Sep. 2020"]),
        ("call 616-555-0171 or +44 20 7946 0958", Category.TELEPHONE, ["616-555-0171", "+44 20 7946 0958"]),
        ("record 1102555, dose 20 mg, B12 low, 3.5 kg", Category.RECORD, ["1102555"]),
        ("record 1102555, dose 20 mg, B12 low, 3.5 kg", Category.NUMBER, ["20", "B12", "3.5"]),
        ("He was with them", Category.FUNCTION, ["He", "was", "with", "them"]),
        ("a sore heel", Category.WORD, ["sore", "heel"]),
    ],
)
def test_rules(text: str, category: Category, expected: list[str]) -> None:
    assert of(text, category) == expected


def test_the_secrets_of_the_notes_are_found_without_any_list_of_names() -> None:
    corpus = notes(400)
    names = right = 0
    for text, secret in zip(corpus.texts, secrets_of(corpus), strict=True):
        assert secret.record in of(text, Category.RECORD)
        assert secret.phone in of(text, Category.TELEPHONE)
        assert secret.date in of(text, Category.DATE)
        found = of(text, Category.NAME)
        assert set(secret.name.split()) <= set(found)
        names, right = names + len(found), right + len(set(secret.name.split()))
    assert right / names > 0.9  # the rest are words such as "Reviewed" before a name, and eponyms


@given(st.text(max_size=60))
def test_any_text_has_items_in_order_and_reading_all_of_it_reads_each_category(text: str) -> None:
    place = 0
    for item in items(text):
        place = text.index(item.text, place)
    for category in Category:
        score = share_read(text, text, frozenset({category}))
        assert math.isnan(score) or score == 1.0


def test_a_share_counts_fragments_as_often_as_they_occur() -> None:
    truth = "Zoë Ray called 616-555-0171 twice, then 616-555-0199, said Ray."
    assert share_read("zoe ray", truth, NAME) == pytest.approx(2 / 3)
    assert share_read("616 555 0171", truth, NUMBERS) == pytest.approx(3 / 6)
    assert math.isnan(share_read("anything", truth, DATE))
    assert fragments("Zoë-Ray") == ["zoe", "ray"]


def test_the_table_separates_training_text_from_text_of_the_same_kind() -> None:
    private = ["On 24 June 2021 Ana Ruiz (record 1102555) came. Phone 616-555-0171."]
    unseen = ["On 24 June 2021 Bo Lee (record 2222222) came. Phone 616-555-0100."]
    rows = {
        row["category"]: row
        for row in table_of_items(["seen on 24 June 2021: Ana Ruiz, record 2222222, 1, 3333333"], private, unseen)
    }
    assert rows["names"]["in_training_text_only"] == 1
    assert rows["dates"]["in_training_text"] == 1 and rows["dates"]["in_training_text_only"] == 0
    assert rows["record numbers"] == {
        "category": "record numbers",
        "sampled": 2,
        "in_training_text": 0,
        "in_training_text_only": 0,
        "in_unseen_text_only": 1,
        "in_neither": 1,
    }
    assert rows["telephone numbers"]["sampled"] == 0
    whole = {row["category"]: row for row in table_of_items(private, private, unseen)}
    assert whole[FREE_TEXT]["in_training_text_only"] == whole[FREE_TEXT]["sampled"] > 0
