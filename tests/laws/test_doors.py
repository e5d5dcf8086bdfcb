"""Every entry point that can end in "certified" × every careless act: rejected, an estimate, or certified and true."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doors.table import ACTS, DOORS, as_list, as_markdown, cells

TESTS = Path(__file__).resolve().parent.parent
PAGE = TESTS.parent / "docs" / "doors.md"


@pytest.mark.parametrize("entry", DOORS)
def test_every_careless_act_is_tested_at_every_entry_point(entry: str) -> None:
    filled = cells(TESTS / "doors")
    assert [act for act in ACTS if not filled.get((entry, act))] == []


def test_the_page_shows_the_table_as_the_tests_have_it() -> None:
    page, filled = PAGE.read_text(encoding="utf-8"), cells(TESTS / "doors")
    assert as_markdown(filled) in page and as_list(filled) in page


def test_the_list_has_every_test_in_words_below_its_entry_point() -> None:
    filled = cells(TESTS / "doors")
    parts = as_list(filled).split("### ")[1:]
    assert [part.splitlines()[0] for part in parts] == list(DOORS.values())
    for entry, part in zip(DOORS, parts, strict=True):
        lines = {line for line in part.splitlines() if line.startswith("- ")}
        assert lines == {
            f"- *{act}*, {outcome}: {name.split('::test_')[1].replace('_', ' ')}"
            for (one, act), tests in filled.items()
            for name, outcome in tests.items()
            if one == entry
        }
