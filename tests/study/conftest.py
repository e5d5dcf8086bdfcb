from __future__ import annotations

import pytest

from discreet.study.file import Goal, Study


@pytest.fixture
def study() -> Study:
    return Study(
        name="toy",
        data={"source": "notes"},
        protect=({"name": "none"}, {"name": "dp-sgd", "epsilon": [1.0, 2.0, 8.0]}),
        attack=({"name": "one-of-n"},),
        goal=Goal("one-of-n/identified", ceiling=0.5),
        seeds=(0, 1),
    )
