from __future__ import annotations

import torch

from discreet.training.meter import Meter, Report


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
