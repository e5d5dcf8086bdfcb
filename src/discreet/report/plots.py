"""The figures of a report: utility against leakage, leakage against noise, trade-off curves, epsilon over training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from discreet.core.guarantee import in_digits
from discreet.report.figures import Axis, Figure, Line, Mark, around
from discreet.report.words import at_most, interval, metric_words, of_rows
from discreet.study.frontier import Point, frontier

# Strengths that protect less the larger they are: their axis runs backwards, so that noise grows to the right.
LESS_IS_MORE = {"epsilon", "epsilon_per_word", "kappa", "true_positive_rate"}


def series_of(points: Sequence[Point]) -> dict[str, int]:
    """Return a number for every protection, which gives it its shape and colour everywhere."""
    return {name: number for number, name in enumerate(dict.fromkeys(point.name for point in points))}


def plane(points: Sequence[Point], leakage: str, utility: str, chosen: Point | None, ceiling: float | None) -> Figure:
    """Return utility against leakage for all settings, with the frontier and the ceiling."""
    known = [p for p in points if leakage in p.leakage and utility in p.utility]
    number = series_of(points)
    ys = [v for p in known for v in (p.utility[utility].low, p.utility[utility].high)]
    levels = [level for p in known if (level := p.utility[utility].chance) is not None]
    ys += levels
    low, high = around(ys or [0.0, 1.0], least=0.02)
    figure = Figure(
        f"{utility} against {metric_words(leakage)}; the upper left corner is best",
        Axis("leakage", 0.0, 1.0),  # of what stands above the figure, and does not fit under a narrow one
        Axis(utility, max(low, 0.0) if min(ys or [0.0]) >= 0 else low, min(high, 1.0)),
    )
    if ceiling is not None:
        ends = ((ceiling, figure.y.low), (ceiling, figure.y.high))
        figure.lines.append(Line(ends, style="limit", words=f"ceiling {ceiling:g}"))
    if levels:
        level = sum(levels) / len(levels)
        figure.lines.append(Line(((0.0, level), (1.0, level)), None, "chance", f"constant answer {level:.3f}"))
    best = frontier(known, leakage, utility)
    if len(best) > 1:
        steps: list[tuple[float, float]] = []
        for point in best:
            at = (point.leakage[leakage].value, point.utility[utility].value)
            if steps:
                steps.append((at[0], steps[-1][1]))
            steps.append(at)
        figure.lines.append(Line(tuple(steps), style="frontier", words="frontier: nothing tried is better in both"))
    for p in known:
        found, useful = p.leakage[leakage], p.utility[utility]
        words = f"{p.label}: {utility} {interval(useful)} ({of_rows(useful, utility)}), leakage {interval(found)}"
        if found.bound is not None:
            words += f", proven at most {at_most(found.bound)}"
        figure.marks.append(
            Mark(
                found.value,
                useful.value,
                words + (", recommended" if p is chosen else ""),
                number[p.name],
                found.low,
                found.high,
                useful.low,
                useful.high,
                chosen=p is chosen,
            )
        )
    return figure


def noise_curves(points: Sequence[Point], leakage: str) -> list[tuple[str, Figure]]:
    """Return leakage against strength for every protection with at least two, bounds beside what was measured.

    Where a study has several of one protection, such as two mechanisms, each has its own.
    """
    number, found = {p.variant or p.name: series_of(points)[p.name] for p in points}, []
    for name in number:
        mine = [(at, p) for p in strengths(points, name) if leakage in p.leakage and (at := noise_of(p)) is not None]
        axes = {at[0] for at, _ in mine}
        if len(axes) != 1 or len({at[1] for at, _ in mine}) < 2:
            continue
        rows = sorted(((at[1], p) for at, p in mine), key=lambda row: row[0])
        axis = axes.pop()
        positive = rows[0][0] > 0
        low, high = around([x for x, _ in rows], log=positive)
        figure = Figure(
            f"{metric_words(leakage)} against {axis} of {name}",
            Axis(f"{axis.replace('_', ' ')} (more noise to the right)", low, high, positive, axis in LESS_IS_MORE),
            Axis("leakage", 0.0, 1.0),
        )
        bounds = [(x, p.leakage[leakage].bound) for x, p in rows]
        proven = tuple((x, b) for x, b in bounds if b is not None)
        if len(proven) > 1:
            figure.lines.append(Line(proven, number[name], "bound", "certified bound: no attack does better"))
        figure.lines.append(Line(tuple((x, p.leakage[leakage].value) for x, p in rows), number[name], "solid"))
        chances = [c for _, p in rows if (c := p.leakage[leakage].chance) is not None]
        if chances:
            level = sum(chances) / len(chances)
            figure.lines.append(Line(((rows[0][0], level), (rows[-1][0], level)), None, "chance", "blind guessing"))
        for x, p in rows:
            value = p.leakage[leakage]
            words = f"{p.label}: leakage {interval(value)}"
            if value.bound is not None:
                words += f", proven at most {at_most(value.bound)}"
            figure.marks.append(Mark(x, value.value, words, number[name], y_low=value.low, y_high=value.high))
        found.append((name, figure))
    return found


def strengths(points: Sequence[Point], variant: str) -> list[Point]:
    """Return the settings that differ in their strength alone."""
    return [point for point in points if (point.variant or point.name) == variant]


def noise_of(point: Point) -> tuple[str, float] | None:
    """Return what the noise of a setting was: as it was solved for, if an epsilon was asked for."""
    solved = point.trials[0].details.get("protection") if point.trials else None
    for name in ("noise_multiplier", "kappa", "std", "scale"):
        if isinstance(solved, dict) and isinstance(solved.get(name), int | float):
            return name, float(solved[name])
    return point.strength


def trade_offs(points: Sequence[Point]) -> Figure | None:
    """Return what a membership test on the loss reaches against what is proven that none can exceed."""
    number = series_of(points)
    figure = Figure(
        "members found against false alarms",
        Axis("false alarms (share of strangers accused)", 0.001, 1.0, log=True),
        Axis("members found", 0.0, 1.0),
        [Line(tuple((x, x) for x in _SWEEP), None, "chance", "blind guessing")],
    )
    for point in points[:12]:
        curve: dict[str, Any] = point.trials[0].details.get("roc") or {}
        if not curve:
            continue
        rates = [float(x) for x in curve["false_alarms"]]
        measured = [(x, *map(float, row)) for x, row in zip(rates, curve["measured"], strict=True) if row is not None]
        figure.lines.append(Line(tuple((x, value) for x, value, _, _ in measured), number[point.name]))
        if curve.get("bound"):
            bound = tuple(zip(rates, map(float, curve["bound"]), strict=True))
            figure.lines.append(Line(bound, number[point.name], "bound", f"{point.label}: proven for every test"))
        for x, value, low, high in measured:
            if x in (0.001, 0.01, 0.1, 0.5):
                spread = f"[{100 * low:.1f}, {100 * high:.1f}]"
                words = f"{point.label}: at {100 * x:g}% false alarms {100 * value:.1f}% found {spread}"
                if curve.get("bound"):
                    words += f", proven at most {at_most(100 * curve['bound'][rates.index(x)], 1)}%"
                figure.marks.append(Mark(x, value, words, number[point.name], y_low=low, y_high=high))
    return figure if figure.marks else None


_SWEEP = tuple(10 ** (-3 + i / 10) for i in range(31))


def spending(points: Sequence[Point]) -> Figure | None:
    """Return epsilon spent over the steps of training."""
    number = series_of(points)
    rows: list[tuple[Point, list[tuple[float, float]]]] = []
    for point in points[:12]:
        told = point.trials[0].details.get("epsilon_over_training") or []
        kept = [(float(step), float(value)) for step, value in told if value is not None and math.isfinite(value)]
        if len(kept) > 1:
            rows.append((point, kept))
    if not rows:
        return None
    largest = max(value for _, kept in rows for _, value in kept)
    least = min(value for _, kept in rows for _, value in kept if value > 0)
    log = largest > 30 * least
    figure = Figure(
        "epsilon spent over training",
        Axis("step", 0.0, max(kept[-1][0] for _, kept in rows)),
        Axis("epsilon spent", least / 1.2 if log else 0.0, largest * 1.08, log),
    )
    for point, kept in rows:
        figure.lines.append(Line(tuple(kept), number[point.name], "solid", point.label))
        step, value = kept[-1]
        adjacency = point.guarantee.adjacency if point.guarantee is not None else ""
        figure.marks.append(
            Mark(
                step,
                value,
                f"{point.label}: epsilon {in_digits(value, 3)} after {step:g} steps ({adjacency})",
                number[point.name],
            )
        )
    return figure
