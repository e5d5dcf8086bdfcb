import json
from pathlib import Path

import pytest

from discreet.cli import data
from discreet.data.tables import read_columns, render


def test_a_text_inside_an_object_is_rewritten_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"id": i, "ticket": {"body": f"secret {i}", "meta": {"kind": "a"}}} for i in range(2)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    found = read_columns(str(path), ".jsonl", ("ticket.body",))
    assert found.texts == {"ticket.body": ["secret 0", "secret 1"]}
    written = render(found, {"ticket.body": ["new 0", "new 1"]}, ".jsonl").decode()
    assert "secret" not in written
    assert [json.loads(line) for line in written.splitlines()] == [
        {"id": i, "ticket": {"body": f"new {i}", "meta": {"kind": "a"}}} for i in range(2)
    ]


@pytest.mark.parametrize("text", ["", "a", " a  b ", "ab cd ef", "abc def", "   ", "abcdefghij"])
def test_words_of_a_long_text_are_counted_in_parts(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_LONG", 3)
    assert data._count(text) == len(text.split())
