from __future__ import annotations

import torch

from discreet.cli.output import facts
from discreet.training.steps import Meter, Report


def test_epsilon_is_worked_out_for_whoever_watches_and_for_nobody_else() -> None:
    asked: list[int] = []
    reports: list[Report] = []

    def epsilon() -> float:
        asked.append(1)
        return 2.0

    alone = Meter(1, 0, None, epsilon)
    alone.add(1, torch.tensor(3.0), 4)
    assert not asked and alone.mean() == 3.0
    Meter(1, 0, reports.append, epsilon).add(1, torch.tensor(3.0), 4)
    assert len(asked) == 1 and reports[0].epsilon == 2.0 and reports[0].loss == 3.0


def test_steps_that_read_nothing_have_no_rate() -> None:
    reports: list[Report] = []
    Meter(1, 0, reports.append, lambda: 2.0).add(1, None, 0)
    assert reports[0].rows_per_second is None and facts(reports[0]) == "epsilon ≤ 2"
    Meter(1, 0, reports.append, lambda: None).add(1, torch.tensor(3.0), 4)
    assert facts(reports[1]).startswith("loss 3.000  ") and facts(reports[1]).endswith(" rows/s")
