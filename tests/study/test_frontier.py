from __future__ import annotations

from dataclasses import replace

import pytest

from discreet.core.errors import SettingError
from discreet.core.randomness import Rng
from discreet.core.types import Leakage, Trial
from discreet.study.file import Goal
from discreet.study.frontier import (
    Measured,
    best,
    frontier,
    keeps_floor,
    over_seeds,
    points_of,
    safe_limit,
    well_behaved,
)


def trial(name: str, epsilon: float, leak: float, accuracy: float, seed: int = 0, bound: float | None = None) -> Trial:
    return Trial(
        settings={"protect": {"name": name, "epsilon": epsilon}},
        seed=seed,
        utility={"accuracy": accuracy},
        leakages=(Leakage("a/m", leak, max(0.0, leak - 0.05), min(1.0, leak + 0.05), 100, 0.01),),
        details={"evaluated_rows": 200, "bounds": {} if bound is None else {"a/m": bound}},
    )


TRIALS = [
    trial("none", 99, 1.0, 0.9),
    trial("x", 8, 0.5, 0.85),
    trial("x", 1, 0.1, 0.7),
    trial("y", 3, 0.5, 0.8),  # beaten by x at 8
    trial("y", 1, 0.04, 0.6, bound=0.08),
]


def test_the_frontier_holds_what_nobody_beats() -> None:
    found = frontier(points_of(TRIALS), "a/m", "accuracy")
    assert [point.label for point in found] == ["y, epsilon 1", "x, epsilon 1", "x, epsilon 8", "none, epsilon 99"]


def test_the_best_keeps_the_upper_limit_under_the_ceiling() -> None:
    points = points_of(TRIALS)
    found = best(points, Goal("a/m", ceiling=0.16), "accuracy")
    assert found is not None
    assert found.label == "x, epsilon 1"
    # 0.10 is under 0.12 but its upper limit is not; y's bound is
    found = best(points, Goal("a/m", ceiling=0.12), "accuracy")
    assert found is not None
    assert found.label == "y, epsilon 1"
    assert best(points, Goal("a/m", ceiling=0.01), "accuracy") is None


def test_a_floor_asks_for_the_least_leakage_above_it() -> None:
    found = best(points_of(TRIALS), Goal("a/m", floor=0.78), "accuracy")
    assert found is not None
    assert found.label == "x, epsilon 8"


def test_an_unknown_metric_is_refused() -> None:
    with pytest.raises(SettingError, match="Did you mean 'a/m'"):
        best(points_of(TRIALS), Goal("a/mm", ceiling=0.5), "accuracy")


def test_seeds_are_put_together_with_their_spread() -> None:
    points = points_of([trial("x", 1, leak, 0.8, seed) for seed, leak in enumerate((0.1, 0.2, 0.6))])
    assert len(points) == 1
    found = points[0].leakage["a/m"]
    assert found.value == pytest.approx(0.3)
    assert found.low == 0.0
    assert found.high > 0.6
    assert (found.seeds, found.n) == (3, 300)


def test_three_equal_seeds_keep_the_spread_within_one() -> None:
    mean, low, high = over_seeds([0.5, 0.5, 0.5], [(0.4, 0.6)] * 3)
    assert (mean, low, high) == pytest.approx((0.5, 0.4, 0.6))


def test_a_bound_limits_what_was_measured() -> None:
    assert safe_limit(Measured(0.1, 0.0, 0.3, 1, bound=0.2)) == 0.2
    assert safe_limit(Measured(0.1, 0.0, 0.3, 1)) == 0.3


def test_a_goal_whose_attack_was_not_run_is_refused_with_the_reason() -> None:
    why = "Expected examples=8 at most 7. Ask for fewer (examples)."
    bare = replace(TRIALS[1], leakages=(), details={"evaluated_rows": 200, "not_attacked": {"a": why}})
    with pytest.raises(SettingError, match=r"they measured nothing\), got 'a/m'. a was not run: Expected examples=8"):
        best(points_of([bare]), Goal("a/m", ceiling=0.1), "accuracy")
    with pytest.raises(SettingError, match=r"measured in the trials \(a/m"):
        best(points_of(TRIALS), Goal("b/m", ceiling=0.1), "accuracy")


NOISES = [0.1, 0.2, 0.5, 1.0, 2.0]


def curve(values: list[float], half: float = 0.02) -> list[Measured]:
    return [Measured(value, value - half, value + half, 1) for value in values]


def test_a_steady_fall_is_well_behaved() -> None:
    found = well_behaved(NOISES, curve([0.9, 0.6, 0.3, 0.15, 0.05]), rng=Rng(0))
    assert found.correlation == pytest.approx(-1)
    assert found.steady


def test_a_significant_rise_is_counted_and_a_small_one_is_not() -> None:
    rising = well_behaved(NOISES, curve([0.9, 0.3, 0.6, 0.15, 0.05]), rng=Rng(0))
    assert (rising.inversions, rising.steady) == (1, False)
    noisy = well_behaved(NOISES, curve([0.9, 0.60, 0.61, 0.15, 0.05]), rng=Rng(0))
    assert noisy.inversions == 0


def test_a_flat_curve_says_nothing() -> None:
    found = well_behaved(NOISES, curve([0.50, 0.51, 0.49, 0.5, 0.5], half=0.1), rng=Rng(0))
    assert found.low < 0 < found.high
    assert not found.steady


def test_two_points_are_too_few() -> None:
    with pytest.raises(SettingError, match="at least 3"):
        well_behaved([1, 2], curve([0.5, 0.4]), rng=Rng(0))


@pytest.mark.parametrize("metric", ["perplexity", "mean_squared_error"])
def test_of_two_losses_the_smaller_is_better(metric: str) -> None:
    trials = [replace(one, utility={metric: 1 - one.utility["accuracy"]}) for one in TRIALS]
    points = points_of(trials)
    assert [point.label for point in frontier(points, "a/m", metric)] == [
        "y, epsilon 1", "x, epsilon 1", "x, epsilon 8", "none, epsilon 99",
    ]  # fmt: skip
    found = best(points, Goal("a/m", ceiling=0.16), metric)
    assert found is not None and found.label == "x, epsilon 1"
    goal = Goal("a/m", floor=0.22)
    found = best(points, goal, metric)
    assert found is not None and found.label == "x, epsilon 8"
    kept = [point for point in points if keeps_floor(point, goal, metric)]
    assert found in kept and all(point.utility[metric].high <= 0.22 for point in kept) and len(kept) < len(points)
