import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet.attacks.base import Need
from discreet.attacks.extraction.linkage import Column, Linkage, Register, dates_in, log_odds, register_of
from discreet.core.errors import DataError, SettingError, UnsupportedError
from discreet.core.randomness import Rng
from discreet.core.types import Knowledge, TextRelease

PEOPLE = [
    {"age": "34", "sex": "woman", "job": "baker", "date": "2021-06-24;2021-08-02"},
    {"age": "34", "sex": "man", "job": "retired teacher", "date": "2021-07-01"},
    {"age": "61", "sex": "woman", "job": "teacher", "date": ""},
]
REGISTER = register_of(PEOPLE)


def linked(*texts: str, **settings: str) -> tuple[int, ...]:
    knows = Knowledge(extra={Need.REGISTER.value: REGISTER})
    return Linkage(**settings).run(TextRelease(texts), knows, Rng(0)).indices  # type: ignore[arg-type]


def test_what_a_text_says_names_the_person() -> None:
    assert linked(
        "[name], 34-year-old woman, came because of heartburn",
        "Seen 1 July 2021: a retired teacher",
        "[name], aged 61, with a cough",
        "Reviewed [name] on Aug 2, 2021 for gout",
    ) == (0, 1, 2, 0)


def test_values_are_read_in_the_longest_spelling_and_as_whole_words() -> None:
    column = REGISTER.column("job")
    assert column.said("a retired teacher") == {"retired teacher"}
    assert column.said("two teachers") == frozenset()
    assert REGISTER.column("sex").said("a woman, not a man") == {"woman", "man"}
    assert [REGISTER.column(name).kind for name in REGISTER.columns] == ["age", "words", "words", "date"]


def test_the_weights_are_those_of_the_formula_by_hand() -> None:
    # 34 is the age of 2 of 3: agreement weighs 0.9 / (2/3); of the third, whom 34 contradicts, the share of people
    # who agree by chance is (2/3)^2 + (1/3)^2 = 5/9, and disagreement weighs 0.1 / (4/9)
    odds = log_odds("aged 34", [REGISTER.column("age")], 0.9)
    assert odds == pytest.approx([math.log(0.9 * 3 / 2)] * 2 + [math.log(0.1 * 9 / 4)])


def test_nothing_said_is_for_and_against_nobody_and_ties_are_decided_by_lot() -> None:
    assert not log_odds("heartburn", [REGISTER.column(name) for name in REGISTER.columns], 0.9).any()
    # nothing is known of the dates of the third person
    assert log_odds("on 2 May 2020", [REGISTER.column("date")], 0.9)[2] == 0
    knows = Knowledge(extra={Need.REGISTER.value: REGISTER})
    named = Linkage().run(TextRelease(("nothing",) * 60), knows, Rng(1)).indices
    assert set(named) == {0, 1, 2}


@given(st.dates())
def test_dates_are_read_in_every_format(day: object) -> None:
    import datetime

    assert isinstance(day, datetime.date)
    if day.year < 1000:
        return
    month = day.strftime("%B") if day.month != 5 else "May"
    for text in (
        f"{day.day} {month} {day.year}",
        f"{month} {day.day}, {day.year}",
        f"{day.day} {month[:3]} {day.year}",
    ):
        assert dates_in(f"Seen on {text}.") == {day.isoformat()}
    assert dates_in(f"{day.isoformat()}: seen") == {day.isoformat()}


def test_a_date_that_does_not_exist_is_no_date() -> None:
    assert dates_in("31 June 2021, 12 Brumaire 2021, 2021-13-01") == frozenset()


def test_bad_registers_and_settings_are_rejected() -> None:
    with pytest.raises(DataError, match="at least 2 people"):
        Register(("age",), (("3",),))
    with pytest.raises(DataError, match="1 values in every row"):
        Register(("age",), (("3",), ("4", "5")))
    with pytest.raises(SettingError, match="columns of the register"):
        linked("text", columns="postcode")
    with pytest.raises(SettingError, match="reliability"):
        Linkage(reliability=1.0)
    with pytest.raises(UnsupportedError, match="register"):
        Linkage().run(TextRelease(("a",)), Knowledge(), Rng(0))


@given(st.integers(2, 6), st.integers(0, 5))
def test_the_person_of_a_unique_value_is_named(people: int, which: int) -> None:
    which %= people
    column = Column("job", tuple(frozenset({f"job{i}"}) for i in range(people)))
    odds = log_odds(f"a job{which} of many", [column], 0.95)
    assert int(np.argmax(odds)) == which
