import csv
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.core.errors import DataError
from discreet.data.tables import read_table


def columns(path: Path, *names: str) -> list[list[object]]:
    table = read_table(path)
    return [table.column(name, name) for name in names]


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_csv_with_a_mark_windows_lines_quotes_and_new_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", '\ufefftext, label\r\n"one, ""two""\nthree",x\r\n\r\n5" pipe,y\r\n')
    assert columns(path, "text", "label") == [['one, "two"\nthree', '5" pipe'], ["x", "y"]]


def test_a_field_may_be_longer_than_the_csv_module_likes(tmp_path: Path) -> None:
    limit = csv.field_size_limit()
    path = write(tmp_path, "a.csv", f"text,label\n{'x' * 200_000},1\n")
    assert len(str(columns(path, "text")[0][0])) == 200_000
    assert csv.field_size_limit() == limit


def test_a_tsv_without_quoting_keeps_its_quotation_marks(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", 'text\tlabel\n" lone mark\t1\nshe said "no"\t0\n"whole"\t1\n')
    assert columns(path, "text") == [['" lone mark', 'she said "no"', '"whole"']]


def test_a_tsv_with_a_sentence_in_marks_is_not_quoted_unless_one_needed_it(tmp_path: Path) -> None:
    plain = write(tmp_path, "a.tsv", 'text\tlabel\n"whole"\t1\nx\t0\n')
    quoted = write(tmp_path, "b.tsv", 'text\tlabel\n"whole"\t1\n"say ""x"""\t0\n')
    header = write(tmp_path, "c.tsv", '"text"\t"label"\n"whole"\t"1"\n')
    assert columns(plain, "text") == [['"whole"', "x"]]
    assert columns(quoted, "text") == [["whole", 'say "x"']]
    assert columns(header, "text", "label") == [["whole"], ["1"]]


def test_a_quoted_tsv_may_hold_tabs_and_new_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", 'text\tlabel\n"one\ttwo"\t1\n"three\nfour"\t0\n')
    assert columns(path, "text", "label") == [["one\ttwo", "three\nfour"], ["1", "0"]]


def test_a_carriage_return_in_a_quoted_tsv_field_is_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", b'text\tlabel\r\n"one\rtwo"\t1\r\n')
    assert columns(path, "text") == [["one\rtwo"]]


def test_unusual_line_separators_stay_in_the_text(tmp_path: Path) -> None:
    odd = "a\u2028b\x85c\x0cd"
    rows = [
        (write(tmp_path, "a.csv", f"text,label\n{odd},1\n")),
        (write(tmp_path, "a.tsv", f"text\tlabel\n{odd}\t1\n")),
    ]
    rows.append(write(tmp_path, "a.jsonl", json.dumps({"text": odd, "label": 1}, ensure_ascii=False) + "\n"))
    assert [columns(path, "text") for path in rows] == [[[odd]]] * 3


def test_json_lines_and_a_json_list_are_read_alike(tmp_path: Path) -> None:
    one = write(tmp_path, "a.jsonl", '{"text": "x", "label": 1}\r\n\n{"label": 2, "text": "y"}')
    two = write(tmp_path, "a.json", '[{"text": "x", "label": 1}, {"label": 2, "text": "y"}]')
    assert columns(one, "text", "label") == columns(two, "text", "label") == [["x", "y"], [1, 2]]


def test_a_missing_key_is_a_missing_value(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"text": "x"}\n{"text": "y", "label": 2}')
    assert columns(path, "label") == [[None, 2]]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", b"", "but the file is empty"),
        ("a.csv", b"\n\n", "but the file is empty"),
        ("a.csv", b"text,label\n", "found none"),
        ("a.csv", b"text,label\nfine,1\ncaf\xe9 secret,0\n", "Expected UTF-8 in"),
        ("a.csv", b"text,label\nfine,1\ncaf\xe9 secret,0\n", "line 3 is not. Convert it, for example: iconv"),
        ("a.csv", "text,label\nsecret,1\n".encode("utf-16"), "NUL bytes"),
        ("a.csv", b"text,label\nsecret\0,1\n", "found one in line 2"),
        ("a.csv", b"text,label\nsecret,1\nsecret,1,2\n", "Expected 2 fields in row 2"),
        ("a.csv", b'text,label\n"secret" x,1\n', "reading stopped at line 2"),
        ("a.csv", b'text,label\nsecret,1\n"secret,1\n', "reading stopped at line 3"),
        ("a.tsv", b"text\tlabel\nsecret\n", "Expected 2 fields in row 1"),
        ("a.tsv", b'text\tlabel\n"secret\t1\nsecret\t1\t2\n', "Expected 2 fields in row 2"),
        ("a.jsonl", b'{"text": "secret"', "line 1"),
        ("a.jsonl", b'{"text": "x"}\n"secret"\n', "Expected a JSON object in row 2"),
        ("a.json", b"[1", "Expected a JSON list"),
        ("a.jsonl", b"[" * 100_000, "line 1"),
        ("a.parquet", b"PAR1 secret", "Expected a Parquet file"),
        ("a.xlsx", b"secret", "to end in one of .csv"),
    ],
)
def test_a_bad_file_is_refused_without_showing_what_is_in_it(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    with pytest.raises(DataError) as refused:
        read_table(write(tmp_path, name, content))
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no\.csv'. There is none; check the path"):
        read_table(tmp_path / "no.csv")


def test_a_missing_column_is_refused_with_the_columns_there_are(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.csv", "sentence,lable,Text\na,b,c\n"))
    with pytest.raises(DataError, match=r"column 'label' for label in .*has 'sentence', 'lable', 'Text'.*mean 'lable'"):
        table.column("label", "label")
    with pytest.raises(DataError, match="mean 'Text'"):
        table.column("text", "text")
    with pytest.raises(DataError, match="Name it with --unit"):
        table.column("zzz", "unit")


def test_a_file_with_semicolons_is_recognised(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.csv", "text;label\na;1\n"))
    with pytest.raises(DataError, match="separated by ';'"):
        table.column("text", "text")


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.csv", "text,text,label\na,b,c\n"))
    with pytest.raises(DataError, match="found 2. Rename"):
        table.column("text", "text")


words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(words, words), min_size=1, max_size=8))
def test_what_the_csv_module_writes_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.mktemp("round") / "a.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(rows)
    assert columns(path, "text", "label") == [[row[0] for row in rows], [row[1] for row in rows]]


@settings(max_examples=60, deadline=None)
@given(st.lists(words, min_size=1, max_size=8), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_a_quoted_tsv_is_read_back(tmp_path_factory: pytest.TempPathFactory, texts: list[str], quoting: int) -> None:
    path = tmp_path_factory.mktemp("round") / "a.tsv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t", quoting=quoting)  # type: ignore[arg-type]
        writer.writerow(["text", "label"])
        writer.writerows([text, "1"] for text in texts)
    assert columns(path, "text") == [texts]
