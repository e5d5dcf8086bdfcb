import os
import signal

import numpy as np
import pytest

from discreet.cli.output import print_quality, stop_on_interrupt
from discreet.metrics.utility import quality


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_the_second_stops(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    with stop_on_interrupt() as stopping:
        assert not stopping
        os.kill(os.getpid(), number)
        assert stopping and "Stopping after this step" in capsys.readouterr().err
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_a_model_that_is_a_constant_gets_a_warning_and_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    truth = np.array([0] * 40 + [1] * 60)
    print_quality(quality("classification", np.ones(100, dtype=int), truth).as_dict(), "Train the head alone.")
    told = " ".join(capsys.readouterr().out.split())
    assert "Warning" in told and "0.600" in told and "100 rows" in told and "Train the head alone." in told


def test_a_model_that_learned_something_gets_an_interval_and_a_baseline_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    truth = np.array([0] * 40 + [1] * 60)
    print_quality(quality("classification", truth, truth).as_dict(), "Train the head alone.")
    told = " ".join(capsys.readouterr().out.split())
    assert "95% interval" in told and "0.600" in told
    assert "Warning" not in told and "Train the head alone." not in told
