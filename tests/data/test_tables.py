import csv
import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from discreet.core.errors import DataError, ExtraError, SettingError
from discreet.data.separated import Layout
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


def test_a_tsv_that_fits_both_readings_is_rejected_and_a_quoted_header_decides(tmp_path: Path) -> None:
    plain = write(tmp_path, "a.tsv", 'text\tlabel\n"whole"\t1\nx\t0\n')
    doubled = write(tmp_path, "b.tsv", 'text\tlabel\nx\t1\n"say ""x"""\t0\n')
    header = write(tmp_path, "c.tsv", '"text"\t"label"\n"whole"\t"1"\n')
    for path, line in ((plain, 2), (doubled, 3)):
        with pytest.raises(DataError, match=rf"fits two: in line {line} .*quoting='csv' .*quoting='none'"):
            read_table(path)
    assert read_table(plain, Layout(quoting="none")).column("text", "text") == ['"whole"', "x"]
    assert read_table(plain, Layout(quoting="csv")).column("text", "text") == ["whole", "x"]
    assert read_table(doubled, Layout(quoting="csv")).column("text", "text") == ["x", 'say "x"']
    assert columns(header, "text", "label") == [["whole"], ["1"]]


def test_a_quoted_tsv_may_hold_tabs_and_new_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", 'text\tlabel\n"one\ttwo"\t1\n"three\nfour"\t0\n')
    assert columns(path, "text", "label") == [["one\ttwo", "three\nfour"], ["1", "0"]]


def test_a_carriage_return_in_a_quoted_tsv_field_is_text(tmp_path: Path) -> None:
    path = write(tmp_path, "a.tsv", b'"text"\tlabel\r\n"one\rtwo"\t1\r\n')
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
        ("a.csv", b"text,label\n", "got none"),
        ("a.csv", b"text,label\nfine,1\ncaf\xe9 secret,0\n", "Expected UTF-8 in"),
        ("a.csv", b"text,label\nfine,1\ncaf\xe9 secret,0\n", "line 3 is not. It looks like Windows-1252. Convert it"),
        ("a.csv", "text,label\nsecret,1\n".encode("utf-16"), "got UTF-16. Convert it: iconv -f UTF-16 "),
        ("a.csv", b"text,label\nsecret\0,1\n", "got one in line 2"),
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
    with pytest.raises(DataError, match=r"no\.csv', but there is none. Check the path"):
        read_table(tmp_path / "no.csv")


def test_a_missing_column_is_refused_with_the_columns_there_are(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.csv", "sentence,lable,Text\na,b,c\n"))
    with pytest.raises(DataError, match=r"column 'label' for label in .*has 'sentence', 'lable', 'Text'.*mean 'lable'"):
        table.column("label", "label")
    with pytest.raises(DataError, match="mean 'Text'"):
        table.column("text", "text")
    with pytest.raises(DataError, match=r"Set unit"):
        table.column("zzz", "unit")


@pytest.mark.parametrize(
    ("name", "content", "option"),
    [
        ("a.csv", "text;label\na, b;1\n", "separator=';'"),
        ("a.csv", "text\tlabel\na\t1\n", "separator='tab'"),
        ("a.csv", "text|label\na|1\n", "separator='|'"),
        ("a.tsv", "text,label\na,1\n", "separator='comma'"),
    ],
)
def test_another_separator_is_recognised_by_the_header(tmp_path: Path, name: str, content: str, option: str) -> None:
    path = write(tmp_path, name, content)
    with pytest.raises(DataError, match="its header has none and has") as rejected:
        read_table(path)
    assert option in str(rejected.value)
    table = read_table(path, Layout(separator=option.partition("=")[2].strip("'")))
    assert table.names == ("text", "label") and table.column("label", "label") == ["1"]


def test_the_first_line_of_a_spreadsheet_may_name_the_separator(tmp_path: Path) -> None:
    path = write(tmp_path, "a.csv", 'sep=;\r\ntext;label\r\n"a;b";1\r\n')
    assert columns(path, "text", "label") == [["a;b"], ["1"]]


def test_one_column_may_have_any_name(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.csv", "a;b\nx\n"), Layout(separator=","))
    assert table.names == ("a;b",)


@pytest.mark.parametrize("separator", ["", ";;", '"', "\n"])
def test_a_separator_is_one_character(separator: str) -> None:
    with pytest.raises(SettingError, match="one character"):
        Layout(separator=separator)


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_separator_for_another_format_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="Expected no separator"):
        read_table(write(tmp_path, name, b'{"text": 1}'), Layout(separator=";"))


def test_every_ragged_row_and_broken_line_is_named(tmp_path: Path) -> None:
    ragged = write(tmp_path, "a.csv", "text,label\n" + "x,1\nx\n" * 20)
    with pytest.raises(DataError, match=r"rows 2, 4, 6, 8, 10, 12, 14, 16, 18, 20 and 10 more"):
        read_table(ragged)
    broken = write(tmp_path, "a.jsonl", '{"text": 1}\n{"text\n\n{]\n')
    with pytest.raises(DataError, match="in lines 2 and 4 of"):
        read_table(broken)


NESTED = [{"ticket": {"body": "x", "meta": {"kind": "a"}}, "id": 1}, {"ticket": {"body": "y"}, "id": 2}]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".parquet"])
def test_a_value_inside_an_object_is_named_by_its_path(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(NESTED), path)
    else:
        path.write_text(json.dumps(NESTED) if suffix == ".json" else "\n".join(map(json.dumps, NESTED)), "utf-8")
    assert columns(path, "ticket.body", "ticket.meta.kind", "id") == [["x", "y"], ["a", None], [1, 2]]
    table = read_table(path)
    with pytest.raises(DataError, match=r"'id', 'ticket.body', 'ticket.meta.kind'. Did you mean 'ticket.body'"):
        table.column("body", "text")
    with pytest.raises(DataError, match=r"is an object there with .* Did you mean 'ticket.body'"):
        table.column("ticket", "text")


def test_a_name_with_a_dot_is_a_name_first(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jsonl", '{"a.b": "name", "a": {"b": "path"}}')
    assert columns(path, "a.b") == [["name"]]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = read_table(write(tmp_path, "a.csv", "text,text,label\na,b,c\n"))
    with pytest.raises(DataError, match="got 2. Rename"):
        table.column("text", "text")


def test_parquet_without_its_library_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"text": "secret"}]), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ExtraError, match="pip install pyarrow; or save the file as CSV or JSONL"):
        read_table(path)
