"""What is written as CSV or TSV is read back, or rejected; it is never misread."""

import csv
import io
from collections.abc import Sequence

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from discreet.core.errors import DataError
from discreet.data.separated import Layout, read_rows, write_rows

any_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
# what separates and quotes, much more often than chance would have it
hostile = st.text(st.sampled_from('"\t\n\r,; ab'), max_size=8)
field = hostile | any_text
tables = st.integers(1, 3).flatmap(
    lambda width: st.lists(st.lists(field, min_size=width, max_size=width), min_size=1, max_size=6)
)
QUOTINGS = st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])


def by_csv(rows: Sequence[Sequence[str]], separator: str, quoting: int) -> str:
    held = io.StringIO()
    csv.writer(held, delimiter=separator, quoting=quoting).writerows(rows)  # type: ignore[arg-type]
    return held.getvalue()


def names(rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"column {i}" for i in range(len(rows[0]))]


@settings(max_examples=300, deadline=None)
@given(tables, QUOTINGS, st.sampled_from(",;\t|"))
def test_what_the_csv_module_writes_is_read_back(rows: list[list[str]], quoting: int, separator: str) -> None:
    text = by_csv([names(rows), *rows], separator, quoting)
    read = read_rows(text, "a", ",", Layout(separator, "csv"))
    assert read == [names(rows), *rows]
    assert read == [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True) if row]


@settings(max_examples=400, deadline=None)
@given(tables, QUOTINGS)
@example([["\t\n", "1"]], csv.QUOTE_MINIMAL)  # was read as two rows of one quotation mark each
@example([["\n"]], csv.QUOTE_MINIMAL)
@example([['"', "a"]], csv.QUOTE_MINIMAL)
def test_a_quoted_tsv_is_read_back_or_rejected(rows: list[list[str]], quoting: int) -> None:
    written = [names(rows), *rows]
    try:
        read = read_rows(by_csv(written, "\t", quoting), "a", "\t", Layout())
    except DataError as rejected:
        assert "fits two" in str(rejected) and quoting == csv.QUOTE_MINIMAL
    else:
        assert read == written


@settings(max_examples=400, deadline=None)
@given(tables, st.sampled_from(["\n", "\r\n"]))
def test_a_tsv_without_quoting_is_read_back_or_rejected(rows: list[list[str]], end: str) -> None:
    kept = [[value.replace("\t", " ").replace("\n", " ").rstrip("\r") for value in row] for row in rows]
    kept = [row for row in kept if row != [""]]  # a blank line is skipped
    assume(kept)
    written = [names(kept), *kept]
    text = "".join("\t".join(row) + end for row in written)
    assert read_rows(text, "a", "\t", Layout(quoting="none")) == written
    try:
        read = read_rows(text, "a", "\t", Layout())
    except DataError as rejected:
        assert "fits two" in str(rejected)
    else:
        assert read == written


@settings(max_examples=400, deadline=None)
@given(tables, st.sampled_from([",", "\t"]))
def test_what_is_written_here_is_read_back_without_a_hint(rows: list[list[str]], separator: str) -> None:
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names(rows))}
    assert read_rows(write_rows(columns, separator), "a", separator, Layout()) == [names(rows), *rows]


def test_a_file_with_carriage_returns_alone_has_lines() -> None:
    assert read_rows("a,b\r1,2\r\r3,4\r", "a", ",", Layout()) == [["a", "b"], ["1", "2"], ["3", "4"]]


@pytest.mark.parametrize("text", ["a,b\n1\r2,3\n", 'a,b\n"x",1\r2\n'])
def test_a_lone_carriage_return_outside_marks_is_rejected_and_ends_no_row(text: str) -> None:
    with pytest.raises(DataError, match="line 2: new-line character seen in unquoted field"):
        read_rows(text, "a", ",", Layout())
