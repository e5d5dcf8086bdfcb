"""A column that names people, and no unit: the owner is told, in one sentence, and nobody else's value is shown."""

from pathlib import Path

import pytest

from discreet.core.errors import Message
from discreet.data.people_columns import kind_of
from discreet.data.sources import Columns, load

PEOPLE = (
    "patient_id", "PatientID", "Patient Name", "subject", "user", "user_id", "userId", "author", "mrn", "MRN", "name",
    "full_name", "surname", "Patienten-Nr.", "email", "e-mail", "phone_number", "ssn", "customer-no", "hadm_id",
)  # fmt: skip
OTHERS = ("drug_name", "file_name", "department", "date", "score", "id", "row_id", "note", "usage", "text2", "nameless")


@pytest.mark.parametrize("name", PEOPLE)
def test_names_of_columns_of_people(name: str) -> None:
    assert kind_of(name, ())


@pytest.mark.parametrize("name", OTHERS)
def test_names_of_other_columns(name: str) -> None:
    assert kind_of(name, ()) is None


def test_values() -> None:
    assert kind_of("contact", ["ann@example.org", "bob@example.org", ""])
    assert kind_of("who", ["+44 20 7946 0018", "+1 212 555 0199"])
    assert kind_of("x", ["078-05-1120", "219-09-9999"])
    assert kind_of("key", ["100045", "100045", "100046", "100047"])
    assert kind_of("key", ["100045", "100044", "100046", "100047"]) is None  # the number of a row does not repeat
    assert kind_of("year", ["20210", "20210", "20211"]) is None
    codes = [f"P{row // 2:03}" for row in range(60)]
    assert kind_of("Fall", codes) == "holds codes that repeat, as those of persons do"
    assert kind_of("Fall", codes[::2]) is None  # the code of a row does not repeat
    assert kind_of("ward", [f"w{row % 6}" for row in range(60)]) is None  # few codes
    assert kind_of("seen", [f"2023-01-{1 + row % 28:02}" for row in range(60)]) is None
    assert kind_of("pages", [1, 2, 2, 3]) is None and kind_of("empty", [None, ""]) is None


def written(path: Path, column: str = "patient_id", rows_each: int = 4) -> Path:
    rows = "".join(f"text number {row},{'ab'[row % 2]},p{row // rows_each}\n" for row in range(200))
    path.write_text(f"text,label,{column}\n{rows}")
    return path


def warnings(corpus: object) -> list[str]:
    return [remark for remark in corpus.remarks if isinstance(remark, Message)]  # type: ignore[attr-defined]


def test_one_warning_until_a_unit_is_named(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.csv")
    (warning,) = warnings(load(path))
    assert isinstance(warning, Message)
    assert ("unit", "patient_id") in warning.settings and ("unit", "row") in warning.settings
    assert "p1" not in warning and "its values repeat" in warning
    assert not warnings(load(path, Columns(unit="patient_id")))
    assert not warnings(load(path, Columns(unit="row")))  # the owner has decided
    assert not warnings(load(written(tmp_path / "other.csv", "ward", 20)))
