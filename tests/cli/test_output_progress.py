import threading

import pytest

from discreet.cli import output
from discreet.cli.output import lines
from discreet.training.steps import Report, encoding_watch


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_off_a_terminal_a_line_says_soon_how_long_it_takes_and_then_one_comes_every_ten_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    show = lines(clock)
    for second in range(35):
        clock.now = 100.0 + second
        show(Report(second + 1, 40, 0.5, 12.0, 39.0 - second))
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 4 and "about 37 s left" in told[0] and "step 3/40" in told[0]


def test_what_is_over_at_once_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    show = lines(Clock())
    for step in range(1, 4):
        show(Report(step, 3, None, 12.0, 0.0))
    assert capsys.readouterr().err == ""


def test_encoding_and_training_are_two_stages_and_the_loss_of_a_protected_run_stays_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    show = lines(clock)
    report = encoding_watch(show)
    assert report is not None
    report(16, 2000)
    clock.now += 3
    report(32, 2000)
    show(Report(1, 80, 0.123, 12.0, 300.0, epsilon=0.5))
    clock.now += 3
    show(Report(2, 80, 0.123, 12.0, 300.0, epsilon=0.5))
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("encoding: text 32/2,000") and told[1].startswith("training: step 2/80")
    assert "0.123" not in told[1] and "epsilon" in told[1]


def test_long_work_without_steps_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    told = threading.Event()
    monkeypatch.setattr(output, "_SECONDS_BETWEEN_LINES", 0.001)
    monkeypatch.setattr(output, "note", lambda text: told.set() if "accounting" in text else None)
    with output.working("accounting"):
        assert told.wait(60)
