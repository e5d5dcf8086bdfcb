"""Every entry point that can end in "certified" × every careless act: rejected, an estimate, or certified and true."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.doors.table import ACTS, DOORS, as_markdown, cells

TESTS = Path(__file__).resolve().parent.parent
PAGE = TESTS.parent / "docs" / "doors.md"


@pytest.mark.parametrize("entry", DOORS)
def test_every_careless_act_is_tested_at_every_entry_point(entry: str) -> None:
    filled = cells(TESTS / "doors")
    assert [act for act in ACTS if not filled.get((entry, act))] == []


def test_the_page_shows_the_table_as_the_tests_have_it() -> None:
    assert as_markdown(cells(TESTS / "doors")) in PAGE.read_text(encoding="utf-8")
