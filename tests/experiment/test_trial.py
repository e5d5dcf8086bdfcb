"""What a trial sets beside its measurements is a proof, or nothing."""

from collections.abc import Callable
from pathlib import Path

import pytest

from discreet.calibration.grid import Planned
from discreet.experiment.trial import run_trial


@pytest.mark.parametrize(("train", "proven"), [("head", True), ("all", False)])
def test_an_estimate_is_not_drawn_as_a_bound(
    toy_csv: Path, tiny_encoder: Callable[[str], Path], train: str, proven: bool
) -> None:
    """Noise on vectors does not pay for an encoder that learned from private text: a member may be told by more."""
    settings = {
        "data": {"source": str(toy_csv)},
        "model": {"encoder": str(tiny_encoder("bert")), "train": train},
        "training": {"epochs": 1, "batch_size": 16},
        "protection": {"name": "dp-ie", "epsilon": 2.0},
    }
    trial = run_trial(Planned("a", settings, 0), lambda *asked: pytest.fail("none was asked for"))
    assert trial.guarantee is not None and trial.guarantee.certified is proven
    assert (trial.details["roc"]["bound"] is not None) is proven
