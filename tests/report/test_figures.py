from __future__ import annotations

import dataclasses
import math
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from sample import verdict

from discreet.core.types import Trial
from discreet.report.figures import (
    Axis,
    Figure,
    Line,
    Mark,
    around,
    exposure_by_copies,
    most_of,
    number,
    utility_against_leakage,
)
from discreet.study.file import Goal
from discreet.study.frontier import Measured, Point


def test_a_figure_is_well_formed_and_escapes_what_it_is_told() -> None:
    figure = Figure("a <b> & c", Axis("x", 0.1, 10.0, log=True), Axis("y", 0.0, 1.0))
    figure.lines.append(Line(((0.1, 0.0), (10.0, 1.0)), 1, "bound", "<script>"))
    figure.marks += [Mark(1.0, 0.5, 'say "hello" <i>', s, 0.5, 2.0, 0.4, 0.6, chosen=s == 2) for s in range(7)]
    root = ElementTree.fromstring(str(figure.svg("f")))
    assert not [e for e in root.iter() if e.tag.endswith(("script", "i"))]
    assert [e.get("tabindex") for e in root.iter() if e.get("role") == "listitem"] == ["0"] + ["-1"] * 6
    numbers = [float(v) for e in root.iter() for k, v in e.items() if k in {"x", "y", "cx", "cy", "x1", "y2"}]
    assert all(math.isfinite(v) for v in numbers)


def test_axes_place_values_between_their_ends() -> None:
    assert Axis("x", 0.0, 2.0).place(1.0) == 0.5
    assert Axis("x", 1.0, 100.0, log=True).place(10.0) == pytest.approx(0.5)
    assert Axis("x", 1.0, 100.0, log=True, reverse=True).place(100.0) == 0.0
    assert Axis("x", 0.0, 1.0).place(7.0) == 1.0
    assert Axis("x", 3.0, 3.0).place(3.0) == 0.0
    assert Axis("x", 0.01, 1.0, log=True).ticks()[0] == pytest.approx(0.01)


def test_ends_hold_all_values() -> None:
    low, high = around([0.5, 0.9])
    assert low < 0.5 < 0.9 < high
    assert around([2.0, 2.0], log=True)[0] < 2 < around([2.0], log=True)[1]


def test_numbers_are_short() -> None:
    assert [number(v) for v in (0.05, 2.5e6, 0.0)] == ["0.05", "2.5·10⁶", "0"]


def point(name: str, leak: float, accuracy: float, bound: float | None = None) -> Point:
    found = Measured(leak, max(0.0, leak - 0.01), leak + 0.01, 1, 100, 1 / 64, bound)
    return Point(
        name,
        {"name": name},
        {"accuracy": Measured(accuracy, accuracy - 0.02, accuracy + 0.02, 1)},
        {"one-of-n/identified": found},
        None,
    )


def test_the_verdict_says_proven_only_of_what_is() -> None:
    goal = Goal("one-of-n/identified", ceiling=0.05)
    open_point = point("none", 0.99, 0.9)
    proven, estimate = point("a", 0.03, 0.88, bound=0.035), point("b", 0.03, 0.88, bound=0.2)
    assert "proven for every attack" in verdict([open_point, proven], proven, goal)[1]
    told = verdict([open_point, estimate], estimate, goal)
    assert "an estimate" in told[1]
    assert "99%" in told[0]
    assert "nothing is guaranteed" in told[2].lower()


def test_no_setting_that_keeps_the_rule_is_said_plainly() -> None:
    told = verdict([point("none", 0.99, 0.9)], None, Goal("one-of-n/identified", ceiling=0.05))
    assert "do not release with any of them" in told[1]


def test_exposure_is_drawn_against_copies_with_chance_and_bound() -> None:
    rows = [
        {"copies": copies, "mean": mean, "low": mean - 0.5, "high": mean + 0.5, "chance": 1.44, "bound": bound}
        for copies, mean, bound in ((1, 1.7, 3.0), (10, 3.7, 3.0), (100, 7.8, 3.0))
    ]
    details = {"attacks": {"exposure": {"details": {"exposure": rows}}, "loss": {}}}
    trial = Trial(settings={}, seed=0, utility={}, details=details)
    exposed = dataclasses.replace(point("dp-sgd", 0.1, 0.9), trials=(trial,))
    figure = exposure_by_copies([exposed])
    assert figure is not None and {line.style for line in figure.lines} == {"chance", "solid", "bound"}
    assert [mark.y for mark in figure.marks] == [1.7, 3.7, 7.8] and figure.y.high > 8.3
    ElementTree.fromstring(str(figure.svg("e")))
    bare = dataclasses.replace(exposed, trials=(dataclasses.replace(trial, details={}),))
    assert exposure_by_copies([bare]) is None


def test_the_axis_of_a_leakage_in_bits_is_longer_than_one() -> None:
    name = "one-of-n/identified"
    assert most_of([point("a", 0.3, 0.9)], name) == 1.0
    assert most_of([point("a", 7.0, 0.9)], name) > 7.01


@pytest.mark.parametrize("utility", ["perplexity", "mean_squared_error"])
@pytest.mark.parametrize("values", [(144.0, 131.0), (31000.0, 20.0)], ids=["near", "far"])
def test_utilities_above_1_are_plotted(utility: str, values: tuple[float, float]) -> None:
    points = [
        Point(name, {"name": name}, {utility: Measured(v, 0.9 * v, 1.1 * v, 1, 100, v)}, {"min-k/auc": leak}, None)
        for name, v, leak in zip("ab", values, (Measured(0.5, 0.4, 0.6, 1), Measured(0.6, 0.5, 0.7, 1)), strict=True)
    ]
    figure = utility_against_leakage(points, "min-k/auc", utility, None, 0.9)
    assert "lower left" in figure.title and figure.y.log is (values[0] > 10 * values[1])
    assert all(0 < figure.y.place(mark.y_low) < figure.y.place(mark.y_high) < 1 for mark in figure.marks)
    ElementTree.fromstring(str(figure.svg("f")))
