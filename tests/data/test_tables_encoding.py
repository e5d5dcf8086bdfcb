import shlex
from pathlib import Path

import pytest

from discreet.core.errors import DataError
from discreet.data.tables import decode, lines_of, read_lines

SMART = "text,label\n“It’s crème – brûlée…” €5,1\n"


def rejected(data: bytes, where: str = "a.csv") -> str:
    with pytest.raises(DataError) as found:
        decode(data, where)
    return str(found.value)


def test_utf8_is_read_with_and_without_a_mark() -> None:
    assert decode(SMART.encode(), "a") == decode(SMART.encode("utf-8-sig"), "a") == SMART


@pytest.mark.parametrize(
    ("encoding", "named"),
    [
        ("cp1252", "WINDOWS-1252"),
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32", "UTF-32"),
    ],
)
def test_the_command_that_is_given_restores_the_text(tmp_path: Path, encoding: str, named: str) -> None:
    path = tmp_path / "my file.csv"
    path.write_bytes(SMART.encode(encoding))
    said = rejected(path.read_bytes(), str(path))
    _, _, encoding_named, _, _, source, mark, out = shlex.split(said[said.index("iconv") :].partition(";")[0])
    assert (encoding_named, source, mark, out) == (named, str(path), ">", "utf8.csv")
    assert path.read_bytes().decode(encoding_named) == SMART


def test_latin_letters_without_windows_marks_get_the_same_command() -> None:
    assert "iconv -f WINDOWS-1252" in rejected("café crème, très bien\n".encode("latin-1"))


@pytest.mark.parametrize("encoding", ["cp1251", "gb18030", "shift_jis", "koi8-r"])
def test_an_encoding_that_is_not_western_is_not_called_windows_1252(encoding: str) -> None:
    text = {"gb18030": "病人头痛发热三天", "shift_jis": "患者は頭痛と熱"}.get(encoding, "больной жалуется на боль")
    said = rejected(f"text,label\n{text},1\n".encode(encoding))
    assert "WINDOWS-1252" not in said and "-f ENCODING" in said


def test_a_damaged_utf8_file_is_not_converted_as_a_whole() -> None:
    data = ("größer\n" * 5).encode() + b"br\xf6tchen\n" + "süß\n".encode()
    said = rejected(data)
    assert "line 6 is not, while the rest is" in said and "iconv" not in said


def test_stdin_is_converted_in_the_pipe() -> None:
    assert "| iconv -f UTF-16 -t UTF-8 |" in rejected("x".encode("utf-16"), "-")


def test_only_new_lines_end_a_line() -> None:
    assert lines_of("a\u2028b\x85c\x0cd\r\ne\n".encode(), "a") == ["a\u2028b\x85c\x0cd", "e"]


def test_lines_are_read_from_a_file_with_its_byte_order_mark_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo")
    assert read_lines(str(tmp_path / "a.txt")) == ["one", "", "two"]
    with pytest.raises(DataError, match="there is none"):
        read_lines(str(tmp_path / "b.txt"))


@pytest.mark.parametrize("data", [SMART.encode("cp1252"), SMART.encode("utf-16"), SMART.encode("utf-16-le")])
def test_it_is_said_that_there_is_no_option_for_another_encoding(data: bytes) -> None:
    assert "no other encoding is supported" in rejected(data)


def test_stdin_is_named_as_such() -> None:
    assert "Expected UTF-8 in 'stdin'" in rejected(b"br\xf6tchen\n", "-")
