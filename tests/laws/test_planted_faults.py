"""Every planted fault names code and tests of today; `make test-faults` plants them."""

from pathlib import Path

import pytest
from tests.planted_faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def text() -> dict[str, str]:
    return {
        name: "\0".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / name).rglob("*.py")))
        for name in ("src", "tests")
    }


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_its_snippet_stands_once_in_the_source_and_its_tests_exist(fault: Fault, text: dict[str, str]) -> None:
    assert [text["src"].count(snippet) for snippet, _ in fault.edits] == [1] * len(fault.edits)
    assert [name for name in fault.tests if f"def {name}(" not in text["tests"]] == []
